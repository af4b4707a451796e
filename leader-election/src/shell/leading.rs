//! Work that only the leader does.

use std::time::Duration;

use daemon_kit::clock::Clock;
use kube::Client;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::{Follower, LeaseName, Witness};
use crate::core::elect::{ElectRule, Leave};
use crate::core::lease::{Lead, LeaseSeen, Turn};

/// States of the Lease on their way; more than one waits only while this task does not run.
const SEEN_BOUND: usize = 16;
/// How long giving the Lease up may take. Whoever waits for it takes it after its duration anyway.
const LEAVE_PATIENCE: Duration = Duration::from_secs(5);

/// The lead was lost while the work went on: another process may do it by now, so this one has to
/// end.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the Lease {namespace}/{name} was lost: it could not be renewed in time, or another process holds it"
)]
pub struct LostLead {
    namespace: String,
    name: String,
}

/// Which Lease, and by which rule.
#[derive(Clone)]
pub struct Led {
    /// Client of the API server.
    pub client: Client,
    /// The clock of this process.
    pub clock: Clock,
    /// The Lease.
    pub lease: LeaseName,
    /// Who runs, and for how long.
    pub rule: ElectRule,
    /// Time-out of one call.
    pub timeout: Duration,
    /// Who writes, for the API's records.
    pub writer: String,
}

/// Passes states on; calls are logged by the [`Follower`] itself.
struct Passing(mpsc::Sender<LeaseSeen>);

impl Witness for Passing {
    async fn seen(&self, seen: LeaseSeen) {
        // Nobody listens only when everything ends.
        let _sent = self.0.send(seen).await;
    }

    fn called(&self, _verb: &'static str, _failure: Option<&str>) {}

    fn watched(&self, _is_failing: bool) {}
}

/// Waits until this process leads, then does the work until `cancel` or until the work ends by
/// itself, then gives the Lease up. `on_turn` is told when the lead begins and ends.
///
/// # Errors
/// [`LostLead`]: the work was cancelled and has ended. The process should end too and begin anew.
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
        witness: Passing(seen_tx),
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
    // What was under way has ended with the work.
    let _told = leave.send(Leave {
        is_drained: outcome.is_ok(),
        note: None,
    });
    if outcome.is_ok() {
        seen.close();
        let left = tokio::time::timeout(LEAVE_PATIENCE, election).await;
        if left.is_err() {
            tracing::warn!("the Lease could not be given up; others wait for its end");
        }
    } else {
        election.abort();
    }
    outcome
}

/// Follows the Lease until that turn.
async fn turn(lead: &mut Lead, seen: &mut mpsc::Receiver<LeaseSeen>, clock: Clock, wanted: Turn) {
    loop {
        if lead.turn(clock.now()) == Some(wanted) {
            return;
        }
        let next = lead.poll_deadline();
        let timer = async {
            match next {
                Some(at) => tokio::time::sleep_until(clock.instant_of(at).into()).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            state = seen.recv() => match state {
                Some(state) => lead.seen(clock.now(), &state),
                // The election never ends before it is told to.
                None => std::future::pending().await,
            },
            () = timer => {}
        }
    }
}
