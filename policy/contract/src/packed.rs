//! The past of one VM as a holder keeps it that never reads it: all that [`History`] keeps, in
//! fewer bytes. An hour of a figure that stands still has a byte for each sample.
//!
//! Samples follow each other in bytes, oldest first. The newest one is kept apart, because a second
//! sample of its slot replaces it. Each has a tag, the bytes of its gap where the tag has no room,
//! and the bytes in which it differs from the one before:
//!
//! ```text
//!   tag = gap in slots (0: two bytes follow) | (5 × zero bytes at the end + bytes kept) << 3
//! ```
//!
//! [`History`]: crate::History

use std::collections::VecDeque;

use protocol::policy::Series;

use crate::history::{Column, SPAN, Seconds, slot};

/// Largest gap in a tag.
const TAG_GAP: i64 = 7;
/// Bytes by which a series grows at least.
const MIN_GROWTH: usize = 32;

/// Past of one VM, to be handed on.
#[derive(Debug, Clone, PartialEq)]
pub struct PackedPast {
    series: Box<[PackedSeries]>,
}

/// Samples of one series.
#[derive(Debug, Clone, PartialEq)]
struct PackedSeries {
    series: Series,
    /// Time of the newest sample.
    last_at: Seconds,
    newest: Option<Sample>,
    /// The samples before the newest one.
    bytes: VecDeque<u8>,
    /// What the first and the next sample in `bytes` differ from.
    start: Sample,
    end: Sample,
}

/// A filled slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Sample {
    slot: i64,
    /// The value's bits.
    bits: u32,
}

impl PackedPast {
    /// An empty past of the given series.
    #[must_use]
    pub fn new(series: &[Series]) -> Self {
        let empty = |series: &Series| PackedSeries::new(series.clone());
        Self {
            series: series.iter().map(empty).collect(),
        }
    }

    /// Records a sample. Ignores other series, values that are not finite, and samples of a slot
    /// before the newest one.
    pub fn record(&mut self, series: &str, at: Seconds, value: f32) {
        let mut all = self.series.iter_mut();
        if let Some(one) = all.find(|one| one.series.as_str() == series)
            && at.is_finite()
            && value.is_finite()
        {
            one.record(at, value);
        }
    }

    /// The series that have samples.
    pub fn columns(&self) -> impl Iterator<Item = Column> + '_ {
        self.series.iter().filter_map(PackedSeries::column)
    }

    /// Memory that the samples hold, bytes.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        self.series.iter().map(|one| one.bytes.capacity()).sum()
    }
}

impl PackedSeries {
    fn new(series: Series) -> Self {
        let none = Sample { slot: 0, bits: 0 };
        Self {
            series,
            last_at: 0.0,
            newest: None,
            bytes: VecDeque::new(),
            start: none,
            end: none,
        }
    }

    fn record(&mut self, at: Seconds, value: f32) {
        let sample = Sample {
            slot: slot(at),
            bits: value.to_bits(),
        };
        match self.newest {
            Some(newest) if sample.slot < newest.slot => return,
            Some(newest) if sample.slot > newest.slot => self.push(newest),
            _ => {}
        }
        (self.newest, self.last_at) = (Some(sample), at);
        self.forget(sample.slot - SPAN);
    }

    fn push(&mut self, sample: Sample) {
        if self.bytes.is_empty() {
            self.end = Sample {
                slot: sample.slot - 1,
                bits: 0,
            };
            self.start = self.end;
        }
        let (bytes, len) = sample.encode(self.end);
        let free = self.bytes.capacity() - self.bytes.len();
        if free < len {
            self.bytes
                .reserve_exact(MIN_GROWTH.max(self.bytes.len() / 8));
        }
        self.bytes.extend(&bytes[..len]);
        self.end = sample;
    }

    /// Forgets the samples up to a slot.
    fn forget(&mut self, slot: i64) {
        while let Some((first, len)) = Sample::decode(self.bytes.iter(), self.start)
            && first.slot <= slot
        {
            self.bytes.drain(..len);
            self.start = first;
        }
    }

    fn column(&self) -> Option<Column> {
        let newest = self.newest?;
        let mut samples = Vec::new();
        let (mut before, mut at) = (self.start, 0);
        while let Some((sample, len)) = Sample::decode(self.bytes.range(at..), before) {
            samples.push(sample);
            (before, at) = (sample, at + len);
        }
        samples.push(newest);
        let mut values = Vec::new();
        let mut next = samples[0].slot;
        for sample in samples {
            values.extend((next..sample.slot).map(|_| None));
            values.push(Some(f64::from(f32::from_bits(sample.bits))));
            next = sample.slot + 1;
        }
        Some(Column {
            series: self.series.clone(),
            last_at: self.last_at,
            values,
        })
    }
}

impl Sample {
    /// The bytes of a sample after the one `before`, and their number. The gap is less than an
    /// hour, because older samples are forgotten.
    fn encode(self, before: Self) -> ([u8; 7], usize) {
        let mut bytes = [0; 7];
        let mut len = 1;
        let gap = self.slot - before.slot;
        if gap <= TAG_GAP {
            bytes[0] = gap.to_le_bytes()[0];
        } else {
            bytes[1..3].copy_from_slice(&gap.to_le_bytes()[..2]);
            len = 3;
        }
        let other = (self.bits ^ before.bits).to_le_bytes();
        let first = other.iter().position(|byte| *byte != 0);
        if let Some(first) = first {
            let last = other.iter().rposition(|byte| *byte != 0).unwrap_or(first);
            let kept = &other[first..=last];
            bytes[len..len + kept.len()].copy_from_slice(kept);
            len += kept.len();
            let code = u8::try_from(5 * first + kept.len()).expect("at most 19");
            bytes[0] |= code << 3;
        }
        (bytes, len)
    }

    /// The sample that begins the bytes, and the number of its bytes.
    fn decode<'a>(mut bytes: impl Iterator<Item = &'a u8>, before: Self) -> Option<(Self, usize)> {
        let tag = *bytes.next()?;
        let mut len = 1;
        let mut gap = i64::from(tag & 7);
        if gap == 0 {
            gap = i64::from(u16::from_le_bytes([*bytes.next()?, *bytes.next()?]));
            len = 3;
        }
        let (first, kept) = (usize::from(tag >> 3) / 5, usize::from(tag >> 3) % 5);
        let mut other = [0; 4];
        for byte in other.iter_mut().skip(first).take(kept) {
            *byte = *bytes.next()?;
        }
        let sample = Self {
            slot: before.slot + gap,
            bits: before.bits ^ u32::from_le_bytes(other),
        };
        Some((sample, len + kept))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::History;

    fn series() -> Vec<Series> {
        ["load1", "used"]
            .iter()
            .filter_map(|name| Series::of(name))
            .collect()
    }

    fn value() -> impl Strategy<Value = f32> {
        prop_oneof![
            Just(0.25_f32),
            any::<f32>(),
            (0..64_u8).prop_map(|whole| f32::from(whole) * 4096.0),
        ]
    }

    /// Within a slot, over some, and about an hour.
    fn pause() -> impl Strategy<Value = f64> {
        prop_oneof![20 => 0.0..3.0, 20 => 0.0..100.0, 1 => 3590.0..3610.0]
    }

    proptest! {
        /// Requirement: V25
        #[test]
        fn v25_packed_past_equals_the_ring(
            steps in prop::collection::vec((pause(), value(), any::<bool>()), 0..300),
        ) {
            let (mut ring, mut packed) = (History::new(&series()), PackedPast::new(&series()));
            let mut at = 10_000.0;
            for (step, value, is_used) in steps {
                at += step;
                let name = if is_used { "used" } else { "load1" };
                ring.record(name, at, value);
                packed.record(name, at, value);
                prop_assert!(packed.columns().eq(ring.columns()));
            }
        }
    }

    /// Requirement: V25
    #[test]
    fn v25_packed_past_holds_what_its_samples_need_and_forgets_after_an_hour() {
        let mut packed = PackedPast::new(&series());
        assert_eq!(
            packed.held_bytes(),
            0,
            "nothing is held before the first sample"
        );
        let mut most = 0;
        for step in 0..3000_u16 {
            packed.record("used", f64::from(step) * 5.0, 0.25);
            most = most.max(packed.held_bytes());
        }
        // 720 samples of a byte, and the room to grow.
        assert!(most < 900, "{most} B");
        let column = packed.columns().next().expect("a series");
        assert_eq!(column.values.iter().flatten().count(), 720);
    }

    #[test]
    fn sample_of_an_older_slot_is_ignored() {
        let mut packed = PackedPast::new(&series());
        packed.record("used", 10.0, 1.0);
        packed.record("used", 4.0, 2.0);
        packed.record("used", 11.0, 3.0);
        let column = packed.columns().next().expect("a series");
        assert_eq!((column.values, column.last_at), (vec![Some(3.0)], 11.0));
    }
}
