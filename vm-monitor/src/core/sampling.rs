//! Looking at memory: first the cheap bound, then, if that could matter, what cannot be reclaimed.

use protocol::time::Timestamp;
use protocol::units::Bytes;

use super::files::ReadFailure;
use super::working_set::Gauge;
use super::{Action, Monitor};

impl Monitor {
    /// A look is due: the bound first. Planned anew as soon as the outcome is known.
    pub(super) fn look(&mut self, now: Timestamp) -> Action {
        // Readings that were missed are not made up for.
        let interval = self.setup.rules.sample_interval;
        let next = self.watch.next_look_at + interval;
        self.watch.next_look_at = if next > now { next } else { now + interval };
        Action::Probe
    }

    /// The bound was read; `None` where there is no such figure.
    pub(super) fn probed(&mut self, now: Timestamp, bound: Option<Bytes>) {
        if self.session.is_none() {
            return;
        }
        self.counters.samples.add("probed");
        self.watch.note_bound(now, bound);
        let rules = &self.setup.rules;
        // The window fills at the deployed pace, so that an early shrink finds its readings.
        let is_filling = self.window.len() < rules.window || self.window.failure().is_some();
        let patience = rules.sample_interval;
        if is_filling || self.watch.needs_use(now, self.threshold, patience) {
            self.outbox.push_back(Action::Sample);
        } else {
            self.plan_next_look(now);
        }
    }

    /// The use was read, or could not be.
    pub(super) fn sampled(&mut self, now: Timestamp, outcome: Result<Bytes, ReadFailure>) {
        match &outcome {
            Ok(_) => self.counters.samples.add("read"),
            Err(failure) => {
                self.counters.samples.add("failed");
                if self.window.failure().is_none() {
                    tracing::warn!(%failure, "memory use is unknown: every shrink is refused");
                }
            }
        }
        let used = outcome.as_ref().ok().copied();
        self.watch.note_used(now, used, self.threshold);
        if let Some(used) = used {
            self.peak.note(now, used, self.setup.rules.peak_window);
        }
        self.window.push(now, outcome, &self.setup.rules);
        self.consider_asking(now);
        self.judge_stall(now);
        self.plan_next_look(now);
    }

    /// The threshold has fallen. The next look was planned by the higher one, up to a second ahead,
    /// so it is planned again. It is never put off: a look that is due soon is still due.
    pub(super) fn look_by_lower_threshold(&mut self, now: Timestamp) {
        let planned = self.watch.next_look_at;
        self.plan_next_look(now);
        self.watch.next_look_at = self.watch.next_look_at.min(planned);
    }

    /// By deadline where there is a bound to look at; else, as the deployed monitor does, at its
    /// fixed pace.
    fn plan_next_look(&mut self, now: Timestamp) {
        let rules = &self.setup.rules;
        let is_filling = self.window.len() < rules.window || self.window.failure().is_some();
        if self.watch.bound().is_none() || is_filling {
            // Already planned when the look began.
            return;
        }
        let Some(threshold) = self.threshold else {
            self.watch.next_look_at = now + rules.pacing.slow;
            return;
        };
        let reserve = Bytes(
            self.total
                .map_or(0, |total| total.0 - threshold.0.min(total.0)),
        );
        // After a shrink, looks are never further apart than the deployed pace.
        let soonest = now + rules.sample_interval;
        let is_over = self.watch.used().is_some_and(|used| used >= threshold);
        if is_over || self.asked_lately(now) {
            // All that can be done is being done once a second: the deployed pace is enough.
            self.watch.next_look_at = soonest;
        } else {
            self.watch.plan(now, threshold, reserve);
            if self.shrunk_lately(now) {
                self.watch.next_look_at = self.watch.next_look_at.min(soonest);
            }
        }
    }

    /// The figures of a step were read, or could not be.
    pub(super) fn gauged(&mut self, now: Timestamp, gauge: Option<Gauge>) {
        let may_take = !self.asked_lately(now)
            && self.watch.climb(self.threshold) == 0
            && !self.shrunk_lately(now);
        let taken = gauge.and_then(|gauge| self.estimator.step(now, gauge, may_take));
        if let Some(bytes) = taken {
            self.outbox.push_back(Action::Reclaim { bytes });
        }
    }
}
