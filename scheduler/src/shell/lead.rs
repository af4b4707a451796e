//! The election: our own by a Lease, or the one of a kube-scheduler beside this process, whose
//! Lease is only watched.

use std::time::Duration;

use daemon_kit::clock::Clock;
use kube::Client;
pub use leader_election::{ANNOTATION_DRAINED, LeaseName};
use leader_election::{Follower, LeaseObserver};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::driver::Input;
use super::metrics::Metrics;
use crate::core::elect::{ElectRule, Leave};
use crate::core::event::Event;
use crate::core::lease::{LeaseRule, LeaseSeen};

/// How this process learns whether it leads.
#[derive(Debug, Clone)]
pub enum Leadership {
    /// There is no other replica. It always leads.
    Alone,
    /// This process takes part in an election of its own.
    Elected(LeaseName, ElectRule),
    /// A kube-scheduler on this host takes part; the Lease is only watched.
    Followed(LeaseName, LeaseRule),
}

impl Leadership {
    /// The rule by which the core judges the Lease. `None` without other replicas.
    #[must_use]
    pub fn rule(&self) -> Option<LeaseRule> {
        match self {
            Self::Alone => None,
            Self::Elected(_, rule) => Some(rule.lease_rule()),
            Self::Followed(_, rule) => Some(rule.clone()),
        }
    }

    /// Whether a leader leaves a hand-over on the Lease. It cannot on a kube-scheduler's Lease.
    #[must_use]
    pub const fn hands_over(&self) -> bool {
        matches!(self, Self::Elected(..))
    }
}

/// The task that follows a Lease.
pub(super) struct LeaseTask {
    pub(super) client: Client,
    pub(super) inputs: mpsc::Sender<Input>,
    pub(super) metrics: Metrics,
    pub(super) clock: Clock,
    /// Time-out of one API call.
    pub(super) timeout: Duration,
    /// Field manager of writes.
    pub(super) writer: String,
}

/// Passes observations of the Lease to the core.
struct CoreObserver {
    inputs: mpsc::Sender<Input>,
    metrics: Metrics,
}

impl LeaseObserver for CoreObserver {
    async fn seen(&self, seen: LeaseSeen) {
        // The driver ends last.
        let event = Input::Event(Event::Lease(seen));
        let _sent = self.inputs.send(event).await;
    }

    fn called(&self, verb: &'static str, failure: Option<&str>) {
        match failure {
            None => self.metrics.k8s_op_done((verb, "Lease")),
            Some(failure) => self.metrics.k8s_op_failed((verb, "Lease"), failure),
        }
    }

    fn watched(&self, is_failing: bool) {
        self.metrics.watches.failing("Leases", is_failing);
    }
}

impl LeaseTask {
    /// Runs until `cancel`, or until the Lease is released after `leave`.
    pub(super) async fn run(
        self,
        leadership: Leadership,
        leave: oneshot::Receiver<Leave>,
        cancel: CancellationToken,
    ) {
        let follower = Follower {
            client: self.client,
            clock: self.clock,
            timeout: self.timeout,
            writer: self.writer,
            observer: CoreObserver {
                inputs: self.inputs,
                metrics: self.metrics,
            },
        };
        let following = async {
            match leadership {
                Leadership::Alone => drop(leave.await),
                Leadership::Elected(lease, rule) => follower.elect(&lease, rule, leave).await,
                Leadership::Followed(lease, rule) => {
                    tokio::select! {
                        () = follower.watch(&lease, rule.settle) => {}
                        // kube-scheduler releases its own Lease.
                        _ = leave => {}
                    }
                }
            }
        };
        tokio::select! {
            () = cancel.cancelled() => {}
            () = following => {}
        }
    }
}
