//! The picture of a VM over time: size, need and permit as paths of an SVG.
//!
//! The time is cut into columns. A column shows the largest need in it, and the size and permit at
//! its end. Labels are not part of the SVG, so that it stretches and they do not. Colours and
//! strokes are the style sheet's.

use std::fmt::Write as _;

use protocol::time::WallTime;

use crate::past::Past;
use crate::view::units::{cores, memory};
use crate::view::vm::VmView;

/// Columns of a picture.
const COLUMNS: usize = 240;
/// Height of a picture's coordinates.
const HEIGHT: f64 = 100.0;
/// Lines of the grid, and labels beside them.
const ROWS: usize = 4;
/// Rows of the table of figures.
const FIGURES: usize = 12;
const SECOND_US: i64 = 1_000_000;
/// Time after which a need that does not come again is unknown.
const NEED_LASTS: i64 = 30 * SECOND_US;
/// Time after which a size is unknown: the journal has one at least each minute.
const SIZE_LASTS: i64 = 180 * SECOND_US;
/// Time after which a permit is unknown: the journal has one at least every ten minutes.
const PERMIT_LASTS: i64 = 900 * SECOND_US;

/// What a picture shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Measure {
    Memory,
    Cpu,
}

impl Measure {
    fn show(self, value: f64) -> String {
        let whole = whole(value);
        match self {
            Self::Memory => memory(whole),
            Self::Cpu => cores(u32::try_from(whole).unwrap_or(u32::MAX)),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Memory => "Memory",
            Self::Cpu => "CPU",
        }
    }

    fn need(self) -> &'static str {
        match self {
            Self::Memory => "in use in the guest",
            Self::Cpu => "load of the guest, one minute",
        }
    }
}

/// One row of the figures: time, size, need and permit.
pub(super) type Figures = [String; 4];

/// A picture, ready for its template.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Picture {
    /// Element ids begin with this.
    pub(super) id: &'static str,
    pub(super) title: &'static str,
    /// One sentence in place of the picture.
    pub(super) text: String,
    pub(super) need_name: &'static str,
    pub(super) columns: usize,
    /// Labels of the grid's lines, from the top.
    pub(super) values: Vec<String>,
    /// Labels of times, from the left.
    pub(super) times: Vec<String>,
    pub(super) size: String,
    pub(super) need: String,
    pub(super) permit: String,
    /// Lower and upper bound.
    pub(super) bounds: String,
    pub(super) figures: Vec<Figures>,
}

/// From when to when, in microseconds since 1970.
#[derive(Debug, Clone, Copy)]
pub(super) struct Window {
    pub(super) from: i64,
    pub(super) to: i64,
}

impl Window {
    /// The last `seconds` before a time.
    pub(super) fn before(now: WallTime, seconds: u32) -> Self {
        Self {
            from: now.0.saturating_sub(i64::from(seconds) * SECOND_US),
            to: now.0,
        }
    }

    fn column_us(self) -> i64 {
        let columns = i64::try_from(COLUMNS).unwrap_or(1);
        (self.to.saturating_sub(self.from) / columns).max(1)
    }

    fn end_of(self, column: usize) -> i64 {
        let column = i64::try_from(column).unwrap_or(0);
        self.from.saturating_add((column + 1) * self.column_us())
    }
}

type Series = Vec<Option<f64>>;

/// Value of each column: the largest in it, or the last, or the last before it if that is not too
/// old. Points are in the order of time.
fn series(
    points: impl Iterator<Item = (i64, f64)>,
    window: Window,
    (lasts, is_largest): (i64, bool),
) -> Series {
    let mut points = points.peekable();
    let mut last: Option<(i64, f64)> = None;
    let mut values = Vec::with_capacity(COLUMNS);
    for column in 0..COLUMNS {
        let end = window.end_of(column);
        let mut largest: Option<f64> = None;
        while let Some((at, value)) = points.next_if(|(at, _)| *at <= end) {
            if at > end.saturating_sub(window.column_us()) {
                largest = Some(largest.map_or(value, |before| before.max(value)));
            }
            last = Some((at, value));
        }
        let carried = last.filter(|(at, _)| end.saturating_sub(*at) <= lasts);
        let carried = carried.map(|(_, value)| value);
        values.push(if is_largest {
            largest.or(carried)
        } else {
            carried
        });
    }
    values
}

/// The smallest value above `most` that the grid's lines part into round ones.
fn top(measure: Measure, most: f64) -> f64 {
    let (mut unit, factor, steps): (f64, f64, &[f64]) = match measure {
        Measure::Memory => (f64::from(1 << 20), 2.0, &[1.0, 1.5]),
        Measure::Cpu => (1.0, 10.0, &[1.0, 1.5, 2.0, 2.5, 5.0]),
    };
    let rows = ROWS as f64;
    loop {
        for step in steps {
            let top = unit * step * rows;
            if top >= most {
                return top;
            }
        }
        unit *= factor;
    }
}

fn y(value: f64, top: f64) -> f64 {
    (HEIGHT - value / top * HEIGHT).clamp(0.0, HEIGHT)
}

/// A line with steps. A column without a value breaks it. With `is_area` each piece is closed at
/// the bottom.
fn steps(values: &Series, top: f64, is_area: bool) -> String {
    let mut path = String::new();
    let mut before: Option<f64> = None;
    for (column, value) in values.iter().chain([&None]).enumerate() {
        match (before, value) {
            (None, Some(value)) if is_area => {
                let _ = write!(path, "M{column} {HEIGHT}V{:.1}", y(*value, top));
            }
            (None, Some(value)) => {
                let _ = write!(path, "M{column} {:.1}", y(*value, top));
            }
            (Some(old), Some(value)) if old.to_bits() != value.to_bits() => {
                let _ = write!(path, "H{column}V{:.1}", y(*value, top));
            }
            (Some(_), None) => {
                let _ = write!(path, "H{column}");
                if is_area {
                    let _ = write!(path, "V{HEIGHT}Z");
                }
            }
            _ => {}
        }
        before = *value;
    }
    path
}

/// A line through the middles of columns. A column without a value breaks it.
fn line(values: &Series, top: f64) -> String {
    let mut path = String::new();
    let mut is_open = false;
    for (column, value) in values.iter().enumerate() {
        if let Some(value) = value {
            let command = if is_open { 'L' } else { 'M' };
            let _ = write!(path, "{command}{column}.5 {:.1}", y(*value, top));
        }
        is_open = value.is_some();
    }
    path
}

fn largest(values: &Series) -> f64 {
    values
        .iter()
        .flatten()
        .fold(0.0, |most, value| most.max(*value))
}

fn last(values: &Series) -> Option<f64> {
    values.last().copied().flatten()
}

/// Draws a measure of a VM over a window.
pub(super) fn draw(measure: Measure, vm: &VmView, past: &Past, window: Window) -> Picture {
    let pick = |size: protocol::units::Resources| match measure {
        Measure::Memory => size.mem.0 as f64,
        Measure::Cpu => f64::from(size.cpu.0),
    };
    let (min, max, now) = match measure {
        Measure::Memory => {
            let sizes = vm.memory_bytes;
            (
                sizes.min as f64,
                sizes.max as f64,
                sizes.now.map(|now| now as f64),
            )
        }
        Measure::Cpu => {
            let sizes = vm.cpu_milli;
            (sizes.min.into(), sizes.max.into(), sizes.now.map(f64::from))
        }
    };
    let sizes = past.entries.iter();
    let sizes = sizes.map(|entry| (entry.unix_us(), pick(entry.had())));
    // The journal's newest block comes later than the state.
    let end = window.end_of(COLUMNS - 1);
    let sizes = sizes.filter(|(at, _)| *at <= end);
    let sizes = sizes.chain(now.map(|now| (end, now)));
    let size = series(sizes, window, (SIZE_LASTS, false));
    let needs = past.needs.iter().map(|need| match measure {
        Measure::Memory => (need.unix_us, need.used),
        Measure::Cpu => (need.unix_us, need.load1 * 1000.0),
    });
    let need = series(needs, window, (NEED_LASTS, true));
    let permits = past.permits.iter().map(|(at, permit)| (*at, pick(*permit)));
    let permit = series(permits, window, (PERMIT_LASTS, false));
    let most = [&size, &need, &permit].map(largest).into_iter();
    let top = top(measure, most.fold(max, f64::max).max(1.0));
    let columns = COLUMNS;
    let bound = |value: f64| format!("M0 {:.1}H{columns}", y(value, top));
    Picture {
        id: match measure {
            Measure::Memory => "memory",
            Measure::Cpu => "cpu",
        },
        title: measure.name(),
        text: sentence(measure, [&size, &need, &permit], (min, max)),
        need_name: measure.need(),
        columns,
        values: (0..=ROWS)
            .map(|row| measure.show(top * (ROWS - row) as f64 / ROWS as f64))
            .collect(),
        times: (0..=ROWS).map(|row| time_of(window, row, ROWS)).collect(),
        size: steps(&size, top, true),
        need: line(&need, top),
        permit: steps(&permit, top, false),
        bounds: format!("{}{}", bound(min), bound(max)),
        figures: figures(measure, window, [&size, &need, &permit]),
    }
}

/// Time of day at a part of a window.
fn time_of(window: Window, part: usize, parts: usize) -> String {
    let length = i128::from(window.to) - i128::from(window.from);
    let share = length * part as i128 / parts.max(1) as i128;
    let at = i64::try_from(i128::from(window.from) + share).unwrap_or(window.to);
    let text = WallTime(at).to_string();
    let time = text.split('T').nth(1).unwrap_or(&text);
    time.trim_end_matches('Z').to_owned()
}

fn sentence(
    measure: Measure,
    [size, need, permit]: [&Series; 3],
    (min, max): (f64, f64),
) -> String {
    let shown = |value: Option<f64>| value.map_or_else(|| "unknown".into(), |v| measure.show(v));
    let most = largest(need);
    let peak = if most > 0.0 {
        format!(", at most {}", measure.show(most))
    } else {
        String::new()
    };
    format!(
        "{} at the end: size {}, {} {}{peak}, permit {}. Bounds: {} to {}.",
        measure.name(),
        shown(last(size)),
        measure.need(),
        shown(last(need)),
        shown(last(permit)),
        measure.show(min),
        measure.show(max),
    )
}

/// Rows at even times, newest first.
fn figures(measure: Measure, window: Window, all: [&Series; 3]) -> Vec<Figures> {
    let row = |part: usize| {
        let column = (COLUMNS * part / FIGURES).clamp(1, COLUMNS) - 1;
        let value = |values: &Series| {
            values[column].map_or_else(|| "unknown".into(), |value| measure.show(value))
        };
        let [size, need, permit] = all.map(value);
        [time_of(window, part, FIGURES), size, need, permit]
    };
    (1..=FIGURES).rev().map(row).collect()
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the cast saturates; for display only"
)]
fn whole(value: f64) -> u64 {
    value.round() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(known: &[(usize, f64)]) -> Series {
        let mut values = vec![None; COLUMNS];
        for (column, value) in known {
            values[*column] = Some(*value);
        }
        values
    }

    #[test]
    fn steps_break_where_nothing_is_known() {
        let series = values(&[(0, 1.0), (1, 1.0), (2, 2.0), (5, 4.0)]);
        assert_eq!(steps(&series, 4.0, false), "M0 75.0H2V50.0H3M5 0.0H6");
        assert_eq!(
            steps(&series, 4.0, true),
            "M0 100V75.0H2V50.0H3V100ZM5 100V0.0H6V100Z"
        );
        assert_eq!(line(&series, 4.0), "M0.5 75.0L1.5 75.0L2.5 50.0M5.5 0.0");
        assert_eq!(steps(&values(&[]), 4.0, true), "");
    }

    #[test]
    fn column_shows_its_peak_and_carries_the_last_value_for_a_while() {
        let window = Window {
            from: 0,
            to: 240 * SECOND_US,
        };
        let points = [(1, 5.0), (2, 9.0), (3, 1.0), (100, 7.0)];
        let points = points.map(|(at, value)| (at * SECOND_US / 4, value));
        let need = series(points.into_iter(), window, (NEED_LASTS, true));
        assert_eq!((need[0], need[1]), (Some(9.0), Some(1.0)));
        assert_eq!((need[24], need[54], need[55]), (Some(7.0), Some(7.0), None));
        let size = series(points.into_iter(), window, (SIZE_LASTS, false));
        assert_eq!((size[0], size[239]), (Some(1.0), None));
    }

    #[test]
    fn size_at_the_end_is_that_of_the_vm_and_not_of_an_old_block() {
        let mut object = crate::view::vm::tests::object();
        object["status"]["cpus"] = serde_json::json!("1500m");
        let vm = VmView::new(&object, &crate::view::vm::Beside::default());
        let window = Window {
            from: 7,
            to: 61_000_123,
        };
        let text = draw(Measure::Cpu, &vm, &Past::default(), window).text;
        assert!(text.starts_with("CPU at the end: size 1.5, "), "{text}");
    }

    #[test]
    fn grid_has_round_values() {
        let gib = f64::from(1 << 30);
        for (measure, most, labels) in [
            (Measure::Memory, 8.0 * gib, ["8Gi", "2Gi"]),
            (Measure::Memory, 5.0 * gib, ["6Gi", "1.5Gi"]),
            (Measure::Cpu, 2000.0, ["2", "0.5"]),
            (Measure::Cpu, 3000.0, ["4", "1"]),
        ] {
            let top = top(measure, most);
            assert_eq!([measure.show(top), measure.show(top / 4.0)], labels);
        }
    }

    proptest::proptest! {
        #[test]
        fn every_value_stays_within_the_picture(points in proptest::collection::vec((0_i64..1_000, 0.0_f64..1e12), 0..50)) {
            let mut points: Vec<(i64, f64)> = points.into_iter().map(|(at, value)| (at * SECOND_US, value)).collect();
            points.sort_by_key(|(at, _)| *at);
            let window = Window { from: 100 * SECOND_US, to: 900 * SECOND_US };
            let found = series(points.into_iter(), window, (NEED_LASTS, true));
            proptest::prop_assert_eq!(found.len(), COLUMNS);
            let top = top(Measure::Memory, largest(&found).max(1.0));
            proptest::prop_assert!(found.iter().flatten().all(|value| (0.0..=HEIGHT).contains(&y(*value, top))));
            proptest::prop_assert!(line(&found, top).len() < 6_000);
        }
    }
}
