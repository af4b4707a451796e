//! When the monitor requests growth: the triggers.

use protocol::monitor::MonitorBody;
use protocol::time::{Span, Timestamp};

use super::Monitor;
use super::growth_request::{AskReason, GrowthRequest};

/// A wait for growth that is longer says nothing about how long growth takes.
const LONGEST_LEAD: Span = Span::from_secs(10);

impl Monitor {
    /// Asks for growth if the readings call for it.
    pub(super) fn consider_asking(&mut self, now: Timestamp) {
        if let Some(reason) = self.reason_in_readings(now) {
            self.ask_for_more(now, reason);
        }
    }

    /// The trigger that the readings pull, if one.
    fn reason_in_readings(&self, now: Timestamp) -> Option<AskReason> {
        let threshold = self.threshold?;
        if self.window.failure().is_some() {
            return None;
        }
        let rules = &self.setup.rules;
        let is_full = self.window.len() >= rules.min_samples
            && self.window.mean().is_some_and(|mean| mean >= threshold);
        if is_full {
            return Some(AskReason::Threshold);
        }
        if !rules.asks_early {
            return None;
        }
        let is_over = self.watch.used().is_some_and(|used| used >= threshold);
        if is_over && self.shrunk_lately(now) {
            return Some(AskReason::AfterShrink);
        }
        let forecast = self.watch.forecast(threshold)?;
        (forecast >= threshold).then_some(AskReason::Forecast)
    }

    /// Whether a shrink was approved so lately that pressure is held against it.
    pub(super) fn shrunk_lately(&self, now: Timestamp) -> bool {
        let while_after = self.setup.rules.watch_after_shrink;
        self.shrunk_at.is_some_and(|at| now.since(at) < while_after)
    }

    /// Whether asking again now is too soon.
    pub(super) fn asked_lately(&self, now: Timestamp) -> bool {
        let interval = self.setup.rules.upscale_interval;
        self.asked.is_some_and(|ask| now.since(ask.at) < interval)
    }

    /// Asks for growth, at most once a second whatever the reasons.
    pub(super) fn ask_for_more(&mut self, now: Timestamp, reason: AskReason) {
        if self.asked_lately(now) {
            return;
        }
        let Some((connection, id)) = self.next_own_id() else {
            return;
        };
        let ask = GrowthRequest {
            at: now,
            reason,
            used: self.watch.used(),
            threshold: self.threshold,
            climb: self.watch.climb(self.threshold),
        };
        // The first of a run is news; the following ones, one a second, are not.
        let rules = &self.setup.rules;
        let is_first = self
            .asked
            .is_none_or(|last| now.since(last.at) >= rules.max_age || last.reason != reason);
        if is_first {
            tracing::info!(id, reason = reason.label(), used = ?ask.used, threshold = ?ask.threshold,
                climb = ask.climb, "asking for more memory");
        }
        self.counters.asks.add(reason.label());
        self.asked = Some(ask);
        self.waiting_for_growth_since.get_or_insert(now);
        if self.capabilities().ask_details {
            let body = self.asked_body(&ask);
            self.send_v2(connection, id, body);
        } else {
            self.send(connection, id, MonitorBody::UpscaleRequest);
        }
    }

    /// Growth has come: how long it took is the lead of the next forecast.
    pub(super) fn growth_has_come(&mut self, now: Timestamp) {
        self.shrunk_at = None;
        if let Some(since) = self.waiting_for_growth_since.take() {
            let took = now.since(since);
            // A wait of minutes was for room on the node, not for the machinery.
            if took < LONGEST_LEAD {
                self.watch.note_lead(took);
            }
        }
    }
}
