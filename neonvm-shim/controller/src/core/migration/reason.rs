//! Why a migration waits or failed, as data; conditions and events print it.

use std::fmt;

use protocol::vm::VmPhase;
use serde::Serialize;

use super::kind::Kind;

/// Why a migration failed. The guest goes on in its pod, except where noted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Reason {
    /// There is no such VM.
    NoVm {
        /// Name in `spec.vmName` of the migration.
        vm: String,
    },
    /// The VM is being deleted.
    VmDeleted,
    /// The VM has disks on claims, which one pod writes at a time.
    DisksOnClaims {
        /// Names of the claims, the root disk's first.
        claims: Vec<String>,
    },
    /// The VM left its pod, or another client released the claim.
    VmChanged {
        /// Phase of the VM when the change was seen.
        phase: VmPhase,
    },
    /// It took longer than `completionTimeout`.
    TimedOut {
        /// That timeout in seconds. It counts from the creation of the migration while it waits for
        /// the VM, and from its beginning after that.
        after_s: u32,
    },
    /// The target pod ended, or its deletion was requested.
    TargetEnded {
        /// Name of the target pod.
        pod: String,
        /// Message of the pod; may be empty.
        why: String,
    },
    /// The target pod is gone.
    TargetGone {
        /// Name of the target pod.
        pod: String,
    },
    /// The target's runner could not take the guest.
    TargetRefused {
        /// The error that the target's runner reported.
        why: String,
    },
    /// The source could not send it.
    SourceRefused {
        /// The error that the source's runner reported.
        why: String,
    },
    /// The source ended before the guest had left it: the guest is lost, and started again by its
    /// restart policy.
    SourceEnded {
        /// Name of the source pod.
        pod: String,
        /// Message of the pod; may be empty.
        why: String,
    },
    /// The target ended after the guest was handed over: the guest is lost, and started again by
    /// its restart policy.
    LostAfterHandover {
        /// Name of the target pod.
        pod: String,
        /// Message of the pod; may be empty.
        why: String,
    },
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let because = |why: &str| {
            if why.is_empty() {
                String::new()
            } else {
                format!(": {why}")
            }
        };
        match self {
            Self::NoVm { vm } => write!(f, "VM {vm} does not exist"),
            Self::VmDeleted => f.write_str("the VM is being deleted"),
            Self::DisksOnClaims { claims } => write!(
                f,
                "the VM has disks on claims ({}), and one pod alone can write to a claim, so its \
                 guest cannot move while it runs: delete its pod, and the VM starts on a node \
                 where the claims can be mounted",
                claims.join(", ")
            ),
            Self::VmChanged { phase } => write!(
                f,
                "another client changed the VM, which is {}",
                phase.as_str()
            ),
            Self::TimedOut { after_s } => {
                write!(f, "not finished within completionTimeout ({after_s} s)")
            }
            Self::TargetEnded { pod, why } => {
                write!(f, "target pod {pod} ended{}", because(why))
            }
            Self::TargetGone { pod } => write!(f, "target pod {pod} is gone"),
            Self::TargetRefused { why } => {
                write!(f, "the target's runner refused the guest: {why}")
            }
            Self::SourceRefused { why } => {
                write!(f, "the source's runner failed to send the guest: {why}")
            }
            Self::SourceEnded { pod, why } => write!(
                f,
                "source pod {pod} ended before it had sent the guest{}",
                because(why)
            ),
            Self::LostAfterHandover { pod, why } => write!(
                f,
                "target pod {pod} ended after it had received the guest{}",
                because(why)
            ),
        }
    }
}

/// What delays a migration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Wait {
    /// Another migration of the VM is before it.
    Turn {
        /// Name of the migration whose turn it is.
        behind: String,
    },
    /// The VM must be Running: at rest, with the size it shall have.
    VmAtRest {
        /// Phase that the VM has instead.
        phase: VmPhase,
    },
    /// The target pod must be placed and start.
    Target {
        /// Name of the target pod.
        pod: String,
        /// Message of the scheduler, if the pod cannot be placed.
        why: String,
    },
    /// The runner has to respond.
    Runner {
        /// Name of the pod of that runner.
        pod: String,
        /// State of the runner, or that it is out of reach.
        why: String,
    },
    /// A peer refused an action, and the controller tries again.
    Refused {
        /// Kind of the action that was refused.
        action: Kind,
        /// Message of the refusal.
        why: String,
    },
}

impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Turn { behind } => write!(f, "waits for migration {behind} of the same VM"),
            Self::VmAtRest { phase } => write!(
                f,
                "waits until the VM is Running; it is {}",
                if *phase == VmPhase::New {
                    "new"
                } else {
                    phase.as_str()
                }
            ),
            Self::Target { pod, why } if why.is_empty() => {
                write!(f, "waits for target pod {pod} to start")
            }
            Self::Target { pod, why } => write!(f, "waits for target pod {pod} to start: {why}"),
            Self::Runner { pod, why } => write!(f, "waits for the runner of pod {pod}: {why}"),
            Self::Refused { action, why } => write!(f, "failed to {action}: {why}"),
        }
    }
}
