//! The kernel's small files. Each reader is held against what is added to a file, not against a
//! second reader: lines put before the file must win, the file twice over must read like the file,
//! and lines taken away must be missed.

use protocol::units::Bytes;

use crate::core::files::{
    OomCounts, anon_of_meminfo, anon_of_memory_stat, bytes_of_memory_current, cpus_online,
    load_averages, machine_memory, oom_counts, pressure_lines, refaults, runnable_ns,
    swap_of_meminfo,
};
use crate::core::zones::{Zone, Zones, zones};

/// A group's `memory.stat` and `memory.current`.
pub fn memory_stat(data: &[u8]) {
    let read = anon_of_memory_stat(data);
    assert_eq!(read, anon_of_memory_stat(&twice(data)));
    assert_eq!(refaults(data), refaults(&twice(data)));
    for line in ["active_anon", "inactive_anon"] {
        assert!(anon_of_memory_stat(&without(data, line)).is_err(), "{line}");
    }
    let [active, inactive, in_both] = numbers(data);
    let first = format!("active_anon {active}\ninactive_anon {inactive}\nswapcached {in_both}\n");
    let anon = active.saturating_add(inactive).saturating_sub(in_both);
    let whole = [first.as_bytes(), data].concat();
    assert_eq!(anon_of_memory_stat(&whole), Ok(Bytes(anon)));

    if let Ok(current) = bytes_of_memory_current(data) {
        let written = format!("{}\n", current.0);
        assert_eq!(bytes_of_memory_current(written.as_bytes()), Ok(current));
        // A file cut short is another number, but two numbers are none.
        assert!(bytes_of_memory_current(&[data, b"\n1"].concat()).is_err());
    }
}

/// A group's `memory.events`.
pub fn memory_events(data: &[u8]) {
    assert_eq!(oom_counts(data), oom_counts(&twice(data)));
    assert_eq!(oom_counts(&without(data, "oom_kill")), None);
    let [oom, oom_kill, other] = numbers(data);
    let first = format!("low {other}\noom {oom}\noom_kill {oom_kill}\noom_group_kill {other}\n");
    let whole = [first.as_bytes(), data].concat();
    assert_eq!(oom_counts(&whole), Some(OomCounts { oom, oom_kill }));
}

/// A PSI file: every line that is read is one of the file's, reads the same when it is written
/// again, and no line changes how another is read.
pub fn pressure_file(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let lines: Vec<_> = pressure_lines(&text).collect();
    for line in &lines {
        assert!(matches!(line.kind, "some" | "full"));
        let percent: f64 = line.avg10.parse().expect("a number");
        assert!(percent.is_finite());
        let written = format!(
            "{} avg10={} avg60=0.00 total={}",
            line.kind, line.avg10, line.total_us
        );
        let again: Vec<_> = pressure_lines(&written).collect();
        assert_eq!(again, [*line]);
    }
    let one_by_one: Vec<_> = text.lines().flat_map(pressure_lines).collect();
    assert_eq!(one_by_one, lines);
}

/// The machine's files under `/proc`: `meminfo`, `loadavg`, `stat`, `schedstat`.
pub fn machine_files(data: &[u8]) {
    assert_eq!(machine_memory(data), machine_memory(&twice(data)));
    assert_eq!(anon_of_meminfo(data), anon_of_meminfo(&twice(data)));
    let [total, available, cached] = numbers(data).map(|number| number >> 10);
    let first =
        format!("MemTotal: {total} kB\nMemAvailable: {available} kB\nCached: {cached} kB\n");
    let memory = machine_memory(&[first.as_bytes(), data].concat()).expect("all three lines");
    let read = [memory.total, memory.available, memory.cached];
    assert_eq!(read, [total, available, cached].map(|kib| Bytes(kib << 10)));
    let swap = format!("SwapTotal: {total} kB\nSwapFree: {available} kB\n");
    let swap = swap_of_meminfo(&[swap.as_bytes(), data].concat()).expect("both lines");
    assert_eq!(swap, Bytes(total.saturating_sub(available) << 10));

    let text = String::from_utf8_lossy(data);
    if let Some((one, five)) = load_averages(&text) {
        for average in [one, five] {
            assert!(average.parse::<f64>().is_ok_and(f64::is_finite));
        }
        assert_eq!(
            load_averages(&format!("{one} {five} 0.00 1/1 1\n")),
            Some((one, five))
        );
    }
    let cpus = cpus_online(&text);
    assert_eq!(
        cpus_online(&format!("{text}\ncpu7 1 2 3\n")),
        Some(cpus.unwrap_or(0) + 1)
    );
    for (cpu, ns) in runnable_ns(&text) {
        let line = format!("cpu{cpu} 0 0 0 0 0 0 {ns} 0 0");
        assert_eq!(runnable_ns(&line).get(&cpu), Some(&ns));
    }
}

/// The machine's `/proc/zoneinfo`: twice the zones are twice the memory, and no more is given than
/// is movable.
pub fn zone_file(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    // What stands before the first zone belongs to none; in between it must not become the last
    // one's.
    let nobodys = "Node 9, zone   Device\n";
    let both = zones(&format!("{text}\n{nobodys}{text}\n{nobodys}"), 1);
    let Some(once) = zones(&text, 1) else {
        return;
    };
    let double = |zone: Zone| Zone {
        managed: Bytes(zone.managed.0.saturating_mul(2)),
        free: Bytes(zone.free.0.saturating_mul(2)),
        cache: Bytes(zone.cache.0.saturating_mul(2)),
    };
    let expected = Zones {
        movable: double(once.movable),
        others: double(once.others),
        reserve: Bytes(once.reserve.0.saturating_mul(2)),
    };
    assert_eq!(both, Some(expected));
    match once.can_give() {
        Some(bytes) => assert!(bytes <= once.movable.managed),
        None => assert_eq!(once.movable.managed, Bytes(0)),
    }
}

fn twice(data: &[u8]) -> Vec<u8> {
    [data, b"\n", data].concat()
}

/// The file without the lines that begin so.
fn without(data: &[u8], beginning: &str) -> Vec<u8> {
    let lines = data.split(|byte| *byte == b'\n');
    let kept = lines.filter(|line| !line.starts_with(beginning.as_bytes()));
    kept.collect::<Vec<_>>().join(&b'\n')
}

/// Three numbers that the data stands for.
fn numbers(data: &[u8]) -> [u64; 3] {
    let number = |at: usize| {
        let bytes = data.iter().skip(at * 8).take(8);
        bytes.fold(0, |number, byte| number << 8 | u64::from(*byte))
    };
    [number(0), number(1), number(2)]
}
