//! The soft squeeze: before a shrink is approved, the group is brought down to the size it will
//! have, a little at a time, and while it can still have everything back.
//!
//! Off unless asked for. Without it the kernel does the same work while the memory is being
//! unplugged, all at once, when nobody can say no any more. Each step takes a share of what is too
//! much (`memory.reclaim`) and then looks at how long tasks have waited for memory since the
//! beginning. When they wait too long, when it takes too long, or when nothing more can be taken,
//! the shrink is refused. There is nothing to undo: no limit was set, so what is needed comes back.

use protocol::time::{Span, Timestamp};
use protocol::units::Bytes;
use serde::Serialize;

use super::working_set::Gauge;

/// Longest a squeeze takes. With hooks and the file cache after it an answer stays within the
/// agent's patience of 5 s.
const LIMIT: Span = Span::from_millis(1500);
/// Longest that tasks of the group may wait for memory in that time, all waits together.
const BUDGET: Span = Span::from_millis(50);
/// A step is this share of what is too much, within the limits.
const STEP_SHARE: u64 = 8;
const STEP_LIMITS: (Bytes, Bytes) = (Bytes::mib(4), Bytes::mib(128));
/// A step that brings the group down by less than this was fruitless.
const FRUIT: Bytes = Bytes::mib(1);
/// Fruitless steps in a row after which there is nothing more to take.
const FRUITLESS: u8 = 3;

/// Why a squeeze was given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum GaveUp {
    /// Tasks waited for memory beyond the budget.
    Hurts,
    /// The time was over.
    TooSlow,
    /// Nothing more could be taken.
    Stuck,
}

impl GaveUp {
    /// The counter's label.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Hurts => "hurts",
            Self::TooSlow => "too_slow",
            Self::Stuck => "stuck",
        }
    }
}

/// How far a squeeze came.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Squeezed {
    /// Why it was given up.
    pub why: GaveUp,
    /// What the group was to be brought down to.
    pub goal: Bytes,
    /// What it has now, if that was seen.
    pub reached: Option<Bytes>,
    /// How long its tasks have waited for memory since the beginning.
    pub waited: Span,
}

/// What to do after a look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// Take this much more.
    Take(Bytes),
    Done,
    /// It does not, for this.
    GiveUp(GaveUp),
}

/// A squeeze under way.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Squeeze {
    goal: Bytes,
    /// When an answer is due, whatever has been reached.
    pub(super) until: Timestamp,
    first: Option<Gauge>,
    last: Option<Gauge>,
    fruitless: u8,
}

impl Squeeze {
    pub(super) fn new(now: Timestamp, goal: Bytes) -> Self {
        Self {
            goal,
            until: now + LIMIT,
            first: None,
            last: None,
            fruitless: 0,
        }
    }

    pub(super) fn waited(&self) -> Span {
        let waited = self.first.zip(self.last);
        Span(waited.map_or(0, |(first, last)| {
            last.some_us.saturating_sub(first.some_us)
        }))
    }

    pub(super) fn step(&mut self, now: Timestamp, gauge: Gauge) -> Step {
        self.first.get_or_insert(gauge);
        let before = self.last.replace(gauge);
        // Having got there does not help if it hurt.
        if self.waited() > BUDGET {
            return Step::GiveUp(GaveUp::Hurts);
        }
        let too_much = gauge.current.0.saturating_sub(self.goal.0);
        if too_much == 0 {
            return Step::Done;
        }
        if let Some(before) = before {
            let is_fruitless = before.current.0.saturating_sub(gauge.current.0) < FRUIT.0;
            self.fruitless = if is_fruitless { self.fruitless + 1 } else { 0 };
        }
        if self.fruitless >= FRUITLESS {
            return Step::GiveUp(GaveUp::Stuck);
        }
        if now >= self.until {
            return Step::GiveUp(GaveUp::TooSlow);
        }
        let (least, most) = STEP_LIMITS;
        let share = Bytes(too_much / STEP_SHARE).clamp(least, most);
        Step::Take(Bytes(share.0.min(too_much)))
    }

    pub(super) fn given_up(&self, why: GaveUp) -> Squeezed {
        Squeezed {
            why,
            goal: self.goal,
            reached: self.last.map(|last| last.current),
            waited: self.waited(),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BEGAN: Timestamp = Timestamp(5_000_000);

    const fn gauge(mib: u64, some_us: u64) -> Gauge {
        Gauge {
            current: Bytes::mib(mib),
            some_us,
        }
    }

    fn begun(goal_mib: u64) -> Squeeze {
        Squeeze::new(BEGAN, Bytes::mib(goal_mib))
    }

    #[test]
    fn each_end_has_its_cause() {
        let mut fits = begun(100);
        assert_eq!(fits.step(BEGAN, gauge(100, 9)), Step::Done);

        let mut hurts = begun(100);
        assert_eq!(
            hurts.step(BEGAN, gauge(900, 7)),
            Step::Take(Bytes::mib(100))
        );
        assert_eq!(
            hurts.step(BEGAN, gauge(800, 50_007)),
            Step::Take(Bytes(91_750_400))
        );
        assert_eq!(
            hurts.step(BEGAN, gauge(99, 50_008)),
            Step::GiveUp(GaveUp::Hurts)
        );
        assert_eq!(hurts.given_up(GaveUp::Hurts).waited, Span(50_001));

        let mut stuck = begun(100);
        for _ in 0..3 {
            assert_eq!(stuck.step(BEGAN, gauge(104, 0)), Step::Take(Bytes::mib(4)));
        }
        assert_eq!(
            stuck.step(BEGAN, gauge(104, 0)),
            Step::GiveUp(GaveUp::Stuck)
        );

        let mut slow = begun(100);
        let end = BEGAN + LIMIT;
        assert_eq!(
            slow.step(end - Span(1), gauge(5000, 0)),
            Step::Take(Bytes::mib(128))
        );
        assert_eq!(
            slow.step(end, gauge(4872, 0)),
            Step::GiveUp(GaveUp::TooSlow)
        );
        assert_eq!(slow.step(end, gauge(100, 0)), Step::Done, "late, but there");
    }

    proptest! {
        /// Whatever is seen: never more is taken than is too much, a squeeze ends, and what it says
        /// is what it saw.
        #[test]
        fn squeezes_end_and_take_no_more_than_needed(
            goal in 0_u64..1 << 40,
            looks in prop::collection::vec((0_u64..1 << 41, 0_u64..100_000, 1_u64..200_000), 1..60),
        ) {
            let mut squeeze = Squeeze::new(BEGAN, Bytes(goal));
            let (mut now, mut some_us, mut first) = (BEGAN, 0, None);
            for (current, waited, took) in looks {
                now = now + Span(took);
                some_us += waited / 10;
                let gauge = Gauge { current: Bytes(current), some_us };
                let since = some_us - *first.get_or_insert(some_us);
                match squeeze.step(now, gauge) {
                    Step::Take(bytes) => {
                        prop_assert!(now < BEGAN + LIMIT);
                        prop_assert!(bytes.0 > 0 && bytes.0 <= current - goal && bytes <= STEP_LIMITS.1);
                        prop_assert!(since <= BUDGET.0);
                    }
                    Step::Done => {
                        prop_assert!(current <= goal && since <= BUDGET.0);
                        break;
                    }
                    Step::GiveUp(why) => {
                        let told = squeeze.given_up(why);
                        prop_assert_eq!(told.reached, Some(Bytes(current)));
                        prop_assert_eq!(told.waited, Span(since));
                        prop_assert_eq!(why == GaveUp::Hurts, since > BUDGET.0);
                        break;
                    }
                }
            }
        }
    }
}
