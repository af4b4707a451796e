//! The one task that owns the guest's CPUs and publishes what the guest has.
//!
//! It wakes for kernel events, for requests, and once a second whatever happens. Switching runs on
//! a blocking thread, one plan at a time, so that a memory event is published while a CPU is still
//! coming up.

use std::time::Duration;

use protocol::runner::GuestState;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::system::{Roots, SystemError};
use super::uevents::Uevents;
use crate::core::cpus::{CpuOrder, plan};
use crate::core::facts::{Identity, next_state};

/// The safety net's period: what no event told is seen this late.
const SWEEP: Duration = Duration::from_secs(1);
/// After an event or a request the kernel may still be at work without telling: look again this
/// soon …
const BURST_STEP: Duration = Duration::from_millis(20);
/// … this many times.
const BURST_LOOKS: u32 = 25;
/// Requests waiting for the keeper. One runner asks at a time; more than this means somebody
/// floods.
pub const MAX_WAITING: usize = 16;

/// `PUT /cpu`, or a demand for a fresh look (`target` is `None`).
#[derive(Debug)]
pub struct Request {
    /// CPUs to have online.
    pub target: Option<u32>,
    /// Where the answer goes.
    pub reply: oneshot::Sender<Result<GuestState, SystemError>>,
}

/// The keeper's own state.
struct Keeper {
    roots: Roots,
    identity: Identity,
    order: CpuOrder,
    state: watch::Sender<GuestState>,
    switching: Option<JoinHandle<Result<(), SystemError>>>,
    /// The request the switching is for, if it is for one.
    asked: Option<oneshot::Sender<Result<GuestState, SystemError>>>,
    /// Whether the last sweep failed: the same failure is told once.
    sweep_failed: bool,
    burst: u32,
}

/// A keeper ready to run, and the first state it read.
///
/// # Errors
/// When the kernel's files cannot be read at all: then there is nothing to serve.
pub fn first_look(roots: &Roots) -> Result<(Identity, GuestState), SystemError> {
    let identity = roots.identity()?;
    let state = next_state(None, &identity, &roots.facts()?);
    Ok((identity, state))
}

/// Runs until cancelled. Without `uevents` the sweep alone keeps things right, a second late.
pub async fn run(
    roots: Roots,
    identity: Identity,
    order: CpuOrder,
    state: watch::Sender<GuestState>,
    mut requests: mpsc::Receiver<Request>,
    uevents: Option<Uevents>,
    cancel: CancellationToken,
) {
    let mut keeper = Keeper {
        roots,
        identity,
        order,
        state,
        switching: None,
        asked: None,
        sweep_failed: false,
        burst: 0,
    };
    let mut sweep = interval(SWEEP);
    sweep.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let burst_at = Instant::now() + BURST_STEP;
        let idle = keeper.switching.is_none();
        tokio::select! {
            () = cancel.cancelled() => return,
            _ = sweep.tick() => keeper.look(),
            () = sleep_until(burst_at), if keeper.burst > 0 => {
                keeper.burst -= 1;
                keeper.look();
            }
            () = next_event(uevents.as_ref()) => {
                keeper.burst = BURST_LOOKS;
                keeper.look();
            }
            done = switched(keeper.switching.as_mut()) => keeper.finish(done),
            request = requests.recv(), if idle => match request {
                Some(request) => keeper.take(request),
                None => return,
            },
        }
    }
}

/// Waits for an event; for ever without a socket, and after it broke.
async fn next_event(uevents: Option<&Uevents>) {
    match uevents {
        Some(uevents) => {
            if let Err(error) = uevents.next().await {
                warn!(%error, "kernel events failed, the sweep goes on");
                std::future::pending::<()>().await;
            }
        }
        None => std::future::pending().await,
    }
}

async fn switched(
    switching: Option<&mut JoinHandle<Result<(), SystemError>>>,
) -> Result<(), SystemError> {
    match switching {
        // A panic in the switching thread is a bug of ours; the sweep plans again.
        Some(handle) => handle.await.unwrap_or(Ok(())),
        None => std::future::pending().await,
    }
}

impl Keeper {
    /// Reads everything, publishes, and starts to switch what the standing order wants.
    fn look(&mut self) {
        let facts = match self.roots.facts() {
            Ok(facts) => facts,
            Err(error) => {
                warn!(%error, "cannot look at the machine");
                return;
            }
        };
        let next = next_state(Some(&self.state.borrow()), &self.identity, &facts);
        self.state.send_if_modified(|state| {
            let news = next.generation != state.generation;
            *state = next;
            news
        });
        let target = self.order.sweep_target(&facts.present);
        if let (None, Some(target)) = (&self.switching, target) {
            let plan = plan(&facts.online, &facts.present, target);
            // What is missing here is CPU 0's business; the sweep cannot help it.
            if !plan.switches.is_empty() {
                self.start(crate::core::cpus::Plan { missing: 0, ..plan });
            }
        }
    }

    fn start(&mut self, plan: crate::core::cpus::Plan) {
        let roots = self.roots.clone();
        self.switching = Some(tokio::task::spawn_blocking(move || roots.carry_out(&plan)));
    }

    fn take(&mut self, request: Request) {
        let Some(target) = request.target else {
            self.look();
            // Nobody waits any more: that is his choice.
            let _ = request.reply.send(Ok(self.state.borrow().clone()));
            return;
        };
        self.order.target = Some(target);
        self.burst = BURST_LOOKS;
        match self.roots.cpus() {
            Ok([online, present, _]) => {
                info!(target_cpus = target, online = %online, present = %present, "cpu target");
                self.asked = Some(request.reply);
                self.start(plan(&online, &present, target));
            }
            Err(error) => {
                let _ = request.reply.send(Err(error));
            }
        }
    }

    fn finish(&mut self, done: Result<(), SystemError>) {
        self.switching = None;
        match (self.asked.take(), done) {
            (Some(reply), done) => {
                self.look();
                let _ = reply.send(done.map(|()| self.state.borrow().clone()));
            }
            (None, Ok(())) => {
                self.sweep_failed = false;
                self.look();
            }
            // Not looked at again before the next tick: a CPU that refuses would spin.
            (None, Err(error)) => {
                if !std::mem::replace(&mut self.sweep_failed, true) {
                    warn!(%error, "a CPU could not be switched, trying every second");
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
