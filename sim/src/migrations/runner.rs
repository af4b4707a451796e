//! Nodes, runners and QEMUs: the two shipped cores of a move, over QEMUs made up here.
//!
//! A QEMU does what its lab notes say of the real one: it stops its guest when all is sent, goes on
//! by itself when the stream breaks before, and not after; a receiving one is stopped until it is
//! told to go on.

mod nodes;
mod orders;
mod qemus;
mod runners;

use neonvm_runner::core::transfer::{Arrival, Incoming, Leaving, Outgoing};
use protocol::migration::{Destination, IncomingReport, IncomingStage};
use protocol::runner::{
    CpuState, ExitReason, ExitReport, MemoryState, QuotaState, RunnerPhase, RunnerState,
};
use protocol::units::{Bytes, MilliCpu};

#[derive(Debug, Clone)]
struct Qemu {
    migration: &'static str,
    run: &'static str,
    /// Whom it sends to.
    peer: Option<String>,
    /// All of the guest is in it.
    whole: bool,
}

/// A pod's directory, runner and QEMU.
#[derive(Debug, Clone)]
pub(crate) struct Machine {
    pub(crate) vm: String,
    uid: String,
    number: u16,
    qemu: Option<Qemu>,
    exit: Option<ExitReport>,
    /// The runner's process, and what it holds in memory.
    up: bool,
    outgoing: Option<Outgoing>,
    incoming: Option<Incoming>,
    /// What is written down.
    leaving: Option<Leaving>,
    arrival: Option<Arrival>,
    receives: bool,
    answers: bool,
    generation: u64,
}

impl Machine {
    /// Its guest runs.
    pub(crate) fn runs(&self) -> bool {
        self.qemu.as_ref().is_some_and(|qemu| qemu.run == "running")
    }

    /// Sizes stand still.
    pub(crate) fn is_held(&self) -> bool {
        self.outgoing.is_some() || self.leaving.is_some()
    }

    /// What its runner says, if it is there.
    pub(crate) fn state(&self) -> Option<RunnerState> {
        let waits = IncomingReport {
            id: String::new(),
            stage: IncomingStage::Waiting,
            destination: None,
            problem: None,
            began_unix_us: None,
        };
        let incoming = match &self.incoming {
            Some(incoming) => Some(incoming.report()),
            None => self.receives.then_some(waits),
        };
        let cpu = MilliCpu(1000);
        self.up.then(|| RunnerState {
            generation: self.generation,
            phase: match (&self.exit, self.answers) {
                (Some(_), _) => RunnerPhase::Exited,
                (None, true) => RunnerPhase::Running,
                (None, false) if self.receives => RunnerPhase::Receiving,
                (None, false) => RunnerPhase::Booting,
            },
            qemu_pid: None,
            qemu_version: None,
            accel: "kvm".into(),
            boot_id: None,
            guest_kernel: None,
            boot_ms: None,
            cpus: CpuState {
                limit: cpu,
                plugged: 1,
                guest_online: Some(1),
                ahead: None,
            },
            memory: MemoryState {
                base: Bytes::gib(1),
                ..MemoryState::default()
            },
            resize: None,
            orders: None,
            exit: self.exit.clone(),
            quota: QuotaState::Unset,
            outgoing: self.outgoing.as_ref().map(Outgoing::report),
            incoming,
            guest_silent: None,
            programs: Vec::new(),
            guest_parts: std::collections::BTreeMap::new(),
            disk_full: None,
        })
    }

    fn end(&mut self, reason: ExitReason, success: bool) {
        self.qemu = None;
        self.answers = false;
        self.exit.get_or_insert(ExitReport {
            success,
            reason,
            code: None,
            message: String::new(),
        });
        self.generation += 1;
    }

    fn destination(&self) -> Destination {
        let [high, low] = self.number.to_be_bytes();
        Destination {
            stream: std::net::SocketAddrV4::new([127, 1, high, low].into(), 20187),
            disk: None,
            encrypted: false,
            sockets: None,
        }
    }
}
