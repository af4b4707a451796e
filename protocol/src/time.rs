//! Time as plain numbers, so that it can be written to an event log and compared in tests.
//!
//! [`Timestamp`] and [`Span`] are monotonic time for decisions; [`WallTime`] is what goes on the
//! wire. No clock is read here: a shell passes both in.

use std::fmt;
use std::ops::{Add, Sub};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Microseconds since an origin the process chose at its start. Monotonic.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Timestamp(pub u64);

/// A length of time in microseconds. Never negative.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Span(pub u64);

impl Span {
    /// A span of `n` milliseconds. A value above the range becomes its upper end.
    #[must_use]
    pub const fn from_millis(n: u64) -> Self {
        Self(n.saturating_mul(1_000))
    }

    /// A span of `n` seconds. A value above the range becomes its upper end.
    #[must_use]
    pub const fn from_secs(n: u64) -> Self {
        Self(n.saturating_mul(1_000_000))
    }

    /// Whole milliseconds in the span, rounded down.
    #[must_use]
    pub const fn as_millis(self) -> u64 {
        self.0 / 1_000
    }

    /// Seconds as a float, for metrics.
    #[must_use]
    #[expect(
        clippy::cast_precision_loss,
        reason = "a metric: 2^53 microseconds are 285 years"
    )]
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e6
    }

    /// The span as the standard library's type, for shells.
    #[must_use]
    pub const fn to_duration(self) -> std::time::Duration {
        std::time::Duration::from_micros(self.0)
    }

    /// A span from the standard library's type. More than 584,000 years become that upper end.
    #[must_use]
    pub fn from_duration(duration: std::time::Duration) -> Self {
        Self(u64::try_from(duration.as_micros()).unwrap_or(u64::MAX))
    }
}

impl Timestamp {
    /// Time since `earlier`, zero if it is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Span {
        Span(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Span> for Timestamp {
    type Output = Self;
    fn add(self, span: Span) -> Self {
        Self(self.0.saturating_add(span.0))
    }
}

impl Sub<Span> for Timestamp {
    type Output = Self;
    fn sub(self, span: Span) -> Self {
        Self(self.0.saturating_sub(span.0))
    }
}

/// A point in calendar time, UTC, in microseconds since 1970.
///
/// On the wire RFC 3339 with whole seconds (`2024-01-02T03:04:05Z`), the form of `metav1.Time`; the
/// zero value is `null` there. Reading accepts fractions and offsets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct WallTime(pub i64);

/// A text that is not an RFC 3339 time.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not an RFC 3339 time such as 2024-01-02T03:04:05Z")]
pub struct TimeError(pub String);

impl WallTime {
    /// Reads RFC 3339, with a fraction and an offset if given.
    ///
    /// # Errors
    /// [`TimeError`] when it is anything else.
    pub fn parse(text: &str) -> Result<Self, TimeError> {
        parse_rfc3339(text)
            .map(Self)
            .ok_or_else(|| TimeError(text.chars().take(64).collect()))
    }

    /// RFC 3339 with microseconds (`metav1.MicroTime`), for leases and events.
    #[must_use]
    pub fn to_micro_string(self) -> String {
        let (date, micros) = self.split();
        format!("{date}.{micros:06}Z")
    }

    fn split(self) -> (String, i64) {
        let micros = self.0.rem_euclid(1_000_000);
        let secs = self.0.div_euclid(1_000_000);
        let (day, second) = (secs.div_euclid(86_400), secs.rem_euclid(86_400));
        let (year, month, day) = civil_from_days(day);
        let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
        (
            format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}"),
            micros,
        )
    }
}

impl fmt::Display for WallTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}Z", self.split().0)
    }
}

impl Serialize for WallTime {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.0 == 0 {
            serializer.serialize_none()
        } else {
            serializer.collect_str(self)
        }
    }
}

impl<'de> Deserialize<'de> for WallTime {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Option::<String>::deserialize(deserializer)? {
            None => Ok(Self::default()),
            Some(text) => Self::parse(&text).map_err(serde::de::Error::custom),
        }
    }
}

/// Days since 1970-01-01 to year, month, day (proleptic Gregorian).
fn civil_from_days(days: i64) -> (i64, i64, i64) {
    // Shift the year to start in March, so that the leap day is the last one.
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * march_month + 2) / 5 + 1;
    let month = if march_month < 10 {
        march_month + 3
    } else {
        march_month - 9
    };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

/// Year, month, day to days since 1970-01-01.
fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let march_month = (month + 9) % 12;
    let day_of_year = (153 * march_month + 2) / 5 + day - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
}

fn parse_rfc3339(text: &str) -> Option<i64> {
    let number = |range: std::ops::Range<usize>| -> Option<i64> {
        let part = text.get(range)?;
        part.bytes()
            .all(|b| b.is_ascii_digit())
            .then(|| part.parse().ok())?
    };
    let bytes = text.as_bytes();
    if bytes.len() < 20
        || bytes[4] != b'-'
        || bytes[7] != b'-'
        || bytes[13] != b':'
        || bytes[16] != b':'
    {
        return None;
    }
    if !matches!(bytes[10], b'T' | b't' | b' ') {
        return None;
    }
    let (year, month, day) = (number(0..4)?, number(5..7)?, number(8..10)?);
    let (hour, minute, second) = (number(11..13)?, number(14..16)?, number(17..19)?);
    let days = days_from_civil(year, month, day);
    if civil_from_days(days) != (year, month, day) || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    let rest = &text[19..];
    let (micros, zone) = match rest.strip_prefix('.') {
        None => (0, rest),
        Some(fraction) => {
            let end = fraction.find(|c: char| !c.is_ascii_digit())?;
            let digits: String = fraction[..end]
                .chars()
                .chain("000000".chars())
                .take(6)
                .collect();
            (digits.parse().ok().filter(|_| end > 0)?, &fraction[end..])
        }
    };
    let offset = parse_offset(zone)?;
    Some(((days * 86_400 + hour * 3600 + minute * 60 + second) - offset) * 1_000_000 + micros)
}

/// `Z` or `±hh:mm` as seconds east of UTC.
fn parse_offset(zone: &str) -> Option<i64> {
    if zone == "Z" || zone == "z" {
        return Some(0);
    }
    let sign = match zone.as_bytes().first()? {
        b'+' => 1,
        b'-' => -1,
        _ => return None,
    };
    let (hours, minutes) = zone.get(1..)?.split_once(':')?;
    let (hours, minutes): (i64, i64) = (hours.parse().ok()?, minutes.parse().ok()?);
    (zone.len() == 6 && (0..24).contains(&hours) && (0..60).contains(&minutes))
        .then_some(sign * (hours * 3600 + minutes * 60))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn known_times() {
        for (text, micros) in [
            ("1970-01-01T00:00:00Z", 0_i64),
            ("2024-01-02T03:04:05Z", 1_704_164_645_000_000),
            ("2000-02-29T00:00:00Z", 951_782_400_000_000),
            ("2024-02-29T23:59:59Z", 1_709_251_199_000_000),
            ("2024-01-02T03:04:05.25Z", 1_704_164_645_250_000),
            ("2024-01-02T05:04:05+02:00", 1_704_164_645_000_000),
            ("2024-01-01T21:34:05-05:30", 1_704_164_645_000_000),
            ("2024-01-03T03:03:05+23:59", 1_704_164_645_000_000),
            ("2024-01-02 03:04:05.1234567z", 1_704_164_645_123_456),
            ("2016-12-31t23:59:60Z", 1_483_228_800_000_000),
        ] {
            assert_eq!(
                WallTime::parse(text).expect(text),
                WallTime(micros),
                "{text}"
            );
        }
        for bad in [
            "",
            "2024-01-02",
            "2024-02-30T00:00:00Z",
            "2024-01-02T03:04:05",
            "2024-01-02T03:04:05.Z",
            "2024-01-02T24:00:00Z",
            "2024-01-02T03:60:05Z",
            "2024-01-02T03:04:61Z",
            "2024x01-02T03:04:05Z",
            "2024-01x02T03:04:05Z",
            "2024-01-02x03:04:05Z",
            "2024-01-02T03x04:05Z",
            "2024-01-02T03:04x05Z",
            "2024-01-02T03:04:05+24:00",
            "2024-01-02T03:04:05+00:60",
            "2024-01-02T03:04:05+1:00",
            "2024-01-02T03:04:05*02:00",
        ] {
            assert!(WallTime::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn span_is_read_in_larger_units() {
        let span = Span(2_500_999);
        assert_eq!(span.as_millis(), 2_500);
        assert!((span.as_secs_f64() - 2.500_999).abs() < f64::EPSILON);
        assert_eq!(Span::from_duration(span.to_duration()), span);
        let forever = std::time::Duration::MAX;
        assert_eq!(Span::from_duration(forever), Span(u64::MAX));
        let later = Timestamp(1) + span;
        assert_eq!(
            (later - span, later - Span(u64::MAX)),
            (Timestamp(1), Timestamp(0))
        );
    }

    #[test]
    fn zero_is_null() {
        assert_eq!(
            serde_json::to_string(&WallTime(0)).expect("encodes"),
            "null"
        );
        assert_eq!(
            serde_json::from_str::<WallTime>("null").expect("decodes"),
            WallTime(0)
        );
    }

    #[test]
    fn micro_time_has_six_digits_of_fraction() {
        for (micros, text) in [
            (0, "1970-01-01T00:00:00.000000Z"),
            (1_704_164_645_000_250, "2024-01-02T03:04:05.000250Z"),
            (-1, "1969-12-31T23:59:59.999999Z"),
        ] {
            assert_eq!(WallTime(micros).to_micro_string(), text);
        }
    }

    proptest! {
        #[test]
        fn what_is_printed_reads_back(secs in -62_135_596_800_i64..253_402_300_799) {
            let time = WallTime(secs * 1_000_000);
            prop_assert_eq!(WallTime::parse(&time.to_string()).expect("own output"), time);
        }

        #[test]
        fn never_panics(text in ".{0,40}") {
            let _ = WallTime::parse(&text);
        }
    }
}
