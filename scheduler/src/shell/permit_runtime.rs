//! The permit thread: the connections of the permit server and the driver on one thread.
//!
//! A request goes from its connection to the core and back. On a shared runtime each step could
//! wake another thread, which costs more than the decision. On one thread each step is a turn of
//! the same queue, and requests that arrive together are decided together. API calls and everything
//! else stay on the runtime that started the scheduler.

use std::io;
use std::num::NonZero;
use std::thread::JoinHandle;

use tokio::net::TcpListener;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::oneshot;

/// Name of the permit thread, at most 15 bytes on Linux.
const NAME: &str = "permits";

/// A runtime for a process that is only a scheduler. With the permit thread it has as many threads
/// as there are processors, at least two.
///
/// # Errors
/// The operating system grants no thread or no poller.
pub fn runtime() -> io::Result<Runtime> {
    let processors = std::thread::available_parallelism().map_or(1, NonZero::get);
    Builder::new_multi_thread()
        .worker_threads(processors.saturating_sub(1).max(1))
        .enable_all()
        .build()
}

/// The running permit thread. Dropping it ends its tasks at once and waits for the thread.
pub(super) struct PermitRuntime {
    pub(super) handle: Handle,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl PermitRuntime {
    /// Starts the thread.
    ///
    /// # Errors
    /// The operating system grants no thread or no poller.
    pub(super) fn start() -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::Builder::new()
            .name(NAME.into())
            .spawn(move || {
                // Also ends when the sender is dropped.
                let _stopped = runtime.block_on(stopped);
            })?;
        Ok(Self {
            handle,
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    /// Moves a listener of another runtime to this one.
    ///
    /// # Errors
    /// The poller refuses the listener.
    pub(super) fn adopt(&self, listener: TcpListener) -> io::Result<TcpListener> {
        let listener = listener.into_std()?;
        let _here = self.handle.enter();
        TcpListener::from_std(listener)
    }
}

impl Drop for PermitRuntime {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // Each task has reported its own panic.
            let _ended = thread.join();
        }
    }
}
