//! Working set of the local file cache: the plateau of the working-set curve, projected half a step
//! ahead.
//!
//! The curve `v[i]` is the number of pages touched in the last `i + 1` minutes. It rises, is flat
//! at the working set, and rises again with older work that has ended. The estimate is the height
//! of the flat part. Source: docs/compatibility/agent.md §2.3.

use super::config::ScalingConfig;

/// A point ends the plateau if the slope after it exceeds the slope before it by this factor.
const PLATEAU_END_FACTOR: f64 = 3.0;
/// Steps of growth that the prediction adds.
const PROJECTION_STEPS: f64 = 0.5;
/// Size of a page, bytes.
pub const PAGE_BYTES: f64 = 8192.0;

/// Working set of the file cache.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct WorkingSet {
    /// Height of the plateau, pages.
    pub estimate_pages: f64,
    /// Height with the projected growth, pages. Memory is sized for this one.
    pub predicted_pages: f64,
}

/// The working set in a series; `None` when it is too short for the configured windows.
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

/// Height of the first point at or after `offset` that ends a plateau, or of the last point. The
/// rise of the next `window − 1` steps is compared with `factor` times that of the steps before.
/// `series` must not be empty.
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

/// Highest value of the series if each rise continued for `steps` more steps. `series` must not be
/// empty.
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
    fn plateau_is_found_after_a_rise() {
        let series: Vec<f64> = tenths(1..=10)
            .chain([1.0; 5])
            .chain(tenths(11..=20))
            .collect();
        let got = plateau(&series, 2.0, 9, 5);
        assert!(close(got, 1.0), "{got}");
    }

    #[test]
    fn plateau_before_the_offset_is_ignored() {
        let series = [
            0.1, 0.2, 0.3, 0.3, 0.3, 0.3, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1,
        ];
        let got = plateau(&series, 2.0, 9, 5);
        assert!(close(got, 1.1), "{got}");
    }

    #[test]
    fn prediction_adds_projected_growth() {
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
    fn invalid_windows_give_a_finite_result() {
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
