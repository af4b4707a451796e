//! Sends a log's events to one receiver, batch by batch.
//!
//! The bounds and the name of a batch are on disk before its first attempt. A later attempt, also
//! of another process, therefore sends the same batch under the same name.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use daemon_kit::clock::Clock;
use tokio::sync::watch;

use super::clients::ReceiverConfig;
use super::log::{Batch, Cursor, EventLog, LogError};
use super::metrics::ReceiverMetrics;
use super::naming::Naming;
use super::receiver::{Receiver, SendError};
use crate::core::batches::Batches;

/// Time limit for the events that are left when the process ends.
const LAST_ROUND: Duration = Duration::from_secs(5);

/// A log with one writing task and several reading ones.
#[derive(Debug, Clone)]
pub(crate) struct SharedLog(Arc<Mutex<Inner>>);

#[derive(Debug)]
struct Inner {
    log: EventLog,
    /// Position up to which each receiver has all events.
    received: BTreeMap<&'static str, u64>,
}

impl SharedLog {
    pub(crate) fn new(log: EventLog) -> Self {
        let received = BTreeMap::new();
        Self(Arc::new(Mutex::new(Inner { log, received })))
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `work` on a thread for blocking calls, because it may wait for the disk.
    pub(crate) async fn with<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut EventLog) -> T + Send + 'static,
    ) -> T {
        let shared = self.clone();
        let done = tokio::task::spawn_blocking(move || work(&mut shared.lock().log)).await;
        match done {
            Ok(value) => value,
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                // The runtime shuts down, and the calling task with it.
                Err(_) => std::future::pending().await,
            },
        }
    }

    /// Stores a receiver's cursor durably. Deletes events that every receiver has.
    async fn store_cursor(&self, name: &'static str, cursor: Cursor) -> Result<(), LogError> {
        let shared = self.clone();
        let work = move || {
            let mut inner = shared.lock();
            inner.log.set_cursor(name, &cursor)?;
            inner.received.insert(name, cursor.done);
            let all = inner.received.values().copied().min().unwrap_or(0);
            inner.log.trim(all)
        };
        match tokio::task::spawn_blocking(work).await {
            Ok(result) => result,
            Err(_) => Ok(()),
        }
    }
}

/// The task that sends one log's events to one receiver.
pub(crate) struct Delivery {
    pub log: SharedLog,
    pub config: ReceiverConfig,
    pub receiver: Receiver,
    pub naming: Naming,
    pub metrics: ReceiverMetrics,
    pub clock: Clock,
    name: &'static str,
    cursor: Cursor,
    batches: Batches,
}

impl Delivery {
    /// Starts at the cursor that an earlier process stored.
    ///
    /// # Errors
    /// [`LogError`] when the cursor cannot be read.
    pub(crate) fn new(
        log: &SharedLog,
        config: ReceiverConfig,
        receiver: Receiver,
        naming: Naming,
        metrics: ReceiverMetrics,
        clock: Clock,
    ) -> Result<Self, LogError> {
        let name = config.kind.name();
        let mut inner = log.lock();
        let mut cursor = inner.log.cursor(name)?;
        let (first, end) = (inner.log.first(), inner.log.end());
        cursor.done = cursor.done.clamp(first, end.max(first));
        cursor.batch = cursor
            .batch
            .filter(|batch| batch.end > cursor.done && batch.end <= end);
        inner.received.insert(name, cursor.done);
        drop(inner);
        let batches = Batches::new(
            clock.now(),
            config.pace.max_events(),
            config.pace.push_every(),
            cursor.done..end,
            cursor.batch.as_ref().map(|batch| batch.end),
        );
        Ok(Self {
            log: log.clone(),
            config,
            receiver,
            naming,
            metrics,
            clock,
            name,
            cursor,
            batches,
        })
    }

    /// Runs until the log's writer is dropped. Then it tries once to send what is left.
    pub(crate) async fn run(mut self, mut ends: watch::Receiver<u64>) {
        loop {
            self.round().await;
            let wake = self.batches.deadline().map(|at| self.clock.instant_of(at));
            let sleep = async {
                match wake {
                    Some(wake) => tokio::time::sleep_until(wake.into()).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                changed = ends.changed() => {
                    self.batches.appended(*ends.borrow_and_update());
                    if changed.is_err() {
                        break;
                    }
                }
                () = sleep => {}
            }
        }
        self.batches.flush();
        if tokio::time::timeout(LAST_ROUND, self.round())
            .await
            .is_err()
        {
            tracing::warn!(client = self.name, "events wait for the next start");
        }
    }

    /// Sends due batches, oldest first, until one fails or none is due.
    async fn round(&mut self) {
        let first = self.log.with(|log| log.first()).await;
        let missed = self.batches.lost_before(first);
        if missed > 0 {
            tracing::error!(client = self.name, missed, "events were given up");
            self.metrics.gave_up(self.name, missed);
        }
        self.metrics.waiting(self.name, self.batches.waiting());
        let began = self.clock.now();
        let mut has_sent = false;
        while let Some(range) = self.batches.poll(self.clock.now()) {
            has_sent = true;
            let sent = self.send(range).await;
            self.batches.finished(self.clock.now(), sent);
            self.metrics.waiting(self.name, self.batches.waiting());
            let took = self.clock.now().since(began).as_secs_f64();
            if !sent {
                return;
            }
            self.metrics.sent(self.name, Some(took));
        }
        if !has_sent {
            self.metrics.sent(self.name, None);
        }
    }

    /// Sends one batch. Returns whether it was received.
    async fn send(&mut self, range: std::ops::Range<u64>) -> bool {
        let batch = match &self.cursor.batch {
            Some(batch) if batch.end == range.end && self.cursor.done == range.start => {
                batch.clone()
            }
            _ => {
                let batch = Batch {
                    end: range.end,
                    name: self.naming.name(self.clock.wall()),
                };
                let cursor = Cursor {
                    done: range.start,
                    batch: Some(batch.clone()),
                };
                if let Err(error) = self.log.store_cursor(self.name, cursor.clone()).await {
                    return self.failed("disk error", &error);
                }
                self.cursor = cursor;
                batch
            }
        };
        let events = match self.log.with(move |log| log.read(range)).await {
            Ok(events) => events,
            Err(error) => return self.failed("disk error", &error),
        };
        let limit = self.config.pace.timeout();
        let attempt = tokio::time::timeout(limit, self.receiver.send(&batch.name, &events)).await;
        if let Err(error) = attempt.unwrap_or(Err(SendError::TimedOut)) {
            let cause = error.cause();
            return self.failed(&cause, &error);
        }
        let cursor = Cursor {
            done: batch.end,
            batch: None,
        };
        // If this fails, a restarted process sends the same batch again under the same name.
        if let Err(error) = self.log.store_cursor(self.name, cursor.clone()).await {
            self.failed("disk error", &error);
        }
        self.cursor = cursor;
        true
    }

    fn failed(&self, cause: &str, error: &dyn std::error::Error) -> bool {
        self.metrics
            .failed(self.name, cause, self.batches.waiting());
        let error = daemon_kit::chain(error);
        tracing::warn!(client = self.name, error, "events were not sent and wait");
        false
    }
}
