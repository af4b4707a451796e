//! The requests that take time, one after the other: decide, set the file cache, move the
//! threshold, answer.

use protocol::monitor::{Allocation, MonitorBody};
use protocol::monitor_v2::{MonitorBodyV2, Refused};
use protocol::time::{Span, Timestamp};
use protocol::units::Bytes;

use super::cache::{CacheChange, CacheFailure, CacheState, CacheVerdict};
use super::decision::{Approval, Failure, Refusal, Watched, Weight};
use super::hooks::HookEvent;
use super::jobs::{Job, Request, Weighing};
use super::session::shorten;
use super::{Action, ConnectionId, Monitor, OperationId};

/// Requests that may wait behind the one in hand. An agent has one of each kind in flight.
pub(super) const WAITING_LIMIT: usize = 32;

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
        while self.job.is_none() && self.growth.is_none() && self.weighing.is_none() {
            let Some(request) = self.waiting.pop_front() else {
                return;
            };
            match request {
                Request::Start { total } => self.set_cache_then(now, total, Job::Start),
                Request::Upscale {
                    connection,
                    id,
                    granted,
                } => self.upscale(now, connection, id, granted),
                Request::Downscale {
                    connection,
                    id,
                    target,
                } => self.downscale(now, connection, id, target),
            }
        }
    }

    fn upscale(&mut self, now: Timestamp, connection: ConnectionId, id: u64, granted: Allocation) {
        if self.capabilities().observed {
            return self.watch_growth(now, connection, id, granted);
        }
        self.growth_has_come(now);
        let total = self.setup.rules.usable(granted.mem);
        let job = Job::Upscale {
            connection,
            id,
            granted,
            total,
            observed: None,
        };
        self.set_cache_then(now, total, job);
    }

    fn downscale(&mut self, now: Timestamp, connection: ConnectionId, id: u64, target: Allocation) {
        self.weighing = Some(Weighing {
            connection,
            id,
            target,
            weight: None,
        });
        if self.setup.watched == Watched::Nothing {
            return self.weighed(now, Weight::default());
        }
        // An idle guest's newest reading may be a second old: look again first, unless the readings
        // already say no.
        let rules = &self.setup.rules;
        let is_fresh = self.window.age(now).is_some_and(|age| age <= rules.max_age);
        if is_fresh && self.window.len() >= rules.min_samples {
            self.outbox.push_back(Action::Sample);
        }
        self.outbox.push_back(Action::Weigh);
    }

    /// Says no, with all the details the agent can use.
    pub(super) fn refuse(
        &mut self,
        now: Timestamp,
        connection: ConnectionId,
        id: u64,
        target: Allocation,
        refusal: &Refusal,
    ) {
        self.counters.downscales.add("refused");
        self.counters.refusals.add(refusal.reason().label());
        let status = shorten(refusal.to_string());
        tracing::info!(id, mem = target.mem, status, "downscale refused");
        if !self.capabilities().refusal_details {
            let body = MonitorBody::DownscaleResult { ok: false, status };
            return self.send(connection, id, body);
        }
        // CPUs are not what is refused, so any number of them would do.
        let smallest = refusal.smallest(&self.setup.rules);
        let cpu = target.cpu;
        let refused = Refused {
            status,
            reason: refusal.reason(),
            smallest: smallest.map(|mem| Allocation { cpu, mem }),
            again: self.again_in(now, refusal),
        };
        self.send_v2(connection, id, MonitorBodyV2::Refused(refused));
    }

    /// Time until a refused shrink would fit, if use stays as it is now. It is known where what is
    /// in use fits and only what was in use does not.
    fn again_in(&self, now: Timestamp, refusal: &Refusal) -> Option<Span> {
        let limit = match refusal {
            Refusal::RecentPeak { threshold, .. } => *threshold,
            Refusal::TooLow {
                threshold, buffer, ..
            }
            | Refusal::Swapped {
                threshold, buffer, ..
            } => Bytes(threshold.0.saturating_sub(buffer.0)),
            _ => return None,
        };
        let fits_now = self.watch.used().is_some_and(|used| used <= limit);
        if !fits_now || !self.capabilities().refusal_again {
            return None;
        }
        // The readings of the mean are newer than those of the peak.
        let at = self.peak.falls_to(limit, self.setup.rules.peak_window)?;
        Some(at.since(now))
    }

    /// Sets the file cache for `total`, if there is one, and finishes the job after it.
    pub(super) fn set_cache_then(&mut self, now: Timestamp, total: Bytes, job: Job) {
        if self.cache == CacheState::Off {
            return self.finish(now, job, CacheVerdict::GoOn);
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
        now: Timestamp,
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
        self.finish(now, job, verdict);
    }

    pub(super) fn finish(&mut self, now: Timestamp, job: Job, cache: CacheVerdict) {
        match job {
            // What went wrong is in the state and the log; the agent did not ask.
            Job::Start => {}
            Job::Downscale {
                connection,
                id,
                approval,
            } => {
                self.finish_downscale(now, (connection, id), &approval, cache);
            }
            Job::Upscale { .. } => self.finish_upscale(now, job, cache),
            // These wait for other things than the cache.
            Job::Squeeze { .. } | Job::BeforeShrink { .. } | Job::AfterGrow { .. } => {}
        }
    }

    fn finish_downscale(
        &mut self,
        now: Timestamp,
        (connection, id): (ConnectionId, u64),
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
        self.shrunk_at = Some(now);
        self.refaults.restart();
        self.look_by_lower_threshold(now);
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

    fn finish_upscale(&mut self, now: Timestamp, job: Job, cache: CacheVerdict) {
        let Job::Upscale {
            connection,
            id,
            granted,
            total,
            observed,
        } = job
        else {
            return;
        };
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
        if self.setup.hooks {
            let job = Job::AfterGrow {
                connection,
                id,
                observed,
            };
            return self.run_hooks(HookEvent::AfterGrow, granted, job);
        }
        self.confirm_upscale(now, connection, id, observed);
    }

    /// Says that the growth is there and used.
    pub(super) fn confirm_upscale(
        &mut self,
        now: Timestamp,
        connection: ConnectionId,
        id: u64,
        observed: Option<Allocation>,
    ) {
        self.counters.upscales.add("confirmed");
        tracing::info!(id, total = ?self.total, "upscale confirmed");
        match observed {
            Some(observed) => self.send_v2(connection, id, MonitorBodyV2::Confirmed { observed }),
            None => self.send(connection, id, MonitorBody::UpscaleConfirmation),
        }
        self.push_metrics_soon(now);
    }

    pub(super) fn serves(&self, connection: ConnectionId) -> bool {
        self.session
            .is_some_and(|session| session.connection == connection)
    }

    pub(super) fn fail(&mut self, connection: ConnectionId, id: u64, failure: &Failure) {
        let error = shorten(failure.to_string());
        tracing::warn!(id, error, "request failed");
        self.send(connection, id, MonitorBody::InternalError { error });
    }
}
