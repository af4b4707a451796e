//! Who leads: our own election through a Lease, or the one of a kube-scheduler beside us, which is
//! only watched.

use std::time::Duration;

use daemon_kit::clock::Clock;
use kube::Client;
pub use leader_election::{ANNOTATION_DRAINED, LeaseName};
use leader_election::{Follower, Witness};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::metrics::Metrics;
use super::owner::Command;
use crate::core::elect::{ElectRule, Leave};
use crate::core::event::Event;
use crate::core::lease::{LeaseRule, LeaseSeen};

/// How it is told whether this process leads.
#[derive(Debug, Clone)]
pub enum Leadership {
    /// There is no other replica: it always does.
    Alone,
    /// This process takes part in an election of its own.
    Elected(LeaseName, ElectRule),
    /// A kube-scheduler on this host takes part; the Lease is only watched.
    Followed(LeaseName, LeaseRule),
}

impl Leadership {
    /// What the core is told of it.
    #[must_use]
    pub fn rule(&self) -> Option<LeaseRule> {
        match self {
            Self::Alone => None,
            Self::Elected(_, rule) => Some(rule.lease_rule()),
            Self::Followed(_, rule) => Some(rule.clone()),
        }
    }

    /// Whether a leader can say to the next one what it has to know; on a kube-scheduler's Lease it
    /// cannot.
    #[must_use]
    pub const fn hands_over(&self) -> bool {
        matches!(self, Self::Elected(..))
    }
}

/// What is needed to follow a Lease.
pub(super) struct Following {
    pub(super) client: Client,
    pub(super) commands: mpsc::Sender<Command>,
    pub(super) metrics: Metrics,
    pub(super) clock: Clock,
    /// Time-out of one call.
    pub(super) timeout: Duration,
    /// Who writes, for the API's records.
    pub(super) writer: String,
}

/// Tells the core's owner.
struct Telling {
    commands: mpsc::Sender<Command>,
    metrics: Metrics,
}

impl Witness for Telling {
    async fn seen(&self, seen: LeaseSeen) {
        // The owner has gone only when everything ends.
        let event = Command::Happened(Event::Lease(seen));
        let _sent = self.commands.send(event).await;
    }

    fn called(&self, verb: &'static str, failure: Option<&str>) {
        match failure {
            None => self.metrics.k8s_op_done((verb, "Lease")),
            Some(failure) => self.metrics.k8s_op_failed((verb, "Lease"), failure),
        }
    }

    fn watched(&self, is_failing: bool) {
        self.metrics.watch_failing("Leases", is_failing);
    }
}

impl Following {
    /// Runs until `cancel`, or until `leave` has been answered by giving the Lease up.
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
            witness: Telling {
                commands: self.commands,
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
                        // What kube-scheduler holds is not ours to give up.
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
