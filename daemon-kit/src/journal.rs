//! Writing a decision journal (`protocol::journal`): segments in a folder, rotation, retention, and
//! a disk that may fail.
//!
//! ```text
//! append ──▶ queue (1 MiB, a share per VM) ──▶ writer thread ──▶ <seq>.bj ──▶ keeper thread: fsync, zstd, delete
//!   │ never waits                                   │ position written
//!   └── AppendedLine::handed_over ◀───────────────────────┘ bounded wait, only where an act must follow its record
//! ```
//! *Happy path*: [`Journal::append`] puts a line into the queue. The writer hands it to the
//! operating system at once when a caller waits for it, else with others. The keeper syncs every
//! second or 64 KiB. *Full or failing disk*: the queue fills, then lines are dropped and counted;
//! when the disk takes lines again the first is an `X` record with the count, and every VM writes a
//! checkpoint ([`Journal::epoch`] changes). No caller waits for a disk known to fail. *Crash*: the
//! next start cuts the torn tail and writes an `X` record about it. *Newer format*: never touched;
//! a new chain begins beside it.

mod actions;
pub mod files;
mod queue;
mod retention;
mod segment;
pub mod served;
mod settings;
mod shared;
mod writer;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;

use protocol::journal::{Action, Record, encode};

use crate::clock::Clock;
use crate::state_folder::{self, FolderLock, LockError};
pub use actions::ActionChain;
pub use queue::QueueLimits;
pub use retention::Retention;
use segment::Segment;
pub use settings::{Identity, Limits};
use shared::Shared;
use writer::{KEEPER_BOUND, Keeper, Order, Writer};

/// Longest time that an act waits for its record to reach the operating system. After one such
/// timeout no act waits until the disk accepts lines again.
const HAND_OVER_LIMIT: Duration = Duration::from_millis(20);
/// Longest time that a response to a person waits for its record to reach the disk.
const DURABLE_LIMIT: Duration = Duration::from_secs(5);
const CLOSE_LIMIT: Duration = Duration::from_secs(2);

/// Errors of opening a journal.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process has locked the folder, or it cannot be made or locked.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// The folder cannot be read or written.
    #[error("failed to open the journal in {}", folder.display())]
    Io {
        /// Path of the journal's folder.
        folder: PathBuf,
        /// Error of the file operation.
        #[source]
        source: io::Error,
    },
    /// A thread cannot be started.
    #[error("failed to start a thread of the journal")]
    Thread(#[source] io::Error),
}

/// An open journal. Clones write to the same.
#[derive(Debug, Clone)]
pub struct Journal {
    shared: Arc<Shared>,
}

/// Position of an appended line, to wait for it.
#[derive(Debug)]
pub struct AppendedLine {
    shared: Arc<Shared>,
    position: u64,
}

impl Journal {
    /// Opens the journal of a component in `folder` (`<state>/journal/<part>`), which is made if it
    /// is missing. Cuts a torn tail, begins a segment of its own and starts the threads. `preamble`
    /// is written after the first line of every segment.
    ///
    /// # Errors
    /// [`OpenError`]: nothing is written and no thread runs.
    pub fn open(
        folder: &Path,
        identity: Identity,
        limits: Limits,
        clock: Clock,
        preamble: Vec<Record>,
    ) -> Result<Self, OpenError> {
        let broken = |source: io::Error| OpenError::Io {
            folder: folder.to_owned(),
            source,
        };
        let lock = state_folder::lock(folder)?;
        let files = files::list(folder).map_err(broken)?;
        let left = segment::recover(&files).map_err(broken)?;
        let times = (clock.now(), clock.wall());
        let mut records = preamble.clone();
        records.extend(segment::torn_record(&left, times.0));
        let segment = Segment::begin(folder, &identity, times, left.seq + 1, left.prev, &records)
            .map_err(broken)?;
        if left.torn > 0 {
            tracing::warn!(bytes = left.torn, "torn last line of the journal was cut");
        }
        Self::start((folder, lock), identity, limits, clock, (segment, preamble))
    }

    fn start(
        (folder, lock): (&Path, FolderLock),
        identity: Identity,
        limits: Limits,
        clock: Clock,
        (segment, preamble): (Segment, Vec<Record>),
    ) -> Result<Self, OpenError> {
        let shared = Arc::new(Shared::new(clock, limits.queue, preamble, lock));
        let (keeper, orders) = std::sync::mpsc::sync_channel::<Order>(KEEPER_BOUND);
        let tidier = Keeper {
            shared: Arc::clone(&shared),
            folder: folder.to_owned(),
            retention: limits.retention,
            orders,
        };
        let keeper_thread = thread("journal-keeper", move || tidier.run())?;
        let writer = Writer {
            shared: Arc::clone(&shared),
            identity,
            limits,
            folder: folder.to_owned(),
            segment,
            keeper,
            keeper_thread,
            carried: Vec::new(),
            written: 0,
            ordered: 0,
            ordered_at: clock.now(),
            is_failing: false,
            rotate_after: clock.now(),
        };
        let _detached = thread("journal-writer", move || writer.run())?;
        Ok(Self { shared })
    }

    /// Appends a record without waiting. `None` when the queue is full: a later `X` record counts
    /// the lost ones. With `is_urgent` the line is handed to the operating system at once.
    #[must_use = "`None` means that the record is lost, and the next record must be a checkpoint"]
    pub fn append(&self, record: &Record, is_urgent: bool) -> Option<AppendedLine> {
        let line = encode(record);
        let now = self.shared.clock.now();
        let mut queue = self.shared.queue();
        let was_losing = queue.is_losing();
        let position = queue.push(now, record.vm(), &line, is_urgent);
        let is_losing = queue.is_losing();
        drop(queue);
        if is_urgent {
            self.shared.wake.notify_one();
        }
        if position.is_none() {
            self.shared.lost.fetch_add(1, Ordering::Relaxed);
        }
        if was_losing != is_losing {
            // Every stream now has a gap.
            self.shared.epoch.fetch_add(1, Ordering::AcqRel);
            if is_losing {
                tracing::error!("journal loses records: its disk does not accept them");
            }
        }
        position.map(|position| AppendedLine {
            shared: Arc::clone(&self.shared),
            position,
        })
    }

    /// Appends an action that names the hash of the action before it. A lost one is in no chain: an
    /// `X` record counts it.
    #[must_use = "`None` means that the record is lost"]
    pub fn append_action(&self, action: Action) -> Option<AppendedLine> {
        let mut chain = self.shared.actions();
        let action = chain.link(action);
        let record = Record::Action(action.clone());
        let appended = self.append(&record, false);
        if appended.is_some() {
            chain.take(&action);
        }
        appended
    }

    /// Changes when a segment begins and when records were lost: then each VM writes a checkpoint
    /// before anything else.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.shared.epoch.load(Ordering::Acquire)
    }

    /// Number of records lost so far, for whatever reason.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.shared.lost.load(Ordering::Relaxed)
    }

    /// Forgets the share of a deleted VM.
    pub fn forget(&self, vm: u32) {
        self.shared.queue().forget(vm);
    }

    /// Sets the records after the first line of each segment, from the next one on.
    pub fn set_preamble(&self, records: Vec<Record>) {
        *self.shared.preamble() = records;
    }

    /// Writes and syncs everything and ends the threads, within a time limit.
    pub async fn close(self) {
        self.shared.closing.store(true, Ordering::Release);
        // Under the lock, so that a writer about to wait cannot miss it.
        drop(self.shared.queue());
        self.shared.wake.notify_all();
        let mut closed = self.shared.is_closed.subscribe();
        if tokio::time::timeout(CLOSE_LIMIT, closed.wait_for(|closed| *closed))
            .await
            .is_err()
        {
            tracing::warn!("journal was not closed in time");
        }
    }
}

impl AppendedLine {
    /// Waits until the operating system has the line, so that it survives the end of this process.
    /// Gives up after a short time, and does not wait for a failing disk, because a record never
    /// delays a decision. Returns whether the line was handed over.
    pub async fn handed_over(self) -> bool {
        if self.shared.is_failing.load(Ordering::Relaxed) {
            return false;
        }
        let mut written = self.shared.written.subscribe();
        let reached = written.wait_for(|written| *written >= self.position);
        let is_there = matches!(
            tokio::time::timeout(HAND_OVER_LIMIT, reached).await,
            Ok(Ok(_))
        );
        if !is_there {
            self.shared.is_failing.store(true, Ordering::Relaxed);
        }
        is_there
    }

    /// Waits until the line is on the disk, for a response to a person. Returns whether it is.
    pub async fn durable(self) -> bool {
        self.shared.is_sync_wanted.store(true, Ordering::Release);
        let mut synced = self.shared.synced.subscribe();
        self.shared.wake.notify_one();
        let reached = synced.wait_for(|synced| *synced >= self.position);
        matches!(
            tokio::time::timeout(DURABLE_LIMIT, reached).await,
            Ok(Ok(_))
        )
    }
}

fn thread(name: &str, run: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, OpenError> {
    let spawned = std::thread::Builder::new().name(name.to_owned()).spawn(run);
    spawned.map_err(OpenError::Thread)
}

#[cfg(test)]
mod tests;
