//! How a seed ends, and what a checker must see.

use std::collections::BTreeMap;
use std::fmt;

/// What must not be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Broken {
    /// Two QEMUs run one VM's guest.
    TwoGuests {
        /// Number of the VM, from 0.
        vm: usize,
    },
    /// A VM started again though no QEMU of it was killed.
    LostGuest {
        /// Number of the VM, from 0.
        vm: usize,
    },
    /// A pod was bound to a node that has no room for it.
    Overcommitted {
        /// Name of the pod whose binding filled the node past its room.
        pod: String,
    },
    /// The world did not converge after the fault phase.
    Unsettled {
        /// Sentence that names the VM or migration, and its state.
        what: String,
    },
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TwoGuests { vm } => write!(f, "VM {vm} has two guests that run"),
            Self::LostGuest { vm } => {
                write!(f, "the guest of VM {vm} is lost, and nobody killed it")
            }
            Self::Overcommitted { pod } => write!(f, "pod {pod} was bound where there is no room"),
            Self::Unsettled { what } => write!(f, "not settled: {what}"),
        }
    }
}

/// How one seed ended.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Outcome {
    /// What broke, and at which step.
    pub broken: Option<(u64, Broken)>,
    /// Number of steps, those of the quiescent phase at the end included.
    pub steps: u64,
    /// Migrations that succeeded, failed, and were called off.
    pub moved: [u32; 3],
    /// Of them begun by the scheduler.
    pub by_scheduler: u32,
    /// Guests lost with a QEMU that was killed.
    pub lost: u32,
    /// Faults by name.
    pub faults: BTreeMap<&'static str, u32>,
}

/// A cheat that a checker must see.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cheat {
    /// A source does not stop its guest, and a target lets it run as soon as it is there.
    BeginUnasked,
    /// Pods are bound without asking for room.
    BindBlindly,
}
