//! Wall time as it appears in objects: RFC 3339 text with whole seconds or microseconds, UTC.
//!
//! The core never reads a clock; the shell passes a [`WallTime`] with each request.

/// Microseconds since 1970-01-01T00:00:00Z. Range used here: years 0001 to 9999.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct WallTime(pub i64);

const MICROS: i64 = 1_000_000;
const DAY_S: i64 = 86_400;

impl WallTime {
    /// `2026-01-02T03:04:05Z`.
    #[must_use]
    pub fn to_rfc3339(self) -> String {
        let seconds = self.0.div_euclid(MICROS);
        let (year, month, day) = civil_from_days(seconds.div_euclid(DAY_S));
        let of_day = seconds.rem_euclid(DAY_S);
        format!(
            "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z",
            of_day / 3600,
            of_day / 60 % 60,
            of_day % 60
        )
    }

    /// Reads `YYYY-MM-DDTHH:MM:SS[.fraction](Z|±HH:MM)`; `None` for anything else.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let bytes = text.as_bytes();
        if bytes.len() < 20 || !text.is_ascii() || bytes[4] != b'-' || bytes[7] != b'-' {
            return None;
        }
        if !matches!(bytes[10], b'T' | b't' | b' ') || bytes[13] != b':' || bytes[16] != b':' {
            return None;
        }
        let number = |from: usize, to: usize| -> Option<i64> { digits(&text[from..to]) };
        let days = days_from_civil(number(0, 4)?, number(5, 7)?, number(8, 10)?)?;
        let (hour, minute, second) = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
        if hour > 23 || minute > 59 || second > 60 {
            return None;
        }
        let rest = &text[19..];
        let (micros, zone) = match rest.strip_prefix('.') {
            Some(fraction) => {
                let end = fraction.find(|c: char| !c.is_ascii_digit())?;
                (fraction_micros(&fraction[..end])?, &fraction[end..])
            }
            None => (0, rest),
        };
        let seconds = days * DAY_S + hour * 3600 + minute * 60 + second - zone_seconds(zone)?;
        Some(Self(seconds * MICROS + micros))
    }

    /// Seconds from `earlier` to `self`, 0 when `earlier` is later.
    #[must_use]
    pub fn seconds_since(self, earlier: Self) -> u64 {
        u64::try_from((self.0 - earlier.0).div_euclid(MICROS)).unwrap_or(0)
    }
}

fn digits(text: &str) -> Option<i64> {
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    text.parse().ok()
}

fn fraction_micros(text: &str) -> Option<i64> {
    let kept = &text[..text.len().min(6)];
    let power = u32::try_from(6 - kept.len()).ok()?;
    Some(digits(kept)? * 10_i64.pow(power))
}

fn zone_seconds(zone: &str) -> Option<i64> {
    if zone == "Z" || zone == "z" {
        return Some(0);
    }
    let (sign, rest) = match zone.split_at_checked(1)? {
        ("+", rest) => (1, rest),
        ("-", rest) => (-1, rest),
        _ => return None,
    };
    let (hours, minutes) = rest.split_once(':')?;
    Some(sign * (digits(hours)? * 3600 + digits(minutes)? * 60))
}

/// Days since 1970-01-01 to a date of the proleptic Gregorian calendar (eras of 400 years, years from March).
fn civil_from_days(days: i64) -> (i64, i64, i64) {
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let of_era = shifted.rem_euclid(146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * march_month + 2) / 5 + 1;
    let month = if march_month < 10 { march_month + 3 } else { march_month - 9 };
    (year_of_era + era * 400 + i64::from(month <= 2), month, day)
}

fn days_from_civil(year: i64, month: i64, day: i64) -> Option<i64> {
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    let year = year - i64::from(month <= 2);
    let era = year.div_euclid(400);
    let of_era = year.rem_euclid(400);
    let march_month = if month > 2 { month - 3 } else { month + 9 };
    let of_year = (153 * march_month + 2) / 5 + day - 1;
    Some(era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468)
}

/// An age as `kubectl` prints it: `5s`, `3m10s`, `2h5m`, `4d`, `3y10d`.
#[must_use]
pub fn human_age(seconds: u64) -> String {
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    let two = |big: u64, unit: &str, small: u64, small_unit: &str| match small {
        0 => format!("{big}{unit}"),
        _ => format!("{big}{unit}{small}{small_unit}"),
    };
    match seconds {
        0..120 => format!("{seconds}s"),
        120..600 => two(minutes, "m", seconds % 60, "s"),
        600..10_800 => format!("{minutes}m"),
        10_800..28_800 => two(hours, "h", minutes % 60, "m"),
        28_800..172_800 => format!("{hours}h"),
        172_800..691_200 => two(days, "d", hours % 24, "h"),
        691_200..63_072_000 => format!("{days}d"),
        63_072_000..252_288_000 => two(days / 365, "y", days % 365, "d"),
        _ => format!("{}y", days / 365),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn known_instants_print_and_read() {
        assert_eq!(WallTime(0).to_rfc3339(), "1970-01-01T00:00:00Z");
        assert_eq!(WallTime(1_709_210_096_000_000).to_rfc3339(), "2024-02-29T12:34:56Z");
        assert_eq!(WallTime::parse("2024-02-29T12:34:56Z"), Some(WallTime(1_709_210_096_000_000)));
        let fraction = WallTime::parse("2024-02-29T14:34:56.5+02:00");
        assert_eq!(fraction, Some(WallTime(1_709_210_096_500_000)));
        for bad in ["", "2024-02-29", "2024-13-01T00:00:00Z", "2024-01-01T00:00:00", "x024-01-01T00:00:00Z"] {
            assert_eq!(WallTime::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn ages_print_as_kubectl_prints_them() {
        for (seconds, text) in [
            (0, "0s"), (119, "119s"), (120, "2m"), (190, "3m10s"), (600, "10m"), (10_800, "3h"),
            (11_100, "3h5m"), (172_800, "2d"), (176_400, "2d1h"), (864_000, "10d"), (63_158_400, "2y1d"),
        ] {
            assert_eq!(human_age(seconds), text);
        }
    }

    proptest! {
        #[test]
        fn printing_then_reading_keeps_the_second(seconds in 0_i64..253_402_300_799) {
            let time = WallTime(seconds * MICROS);
            prop_assert_eq!(WallTime::parse(&time.to_rfc3339()), Some(time));
        }
    }
}
