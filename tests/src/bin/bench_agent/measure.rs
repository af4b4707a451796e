//! Loads, times and messages that all measurements share.

use std::time::{Duration, Instant};

use super::world::MAX_UNITS;

/// Load averages: of an idle guest, of one that needs two units, of one that needs the largest
/// size.
pub(super) const IDLE: f64 = 0.03;
pub(super) const TWO_UNITS: f64 = 0.45;
pub(super) const LARGEST: f64 = 0.225 * MAX_UNITS as f64;
/// Everything is over by then, or something is broken.
pub(super) const PATIENCE: Duration = Duration::from_secs(180);

/// Time until the load of the start has settled.
pub(super) const SETTLE: Duration = Duration::from_secs(20);

/// Milliseconds between two moments.
pub(super) fn millis(to: Instant, from: Instant) -> f64 {
    to.saturating_duration_since(from).as_secs_f64() * 1e3
}

/// Prints the name of the measurement.
#[expect(clippy::print_stdout, reason = "progress for the person who asked")]
pub(super) fn tell(what: &str) {
    println!("==> {what}");
}
