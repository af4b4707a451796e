//! Figures of one process in the kernel's files.

/// Ticks of a second in `/proc/PID/stat`: `USER_HZ`, 100 for programs on every Linux.
const TICKS_PER_SECOND: u64 = 100;

/// Resident memory in bytes, from `/proc/PID/status`.
#[must_use]
pub fn resident_bytes(status: &str) -> Option<u64> {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim_end().parse().ok()?;
    kib.checked_mul(1024)
}

/// Start of the process in milliseconds since the epoch, from `/proc/PID/stat` and `/proc/stat`.
#[must_use]
pub fn started_unix_ms(process: &str, machine: &str) -> Option<u64> {
    // The name before the last parenthesis may hold blanks and parentheses.
    let (_, fields) = process.rsplit_once(')')?;
    // Field 22 of the file; the first field behind the name is number 3.
    let ticks: u64 = fields.split_ascii_whitespace().nth(19)?.parse().ok()?;
    let boot = machine
        .lines()
        .find_map(|line| line.strip_prefix("btime "))?;
    let boot_ms = boot.trim().parse::<u64>().ok()?.checked_mul(1000)?;
    let since_boot_ms = ticks.checked_mul(1000)? / TICKS_PER_SECOND;
    boot_ms.checked_add(since_boot_ms)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_a_process_are_read_past_its_name() {
        let status = "Name:\tx\nVmHWM:\t    9999 kB\nVmRSS:\t    3412 kB\n";
        assert_eq!(resident_bytes(status), Some(3412 << 10));
        let stat = "7 (a) b) S 1 7 7 0 -1 4 0 0 0 0 1 2 0 0 20 0 3 0 250 1 2 3";
        let machine = "cpu 1 2\nbtime 1700000000\n";
        assert_eq!(started_unix_ms(stat, machine), Some(1_700_000_002_500));
    }

    #[test]
    fn torn_files_give_no_figure() {
        for status in [
            "",
            "VmRSS:",
            "VmRSS: x kB",
            "VmRSS: 1 MB",
            "VmRSS: 99999999999999999999 kB",
        ] {
            assert_eq!(resident_bytes(status), None, "{status:?}");
        }
        let most = format!("1 (x) S {}", format!("{} ", u64::MAX).repeat(30));
        for stat in ["", "1 (x", "1 (x) S 1 2", &most] {
            assert_eq!(started_unix_ms(stat, "btime 1\n"), None, "{stat:?}");
        }
    }
}
