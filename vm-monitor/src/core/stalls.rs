//! What follows from stalls and out-of-memory events: a request for growth.

use protocol::time::Timestamp;

use super::files::OomCounts;
use super::growth_request::AskReason;
use super::pressure::{Stall, Stalled};
use super::{Action, Monitor};

impl Monitor {
    /// Tasks were stalled: the use is read at once, and judged with it.
    pub(super) fn tasks_stalled(&mut self, stalled: Stalled) {
        self.counters.stalls.add(stalled.label());
        if self.session.is_none() || !self.setup.rules.asks_early {
            return;
        }
        // Of two before the reading comes, the graver one counts.
        let graver = self
            .stalled
            .is_none_or(|earlier| earlier.stall <= stalled.stall);
        if graver {
            self.stalled = Some(stalled);
        }
        self.outbox.push_back(Action::Sample);
    }

    /// The use was read after a stall: asks if it was want.
    pub(super) fn judge_stall(&mut self, now: Timestamp) {
        let Some(stalled) = self.stalled.take() else {
            return;
        };
        let used = self.watch.used();
        let reserve = self.setup.rules.headroom_permille;
        let is_want = stalled.is_want(used, self.threshold, reserve);
        let is_missed = self.shrunk_lately(now) && self.refaults.are_missed(stalled);
        if is_missed || (is_want && self.shrunk_lately(now)) {
            // They had it before the shrink.
            self.ask_for_more(now, AskReason::AfterShrink);
        } else if is_want {
            let reason = match stalled.stall {
                Stall::Some => AskReason::PsiSome,
                Stall::Full => AskReason::PsiFull,
            };
            self.ask_for_more(now, reason);
        } else {
            self.counters.stalls.add("not_for_want");
        }
    }

    /// The out-of-memory counts of the watched group were read.
    pub(super) fn oom_counted(&mut self, now: Timestamp, counts: OomCounts) {
        let before = self.oom.replace(counts);
        // What was counted before we looked was somebody else's trouble.
        let Some(before) = before else { return };
        let is_worse = counts.oom > before.oom || counts.oom_kill > before.oom_kill;
        if !is_worse {
            return;
        }
        tracing::warn!(
            oom = counts.oom,
            oom_kill = counts.oom_kill,
            "the kernel ran out of memory for the group"
        );
        self.outbox.push_back(Action::Sample);
        if self.setup.rules.asks_early {
            self.ask_for_more(now, AskReason::OomEvent);
        }
    }
}
