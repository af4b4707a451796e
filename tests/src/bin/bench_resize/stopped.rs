//! The runner stands still while its guest is resized by hand. Whatever ends the benchmark lets
//! the runner go on, SIGKILL excepted.

use std::process::exit;
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;

/// The process that stands still, for the thread that ends this program.
static HELD: Mutex<Option<Pid>> = Mutex::new(None);

/// Added by a shell to the number of the signal that ended a program.
const SIGNALLED: u8 = 128;

/// A process that is stopped until this is dropped. There is one at a time.
pub(crate) struct Stopped(());

impl Stopped {
    pub(crate) fn of(process: Pid) -> Result<Self> {
        let mut held = held();
        ensure!(held.is_none(), "a process is stopped already: {held:?}");
        kill(process, Signal::SIGSTOP).context("failed to stop the runner")?;
        *held = Some(process);
        Ok(Self(()))
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        release(&mut held());
    }
}

fn held() -> MutexGuard<'static, Option<Pid>> {
    HELD.lock().unwrap_or_else(PoisonError::into_inner)
}

fn release(held: &mut Option<Pid>) {
    if let Some(process) = held.take() {
        // A runner that has ended needs no waking.
        let _ = kill(process, Signal::SIGCONT);
    }
}

/// Delivers the first SIGINT or SIGTERM to the receiver as an exit status. A second signal ends
/// this process at once.
pub(crate) fn catch_signals() -> Result<oneshot::Receiver<u8>> {
    let (to, receiver) = oneshot::channel();
    let runtime = Builder::new_current_thread().enable_io().build()?;
    // Registered before this returns: no signal is missed from here on.
    let (mut interrupt, mut terminate) = {
        let _inside = runtime.enter();
        let interrupt = signal(SignalKind::interrupt())?;
        (interrupt, signal(SignalKind::terminate())?)
    };
    let wait = async move {
        let mut next = async || {
            tokio::select! {
                _ = interrupt.recv() => SIGNALLED + 2,
                _ = terminate.recv() => SIGNALLED + 15,
            }
        };
        // The receiver may have ended by itself.
        let _ = to.send(next().await);
        next().await
    };
    let end = move || -> () {
        let status = runtime.block_on(wait);
        // Held until the end, so that no other process is stopped.
        let mut held = held();
        release(&mut held);
        exit(i32::from(status))
    };
    std::thread::Builder::new()
        .name("signals".into())
        .spawn(end)?;
    Ok(receiver)
}
