//! The guest's size, parsed from texts of `/proc` and `/sys`.

use protocol::parts::PartStates;
use protocol::runner::{GuestState, ProgramFile};
use protocol::units::Bytes;

use super::cpus::CpuSet;

/// The two values of `/proc/meminfo` that the runner needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemInfo {
    /// `MemTotal` of `/proc/meminfo`. It changes when memory is plugged or unplugged.
    pub total: Bytes,
    /// `MemAvailable` of `/proc/meminfo`, the kernel's estimate.
    pub available: Bytes,
}

/// Parses `/proc/meminfo`; `None` if either line is missing or not a number.
#[must_use]
pub fn parse_meminfo(text: &str) -> Option<MemInfo> {
    let field = |name: &str| -> Option<Bytes> {
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        let kib: u64 = line.split_ascii_whitespace().next()?.parse().ok()?;
        Some(Bytes(kib.checked_mul(1024)?))
    };
    Some(MemInfo {
        total: field("MemTotal")?,
        available: field("MemAvailable")?,
    })
}

/// Parses `/proc/uptime` into whole seconds.
#[must_use]
pub fn parse_uptime(text: &str) -> Option<u64> {
    text.split(['.', ' ']).next()?.trim().parse().ok()
}

/// Properties that are constant while the guest runs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Identity {
    /// Content of `/proc/sys/kernel/random/boot_id`, which changes at a reboot.
    pub boot_id: String,
    /// Kernel release, such as `6.1.0`, from `/proc/sys/kernel/osrelease`.
    pub kernel: String,
}

/// One reading of all variable properties.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    /// CPUs that the kernel schedules on, from `/sys/devices/system/cpu/online`.
    pub online: CpuSet,
    /// CPUs that are plugged, from `/sys/devices/system/cpu/present`.
    pub present: CpuSet,
    /// CPUs that could ever be plugged, from `/sys/devices/system/cpu/possible`.
    pub possible: CpuSet,
    /// Total and available memory, from `/proc/meminfo`.
    pub memory: MemInfo,
    /// Whole seconds since the guest's boot.
    pub uptime_s: u64,
}

/// What other tasks of the daemon report.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Reports {
    /// Files of programs that follow the guest's size.
    pub programs: Vec<ProgramFile>,
    /// Parts that can be replaced.
    pub parts: PartStates,
}

/// Whether two states of the parts differ in more than what changes by itself: the rest of a trial
/// and the resident memory.
#[must_use]
pub fn parts_differ(before: &PartStates, after: &PartStates) -> bool {
    let lasting = |parts: &PartStates| {
        let mut parts = parts.clone();
        for part in parts.values_mut() {
            (part.left_s, part.resident_bytes) = (0, 0);
        }
        parts
    };
    lasting(before) != lasting(after)
}

/// The state after a reading. The generation grows when CPUs, MemTotal, `programs` or `parts`
/// changed. Changes of MemAvailable or of the uptime alone wake no reader.
#[must_use]
pub fn next_state(
    before: Option<&GuestState>,
    identity: &Identity,
    facts: &Facts,
    reports: &Reports,
) -> GuestState {
    let mut state = GuestState {
        generation: before.map_or(1, |before| before.generation),
        cpus_online: facts.online.len(),
        cpus_present: facts.present.len(),
        cpus_possible: facts.possible.len(),
        mem_total: facts.memory.total,
        mem_available: facts.memory.available,
        boot_id: identity.boot_id.clone(),
        kernel: identity.kernel.clone(),
        uptime_s: facts.uptime_s,
        programs: reports.programs.clone(),
        parts: reports.parts.clone(),
    };
    let size_of = |s: &GuestState| (s.cpus_online, s.cpus_present, s.cpus_possible, s.mem_total);
    let is_other = |before: &GuestState| {
        size_of(before) != size_of(&state)
            || before.programs != reports.programs
            || parts_differ(&before.parts, &reports.parts)
    };
    if before.is_some_and(is_other) {
        state.generation += 1;
    }
    state
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use protocol::parts::{PartName, PartPhase, PartSource, PartState};

    const MEMINFO: &str = "MemTotal:         412340 kB\nMemFree:           90000 kB\nMemAvailable:     301220 kB\nHugePages_Total:       0\n";

    fn facts(online: &str, total: u64, available: u64) -> Facts {
        Facts {
            online: online.parse().expect("a list"),
            present: "0-3".parse().expect("a list"),
            possible: "0-15".parse().expect("a list"),
            memory: MemInfo {
                total: Bytes(total),
                available: Bytes(available),
            },
            uptime_s: 3,
        }
    }

    fn part() -> PartState {
        PartState {
            version: "0.1.0".into(),
            sha256: String::new(),
            from: PartSource::Image,
            phase: PartPhase::Settled,
            left_s: 0,
            token: String::new(),
            reason: String::new(),
            starts: 1,
            resident_bytes: 1,
        }
    }

    #[test]
    fn meminfo_is_read_in_bytes() {
        let read = parse_meminfo(MEMINFO).expect("both lines are there");
        assert_eq!(
            read,
            MemInfo {
                total: Bytes(412_340 << 10),
                available: Bytes(301_220 << 10)
            }
        );
        assert_eq!(parse_meminfo("MemTotal: 1 kB\n"), None);
        assert_eq!(parse_meminfo("MemTotal: x kB\nMemAvailable: 1 kB\n"), None);
    }

    #[test]
    fn uptime_is_cut_to_seconds() {
        assert_eq!(parse_uptime("12.34 56.78\n"), Some(12));
        assert_eq!(parse_uptime("nonsense"), None);
    }

    #[test]
    fn only_changed_cpus_memory_files_or_parts_raise_the_generation() {
        let identity = Identity::default();
        let first = next_state(None, &identity, &facts("0", 100, 50), &Reports::default());
        assert_eq!(first.generation, 1);
        let same = next_state(
            Some(&first),
            &identity,
            &facts("0", 100, 40),
            &Reports::default(),
        );
        assert_eq!((same.generation, same.mem_available), (1, Bytes(40)));
        let cpu = next_state(
            Some(&same),
            &identity,
            &facts("0-1", 100, 40),
            &Reports::default(),
        );
        assert_eq!(cpu.generation, 2);
        let memory = next_state(
            Some(&cpu),
            &identity,
            &facts("0-1", 200, 40),
            &Reports::default(),
        );
        assert_eq!(memory.generation, 3);
        let programs = vec![ProgramFile {
            name: "pg".to_owned(),
            state: protocol::runner::ProgramFileState::Current,
            detail: String::new(),
        }];
        let mut reports = Reports {
            programs,
            ..Reports::default()
        };
        let file = next_state(Some(&memory), &identity, &facts("0-1", 200, 40), &reports);
        assert_eq!((file.generation, &file.programs), (4, &reports.programs));
        reports.parts.insert(PartName::Monitor, part());
        let part = next_state(Some(&file), &identity, &facts("0-1", 200, 40), &reports);
        assert_eq!(part.generation, 5);
        let monitor = reports.parts.get_mut(&PartName::Monitor);
        let monitor = monitor.expect("it is there");
        (monitor.left_s, monitor.resident_bytes) = (9, 9);
        let later = next_state(Some(&part), &identity, &facts("0-1", 200, 40), &reports);
        assert_eq!((later.generation, &later.parts), (5, &reports.parts));
    }

    proptest! {
        #[test]
        fn never_panics(text in "(?s).{0,200}") {
            let _ = parse_meminfo(&text);
            let _ = parse_uptime(&text);
        }
    }
}
