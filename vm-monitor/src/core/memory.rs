//! The memory watch: the last few readings, their mean, and the threshold they are held against.

use std::collections::VecDeque;

use protocol::time::{Span, Timestamp};
use protocol::units::Bytes;
use serde::Serialize;

use super::files::ReadFailure;
use super::watch::Pacing;

/// The numbers of the memory rules. The default is the deployed monitor's. Source:
/// docs/compatibility/monitor.md §3.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Rules {
    /// Between two readings that count for the mean; between two looks where there is no bound to
    /// look at.
    pub sample_interval: Span,
    /// How many readings the mean is taken over.
    pub window: usize,
    /// With fewer readings nothing is decided.
    pub min_samples: usize,
    /// A newest reading older than this says nothing about now.
    pub max_age: Span,
    /// What the kernel keeps of the size seen from outside.
    pub kernel_reserve: Bytes,
    /// Share of the usable size that stays above the threshold, in thousandths.
    pub headroom_permille: u16,
    /// What a shrink must leave between use and the new threshold.
    pub downscale_buffer: Bytes,
    /// Least time between two requests for growth.
    pub upscale_interval: Span,
    /// Whether growth is asked for before the mean has reached the threshold: by forecast and by
    /// the kernel's own signs of want. Without it the deployed monitor's rule is the only one.
    pub asks_early: bool,
    /// A shrink must leave room for the most that was in use for this long.
    pub peak_window: Span,
    /// With tasks waiting for memory in this share of the last ten seconds or more, in thousandths,
    /// nothing shrinks.
    pub calm_permille: u16,
    /// For this long after a shrink any pressure is held against it.
    pub watch_after_shrink: Span,
    /// When to look.
    pub pacing: Pacing,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            sample_interval: Span::from_millis(100),
            window: 5,
            min_samples: 2,
            max_age: Span::from_secs(5),
            kernel_reserve: Bytes::mib(100),
            headroom_permille: 150,
            downscale_buffer: Bytes::mib(100),
            upscale_interval: Span::from_secs(1),
            asks_early: true,
            peak_window: Span::from_secs(7),
            calm_permille: 100,
            watch_after_shrink: Span::from_secs(30),
            pacing: Pacing::default(),
        }
    }
}

impl Rules {
    /// What of a VM of `mem` bytes, as seen from outside, its programs can use.
    #[must_use]
    pub const fn usable(&self, mem: u64) -> Bytes {
        Bytes(mem.saturating_sub(self.kernel_reserve.0))
    }

    /// The smallest size, as seen from outside, to which a shrink would be approved with this in
    /// use.
    #[must_use]
    pub fn smallest_for(&self, used: Bytes) -> u64 {
        self.smallest_over(Bytes(used.0.saturating_add(self.downscale_buffer.0)))
    }

    /// The smallest size, as seen from outside, whose threshold is not below this.
    #[must_use]
    pub fn smallest_over(&self, threshold: Bytes) -> u64 {
        let kept = u128::from(1000_u16.saturating_sub(self.headroom_permille).max(1));
        let needed = u128::from(threshold.0) * 1000;
        let total = needed.div_ceil(kept) + u128::from(self.kernel_reserve.0);
        u64::try_from(total).unwrap_or(u64::MAX)
    }

    /// The use at which more memory is asked for.
    #[must_use]
    pub fn threshold(&self, total: Bytes) -> Bytes {
        let kept = u128::from(1000_u16.saturating_sub(self.headroom_permille));
        Bytes(u64::try_from(u128::from(total.0) * kept / 1000).unwrap_or(u64::MAX))
    }
}

/// The newest readings of one watched group.
#[derive(Debug, Clone, Default)]
pub struct Window {
    samples: VecDeque<(Timestamp, Bytes)>,
    /// Set while the newest attempt to read has failed.
    failure: Option<ReadFailure>,
}

impl Window {
    /// Notes the outcome of a reading; the newest few good ones are kept.
    ///
    /// Readings that come faster than the pace of the mean take each other's place, so that the
    /// mean is over the same time however often memory is looked at.
    pub fn push(&mut self, now: Timestamp, outcome: Result<Bytes, ReadFailure>, rules: &Rules) {
        match outcome {
            Ok(used) => {
                self.failure = None;
                let mut earlier = self.samples.iter().rev().skip(1);
                let is_between = earlier
                    .next()
                    .is_some_and(|(at, _)| now.since(*at) < rules.sample_interval);
                if is_between {
                    self.samples.pop_back();
                }
                while self.samples.len() >= rules.window.max(1) {
                    self.samples.pop_front();
                }
                self.samples.push_back((now, used));
            }
            Err(failure) => self.failure = Some(failure),
        }
    }

    /// Forgets everything: the readings of an earlier connection say nothing about now.
    pub fn clear(&mut self) {
        self.samples.clear();
        self.failure = None;
    }

    /// How many readings there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.samples.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.samples.is_empty()
    }

    /// The mean of the readings, none without readings.
    #[must_use]
    pub fn mean(&self) -> Option<Bytes> {
        let count = u64::try_from(self.samples.len())
            .ok()
            .filter(|count| *count > 0)?;
        let sum: u128 = self
            .samples
            .iter()
            .map(|(_, used)| u128::from(used.0))
            .sum();
        u64::try_from(sum / u128::from(count)).ok().map(Bytes)
    }

    /// How old the newest reading is.
    #[must_use]
    pub fn age(&self, now: Timestamp) -> Option<Span> {
        self.samples.back().map(|(at, _)| now.since(*at))
    }

    /// Why the newest attempt failed, if it did.
    #[must_use]
    pub const fn failure(&self) -> Option<&ReadFailure> {
        self.failure.as_ref()
    }

    /// The readings, oldest first.
    pub fn samples(&self) -> impl Iterator<Item = Bytes> {
        self.samples.iter().map(|(_, used)| *used)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threshold_vector() {
        let rules = Rules::default();
        let threshold = rules.threshold(rules.usable(1 << 30));
        // 785.4 MiB, to the byte below.
        assert_eq!(threshold, Bytes(823_551_590));
        assert_eq!(rules.usable(50 << 20), Bytes(0), "never below nothing");
        assert_eq!(
            rules.threshold(Bytes(u64::MAX)).0,
            u64::MAX / 1000 * 850 + u64::MAX % 1000 * 850 / 1000
        );
    }

    #[test]
    fn mean_of_the_newest_five() {
        let mut window = Window::default();
        let rules = Rules::default();
        assert_eq!(window.mean(), None);
        for (n, used) in [100, 1, 2, 3, 4, 5].into_iter().enumerate() {
            let now = Timestamp(u64::try_from(n).expect("small") * 100_000);
            window.push(now, Ok(Bytes(used)), &rules);
        }
        assert_eq!((window.len(), window.mean()), (5, Some(Bytes(3))));
        assert_eq!(window.age(Timestamp(700_000)), Some(Span(200_000)));
    }

    #[test]
    fn readings_between_two_of_the_mean_take_each_others_place() {
        let (mut window, rules) = (Window::default(), Rules::default());
        for n in 0..100_u64 {
            window.push(Timestamp(n * 10_000), Ok(Bytes(n)), &rules);
        }
        let kept: Vec<_> = window.samples().map(|used| used.0).collect();
        assert_eq!(kept.len(), 5);
        assert_eq!(kept[4], 99, "the newest is always there");
        assert!(
            kept.windows(2).take(3).all(|two| two[1] - two[0] >= 9),
            "{kept:?}"
        );
    }

    #[test]
    fn cleared_window_has_neither_readings_nor_a_failure() {
        let (mut window, rules) = (Window::default(), Rules::default());
        assert!(window.is_empty());
        window.push(Timestamp(1), Ok(Bytes(1)), &rules);
        window.push(Timestamp(2), Err(ReadFailure::new("f", "gone")), &rules);
        assert!(!window.is_empty());
        window.clear();
        assert!(window.is_empty() && window.failure().is_none());
    }

    #[test]
    fn a_failure_is_kept_until_a_reading_succeeds() {
        let (mut window, rules) = (Window::default(), Rules::default());
        window.push(Timestamp(1), Ok(Bytes(1)), &rules);
        window.push(Timestamp(2), Err(ReadFailure::new("f", "gone")), &rules);
        assert!(window.failure().is_some());
        assert_eq!(window.len(), 1);
        window.push(Timestamp(3), Ok(Bytes(1)), &rules);
        assert!(window.failure().is_none());
    }
}
