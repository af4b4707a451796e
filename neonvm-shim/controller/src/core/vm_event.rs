//! Events of a VM, as data. The shell publishes them as Kubernetes events and counts them in
//! metrics.

use std::fmt;

use protocol::time::Span;
use protocol::units::Resources;
use protocol::vm::VmPhase;
use serde::Serialize;

use super::migration::reason::Reason;
use super::problem::Problem;

/// One thing that happened to a VM. The shell writes it as an event and counts it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "note", rename_all = "snake_case")]
pub enum VmEvent {
    /// The object is not of its kind's shape and is left alone.
    Unreadable {
        /// Member of `spec.tls` that is wrong, and why.
        why: String,
    },
    /// The runner pod was created.
    PodCreated {
        /// Name of the new pod.
        pod: String,
        /// From the creation of the VM, if this is its first pod.
        since_vm: Option<Span>,
    },
    /// The guest runs in a new pod.
    Running {
        /// Name of the runner's pod.
        pod: String,
        /// From the creation of the pod, if this is the VM's first.
        since_pod: Option<Span>,
        /// From the creation of the VM, if this is its first start.
        since_vm: Option<Span>,
    },
    /// A resize has ended at its new size.
    Scaled {
        /// Size the guest had when the resize began.
        from: Resources,
        /// Size the guest has now.
        to: Resources,
        /// Revision of the target size.
        revision: i64,
    },
    /// Something stands in the way.
    Problem {
        /// The problem that has begun. It is announced once, not at every plan.
        problem: Problem,
    },
    /// A finished VM is started again.
    Restarted {
        /// Phase in which the last pod ended.
        after: VmPhase,
        /// Number of restarts so far.
        count: i32,
    },
    /// The VM has no pod any more, because of its power state.
    Stopped,
    /// The VM gets a pod again, because its power state has changed.
    Started,
    /// The guest ended with success.
    Succeeded {
        /// Why, as far as known.
        reason: String,
    },
    /// The guest ended with a failure.
    Failed {
        /// Whether the pod failed or is gone, and with which exit of the guest where one is known.
        problem: Problem,
    },
    /// The guest is being sent to another pod.
    Migrating {
        /// The pod it is in.
        from: String,
        /// The pod it goes to.
        to: String,
    },
    /// It runs in another pod.
    Migrated {
        /// The pod it was in.
        from: String,
        /// The pod it is in.
        to: String,
        /// Milliseconds in all, by QEMU's account.
        total_ms: Option<u64>,
        /// Milliseconds of downtime, by QEMU's account.
        downtime_ms: Option<u64>,
        /// Milliseconds between its stop and its going on, where one clock saw both.
        pause_ms: Option<u64>,
    },
    /// The migration that claimed the VM is gone. The guest runs on in its pod.
    TakenBack {
        /// Name of the migration object.
        migration: String,
    },
    /// A migration ended without moving the guest.
    MigrationFailed {
        /// Why the migration was given up.
        reason: Reason,
    },
    /// The namespace admits no pod with privileges. The controller makes the pod without.
    Unprivileged,
    /// A change that breaks a rule was let pass, because the VM is excused.
    SkippedValidation {
        /// Text that names each broken rule; the event carries it as it is.
        broken: String,
    },
}

impl VmEvent {
    /// The `reason` of its event.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Unreadable { .. } => "Unreadable",
            Self::PodCreated { .. } => "PodCreated",
            Self::Running { .. } => "Running",
            Self::Scaled { .. } => "Scaled",
            Self::Problem {
                problem: Problem::Resize { .. },
            } => "ScalingStuck",
            Self::Problem { .. } => "Degraded",
            Self::Restarted { .. } => "Restarted",
            Self::Stopped => "Stopped",
            Self::Started => "Started",
            Self::Succeeded { .. } => "Succeeded",
            Self::Failed { .. } => "Failed",
            Self::Migrating { .. } => "Migrating",
            Self::Migrated { .. } => "Migrated",
            Self::TakenBack { .. } => "TakenBack",
            Self::MigrationFailed { .. } => "MigrationFailed",
            Self::SkippedValidation { .. } => "SkippedValidation",
            Self::Unprivileged => "Unprivileged",
        }
    }

    /// Whether its event is a warning.
    #[must_use]
    pub fn is_warning(&self) -> bool {
        matches!(
            self,
            Self::Problem { .. }
                | Self::Failed { .. }
                | Self::Unreadable { .. }
                | Self::TakenBack { .. }
                | Self::MigrationFailed { .. }
                | Self::SkippedValidation { .. }
        )
    }
}

impl fmt::Display for VmEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable { why } => write!(f, "left alone: {why}"),
            Self::PodCreated { pod, .. } => write!(f, "created pod {pod}"),
            Self::Running { pod, .. } => write!(f, "guest of pod {pod} runs"),
            Self::Scaled {
                from,
                to,
                revision: 0,
            } => write!(f, "scaled from {from} to {to}"),
            Self::Scaled { from, to, revision } => {
                write!(f, "scaled from {from} to {to} (revision {revision})")
            }
            Self::Problem { problem } | Self::Failed { problem } => problem.fmt(f),
            Self::Restarted { after, count } => {
                write!(f, "restart {count} after {}", after.as_str())
            }
            Self::Stopped => f.write_str("stopped on request; object and disk stay"),
            Self::Started => f.write_str("started on request"),
            Self::Succeeded { reason } if reason.is_empty() => f.write_str("guest has ended"),
            Self::Succeeded { reason } => write!(f, "guest has ended: {reason}"),
            Self::Migrating { from, to } => write!(f, "guest of pod {from} is sent to pod {to}"),
            Self::Migrated {
                from,
                to,
                total_ms,
                downtime_ms,
                ..
            } => {
                write!(f, "guest moved from pod {from} to pod {to}")?;
                match (total_ms, downtime_ms) {
                    (Some(total), Some(down)) => write!(f, " in {total} ms, downtime {down} ms"),
                    _ => Ok(()),
                }
            }
            Self::TakenBack { migration } => {
                write!(f, "taken for migration {migration}, which is gone")
            }
            Self::MigrationFailed { reason } => write!(f, "migration failed: {reason}"),
            Self::SkippedValidation { broken } => f.write_str(broken),
            Self::Unprivileged => f.write_str(
                "its namespace admits no pod with privileges: the guest gets QEMU's own network, and its pod's CPU limit in place \
                 of a quota",
            ),
        }
    }
}
