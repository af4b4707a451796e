//! The part of the metrics page about looking at memory and asking for growth: by deadline, by
//! forecast, by pressure.

use std::fmt::Write as _;

use crate::core::StateDump;

/// Adds these series to a page.
pub fn append(page: &mut String, dump: &StateDump) {
    let name = "vm_monitor_upscale_requests_by_reason_total";
    head(
        page,
        name,
        "counter",
        "Times more memory was asked for, by reason.",
    );
    for (reason, count) in dump.counters.asks.iter() {
        line(page, &format!("{name}{{reason=\"{reason}\"}}"), count);
    }
    let name = "vm_monitor_downscale_refusals_total";
    head(page, name, "counter", "Shrinks refused, by reason.");
    for (reason, count) in dump.counters.refusals.iter() {
        line(page, &format!("{name}{{reason=\"{reason}\"}}"), count);
    }
    let name = "vm_monitor_hooks_total";
    head(page, name, "counter", "Runs of the hooks, by outcome.");
    for (outcome, count) in dump.counters.hooks.iter() {
        line(page, &format!("{name}{{outcome=\"{outcome}\"}}"), count);
    }
    let name = "vm_monitor_squeezes_total";
    let help = "Soft squeezes before a shrink, by how they ended.";
    head(page, name, "counter", help);
    for (outcome, count) in dump.counters.squeezes.iter() {
        line(page, &format!("{name}{{outcome=\"{outcome}\"}}"), count);
    }
    let name = "vm_monitor_stalls_total";
    let help = "Stalls for want of memory the kernel told of, and those that were not for want.";
    head(page, name, "counter", help);
    for (kind, count) in dump.counters.stalls.iter() {
        line(page, &format!("{name}{{kind=\"{kind}\"}}"), count);
    }
    let name = "vm_monitor_kernel_signals";
    head(
        page,
        name,
        "gauge",
        "Signals of the kernel's that are listened to.",
    );
    line(page, name, dump.signals.len());
    if let Some(oom) = dump.oom {
        let name = "vm_monitor_oom_kills_total";
        head(
            page,
            name,
            "counter",
            "Tasks of the watched group the kernel killed.",
        );
        line(page, name, oom.oom_kill);
    }
    let name = "vm_monitor_memory_climb_bytes_per_second";
    head(page, name, "gauge", "How fast memory in use climbs.");
    line(page, name, dump.climb);
    let name = "vm_monitor_growth_lead_seconds";
    let help = "Time from asking for growth to having it, as learned.";
    head(page, name, "gauge", help);
    let (seconds, millis) = (dump.lead_ms / 1000, dump.lead_ms % 1000);
    line(page, name, format_args!("{seconds}.{millis:03}"));
    if let Some(needed) = dump.working_set {
        let name = "vm_monitor_working_set_bytes";
        head(page, name, "gauge", "Memory the group needs, by estimate.");
        line(page, name, needed.0);
    }
    if let Some(bound) = dump.bound {
        let name = "vm_monitor_memory_bound_bytes";
        let help = "Memory charged to what is watched, page cache included.";
        head(page, name, "gauge", help);
        line(page, name, bound.0);
    }
}

fn head(page: &mut String, name: &str, kind: &str, help: &str) {
    // Writing to a string does not fail.
    let _ = writeln!(page, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

fn line<T: std::fmt::Display>(page: &mut String, series: &str, value: T) {
    let _ = writeln!(page, "{series} {value}");
}
