//! How much of the local file cache is in real use: finds where the working-set curve stops being
//! flat, and projects it one step on.
//!
//! The curve `v[i]` is the number of pages touched over the last `i + 1` minutes. It rises,
//! flattens at the working set, and rises again where older, finished work comes into view: the
//! estimate is the height of that plateau. Source: docs/compatibility/agent.md §2.3.

use super::config::ScalingConfig;

/// How much steeper the curve must become after a point than before it, to end the plateau there.
const PLATEAU_END_FACTOR: f64 = 3.0;
/// How many steps ahead the growth is projected.
const PROJECTION_STEPS: f64 = 0.5;
/// Bytes of a page.
pub const PAGE_BYTES: f64 = 8192.0;

/// A working set found.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct WorkingSet {
    /// Height of the plateau, pages.
    pub estimate_pages: f64,
    /// What is expected soon, pages: what memory is sized for.
    pub predicted_pages: f64,
}

/// The working set in a series, or `None` when the series is too short for the windows configured.
#[must_use]
pub fn working_set(scaling: &ScalingConfig, series: &[f64]) -> Option<WorkingSet> {
    let offset = scaling
        .lfc_min_wait_before_downscale_minutes
        .saturating_sub(1) as usize;
    let window = scaling.lfc_window_size_minutes as usize;
    if series.is_empty() || series.len() < offset.saturating_add(window) {
        return None;
    }
    let estimate = if scaling.lfc_use_largest_window {
        series[series.len() - 1]
    } else {
        plateau(series, PLATEAU_END_FACTOR, offset, window)
    };
    let mut prefix = offset;
    while prefix < series.len() && series[prefix] <= estimate {
        prefix += 1;
    }
    let predicted = project(&series[..prefix.max(1)], PROJECTION_STEPS);
    Some(WorkingSet {
        estimate_pages: estimate,
        predicted_pages: predicted,
    })
}

/// Height of the first point at or after `offset` where the next `window − 1` steps rise by more
/// than `factor` times what the last ones did; the last point when there is none. `series` must not
/// be empty.
fn plateau(series: &[f64], factor: f64, offset: usize, window: usize) -> f64 {
    let reach = window.saturating_sub(1);
    let last = series[series.len() - 1];
    let first = offset.max(reach);
    for at in first..series.len().saturating_sub(reach) {
        let before = (series[at] - series[at - reach]).max(0.0);
        let after = (series[at + reach] - series[at]).max(0.0);
        if after > factor * before {
            return series[at];
        }
    }
    last
}

/// The highest value the series would reach if each rise went on for `steps` more steps. `series`
/// must not be empty.
fn project(series: &[f64], steps: f64) -> f64 {
    series.windows(2).fold(series[0], |highest, pair| {
        let top = pair[0].max(pair[1]);
        highest.max(top + steps * (top - pair[0]))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tenths(range: std::ops::RangeInclusive<u32>) -> impl Iterator<Item = f64> {
        range.map(|n| f64::from(n) / 10.0)
    }

    fn close(got: f64, want: f64) -> bool {
        (got - want).abs() < 1e-9
    }

    #[test]
    fn plateau_is_found() {
        let series: Vec<f64> = tenths(1..=10)
            .chain([1.0; 5])
            .chain(tenths(11..=20))
            .collect();
        let got = plateau(&series, 2.0, 9, 5);
        assert!(close(got, 1.0), "{got}");
    }

    #[test]
    fn a_plateau_before_the_offset_is_not_seen() {
        let series = [
            0.1, 0.2, 0.3, 0.3, 0.3, 0.3, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1,
        ];
        let got = plateau(&series, 2.0, 9, 5);
        assert!(close(got, 1.1), "{got}");
    }

    #[test]
    fn growth_is_projected() {
        for (steps, series, want) in [
            (
                0.5,
                vec![0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.0, 1.0, 1.0, 1.0],
                1.05,
            ),
            (2.0, vec![0.0, 0.3, 0.5, 0.6], 0.9),
        ] {
            let got = project(&series, steps);
            assert!(close(got, want), "{series:?}: {got}");
        }
    }

    #[test]
    fn windows_that_validation_refuses_degrade_instead_of_crashing() {
        let series: Vec<f64> = (0..20).map(f64::from).collect();
        for (window, wait) in [
            (0, 0),
            (1, 0),
            (1, 1),
            (0, 3),
            (9, 2),
            (20, 1),
            (u32::MAX, u32::MAX),
        ] {
            let scaling = ScalingConfig {
                lfc_window_size_minutes: window,
                lfc_min_wait_before_downscale_minutes: wait,
                ..ScalingConfig::default()
            };
            for length in 0..series.len() {
                if let Some(found) = working_set(&scaling, &series[..length]) {
                    assert!(
                        found.predicted_pages.is_finite(),
                        "window {window}, wait {wait}"
                    );
                }
            }
        }
    }
}
