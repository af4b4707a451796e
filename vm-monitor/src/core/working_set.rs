//! How much memory the group really needs, by taking a little and seeing whether it is missed.
//!
//! Off unless asked for. A small share is reclaimed every few seconds as long as hardly any task
//! waits for memory. When tasks do wait, what was charged before the last step is the estimate, and
//! nothing is taken for a long while. Nothing is taken from a group that climbs or has just asked
//! for more.

use protocol::time::{Span, Timestamp};
use protocol::units::Bytes;
use serde::Serialize;

/// Between two steps.
const STEP_EVERY: Span = Span::from_secs(10);
/// Rest after a step that was missed. What was taken comes back meanwhile.
const REST: Span = Span::from_secs(300);
/// Share of the time between two steps in which tasks may wait for memory, in ten-thousandths.
const BUDGET: u64 = 10;
/// A step is this share of what is charged, within the limits.
const STEP_SHARE: u64 = 100;
const STEP_LIMITS: (Bytes, Bytes) = (Bytes::mib(1), Bytes::mib(32));

/// What a step goes by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Gauge {
    /// All that is charged to the group.
    pub current: Bytes,
    /// Time in which some of its tasks waited for memory, microseconds since the group was made.
    pub some_us: u64,
}

/// The estimator's state.
#[derive(Debug, Clone, Default)]
pub(super) struct Estimator {
    next_at: Timestamp,
    last: Option<(Timestamp, Gauge)>,
    /// Whether something was taken after `last` was read.
    has_taken: bool,
    estimate: Option<Bytes>,
}

impl Estimator {
    /// The newest estimate.
    pub(super) const fn estimate(&self) -> Option<Bytes> {
        self.estimate
    }

    /// When the next step is due.
    pub(super) const fn next_at(&self) -> Timestamp {
        self.next_at
    }

    /// The next step begins now.
    pub(super) fn begin(&mut self, now: Timestamp) {
        self.next_at = now + STEP_EVERY;
    }

    /// A step's figures: how much to take, if anything.
    pub(super) fn step(&mut self, now: Timestamp, gauge: Gauge, may_take: bool) -> Option<Bytes> {
        let before = self.last.replace((now, gauge));
        let had_taken = std::mem::take(&mut self.has_taken);
        let (at, before) = before?;
        let waited = u128::from(gauge.some_us.saturating_sub(before.some_us));
        let budget = u128::from(now.since(at).0) * u128::from(BUDGET) / 10_000;
        if waited > budget {
            if had_taken {
                self.estimate = Some(before.current);
            }
            self.next_at = now + REST;
            self.last = None;
            return None;
        }
        if !may_take {
            return None;
        }
        self.has_taken = true;
        let (least, most) = STEP_LIMITS;
        Some(Bytes(gauge.current.0 / STEP_SHARE).clamp(least, most))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A group that needs some memory and waits when it has less.
    struct Group {
        current: u64,
        needs: u64,
        some_us: u64,
    }

    fn run(estimator: &mut Estimator, group: &mut Group, steps: u64) -> u64 {
        let (mut taken, mut now) = (0, estimator.next_at());
        for _ in 0..steps {
            estimator.begin(now);
            if group.current < group.needs {
                group.some_us += 50_000;
                group.current = group.needs;
            }
            let gauge = Gauge {
                current: Bytes::mib(group.current),
                some_us: group.some_us,
            };
            if let Some(bytes) = estimator.step(now, gauge, true) {
                taken += bytes.0;
                group.current -= bytes.0 >> 20;
            }
            now = estimator.next_at();
        }
        taken
    }

    #[test]
    fn the_estimate_is_what_was_there_before_it_was_missed() {
        let mut estimator = Estimator::default();
        let mut group = Group {
            current: 1000,
            needs: 700,
            some_us: 0,
        };
        run(&mut estimator, &mut group, 100);
        let estimate = estimator.estimate().expect("found").0 >> 20;
        assert!((700..=710).contains(&estimate), "{estimate}");
    }

    #[test]
    fn it_rests_after_a_step_that_was_missed_and_takes_in_small_steps() {
        let mut estimator = Estimator::default();
        let mut group = Group {
            current: 100_000,
            needs: 0,
            some_us: 0,
        };
        let taken = run(&mut estimator, &mut group, 11);
        assert_eq!(taken, 10 * (32 << 20), "the first step only looks");
        let before = estimator.next_at();
        group.needs = group.current + 10;
        run(&mut estimator, &mut group, 1);
        assert_eq!(estimator.next_at(), before + REST);
    }

    #[test]
    fn step_takes_one_percent_within_its_limits() {
        for (mib, taken) in [(50, 1), (1000, 10), (100_000, 32)] {
            let mut estimator = Estimator::default();
            let gauge = Gauge {
                current: Bytes::mib(mib),
                some_us: 0,
            };
            assert_eq!(estimator.step(Timestamp(0), gauge, true), None);
            let step = estimator.step(Timestamp(10_000_000), gauge, true);
            assert_eq!(step, Some(Bytes::mib(taken)), "{mib} MiB");
        }
    }

    #[test]
    fn waiting_that_has_another_cause_is_no_estimate() {
        let mut estimator = Estimator::default();
        let gauge = |some_us| Gauge {
            current: Bytes::mib(100),
            some_us,
        };
        assert_eq!(estimator.step(Timestamp(0), gauge(0), false), None);
        let later = Timestamp(10_000_000);
        assert_eq!(estimator.step(later, gauge(9_000_000), true), None);
        assert_eq!(estimator.estimate(), None);
    }
}
