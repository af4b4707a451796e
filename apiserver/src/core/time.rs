//! Wall time as it appears in objects and tables. The core never reads a clock; the time comes with
//! each request.

pub use protocol::time::WallTime;

/// Whole seconds from `earlier` to `now`, 0 when `earlier` is later.
#[must_use]
pub fn seconds_since(now: WallTime, earlier: WallTime) -> u64 {
    u64::try_from((now.0 - earlier.0).div_euclid(1_000_000)).unwrap_or(0)
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
    use super::*;

    #[test]
    fn ages_print_as_kubectl_prints_them() {
        for (seconds, text) in [
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (190, "3m10s"),
            (600, "10m"),
            (10_800, "3h"),
            (11_100, "3h5m"),
            (172_800, "2d"),
            (176_400, "2d1h"),
            (864_000, "10d"),
            (63_158_400, "2y1d"),
        ] {
            assert_eq!(human_age(seconds), text);
        }
    }

    #[test]
    fn a_time_to_come_is_no_age() {
        assert_eq!(seconds_since(WallTime(5_000_000), WallTime(2_000_000)), 3);
        assert_eq!(seconds_since(WallTime(2_000_000), WallTime(5_000_000)), 0);
    }
}
