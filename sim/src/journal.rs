//! What happened, as small values: their running hash proves that two runs are the same, the newest
//! of them explain a violation.

use std::collections::VecDeque;
use std::hash::{Hash, Hasher};

use protocol::time::Timestamp;
use protocol::units::{MilliCpu, Resources};

/// Notes kept for the report of a violation.
const KEPT: usize = 2_000;

/// A part of the system that can crash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Part {
    /// The agent of a node.
    Agent(usize),
    /// A replica of the scheduler, by number from 0.
    Scheduler(usize),
    /// The one controller, with its tasks for all VMs.
    Controller,
    /// The runner of a VM; its QEMU goes on.
    Runner(usize),
    /// The monitor in a VM's guest.
    Monitor(usize),
}

/// One thing that happened. VMs and nodes by number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(
    missing_docs,
    reason = "the names say it; they are printed as they are"
)]
pub enum Note {
    Crash(Part),
    Start(Part),
    Storm,
    Calm,
    Fault(&'static str, usize),
    Load {
        vm: usize,
        milli: u32,
        mib: u64,
    },
    AgentManages {
        vm: usize,
        desk: u64,
    },
    AgentLetsGo {
        vm: usize,
    },
    Asks {
        vm: usize,
        last: Option<Resources>,
        asked: Resources,
    },
    Permitted {
        vm: usize,
        permit: Resources,
    },
    Refused {
        vm: usize,
        status: u16,
    },
    PermitReaches {
        vm: usize,
        permit: Option<Resources>,
    },
    Writes {
        vm: usize,
        approved: Resources,
    },
    Patches {
        vm: usize,
        target: Resources,
    },
    Patched {
        vm: usize,
        size: Resources,
    },
    PatchEnds {
        vm: usize,
        worked: bool,
    },
    AsksMonitor {
        vm: usize,
        target: Resources,
    },
    TellsMonitor {
        vm: usize,
        target: Resources,
    },
    MonitorSays {
        vm: usize,
        allowed: bool,
    },
    MonitorWants {
        vm: usize,
    },
    MonitorUp {
        vm: usize,
        connection: u64,
    },
    MonitorDown {
        vm: usize,
        connection: u64,
    },
    Orders {
        vm: usize,
        size: Resources,
    },
    Memory {
        vm: usize,
        plugged: u64,
        requested: u64,
    },
    Boots {
        vm: usize,
        machine: u64,
    },
    Ends {
        vm: usize,
        machine: u64,
    },
    Bound {
        vm: usize,
        node: usize,
    },
    PodMade {
        vm: usize,
        uid: u64,
    },
    PodToGo {
        vm: usize,
        uid: u64,
    },
    ApiRefused(&'static str, u16),
    Step(&'static str, usize),
    PlugsAhead {
        vm: usize,
        cpu: MilliCpu,
    },
    Requests {
        vm: usize,
        size: Resources,
    },
    Quota {
        vm: usize,
        cpu: MilliCpu,
    },
}

/// FNV-1a: no secret to keep, only a difference to show.
struct Fnv(u64);

impl Hasher for Fnv {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01B3);
        }
    }
}

/// See the module.
#[derive(Debug)]
pub struct Journal {
    hash: u64,
    kept: VecDeque<(u64, Timestamp, Note)>,
}

impl Default for Journal {
    fn default() -> Self {
        Self {
            hash: 0xCBF2_9CE4_8422_2325,
            kept: VecDeque::new(),
        }
    }
}

impl Journal {
    /// Notes something. Plain steps go into the hash only.
    pub fn note(&mut self, step: u64, now: Timestamp, note: Note) {
        let mut hasher = Fnv(self.hash);
        (now.0, note).hash(&mut hasher);
        self.hash = hasher.finish();
        if matches!(note, Note::Step(..)) {
            return;
        }
        if self.kept.len() == KEPT {
            self.kept.pop_front();
        }
        self.kept.push_back((step, now, note));
    }

    /// Names everything that happened so far.
    #[must_use]
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// The newest notes, oldest first; those of one VM and of no VM in particular if `vm` is given.
    #[must_use]
    pub fn lines(&self, vm: Option<usize>, most: usize) -> Vec<String> {
        let about = |note: &Note| vm.is_none_or(|vm| note.vm().is_none_or(|of| of == vm));
        let wanted: Vec<_> = self
            .kept
            .iter()
            .filter(|(_, _, note)| about(note))
            .collect();
        let skipped = wanted.len().saturating_sub(most);
        let line = |(step, at, note): &&(u64, Timestamp, Note)| {
            format!(
                "{step:>9}  {:>12.6} s  {note:?}",
                at.since(Timestamp(0)).as_secs_f64()
            )
        };
        wanted.iter().skip(skipped).map(line).collect()
    }
}

impl Note {
    fn vm(&self) -> Option<usize> {
        Some(match self {
            Self::Load { vm, .. }
            | Self::AgentManages { vm, .. }
            | Self::AgentLetsGo { vm }
            | Self::Asks { vm, .. }
            | Self::Permitted { vm, .. }
            | Self::Refused { vm, .. }
            | Self::PermitReaches { vm, .. }
            | Self::Writes { vm, .. }
            | Self::Patches { vm, .. }
            | Self::Patched { vm, .. }
            | Self::PatchEnds { vm, .. }
            | Self::AsksMonitor { vm, .. }
            | Self::TellsMonitor { vm, .. }
            | Self::MonitorSays { vm, .. }
            | Self::MonitorWants { vm }
            | Self::MonitorUp { vm, .. }
            | Self::MonitorDown { vm, .. }
            | Self::Orders { vm, .. }
            | Self::Memory { vm, .. }
            | Self::Boots { vm, .. }
            | Self::Ends { vm, .. }
            | Self::Bound { vm, .. }
            | Self::PodMade { vm, .. }
            | Self::PodToGo { vm, .. }
            | Self::PlugsAhead { vm, .. }
            | Self::Requests { vm, .. }
            | Self::Quota { vm, .. }
            | Self::Crash(Part::Runner(vm) | Part::Monitor(vm))
            | Self::Start(Part::Runner(vm) | Part::Monitor(vm)) => *vm,
            _ => return None,
        })
    }
}
