//! Work that only the leader does.

use std::time::Duration;

use daemon_kit::clock::Clock;
use daemon_kit::driver::next_action;
use daemon_kit::exit::Exit;
use kube::Client;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::follower::{Follower, LeaseObserver};
use super::lease_object::LeaseName;
use crate::core::elect::{ElectRule, Leave};
use crate::core::lease::{Lead, LeaseSeen, Turn};

/// Capacity of the channel of observations. More than one waits only while this task does not run.
const SEEN_BOUND: usize = 16;
/// Longest wait for the release of the Lease. Without a release, another process takes it after its
/// duration.
const LEAVE_PATIENCE: Duration = Duration::from_secs(5);

/// The lead was lost during the work. Another process may do the work by now, so this one must end.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the Lease {namespace}/{name} was lost: it could not be renewed in time, or another process holds it"
)]
pub struct LostLead {
    namespace: String,
    name: String,
}

/// Exit code of a process that ends with this error: another replica goes on after a lost lead, and
/// anything else was missing.
#[must_use]
pub fn exit_of(error: &(dyn std::error::Error + 'static)) -> Exit {
    let mut causes = std::iter::successors(Some(error), |error| error.source());
    if causes.any(|cause| cause.is::<LostLead>()) {
        Exit::TryAgain
    } else {
        Exit::Dependency
    }
}

/// A Lease to hold while working, and the rule of the election.
#[derive(Clone)]
pub struct Led {
    /// Client of the API server.
    pub client: Client,
    /// The clock of this process.
    pub clock: Clock,
    /// The Lease to hold.
    pub lease: LeaseName,
    /// The name of this process in the election, and the durations.
    pub rule: ElectRule,
    /// Time-out of one API call.
    pub timeout: Duration,
    /// Field manager of writes.
    pub writer: String,
}

/// Forwards observations. The [`Follower`] logs calls.
struct ForwardToChannel(mpsc::Sender<LeaseSeen>);

impl LeaseObserver for ForwardToChannel {
    async fn seen(&self, seen: LeaseSeen) {
        // The receiver is dropped only when the process ends.
        let _sent = self.0.send(seen).await;
    }

    fn called(&self, _verb: &'static str, _failure: Option<&str>) {}

    fn watched(&self, _is_failing: bool) {}
}

/// Waits until this process leads, runs `work`, and releases the Lease. `work` must end after its
/// token is cancelled, which happens on `cancel` and on loss of the lead. Calls `on_turn` with true
/// when the lead begins and with false when it ends.
///
/// Returns the result of `work`, or `None` if `cancel` came before the lead.
///
/// # Errors
/// [`LostLead`]: the lead was lost and `work` has ended. The process should exit and start again.
pub async fn while_leading<T>(
    led: Led,
    cancel: CancellationToken,
    on_turn: impl Fn(bool),
    work: impl AsyncFnOnce(CancellationToken) -> T,
) -> Result<Option<T>, LostLead> {
    let (seen_tx, mut seen) = mpsc::channel(SEEN_BOUND);
    let (leave, leaving) = oneshot::channel();
    let mut lead = Lead::new(led.rule.lease_rule());
    let clock = led.clock;
    let follower = Follower {
        client: led.client,
        clock,
        timeout: led.timeout,
        writer: led.writer,
        observer: ForwardToChannel(seen_tx),
    };
    let (name, rule) = (led.lease.clone(), led.rule);
    let election = tokio::spawn(async move { follower.elect(&name, rule, leaving).await });
    let opened = tokio::select! {
        () = turn(&mut lead, &mut seen, clock, Turn::Opens) => true,
        () = cancel.cancelled() => false,
    };
    let mut outcome = Ok(None);
    if opened {
        tracing::info!(lease = led.lease.name, "leads");
        on_turn(true);
        let stop = cancel.child_token();
        let mut working = std::pin::pin!(work(stop.clone()));
        tokio::select! {
            done = &mut working => outcome = Ok(Some(done)),
            () = turn(&mut lead, &mut seen, clock, Turn::Lapses) => {
                stop.cancel();
                drop(working.await);
                outcome = Err(LostLead { namespace: led.lease.namespace, name: led.lease.name });
            }
        }
        on_turn(false);
    }
    // No call is in flight after the work.
    let _sent = leave.send(Leave {
        is_drained: outcome.is_ok(),
        handover: None,
    });
    if outcome.is_ok() {
        seen.close();
        let left = tokio::time::timeout(LEAVE_PATIENCE, election).await;
        if left.is_err() {
            tracing::warn!("failed to release the Lease; it will expire");
        }
    } else {
        election.abort();
    }
    outcome
}

/// Follows the Lease until the term begins or ends, as `wanted`.
async fn turn(lead: &mut Lead, seen: &mut mpsc::Receiver<LeaseSeen>, clock: Clock, wanted: Turn) {
    loop {
        match next_action(lead, clock, seen).await {
            Some(turn) if turn == wanted => return,
            Some(_) => {}
            // The election does not end before `leave`.
            None => std::future::pending().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_lead_is_tried_again_and_anything_else_is_missing() {
        let lost = LostLead {
            namespace: "n".to_owned(),
            name: "l".to_owned(),
        };
        assert_eq!(exit_of(&lost), Exit::TryAgain);
        assert_eq!(exit_of(&std::io::Error::other("x")), Exit::Dependency);
    }
}
