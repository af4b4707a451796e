//! The election: our own by a Lease, or the one of a kube-scheduler beside this process, whose
//! Lease is only watched.

use std::time::Duration;

pub use leader_election::{ANNOTATION_DRAINED, LeaseName};
use leader_election::{Follower, LeaseObserver};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::api::ApiContext;
use super::driver::Input;
use super::metrics::Metrics;
use crate::core::elect::{ElectRule, Leave};
use crate::core::event::Event;
use crate::core::lease::{LeaseRule, LeaseSeen};

/// Longest wait for calls in flight before the Lease is released, and for its release.
const HAND_OVER: Duration = Duration::from_secs(3);

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

/// The task that follows the Lease, and the channel that makes it release the Lease.
pub(super) struct Lead {
    pub(super) task: JoinHandle<()>,
    leave: oneshot::Sender<Leave>,
}

impl Lead {
    /// Starts the task. It runs until `cancel`, or until it has released the Lease.
    pub(super) fn follow(
        context: &ApiContext,
        inputs: mpsc::Sender<Input>,
        leadership: Leadership,
        cancel: CancellationToken,
    ) -> Self {
        let follower = Follower {
            client: context.client.clone(),
            clock: context.clock,
            timeout: context.timeout,
            writer: context.reporter.clone(),
            observer: CoreObserver {
                inputs,
                metrics: context.metrics.clone(),
            },
        };
        let (leave, leave_requests) = oneshot::channel();
        let task = tokio::spawn(run(follower, leadership, leave_requests, cancel));
        Self { task, leave }
    }

    /// Waits for calls in flight and releases the Lease, so that the next leader need not wait for
    /// it to expire. If either takes too long, the Lease expires.
    pub(super) async fn hand_over(self, inputs: &mpsc::Sender<Input>) {
        let (done, drained) = oneshot::channel();
        let retired = async {
            inputs.send(Input::Retire(done)).await.ok()?;
            drained.await.ok()
        };
        let leave = tokio::time::timeout(HAND_OVER, retired).await;
        let leave = leave.ok().flatten().unwrap_or_default();
        if self.leave.send(leave).is_ok()
            && tokio::time::timeout(HAND_OVER, self.task).await.is_err()
        {
            tracing::warn!("failed to release the Lease; it will expire");
        }
    }
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

/// Runs until `cancel`, or until the Lease is released after `leave`.
async fn run(
    follower: Follower<CoreObserver>,
    leadership: Leadership,
    leave: oneshot::Receiver<Leave>,
    cancel: CancellationToken,
) {
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
