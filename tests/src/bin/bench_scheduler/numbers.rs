//! Counts and bytes as figures.

#[expect(clippy::cast_precision_loss, reason = "counts far below 2^53")]
pub(super) const fn as_f64(number: usize) -> f64 {
    number as f64
}

#[expect(clippy::cast_precision_loss, reason = "counts far below 2^53")]
pub(super) fn mib(bytes: u64) -> f64 {
    (bytes >> 10) as f64 / 1024.0
}
