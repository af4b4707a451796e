//! The thread on which permits are served: the permit server's connections and the owner of the
//! core together.
//!
//! A request goes from its connection to the core and back. Among the workers of a shared runtime
//! each of those steps would wake another thread, which costs more than the decision; on one thread
//! it is a turn of the same queue, and whatever arrived at once is decided at once. Calls to the
//! API and everything else stay on the runtime the scheduler was started on.

use std::io;
use std::num::NonZero;
use std::thread::JoinHandle;

use tokio::net::TcpListener;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::oneshot;

/// Name of the thread.
const NAME: &str = "permits";

/// A runtime for a process that is a scheduler and nothing else. Its workers and the thread that
/// serves permits are as many as there are processors: more would wake each other for nothing.
///
/// # Errors
/// When there is no thread or no poller to be had.
pub fn runtime() -> io::Result<Runtime> {
    let processors = std::thread::available_parallelism().map_or(1, NonZero::get);
    Builder::new_multi_thread()
        .worker_threads(processors.saturating_sub(1).max(1))
        .enable_all()
        .build()
}

/// The running thread. Dropping it ends what runs on it, at once, and waits for that.
pub(super) struct Desk {
    pub(super) handle: Handle,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Desk {
    /// Starts it.
    ///
    /// # Errors
    /// When there is no thread or no poller to be had.
    pub(super) fn start() -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::Builder::new()
            .name(NAME.into())
            .spawn(move || {
                // Told, or nobody is left to tell.
                let _stopped = runtime.block_on(stopped);
            })?;
        Ok(Self {
            handle,
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    /// Has a listener of another runtime served here.
    ///
    /// # Errors
    /// When the poller does not take it.
    pub(super) fn adopt(&self, listener: TcpListener) -> io::Result<TcpListener> {
        let listener = listener.into_std()?;
        let _here = self.handle.enter();
        TcpListener::from_std(listener)
    }
}

impl Drop for Desk {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // What ran on it told of its panics itself.
            let _ended = thread.join();
        }
    }
}
