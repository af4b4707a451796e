//! State that appenders, writer and keeper of a journal share.

use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use protocol::journal::Record;
use tokio::sync::watch;

use super::actions::ActionChain;
use super::queue::{Queue, QueueLimits};
use crate::clock::Clock;
use crate::state_folder::FolderLock;

/// State shared by appenders and threads.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) clock: Clock,
    pub(super) queue: Mutex<Queue>,
    /// Held until an action is in the queue, so that lines have the chain's order.
    pub(super) actions: Mutex<ActionChain>,
    pub(super) wake: Condvar,
    pub(super) preamble: Mutex<Vec<Record>>,
    pub(super) written: watch::Sender<u64>,
    pub(super) synced: watch::Sender<u64>,
    pub(super) is_closed: watch::Sender<bool>,
    pub(super) epoch: AtomicU64,
    pub(super) is_failing: AtomicBool,
    pub(super) is_sync_wanted: AtomicBool,
    pub(super) closing: AtomicBool,
    pub(super) lost: AtomicU64,
    /// Held while the journal is open.
    pub(super) lock: FolderLock,
}

impl Shared {
    /// State of a journal to which nothing was appended.
    pub(super) fn new(
        clock: Clock,
        limits: QueueLimits,
        preamble: Vec<Record>,
        lock: FolderLock,
    ) -> Self {
        Self {
            clock,
            queue: Mutex::new(Queue::new(limits)),
            actions: Mutex::new(ActionChain::of_new_run()),
            wake: Condvar::new(),
            preamble: Mutex::new(preamble),
            written: watch::Sender::new(0),
            synced: watch::Sender::new(0),
            is_closed: watch::Sender::new(false),
            epoch: AtomicU64::new(1),
            is_failing: AtomicBool::new(false),
            is_sync_wanted: AtomicBool::new(false),
            closing: AtomicBool::new(false),
            lost: AtomicU64::new(0),
            lock,
        }
    }

    pub(super) fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn actions(&self) -> MutexGuard<'_, ActionChain> {
        self.actions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn preamble(&self) -> MutexGuard<'_, Vec<Record>> {
        self.preamble.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
