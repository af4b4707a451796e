//! Readers of the kernel's small text files. They take bytes and read nothing themselves, so that
//! any file's content can be a test case.

mod numbers;

use std::collections::BTreeMap;

use protocol::units::Bytes;
use serde::Serialize;

use numbers::{bytes_of_kib, numbers_of};

/// A memory figure that could not be had: which file, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, thiserror::Error)]
#[error("cannot read memory use from {file}: {detail}")]
pub struct ReadFailure {
    /// The file's path, cut to [`ReadFailure::PATH_LIMIT`] characters.
    pub file: String,
    /// What went wrong.
    pub detail: String,
}

impl ReadFailure {
    /// Longest path kept, in characters: it goes into a `Status` that has to stay short.
    pub const PATH_LIMIT: usize = 200;

    /// A failure on `file`.
    #[must_use]
    pub fn new(file: &str, detail: &str) -> Self {
        Self {
            file: file.chars().take(Self::PATH_LIMIT).collect(),
            detail: detail.chars().take(Self::PATH_LIMIT).collect(),
        }
    }
}

/// Anonymous memory of a cgroup v2 group, `active_anon` + `inactive_anon` of its `memory.stat`:
/// what cannot be dropped without swap. Pages that are in memory and in swap (`swapcached`, since
/// kernel 5.12) count as being in swap only.
///
/// # Errors
/// The name of the line that is missing or is no number.
pub fn anon_of_memory_stat(text: &[u8]) -> Result<Bytes, &'static str> {
    let keys = ["active_anon", "inactive_anon", "swapcached"];
    let [active, inactive, in_both] = numbers_of(text, keys);
    let active = active.ok_or("it has no line active_anon")?;
    let inactive = inactive.ok_or("it has no line inactive_anon")?;
    let anon = active.saturating_add(inactive);
    Ok(Bytes(anon.saturating_sub(in_both.unwrap_or(0))))
}

/// All memory charged to a group, page cache included: the one number of `memory.current`.
///
/// # Errors
/// When it is not one number.
pub fn bytes_of_memory_current(text: &[u8]) -> Result<Bytes, &'static str> {
    let text = std::str::from_utf8(text).map_err(|_| "it is no text")?;
    let number = text.trim_ascii_end().parse();
    number.map(Bytes).map_err(|_| "it is not one number")
}

/// Pages that were read back after they had been evicted while in use (`workingset_refault_*`),
/// from a group's `memory.stat` or the machine's `vmstat`; none from a kernel that does not count
/// them.
#[must_use]
pub fn refaults(text: &[u8]) -> Option<u64> {
    let keys = ["workingset_refault_file", "workingset_refault_anon"];
    let [of_files, anonymous] = numbers_of(text, keys);
    Some(of_files?.saturating_add(anonymous.unwrap_or(0)))
}

/// How often a group ran out of memory, from its `memory.events`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct OomCounts {
    /// Times its limit was reached and nothing could be reclaimed (`oom`).
    pub oom: u64,
    /// Tasks of it that were killed, by whatever killer (`oom_kill`).
    pub oom_kill: u64,
}

/// Reads the two counts of `memory.events`; none if a line is missing or torn.
#[must_use]
pub fn oom_counts(text: &[u8]) -> Option<OomCounts> {
    let [oom, oom_kill] = numbers_of(text, ["oom", "oom_kill"]);
    Some(OomCounts {
        oom: oom?,
        oom_kill: oom_kill?,
    })
}

/// Anonymous memory of the whole machine from `/proc/meminfo`: the same sum, with what of it is in
/// swap.
///
/// # Errors
/// The name of the line that is missing or is no number.
pub fn anon_of_meminfo(text: &[u8]) -> Result<Bytes, &'static str> {
    let [active, inactive, in_both, total, free] = numbers_of(
        text,
        [
            "Active(anon)",
            "Inactive(anon)",
            "SwapCached",
            "SwapTotal",
            "SwapFree",
        ],
    );
    let active = active.ok_or("it has no line Active(anon)")?;
    let inactive = inactive.ok_or("it has no line Inactive(anon)")?;
    let anon = Bytes(active.saturating_add(inactive).saturating_mul(1024));
    // A kernel without swap has none of these lines.
    let Ok(swap) = swapped(total, free) else {
        return Ok(anon);
    };
    let in_both = in_both.unwrap_or(0).saturating_mul(1024);
    Ok(Bytes(anon.0.saturating_sub(in_both).saturating_add(swap.0)))
}

/// What the agent reads of `/proc/meminfo`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct MachineMemory {
    /// `MemTotal`: all memory that the kernel manages, a little less than is plugged.
    pub total: Bytes,
    /// `MemAvailable`: the kernel's estimate of what programs can get without swapping.
    pub available: Bytes,
    /// `Cached`: the page cache without swap cache and buffers.
    pub cached: Bytes,
}

/// Reads the three lines of `/proc/meminfo` the agent wants.
///
/// # Errors
/// The name of the line that is missing or is no number.
pub fn machine_memory(text: &[u8]) -> Result<MachineMemory, &'static str> {
    let numbers = numbers_of(text, ["MemTotal", "MemAvailable", "Cached"]);
    let [total, available, cached] = numbers.map(|kib| kib.map(bytes_of_kib));
    Ok(MachineMemory {
        total: total.ok_or("it has no line MemTotal")?,
        available: available.ok_or("it has no line MemAvailable")?,
        cached: cached.ok_or("it has no line Cached")?,
    })
}

/// What a shrink is held against of `/proc/meminfo`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MachineRoom {
    /// `MemTotal`: all memory that the kernel manages, a little less than is plugged.
    pub total: Bytes,
    /// Free memory and page cache; none from a kernel that does not tell them apart.
    pub idle: Option<Bytes>,
    /// What is in swap, none from a kernel without swap.
    pub swap: Option<Bytes>,
}

/// Reads these of `/proc/meminfo`.
///
/// # Errors
/// The name of the line that is missing or is no number.
pub fn machine_room(text: &[u8]) -> Result<MachineRoom, &'static str> {
    let [total, free, active, inactive, swap_total, swap_free] = numbers_of(
        text,
        [
            "MemTotal",
            "MemFree",
            "Active(file)",
            "Inactive(file)",
            "SwapTotal",
            "SwapFree",
        ],
    );
    let idle = || Some(free?.saturating_add(active?.saturating_add(inactive?)));
    Ok(MachineRoom {
        total: total.map(bytes_of_kib).ok_or("it has no line MemTotal")?,
        idle: idle().map(bytes_of_kib),
        swap: swapped(swap_total, swap_free).ok(),
    })
}

/// The 1 and 5 minute load averages of `/proc/loadavg`, as their own digits.
#[must_use]
pub fn load_averages(text: &str) -> Option<(&str, &str)> {
    let mut words = text.split_ascii_whitespace();
    let (one, five) = (words.next()?, words.next()?);
    let is_number = |word: &str| word.parse::<f64>().is_ok_and(f64::is_finite);
    (is_number(one) && is_number(five)).then_some((one, five))
}

/// What the machine has in swap, from `/proc/meminfo`.
///
/// # Errors
/// The name of the line that is missing or is no number.
pub fn swap_of_meminfo(text: &[u8]) -> Result<Bytes, &'static str> {
    let [total, free] = numbers_of(text, ["SwapTotal", "SwapFree"]);
    swapped(total, free)
}

/// What is in swap by two figures in KiB.
fn swapped(total: Option<u64>, free: Option<u64>) -> Result<Bytes, &'static str> {
    let total = total.ok_or("it has no line SwapTotal")?;
    let free = free.ok_or("it has no line SwapFree")?;
    Ok(bytes_of_kib(total.saturating_sub(free)))
}

/// For each CPU in `/proc/schedstat`, how long tasks have run or waited to run there, nanoseconds:
/// the seventh and eighth number of its line. Lines of another kind are left.
#[must_use]
pub fn runnable_ns(text: &str) -> BTreeMap<u32, u64> {
    text.lines().filter_map(runnable_of_cpu).collect()
}

fn runnable_of_cpu(line: &str) -> Option<(u32, u64)> {
    let mut words = line.strip_prefix("cpu")?.split_ascii_whitespace();
    let cpu = words.next()?.parse().ok()?;
    let ran: u64 = words.nth(6)?.parse().ok()?;
    let waited: u64 = words.next()?.parse().ok()?;
    Some((cpu, ran.checked_add(waited)?))
}

/// CPUs online, from `/proc/stat`: it has a line for each of them.
#[must_use]
pub fn cpus_online(text: &str) -> Option<u32> {
    let is_cpu = |line: &&str| {
        let number = line.strip_prefix("cpu");
        number.is_some_and(|rest| rest.starts_with(|first: char| first.is_ascii_digit()))
    };
    let count = text.lines().filter(is_cpu).count();
    u32::try_from(count).ok().filter(|count| *count > 0)
}

/// One line of a PSI file: `some avg10=0.00 avg60=0.00 avg300=0.00 total=0`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PressureLine<'a> {
    /// `some` or `full`.
    pub kind: &'a str,
    /// Percent of the last 10 s stalled, as its own digits.
    pub avg10: &'a str,
    /// Stalled time since boot, microseconds.
    pub total_us: u64,
}

/// The lines of a PSI file that can be read; none when the kernel has no PSI.
pub fn pressure_lines(text: &str) -> impl Iterator<Item = PressureLine<'_>> {
    text.lines().filter_map(|line| {
        let mut words = line.split_ascii_whitespace();
        let kind = words
            .next()
            .filter(|kind| matches!(*kind, "some" | "full"))?;
        let (mut avg10, mut total_us) = (None, None);
        for (key, value) in words.filter_map(|word| word.split_once('=')) {
            match key {
                "avg10" => {
                    avg10 = Some(value).filter(|v| v.parse::<f64>().is_ok_and(f64::is_finite))
                }
                "total" => total_us = value.parse().ok(),
                _ => {}
            }
        }
        Some(PressureLine {
            kind,
            avg10: avg10?,
            total_us: total_us?,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn memory_stat_sums_the_two_anon_lists() {
        let text = b"anon 7\nfile 1\ninactive_anon 4096\nactive_anon 8192\nactive_file 5\n";
        assert_eq!(anon_of_memory_stat(text), Ok(Bytes(12_288)));
    }

    #[test]
    fn memory_current_is_one_number() {
        assert_eq!(bytes_of_memory_current(b"4096\n"), Ok(Bytes(4096)));
        for bad in [&b""[..], b"\n", b"max\n", b"-1\n", b"1 2\n", b"\xff"] {
            assert!(bytes_of_memory_current(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn oom_counts_are_both_or_none() {
        let text = b"low 0\nhigh 0\nmax 9\noom 2\noom_kill 3\noom_group_kill 0\n";
        let counts = OomCounts {
            oom: 2,
            oom_kill: 3,
        };
        assert_eq!(oom_counts(text), Some(counts));
        assert_eq!(oom_counts(b"low 0\noom_kill 3\n"), None);
        assert_eq!(oom_counts(b"oom 2\noom_kill \n"), None);
    }

    #[test]
    fn a_missing_or_torn_line_is_no_zero() {
        assert!(anon_of_memory_stat(b"").is_err());
        assert!(anon_of_memory_stat(b"active_anon 8192\n").is_err());
        assert!(anon_of_memory_stat(b"active_anon 8192\ninactive_anon \n").is_err());
        assert!(anon_of_memory_stat(b"active_anon -1\ninactive_anon 1\n").is_err());
        assert!(anon_of_memory_stat(b"active_anon 1\ninactive_anon_x 1\n").is_err());
    }

    #[test]
    fn meminfo_is_in_kib() {
        let text = b"MemTotal:        1000 kB\nMemFree: 1 kB\nMemAvailable:    600 kB\nBuffers: 3 kB\n\
            Cached:           50 kB\nSwapCached:  9 kB\nActive(anon):  7 kB\nInactive(anon):  5 kB\n";
        let memory = machine_memory(text).expect("complete");
        assert_eq!(memory.total, Bytes(1000 << 10));
        assert_eq!(memory.available, Bytes(600 << 10));
        assert_eq!(memory.cached, Bytes(50 << 10));
        assert_eq!(anon_of_meminfo(text), Ok(Bytes(12 << 10)));
        assert!(machine_memory(b"MemTotal: 1 kB\n").is_err());
    }

    #[test]
    fn load_keeps_its_digits() {
        assert_eq!(
            load_averages("0.26 0.75 0.80 1/150 4242\n"),
            Some(("0.26", "0.75"))
        );
        assert_eq!(load_averages("0.26"), None);
        assert_eq!(load_averages("nan 1.0"), None);
    }

    #[test]
    fn refaults_are_of_files_and_of_swap() {
        let text = b"workingset_refault_anon 7\nworkingset_refault_file 30\n";
        assert_eq!(refaults(text), Some(37));
        assert_eq!(refaults(b"workingset_refault 30\n"), None);
    }

    #[test]
    fn swap_is_what_is_not_free_of_it() {
        let text = b"SwapCached: 9 kB\nSwapTotal: 1000 kB\nSwapFree:  600 kB\n";
        assert_eq!(swap_of_meminfo(text), Ok(Bytes(400 << 10)));
        let whole = [&text[..], b"Active(anon): 20 kB\nInactive(anon): 4 kB\n"].concat();
        assert_eq!(anon_of_meminfo(&whole), Ok(Bytes((20 + 4 - 9 + 400) << 10)));
        assert!(swap_of_meminfo(b"SwapTotal: 1000 kB\n").is_err());
    }

    #[test]
    fn runnable_time_is_the_seventh_and_eighth_number_of_a_cpu() {
        let text = "version 15\ntimestamp 4294901572\ncpu0 0 0 0 0 0 0 28625825790 35397345400 16656\ndomain0 3 1 2\ncpu2 1 2 3 4 5 6 7 8 9\n";
        let expected = BTreeMap::from([(0, 64_023_171_190), (2, 15)]);
        assert_eq!(runnable_ns(text), expected);
        let most = u64::MAX;
        for bad in [
            "",
            "cpu0 0 0 0 0 0 0 7",
            "cpux 0 0 0 0 0 0 7 8 9",
            "cpu0 0 0 0 0 0 0 -7 8 9",
            &format!("cpu0 0 0 0 0 0 0 {most} 1 9"),
        ] {
            assert_eq!(runnable_ns(bad), BTreeMap::new(), "{bad:?}");
        }
    }

    #[test]
    fn each_cpu_has_its_line() {
        let text = "cpu  1 2 3\ncpu0 1 2 3\ncpu2 1 2 3\ncpu11 0 0 0\nintr 7 cpu9\n";
        assert_eq!(cpus_online(text), Some(3));
        assert_eq!(cpus_online("cpu 1 2\n"), None);
    }

    #[test]
    fn pressure_lines_are_read_and_others_left() {
        let text = "some avg10=1.50 avg60=0.00 avg300=0.00 total=77\nfull avg10=0.25 total=5\nnone x=1\nsome total=3\n";
        let lines: Vec<_> = pressure_lines(text).collect();
        assert_eq!(lines.len(), 2);
        assert_eq!(
            (lines[0].kind, lines[0].avg10, lines[0].total_us),
            ("some", "1.50", 77)
        );
        assert_eq!(
            (lines[1].kind, lines[1].avg10, lines[1].total_us),
            ("full", "0.25", 5)
        );
    }

    proptest! {
        #[test]
        fn readers_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = anon_of_memory_stat(&bytes);
            let _ = anon_of_meminfo(&bytes);
            let _ = bytes_of_memory_current(&bytes);
            let _ = oom_counts(&bytes);
            let _ = swap_of_meminfo(&bytes);
            let _ = refaults(&bytes);
            let _ = machine_memory(&bytes);
            let text = String::from_utf8_lossy(&bytes);
            let _ = load_averages(&text);
            let _ = runnable_ns(&text);
            let _ = cpus_online(&text);
            let _ = pressure_lines(&text).count();
        }
    }
}
