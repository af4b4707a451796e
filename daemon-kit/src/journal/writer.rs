//! The two threads of a journal. The writer hands lines to the operating system. The keeper does
//! slow work: fsync, packing, deleting. Appenders wait for neither.

use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, SyncSender};
use std::sync::{Arc, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

use protocol::journal::Record;
use protocol::time::Timestamp;

use super::files;
use super::queue::RETRY;
use super::retention::Retention;
use super::segment::Segment;
use super::settings::{Identity, Limits};
use super::shared::Shared;
use crate::clock::Clock;

/// How long lines wait for more if no caller waits for them.
const GATHER: Duration = Duration::from_millis(500);
/// Bytes that are written without waiting for more.
const ENOUGH_BYTES: usize = 16 * 1024;
/// Capacity of the keeper's channel; an order that does not fit is sent again later.
pub(super) const KEEPER_BOUND: usize = 4;

pub(super) enum Order {
    /// Sync everything up to a position.
    Sync(File, u64),
    /// Look for segments to pack and to delete.
    Tidy,
}

pub(super) struct Writer {
    pub shared: Arc<Shared>,
    pub identity: Identity,
    pub limits: Limits,
    pub folder: PathBuf,
    pub segment: Segment,
    pub keeper: SyncSender<Order>,
    pub keeper_thread: JoinHandle<()>,
    /// Bytes taken from the queue and not written.
    pub carried: Vec<u8>,
    pub written: u64,
    pub ordered: u64,
    pub ordered_at: Timestamp,
    pub is_failing: bool,
    /// No rotation before this time, as the last one failed.
    pub rotate_after: Timestamp,
}

impl Writer {
    /// Runs until the journal is closed and everything is written, or cannot be.
    pub(super) fn run(mut self) {
        loop {
            let is_closing = self.wait();
            self.rotate();
            let outcome = self.drain();
            let is_failed = outcome.is_err();
            self.note(outcome);
            self.order_sync(is_closing);
            if is_closing && (is_failed || self.is_drained()) {
                break;
            }
        }
        let Self {
            shared,
            segment,
            keeper,
            keeper_thread,
            written,
            ..
        } = self;
        if let Err(error) = segment.file.sync_data() {
            let error = crate::chain(&error);
            tracing::warn!(error, "failed to sync the journal at its end");
        }
        // The keeper releases the folder before the next writer.
        drop(keeper);
        let _ = keeper_thread.join();
        shared.lock.release();
        shared.synced.send_replace(written);
        shared.is_closed.send_replace(true);
    }

    fn is_drained(&self) -> bool {
        self.carried.is_empty() && self.shared.queue().len() == 0
    }

    /// Waits for lines or the end. Returns whether the journal is being closed.
    fn wait(&self) -> bool {
        let shared = &self.shared;
        let is_closing = || shared.closing.load(Ordering::Acquire);
        let mut queue = shared.queue();
        if self.is_failing {
            // An urgent line cannot be helped: the disk gets its pause.
            let pause = RETRY.to_duration();
            let waited = shared
                .wake
                .wait_timeout_while(queue, pause, |_| !is_closing());
            drop(waited.unwrap_or_else(PoisonError::into_inner));
            return is_closing();
        }
        let is_ready = |queue: &mut super::queue::Queue| {
            is_closing()
                || queue.is_urgent()
                || queue.len() >= ENOUGH_BYTES
                || shared.is_sync_wanted.load(Ordering::Acquire)
        };
        if !is_ready(&mut queue) {
            let waited = shared
                .wake
                .wait_timeout_while(queue, GATHER, |queue| !is_ready(queue));
            drop(waited.unwrap_or_else(PoisonError::into_inner));
        }
        is_closing()
    }

    fn drain(&mut self) -> io::Result<()> {
        if self.carried.is_empty() {
            self.carried = self.shared.queue().take();
        }
        if self.carried.is_empty() {
            return Ok(());
        }
        let (done, outcome) = self.segment.write(&self.carried);
        self.carried.drain(..done);
        self.shared.queue().remaining(self.carried.len());
        self.written += done as u64;
        self.shared.written.send_replace(self.written);
        outcome
    }

    fn note(&mut self, outcome: io::Result<()>) {
        match outcome {
            Err(error) if !self.is_failing => {
                self.is_failing = true;
                self.shared.is_failing.store(true, Ordering::Relaxed);
                tracing::error!(error = crate::chain(&error), path = %self.segment.path.display(), "failed to write the journal; sizing goes on");
            }
            Ok(()) => {
                // A waiter with a timeout may have set it too.
                self.shared.is_failing.store(false, Ordering::Relaxed);
                if std::mem::take(&mut self.is_failing) {
                    tracing::warn!("journal is written again");
                }
            }
            Err(_) => {}
        }
    }

    fn order_sync(&mut self, is_closing: bool) {
        let now = self.shared.clock.now();
        let waiting = self.written - self.ordered;
        let is_due = waiting >= self.limits.sync_bytes
            || now.since(self.ordered_at) >= self.limits.sync_every
            || self.shared.is_sync_wanted.swap(false, Ordering::AcqRel);
        if waiting == 0 || is_closing || !is_due {
            return;
        }
        let Ok(file) = self.segment.file.try_clone() else {
            return;
        };
        // A full channel gets the order with the next lines.
        let order = Order::Sync(file, self.written);
        if self.keeper.try_send(order).is_ok() {
            (self.ordered, self.ordered_at) = (self.written, now);
        }
    }

    /// Begins the next segment when this one is full or old. On a failure this one grows on.
    fn rotate(&mut self) {
        let now = self.shared.clock.now();
        let is_due = self.segment.bytes >= self.limits.segment_bytes
            || now.since(self.segment.begun) >= self.limits.segment_age;
        let is_possible = !self.is_failing
            && self.carried.is_empty()
            && self.segment.is_at_line_end()
            && now >= self.rotate_after;
        if !is_due || !is_possible {
            return;
        }
        // The old segment must be synced before a later position counts as synced.
        let is_ordered = self
            .segment
            .file
            .try_clone()
            .is_ok_and(|old| self.keeper.try_send(Order::Sync(old, self.written)).is_ok());
        if !is_ordered {
            return;
        }
        let records: Vec<Record> = self.shared.preamble().clone();
        let times = (now, self.shared.clock.wall());
        let (seq, link) = (self.segment.seq + 1, self.segment.link());
        match Segment::begin(
            &self.folder,
            &self.identity,
            times,
            seq,
            Some(link),
            &records,
        ) {
            Ok(next) => {
                self.segment = next;
                let _ = self.keeper.try_send(Order::Tidy);
                self.shared.epoch.fetch_add(1, Ordering::AcqRel);
            }
            Err(error) => {
                self.rotate_after = now + RETRY;
                let error = crate::chain(&error);
                tracing::warn!(error, "failed to begin the journal's next segment");
            }
        }
    }
}

pub(super) struct Keeper {
    pub shared: Arc<Shared>,
    pub folder: PathBuf,
    pub retention: Retention,
    pub orders: Receiver<Order>,
}

impl Keeper {
    /// Runs until the writer is gone.
    pub(super) fn run(self) {
        self.tidy();
        while let Ok(order) = self.orders.recv() {
            match order {
                Order::Tidy => self.tidy(),
                Order::Sync(file, position) => match file.sync_data() {
                    Ok(()) => {
                        self.shared.synced.send_replace(position);
                    }
                    Err(error) => {
                        tracing::error!(error = crate::chain(&error), "failed to sync the journal");
                    }
                },
            }
        }
    }

    /// Packs finished segments and deletes surplus ones. A failure is logged, and the next rotation
    /// tries again.
    fn tidy(&self) {
        if let Err(error) = self.try_tidy() {
            tracing::warn!(
                error = crate::chain(&error),
                "failed to pack or delete old segments of the journal"
            );
        }
    }

    fn try_tidy(&self) -> io::Result<()> {
        let files = files::list(&self.folder)?;
        let finished = files.split_last().map_or(&[][..], |(_, rest)| rest);
        for file in finished.iter().filter(|file| !file.is_packed) {
            if !files::is_newer(file)? {
                files::pack(file)?;
            }
        }
        let files = files::list(&self.folder)?;
        let vms = self.shared.queue().most_vms();
        for file in self
            .retention
            .surplus(&files, calendar(&self.shared.clock), vms)
        {
            if !files::is_newer(file)? {
                std::fs::remove_file(&file.path)?;
                tracing::debug!(seq = file.seq, "old segment of the journal deleted");
            }
        }
        Ok(())
    }
}

/// File times are wall times of the machine, so they are compared with its wall clock.
fn calendar(clock: &Clock) -> SystemTime {
    let micros = u64::try_from(clock.wall().0).unwrap_or(0);
    SystemTime::UNIX_EPOCH + Duration::from_micros(micros)
}
