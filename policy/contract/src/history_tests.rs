use proptest::prelude::*;

use super::*;
use crate::frames::{MAX_LINE_BYTES, ToWorker};

/// Every sample with its time; later ones win a slot.
#[derive(Default)]
struct List(Vec<(f64, f32)>);

impl List {
    fn window(&self, seconds: f64, now: f64) -> Vec<(f64, f64)> {
        let slot = |at: f64| (at / 2.0).floor();
        let count = (seconds / 2.0).ceil().min(1800.0);
        // The ring forgets by its newest sample as well as by the window.
        let newest = self
            .0
            .iter()
            .map(|(at, _)| slot(*at))
            .fold(f64::MIN, f64::max);
        let mut slots = std::collections::BTreeMap::new();
        let mut seen_newest = f64::MIN;
        for (at, value) in &self.0 {
            let number = slot(*at);
            if seen_newest - number >= 1800.0 {
                continue;
            }
            seen_newest = seen_newest.max(number);
            #[expect(clippy::cast_possible_truncation, reason = "a small whole number")]
            slots.insert(number as i64, f64::from(*value));
        }
        let last = slot(now);
        slots
            .into_iter()
            .map(|(number, value)| (number as f64, value))
            .filter(|(number, _)| *number > last - count && *number <= last)
            .filter(|(number, _)| newest - number < 1800.0)
            .map(|(number, value)| ((number - last) * 2.0, value))
            .collect()
    }
}

fn series() -> Vec<Series> {
    Series::of("used").into_iter().collect()
}

fn close(one: Option<f64>, other: Option<f64>) -> bool {
    match (one, other) {
        (Some(one), Some(other)) => (one - other).abs() <= 1e-9 * other.abs().max(1.0),
        (one, other) => one == other,
    }
}

fn slope(points: &[(f64, f64)]) -> f64 {
    let n = points.len() as f64;
    let sum = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>();
    let (x, y) = (sum(|p| p.0), sum(|p| p.1));
    let (xy, xx) = (sum(|p| p.0 * p.1), sum(|p| p.0 * p.0));
    (n * xy - x * y) / (n * xx - x * x)
}

proptest! {
    /// Requirement: V25
    #[test]
    fn v25_ring_equals_a_naive_list(
        steps in prop::collection::vec((-40.0_f64..400.0, -1000.0_f32..1000.0), 0..400),
        seconds in 0.1_f64..5000.0,
        later in 0.0_f64..5000.0,
    ) {
        let mut history = History::new(&series());
        let mut list = List::default();
        let (mut at, mut newest) = (10_000.0, 10_000.0_f64);
        for (step, value) in steps {
            at += if step > 380.0 { step * 20.0 } else { step / 40.0 };
            newest = newest.max(at);
            history.record("used", at, value);
            list.0.push((at, value));
        }
        let now = newest + later;
        let points = list.window(seconds, now);
        let values: Vec<f64> = points.iter().map(|(_, value)| *value).collect();
        let enough = values.len() >= 3;
        let given = |value: f64| enough.then_some(value);
        let sum: f64 = values.iter().sum();
        let count = (seconds / 2.0).ceil().min(1800.0);
        let lowest = values.iter().copied().fold(f64::INFINITY, f64::min);
        let highest = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        prop_assert_eq!(history.seen("used", seconds, now), Some(values.len() as f64 / count));
        prop_assert!(close(history.mean("used", seconds, now), given(sum / values.len() as f64)));
        prop_assert_eq!(history.min("used", seconds, now), given(lowest));
        prop_assert_eq!(history.max("used", seconds, now), given(highest));
        prop_assert_eq!(history.quantile("used", 0.0, seconds, now), given(lowest));
        prop_assert_eq!(history.quantile("used", 1.0, seconds, now), given(highest));
        let delta = values.last().zip(values.first()).map(|(last, first)| last - first);
        prop_assert_eq!(history.delta("used", seconds, now), delta.filter(|_| enough));
        let line = history.slope("used", seconds, now);
        prop_assert_eq!(line.is_some(), enough);
        if let Some(line) = line {
            let expected = slope(&points);
            prop_assert!((line - expected).abs() <= 1e-6 * expected.abs().max(1.0));
        }
    }
}

proptest! {
    /// Requirement: V25
    #[test]
    fn v25_past_survives_a_line_to_another_process(
        steps in prop::collection::vec((0_u32..9_000_000, -1e12_f32..1e12), 0..200),
    ) {
        // Times are whole microseconds. Of 17 digits, the reader of JSON may miss the last bit.
        let (mut history, mut micros) = (History::new(&series()), 0_u64);
        for (number, (step, value)) in steps.into_iter().enumerate() {
            let factor = if number % 50 == 0 { 1000 } else { 1 };
            micros += u64::from(step) * factor;
            history.record("used", micros as f64 / 1e6, value);
        }
        let mut copy = History::new(&series());
        for column in history.columns() {
            let line = crate::frames::encode(&ToWorker::fill(17, column)).expect("a line");
            let read: ToWorker = crate::frames::decode(&line, MAX_LINE_BYTES).expect("a message");
            let ToWorker::Fill { s: series, t: last_at, v: values, .. } = read else {
                panic!("another message");
            };
            copy.fill(Column { series, last_at, values });
        }
        prop_assert!(copy == history);
    }
}

#[test]
fn longest_line_of_a_series_is_short_enough() {
    let mut history = History::new(&series());
    for slot in 0..1800_u16 {
        history.record("used", 1e9 + f64::from(slot) * 2.0, -1.234_567e-30);
    }
    let columns: Vec<Column> = history.columns().collect();
    assert_eq!((columns.len(), columns[0].values.len()), (1, 1800));
    for column in columns {
        assert!(crate::frames::encode(&ToWorker::fill(u32::MAX, column)).is_ok());
    }
}

#[test]
fn column_without_its_newest_value_is_ignored() {
    let mut history = History::new(&series());
    for (last_at, values) in [
        (10.0, vec![]),
        (10.0, vec![Some(1.0), None]),
        (10.0, vec![Some(1e300)]),
        (f64::NAN, vec![Some(1.0)]),
    ] {
        let series = Series::of("used").expect("a series");
        history.fill(Column {
            series,
            last_at,
            values,
        });
    }
    assert!(history == History::new(&series()));
}

#[test]
fn samples_fill_only_their_own_slot() {
    let mut history = History::new(&series());
    for n in 0..12_u8 {
        history.record("used", f64::from(n) * 5.0, f32::from(n));
    }
    assert_eq!(history.seen("used", 60.0, 59.0), Some(0.4), "12 of 30");
    assert_eq!(history.last("used", 59.0), Some(11.0));
    assert_eq!(history.age("used", 59.0), Some(4.0));
    assert_eq!(history.last("used", 55.0 + 3600.0), None, "an hour later");
    assert!(
        close(history.slope("used", 60.0, 59.0), Some(0.2)) || {
            let slope = history.slope("used", 60.0, 59.0).unwrap_or_default();
            (slope - 0.2).abs() < 0.01
        }
    );
}

#[test]
fn unknown_series_and_odd_numbers_are_nothing() {
    let mut history = History::new(&series());
    for at in 0..10_u8 {
        history.record("used", f64::from(at) * 2.0, 1.0);
        history.record("load1", f64::from(at) * 2.0, 1.0);
    }
    history.record("used", f64::NAN, 1.0);
    history.record("used", 20.0, f32::NAN);
    history.record("used", 20.0, f32::INFINITY);
    assert_eq!(history.mean("load1", 60.0, 20.0), None);
    assert_eq!(history.mean("used", 0.0, 20.0), None);
    assert_eq!(history.mean("used", f64::NAN, 20.0), None);
    assert_eq!(history.quantile("used", 1.5, 60.0, 20.0), None);
    assert_eq!(history.mean("used", f64::INFINITY, 18.0), Some(1.0));
    assert_eq!(history.mean("used", 60.0, f64::INFINITY), None);
    assert_eq!(history.mean("used", 4.0, 18.0), None, "two slots");
}

#[test]
fn slots_of_a_series_take_7200_bytes() {
    let ring = Ring::new();
    assert_eq!(std::mem::size_of_val(&*ring.slots), 7200);
}
