//! Sizes and times for people.

use protocol::time::WallTime;

/// Cores such as `0.25` and `2`.
pub(crate) fn cores(milli: u32) -> String {
    let text = format!("{}.{:03}", milli / 1000, milli % 1000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Bytes as a quantity (`1Gi`), rounded to one decimal where the exact number does not matter.
pub(crate) fn memory(bytes: u64) -> String {
    const GIB: u64 = 1 << 30;
    const MIB: u64 = 1 << 20;
    match bytes {
        _ if bytes >= GIB && bytes.is_multiple_of(GIB) => format!("{}Gi", bytes / GIB),
        _ if bytes >= 10 * GIB => format!("{}Gi", bytes / GIB),
        _ if bytes >= GIB => format!("{}.{}Gi", bytes / GIB, bytes % GIB * 10 / GIB),
        _ if bytes >= MIB => format!("{}Mi", bytes / MIB),
        _ => bytes.to_string(),
    }
}

/// Compute units with their word.
pub(crate) fn counted(units: u32) -> String {
    let word = if units == 1 { "unit" } else { "units" };
    format!("{units} {word}")
}

pub(crate) fn seconds_between(start_unix_us: i64, now: WallTime) -> u64 {
    u64::try_from(now.0.saturating_sub(start_unix_us)).unwrap_or(0) / 1_000_000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_formatted_for_people() {
        let shown: Vec<String> = [250, 1000, 1500, 333, 0].map(cores).into();
        assert_eq!(shown, ["0.25", "1", "1.5", "0.333", "0"]);
        let shown: Vec<String> = [1 << 30, 3 << 29, 150_589_570, 512, 0, 11 << 30]
            .map(memory)
            .into();
        assert_eq!(shown, ["1Gi", "1.5Gi", "143Mi", "512", "0", "11Gi"]);
    }
}
