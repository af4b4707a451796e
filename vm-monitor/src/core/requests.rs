//! The requests that take time, one after the other: decide, set the file cache, move the threshold, answer.

use protocol::monitor::MonitorBody;
use protocol::time::Timestamp;
use protocol::units::Bytes;

use super::cache::{CacheChange, CacheFailure, CacheState, CacheVerdict};
use super::decision::{Approval, Basis, Failure, Verdict, judge};
use super::{Action, ConnectionId, Monitor, OperationId, shorten};

/// Requests that may wait behind the one in hand. An agent has one of each kind in flight.
pub(super) const WAITING_LIMIT: usize = 32;

/// A request not yet begun.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Request {
    /// A connection has begun on a machine of this size.
    Start { total: Bytes },
    /// May the VM shrink to `mem` bytes?
    Downscale {
        connection: ConnectionId,
        id: u64,
        mem: u64,
    },
    /// The VM has grown to `mem` bytes.
    Upscale {
        connection: ConnectionId,
        id: u64,
        mem: u64,
    },
}

/// A request whose file cache is being set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Job {
    /// For the start of a connection.
    Start,
    /// For an approved shrink.
    Downscale {
        connection: ConnectionId,
        id: u64,
        approval: Approval,
    },
    /// For a growth.
    Upscale {
        connection: ConnectionId,
        id: u64,
        total: Bytes,
    },
}

impl Monitor {
    /// Puts a request behind the others, or answers that there are too many.
    pub(super) fn enqueue(&mut self, request: Request) {
        let waiting = self.waiting.len();
        if waiting < WAITING_LIMIT {
            return self.waiting.push_back(request);
        }
        match request {
            Request::Start { .. } => {}
            Request::Downscale { connection, id, .. } => {
                self.counters.downscales.add("failed");
                self.fail(connection, id, &Failure::Busy { waiting });
            }
            Request::Upscale { connection, id, .. } => {
                self.counters.upscales.add("failed");
                self.fail(connection, id, &Failure::Busy { waiting });
            }
        }
    }

    /// Begins waiting requests until one has to wait for the file cache.
    pub(super) fn start_next_job(&mut self, now: Timestamp) {
        while self.job.is_none() {
            let Some(request) = self.waiting.pop_front() else {
                return;
            };
            match request {
                Request::Start { total } => self.set_cache_then(total, Job::Start),
                Request::Upscale {
                    connection,
                    id,
                    mem,
                } => {
                    self.growth_has_come(now);
                    let total = self.setup.rules.usable(mem);
                    self.set_cache_then(
                        total,
                        Job::Upscale {
                            connection,
                            id,
                            total,
                        },
                    );
                }
                Request::Downscale {
                    connection,
                    id,
                    mem,
                } => self.downscale(now, connection, id, mem),
            }
        }
    }

    fn downscale(&mut self, now: Timestamp, connection: ConnectionId, id: u64, mem: u64) {
        let basis = Basis {
            rules: &self.setup.rules,
            watched: self.setup.watched,
            window: &self.window,
            threshold: self.threshold,
        };
        match judge(basis, mem, now) {
            Verdict::Approve(approval) => {
                let total = self.setup.rules.usable(mem);
                self.set_cache_then(
                    total,
                    Job::Downscale {
                        connection,
                        id,
                        approval,
                    },
                );
            }
            Verdict::Refuse(refusal) => {
                self.counters.downscales.add("refused");
                let status = shorten(refusal.to_string());
                tracing::info!(id, mem, status, "downscale refused");
                self.send(
                    connection,
                    id,
                    MonitorBody::DownscaleResult { ok: false, status },
                );
            }
            Verdict::Fail(failure) => {
                self.counters.downscales.add("failed");
                self.fail(connection, id, &failure);
            }
        }
    }

    /// Sets the file cache for `total`, if there is one, and finishes the job after it.
    fn set_cache_then(&mut self, total: Bytes, job: Job) {
        if self.cache == CacheState::Off {
            return self.finish(job, CacheVerdict::GoOn);
        }
        let operation = OperationId(self.next_operation);
        self.next_operation += 1;
        let size = self.setup.sizing.size(total);
        self.outbox
            .push_back(Action::SetFileCache { operation, size });
        self.job = Some((operation, job));
    }

    /// An attempt has ended. One that nobody waits for is of no use any more.
    pub(super) fn cache_set(
        &mut self,
        operation: OperationId,
        outcome: Result<CacheChange, CacheFailure>,
    ) {
        let Some((_, job)) = self.job.take_if(|(waited_for, _)| *waited_for == operation) else {
            return;
        };
        let before = self.cache.clone();
        let verdict = self.cache.note(self.setup.file_cache, outcome);
        self.counters.file_cache_sets.add(match &verdict {
            CacheVerdict::Set(_) => "set",
            CacheVerdict::GoOn => "not_managed",
            CacheVerdict::Fail(_) => "failed",
        });
        if self.cache != before {
            match &self.cache {
                CacheState::NotManaged { why } => {
                    tracing::info!(%why, "file cache is not managed");
                }
                CacheState::Failing { why } => tracing::error!(%why, "file cache cannot be set"),
                state => tracing::debug!(?state, "file cache"),
            }
        }
        self.finish(job, verdict);
    }

    fn finish(&mut self, job: Job, cache: CacheVerdict) {
        match job {
            // What went wrong is in the state and the log; the agent did not ask.
            Job::Start => {}
            Job::Downscale {
                connection,
                id,
                approval,
            } => {
                self.finish_downscale(connection, id, &approval, cache);
            }
            Job::Upscale {
                connection,
                id,
                total,
            } => {
                self.finish_upscale(connection, id, total, cache);
            }
        }
    }

    fn finish_downscale(
        &mut self,
        connection: ConnectionId,
        id: u64,
        approval: &Approval,
        cache: CacheVerdict,
    ) {
        // Without its asker the VM will not shrink, so the threshold must stay.
        if !self.serves(connection) {
            return;
        }
        let change = match cache {
            CacheVerdict::Set(change) => Some(change),
            CacheVerdict::GoOn => None,
            CacheVerdict::Fail(why) => {
                self.counters.downscales.add("failed");
                return self.fail(
                    connection,
                    id,
                    &Failure::FileCache {
                        detail: why.to_string(),
                    },
                );
            }
        };
        if let Approval::Fits {
            threshold, total, ..
        } = approval
        {
            self.threshold = Some(*threshold);
            self.total = Some(*total);
        }
        let status = match (change, approval) {
            (None, Approval::NotWatched) if self.cache.is_absent() => {
                "approved: neither memory nor a file cache is managed".to_owned()
            }
            (None, approval) => approval.to_string(),
            (Some(change), approval) => format!("{change}; {approval}"),
        };
        let status = shorten(status);
        self.counters.downscales.add("approved");
        tracing::info!(id, status, "downscale approved");
        self.send(
            connection,
            id,
            MonitorBody::DownscaleResult { ok: true, status },
        );
    }

    fn finish_upscale(
        &mut self,
        connection: ConnectionId,
        id: u64,
        total: Bytes,
        cache: CacheVerdict,
    ) {
        // A newer agent's connection has its threshold from the machine itself.
        if !self.serves(connection) {
            return;
        }
        // The memory is there whatever became of the cache.
        self.total = Some(total);
        self.threshold = Some(self.setup.rules.threshold(total));
        if let CacheVerdict::Fail(why) = cache {
            self.counters.upscales.add("failed");
            return self.fail(
                connection,
                id,
                &Failure::FileCache {
                    detail: why.to_string(),
                },
            );
        }
        self.counters.upscales.add("confirmed");
        tracing::info!(id, total = total.0, "upscale confirmed");
        self.send(connection, id, MonitorBody::UpscaleConfirmation);
    }

    fn serves(&self, connection: ConnectionId) -> bool {
        self.session
            .is_some_and(|session| session.connection == connection)
    }

    fn fail(&mut self, connection: ConnectionId, id: u64, failure: &Failure) {
        let error = shorten(failure.to_string());
        tracing::warn!(id, error, "request failed");
        self.send(connection, id, MonitorBody::InternalError { error });
    }
}
