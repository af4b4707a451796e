//! How much memory the database's file cache may use, as a function of the guest's size.
//!
//! `size(total) = min(fraction · total, (total − reserve) / (1 + spread))`, 0 when `total` is no
//! more than the reserve, rounded down to whole MiB. Source: docs/compatibility/monitor.md §3.

use protocol::units::Bytes;
use serde::Serialize;

/// One, in the millionths in which fractions are counted.
const ONE: u64 = 1_000_000;

/// The three numbers of the formula.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Sizing {
    /// Largest share of the total, in millionths. Between 0 and 1, both excluded.
    pub fraction_ppm: u32,
    /// What is left to everything else, before the cache gets anything.
    pub reserve: Bytes,
    /// How much more than its own size the cache costs, in millionths.
    pub spread_ppm: u32,
}

/// Why three numbers are no sizing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SizingError {
    /// The fraction must leave something on both sides.
    #[error("the file cache fraction must be between 0 and 1, both excluded")]
    Fraction,
    /// Otherwise the cache and its overhead alone would fill the guest.
    #[error("file cache fraction times (1 + spread) must be below 1")]
    TooMuch,
}

impl Default for Sizing {
    fn default() -> Self {
        Self {
            fraction_ppm: 750_000,
            reserve: Bytes::mib(256),
            spread_ppm: 100_000,
        }
    }
}

impl Sizing {
    /// Checks the rule of the parameters: `0 < fraction < 1` and `fraction · (1 + spread) < 1`.
    ///
    /// # Errors
    /// [`SizingError`], the first rule that is broken.
    pub fn check(self) -> Result<Self, SizingError> {
        let fraction = u64::from(self.fraction_ppm);
        if fraction == 0 || fraction >= ONE {
            return Err(SizingError::Fraction);
        }
        if fraction * (ONE + u64::from(self.spread_ppm)) >= ONE * ONE {
            return Err(SizingError::TooMuch);
        }
        Ok(self)
    }

    /// The size for a guest of `total`, whole MiB.
    #[must_use]
    pub fn size(self, total: Bytes) -> Bytes {
        let by_fraction = u128::from(total.0) * u128::from(self.fraction_ppm) / u128::from(ONE);
        let left = u128::from(total.0.saturating_sub(self.reserve.0));
        let by_reserve = left * u128::from(ONE) / u128::from(ONE + u64::from(self.spread_ppm));
        let size = u64::try_from(by_fraction.min(by_reserve)).unwrap_or(u64::MAX);
        Bytes(size >> 20 << 20)
    }
}

/// Reads a decimal fraction such as `0.75` into millionths; digits past the sixth are refused
/// rather than dropped.
#[must_use]
pub fn parse_ppm(text: &str) -> Option<u32> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(whole) || !digits(fraction) || fraction.len() > 6 {
        return None;
    }
    let fraction: u32 = format!("{fraction:0<6}").parse().ok()?;
    whole
        .parse::<u32>()
        .ok()?
        .checked_mul(1_000_000)?
        .checked_add(fraction)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn conformance_vectors() {
        for (total, size) in [
            (0, 0),
            (255, 0),
            (256, 0),
            (512, 232),
            (1024, 698),
            (2048, 1536),
            (4096, 3072),
        ] {
            let got = Sizing::default().size(Bytes::mib(total));
            assert_eq!(got, Bytes::mib(size), "size({total} MiB)");
        }
    }

    #[test]
    fn parameter_rule() {
        let with = |fraction_ppm, spread_ppm| Sizing {
            fraction_ppm,
            spread_ppm,
            ..Sizing::default()
        };
        assert!(Sizing::default().check().is_ok());
        assert_eq!(with(0, 0).check(), Err(SizingError::Fraction));
        assert_eq!(with(1_000_000, 0).check(), Err(SizingError::Fraction));
        assert_eq!(with(750_000, 333_334).check(), Err(SizingError::TooMuch));
        assert!(with(750_000, 333_333).check().is_ok());
        assert!(with(500_000, 999_999).check().is_ok());
        assert_eq!(with(500_000, 1_000_000).check(), Err(SizingError::TooMuch));
    }

    #[test]
    fn decimal_fractions() {
        assert_eq!(parse_ppm("0.75"), Some(750_000));
        assert_eq!(parse_ppm("0.1"), Some(100_000));
        assert_eq!(parse_ppm("2"), Some(2_000_000));
        for bad in ["", ".", "0.", ".5", "-1", "0.1234567", "1e3", "0,5", "5000"] {
            assert_eq!(parse_ppm(bad), None, "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn never_more_than_the_guest_and_never_less_for_more(a in any::<u64>(), b in any::<u64>()) {
            let (small, large) = (a.min(b), a.max(b));
            let sizing = Sizing::default();
            prop_assert!(sizing.size(Bytes(small)) <= sizing.size(Bytes(large)));
            prop_assert!(sizing.size(Bytes(large)).0 <= large);
            prop_assert_eq!(sizing.size(Bytes(large)).0 % (1 << 20), 0);
        }
    }
}
