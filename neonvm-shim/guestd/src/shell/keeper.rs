//! The one task that switches the guest's CPUs and publishes the guest's state.
//!
//! It wakes for kernel events, for requests, and once a second. Switching runs on a blocking
//! thread, one plan at a time, so that a memory event is published while a CPU is still coming up.

use std::time::Duration;

use protocol::parts::PartStates;
use protocol::runner::{GuestState, ProgramFile};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::system::{Roots, SystemError};
use super::uevents::Uevents;
use crate::core::cpus::{CpuOrder, plan};
use crate::core::facts::{Identity, Reports, next_state};

/// Interval of the sweep, which finds changes without an event.
const SWEEP: Duration = Duration::from_secs(1);
/// Pause between the looks after an event or a request, as the kernel may change more without an
/// event …
const BURST_STEP: Duration = Duration::from_millis(20);
/// … and their number.
const BURST_LOOKS: u32 = 25;
/// Capacity of the inbox. One runner sends one request at a time; more is a flood.
pub const MAX_WAITING: usize = 16;

/// `PUT /cpu`, or a request for a fresh reading (`target` is `None`).
#[derive(Debug)]
pub struct Request {
    /// Number of CPUs to have online.
    pub target: Option<u32>,
    /// Receives the state after the request, or its failure.
    pub reply: oneshot::Sender<Result<GuestState, SystemError>>,
}

/// State of the keeper's task.
struct Keeper {
    roots: Roots,
    identity: Identity,
    order: CpuOrder,
    state: watch::Sender<GuestState>,
    switching: Option<JoinHandle<Result<(), SystemError>>>,
    /// Request that the switching in progress serves, if any.
    asked: Option<oneshot::Sender<Result<GuestState, SystemError>>>,
    /// Whether the last sweep failed, so that a lasting failure is logged once.
    sweep_failed: bool,
    burst: u32,
    programs: watch::Receiver<Vec<ProgramFile>>,
    parts: watch::Receiver<PartStates>,
}

/// What wakes the keeper beside its clock and requests.
#[derive(Debug)]
pub struct Sources {
    /// Events of the kernel. Without them only the sweep finds changes, a second late.
    pub uevents: Option<Uevents>,
    /// Reports of program files, which are part of the state.
    pub programs: watch::Receiver<Vec<ProgramFile>>,
    /// States of the parts, which are part of the state.
    pub parts: watch::Receiver<PartStates>,
}

/// First reading of the machine, for [`run`].
///
/// # Errors
/// The kernel's files cannot be read, so there is nothing to serve.
pub fn first_look(roots: &Roots) -> Result<(Identity, GuestState), SystemError> {
    let identity = roots.identity()?;
    let state = next_state(None, &identity, &roots.facts()?, &Reports::default());
    Ok((identity, state))
}

/// Runs until cancelled.
pub async fn run(
    roots: Roots,
    identity: Identity,
    order: CpuOrder,
    state: watch::Sender<GuestState>,
    mut requests: mpsc::Receiver<Request>,
    sources: Sources,
    cancel: CancellationToken,
) {
    let Sources {
        uevents,
        programs,
        parts,
    } = sources;
    let mut news = programs.clone();
    let mut changed_parts = parts.clone();
    let mut keeper = Keeper {
        roots,
        identity,
        order,
        state,
        switching: None,
        asked: None,
        sweep_failed: false,
        burst: 0,
        programs,
        parts,
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
            // Without a sender there is no more news.
            Ok(()) = news.changed() => keeper.look(),
            Ok(()) = changed_parts.changed() => keeper.look(),
            done = switched(keeper.switching.as_mut()) => keeper.finish(done),
            request = requests.recv(), if idle => match request {
                Some(request) => keeper.take(request),
                None => return,
            },
        }
    }
}

/// Waits for an event; for ever without a socket, or after its failure.
async fn next_event(uevents: Option<&Uevents>) {
    match uevents {
        Some(uevents) => {
            if let Err(error) = uevents.next().await {
                warn!(%error, "kernel event socket failed, the sweep goes on");
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
        // A panic in the switching thread is a bug; the sweep plans again.
        Some(handle) => handle.await.unwrap_or(Ok(())),
        None => std::future::pending().await,
    }
}

impl Keeper {
    /// Reads the machine, publishes, and starts the switches of the current target.
    fn look(&mut self) {
        let facts = match self.roots.facts() {
            Ok(facts) => facts,
            Err(error) => {
                warn!(%error, "failed to read the machine's state");
                return;
            }
        };
        let reports = Reports {
            programs: self.programs.borrow_and_update().clone(),
            parts: self.parts.borrow_and_update().clone(),
        };
        let next = next_state(Some(&self.state.borrow()), &self.identity, &facts, &reports);
        self.state.send_if_modified(|state| {
            let has_changed = next.generation != state.generation;
            *state = next;
            has_changed
        });
        let target = self.order.sweep_target(&facts.present);
        if let (None, Some(target)) = (&self.switching, target) {
            let plan = plan(&facts.online, &facts.present, target);
            // CPUs missing here are due to CPU 0, which the sweep cannot change.
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
            // The client may have disconnected.
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
            // No look before the next tick: a CPU that cannot be switched would cause a busy loop.
            (None, Err(error)) => {
                if !std::mem::replace(&mut self.sweep_failed, true) {
                    warn!(%error, "failed to switch a CPU, retrying every second");
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
