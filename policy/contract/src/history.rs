//! The past of one VM: an hour in slots of 2 s for each series.
//!
//! A sample falls into the slot of its own time and fills no other. A slot without a sample stays
//! empty. A second sample of a slot replaces the first. The functions of a window return `None`
//! with fewer than three filled slots. [`History::columns`] and [`History::fill`] carry a past
//! into another process without a change.

use std::collections::BTreeMap;

use protocol::policy::Series;

/// Number of slots of a series.
pub const SLOTS: usize = 1800;
/// [`SLOTS`] as a difference of slot numbers.
pub(crate) const SPAN: i64 = 1800;
/// Length of a slot, seconds.
pub const SLOT_SECONDS: f64 = 2.0;
/// Fewest filled slots of a window with a result.
const MIN_FILLED: usize = 3;

/// Time on a clock that never goes back, seconds.
pub type Seconds = f64;

/// Past of one VM.
#[derive(Debug, Clone, PartialEq)]
pub struct History {
    series: BTreeMap<Series, Ring>,
}

/// All samples of one series.
#[derive(Debug, Clone, PartialEq)]
pub struct Column {
    /// Name of the series.
    pub series: Series,
    /// Time of the newest sample.
    pub last_at: Seconds,
    /// Values by slot up to that of `last_at`, oldest first. `None` marks an empty slot.
    pub values: Vec<Option<f64>>,
}

/// Samples of one series. The slot of time `t` is `t / 2`, modulo [`SLOTS`].
#[derive(Debug, Clone)]
struct Ring {
    /// NaN marks an empty slot.
    slots: Box<[f32; SLOTS]>,
    /// Number of the newest slot; `None` without a sample.
    newest: Option<i64>,
    /// Time of the newest sample.
    last_at: Seconds,
}

impl PartialEq for Ring {
    fn eq(&self, other: &Self) -> bool {
        self.newest == other.newest
            && self.last_at.to_bits() == other.last_at.to_bits()
            && self
                .slots
                .iter()
                .zip(other.slots.iter())
                .all(|(one, other)| one.to_bits() == other.to_bits())
    }
}

impl History {
    /// An empty past of the given series.
    #[must_use]
    pub fn new(series: &[Series]) -> Self {
        let rings = series.iter().map(|series| (series.clone(), Ring::new()));
        Self {
            series: rings.collect(),
        }
    }

    /// Adds series that are not there. Those that are there keep their samples.
    pub fn extend(&mut self, series: &[Series]) {
        for one in series {
            self.series.entry(one.clone()).or_insert_with(Ring::new);
        }
    }

    /// Records a sample. Ignores other series, values that are not finite, and samples older than
    /// an hour.
    pub fn record(&mut self, series: &str, at: Seconds, value: f32) {
        if let Some(ring) = self.series.get_mut(series)
            && at.is_finite()
            && value.is_finite()
        {
            ring.record(at, value);
        }
    }

    /// The series that have samples.
    pub fn columns(&self) -> impl Iterator<Item = Column> + '_ {
        self.series.iter().filter_map(|(series, ring)| {
            let last_at = ring.newest.map(|_| ring.last_at)?;
            Some(Column {
                series: series.clone(),
                last_at,
                values: ring.values(),
            })
        })
    }

    /// Replaces all samples of a series. Adds the series if it is not there. Ignores values without
    /// a newest one, and times that are not finite.
    pub fn fill(&mut self, column: Column) {
        let ring = Ring::of(column.last_at, &column.values);
        if let Some(ring) = ring {
            self.series.insert(column.series, ring);
        }
    }

    /// Newest value within an hour.
    #[must_use]
    pub fn last(&self, series: &str, now: Seconds) -> Option<f64> {
        let ring = self.series.get(series)?;
        let newest = ring.newest?;
        let is_within = slot(now) - newest < SPAN;
        is_within.then(|| f64::from(ring.slots[index(newest)]))
    }

    /// Age of the newest value, seconds.
    #[must_use]
    pub fn age(&self, series: &str, now: Seconds) -> Option<f64> {
        self.last(series, now)?;
        Some((now - self.series.get(series)?.last_at).max(0.0))
    }

    /// Mean of the last `seconds`.
    #[must_use]
    pub fn mean(&self, series: &str, seconds: Seconds, now: Seconds) -> Option<f64> {
        let values = self.values(series, seconds, now)?;
        Some(values.iter().sum::<f64>() / values.len() as f64)
    }

    /// Smallest value of the last `seconds`.
    #[must_use]
    pub fn min(&self, series: &str, seconds: Seconds, now: Seconds) -> Option<f64> {
        self.values(series, seconds, now)?
            .into_iter()
            .reduce(f64::min)
    }

    /// Largest value of the last `seconds`.
    #[must_use]
    pub fn max(&self, series: &str, seconds: Seconds, now: Seconds) -> Option<f64> {
        self.values(series, seconds, now)?
            .into_iter()
            .reduce(f64::max)
    }

    /// Quantile `p` (0-1) of the last `seconds`, interpolated between the two nearest values.
    #[must_use]
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the rank is within the values"
    )]
    pub fn quantile(&self, series: &str, p: f64, seconds: Seconds, now: Seconds) -> Option<f64> {
        if !(0.0..=1.0).contains(&p) {
            return None;
        }
        let mut values = self.values(series, seconds, now)?;
        values.sort_unstable_by(f64::total_cmp);
        let rank = p * (values.len() - 1) as f64;
        let (low, high) = (rank.floor() as usize, rank.ceil() as usize);
        Some(values[low] + (values[high] - values[low]) * (rank - rank.floor()))
    }

    /// Slope of the least-squares line through the last `seconds`, per second.
    #[must_use]
    pub fn slope(&self, series: &str, seconds: Seconds, now: Seconds) -> Option<f64> {
        let points = self.window(series, seconds, now)?;
        let count = points.len() as f64;
        let mean_at = points.iter().map(|(at, _)| at).sum::<f64>() / count;
        let mean = points.iter().map(|(_, value)| value).sum::<f64>() / count;
        let (mut above, mut below) = (0.0, 0.0);
        for (at, value) in points {
            above += (at - mean_at) * (value - mean);
            below += (at - mean_at) * (at - mean_at);
        }
        Some(above / below)
    }

    /// Last value minus first value of the last `seconds`.
    #[must_use]
    pub fn delta(&self, series: &str, seconds: Seconds, now: Seconds) -> Option<f64> {
        let values = self.values(series, seconds, now)?;
        Some(values.last()? - values.first()?)
    }

    /// Share of the slots of the last `seconds` that are filled, 0-1.
    #[must_use]
    pub fn seen(&self, series: &str, seconds: Seconds, now: Seconds) -> Option<f64> {
        let ring = self.series.get(series)?;
        let count = window_slots(seconds)?;
        Some(ring.points(count, now).count() as f64 / count as f64)
    }

    fn window(&self, series: &str, seconds: Seconds, now: Seconds) -> Option<Vec<(f64, f64)>> {
        let ring = self.series.get(series)?;
        let points: Vec<_> = ring.points(window_slots(seconds)?, now).collect();
        (points.len() >= MIN_FILLED).then_some(points)
    }

    fn values(&self, series: &str, seconds: Seconds, now: Seconds) -> Option<Vec<f64>> {
        let points = self.window(series, seconds, now)?;
        Some(points.into_iter().map(|(_, value)| value).collect())
    }
}

impl Ring {
    fn new() -> Self {
        Self {
            slots: Box::new([f32::NAN; SLOTS]),
            newest: None,
            last_at: 0.0,
        }
    }

    /// The ring with these values. See [`Column`].
    #[expect(
        clippy::cast_possible_truncation,
        reason = "what is too large becomes infinite, which marks no sample"
    )]
    fn of(last_at: Seconds, values: &[Option<f64>]) -> Option<Self> {
        let newest = slot(last_at);
        let mut ring = Self::new();
        for (value, ago) in values.iter().rev().zip(0..SPAN) {
            let value = value.map(|value| value as f32);
            if let Some(value) = value.filter(|value| value.is_finite()) {
                ring.slots[index(newest - ago)] = value;
            }
        }
        let is_whole = last_at.is_finite() && !ring.slots[index(newest)].is_nan();
        (ring.newest, ring.last_at) = (Some(newest), last_at);
        is_whole.then_some(ring)
    }

    /// Values by slot from the oldest filled one to the newest.
    fn values(&self) -> Vec<Option<f64>> {
        let newest = self.newest.unwrap_or_default();
        (newest - SPAN + 1..=newest)
            .map(|number| self.slots[index(number)])
            .skip_while(|value| value.is_nan())
            .map(|value| (!value.is_nan()).then(|| f64::from(value)))
            .collect()
    }

    fn record(&mut self, at: Seconds, value: f32) {
        let number = slot(at);
        let newest = self.newest.unwrap_or(number);
        if newest - number >= SPAN {
            return;
        }
        if number - newest >= SPAN {
            self.slots.fill(f32::NAN);
        } else {
            for skipped in newest + 1..number {
                self.slots[index(skipped)] = f32::NAN;
            }
        }
        self.slots[index(number)] = value;
        if number >= newest {
            self.newest = Some(number);
            self.last_at = at;
        }
    }

    /// Filled slots among the last `count` up to `now`, oldest first: seconds before `now`'s slot
    /// (0 or less) and value.
    fn points(&self, count: i64, now: Seconds) -> impl Iterator<Item = (f64, f64)> + '_ {
        let last = slot(now);
        let first = last - count + 1;
        let newest = self.newest.unwrap_or(i64::MIN / 4);
        let oldest = newest - SPAN + 1;
        (first.max(oldest)..=last.min(newest)).filter_map(move |number| {
            let value = self.slots[index(number)];
            let ago = (number - last) as f64 * SLOT_SECONDS;
            (!value.is_nan()).then(|| (ago, f64::from(value)))
        })
    }
}

/// Number of slots of a window. `None` unless the window is longer than 0.
#[expect(
    clippy::cast_possible_truncation,
    reason = "clamped to the number of slots"
)]
fn window_slots(seconds: Seconds) -> Option<i64> {
    let slots = (seconds / SLOT_SECONDS).ceil();
    (slots > 0.0).then(|| slots.min(SPAN as f64) as i64)
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "the bounds leave room for differences"
)]
pub(crate) fn slot(at: Seconds) -> i64 {
    let bound = (1_i64 << 60) as f64;
    (at / SLOT_SECONDS).floor().clamp(-bound, bound) as i64
}

fn index(number: i64) -> usize {
    usize::try_from(number.rem_euclid(SPAN)).unwrap_or_default()
}

#[cfg(test)]
#[path = "history_tests.rs"]
mod tests;
