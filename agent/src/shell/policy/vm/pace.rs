//! When a VM is asked about: with a step, at most once a second. News that came within that second
//! are asked about at its end. Without any step there is a question at least every 10 s.

use policy_contract::{ASK_AT_LATEST, ASK_EVERY};
use protocol::time::{Span, Timestamp};

/// Time after a question at which the next one is due without news. A tenth of a second is left to
/// the timer.
const DUE_AFTER: Span = Span(ASK_AT_LATEST.0 - 100_000);

#[derive(Debug, Default)]
pub(super) struct Pace {
    asked_at: Option<Timestamp>,
    /// Time of the last question, or of the last try to ask.
    tried_at: Option<Timestamp>,
    has_news: bool,
}

impl Pace {
    /// The pace of a version in another role. It does not ask before the next step.
    pub(super) fn restarted(&self) -> Self {
        Self {
            asked_at: self.asked_at,
            tried_at: None,
            has_news: false,
        }
    }

    /// A step happened. If it cannot ask, the end of the second since the last question does.
    pub(super) fn stepped(&mut self) {
        if self.tried_at.is_none() && self.asked_at.is_some() {
            (self.tried_at, self.has_news) = (self.asked_at, true);
        }
    }

    pub(super) fn news(&mut self, is_news: bool) {
        self.has_news |= is_news;
    }

    /// Whether a step at `now` may ask.
    pub(super) fn may_ask(&self, now: Timestamp) -> bool {
        self.asked_at.is_none_or(|at| now.since(at) >= ASK_EVERY)
    }

    /// Time of the next question without a step. `None` before the first step.
    pub(super) fn due_at(&self) -> Option<Timestamp> {
        let wait = if self.has_news { ASK_EVERY } else { DUE_AFTER };
        self.tried_at.map(|at| at + wait)
    }

    /// A question is asked.
    pub(super) fn asks(&mut self, now: Timestamp) {
        self.asked_at = Some(now);
        self.has_no_question(now);
    }

    /// There is no question without fresh metrics.
    pub(super) fn has_no_question(&mut self, now: Timestamp) {
        (self.tried_at, self.has_news) = (Some(now), false);
    }

    /// The question has to wait for a worker.
    pub(super) fn waits(&mut self, now: Timestamp) {
        (self.tried_at, self.has_news) = (Some(now), true);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Requirement: V08
        #[test]
        fn v08_vm_is_asked_about_every_10_s_and_at_most_once_a_second(
            steps in prop::collection::vec((0..20_000_000_u64, any::<bool>()), 1..200),
        ) {
            let mut pace = Pace::default();
            let (mut now, mut asked, mut news) = (Timestamp(0), Vec::new(), Vec::new());
            for (after, is_news) in steps {
                now = now + Span(after);
                while let Some(due) = pace.due_at().filter(|due| *due < now) {
                    pace.asks(due);
                    asked.push(due);
                }
                pace.news(is_news);
                news.extend(is_news.then_some(now));
                if pace.may_ask(now) {
                    pace.asks(now);
                    asked.push(now);
                }
            }
            for pair in asked.windows(2) {
                let between = pair[1].since(pair[0]);
                prop_assert!(between >= ASK_EVERY && between <= Span::from_secs(10));
            }
            for at in news.into_iter().filter(|at| now.since(*at) > ASK_EVERY) {
                let is_soon = |asked: &&Timestamp| **asked >= at && asked.since(at) <= ASK_EVERY;
                prop_assert!(asked.iter().any(|asked| is_soon(&asked)), "{at:?}");
            }
        }
    }

    /// Requirement: V08
    #[test]
    fn v08_version_in_another_role_is_asked_within_a_second() {
        let mut pace = Pace::default();
        pace.asks(Timestamp(5));
        let mut pace = pace.restarted();
        assert_eq!(pace.due_at(), None, "not before a step");
        pace.stepped();
        assert!(!pace.may_ask(Timestamp(6)));
        assert_eq!(pace.due_at(), Some(Timestamp(1_000_005)));
    }

    #[test]
    fn question_that_waits_for_a_worker_is_tried_each_second() {
        let mut pace = Pace::default();
        assert_eq!(pace.due_at(), None);
        pace.waits(Timestamp(5));
        assert_eq!(pace.due_at(), Some(Timestamp(1_000_005)));
        assert!(pace.may_ask(Timestamp(6)), "the next step need not wait");
        pace.has_no_question(Timestamp(7));
        assert_eq!(pace.due_at(), Some(Timestamp(9_900_007)));
    }
}
