//! The metrics page, in the Prometheus text format, written by hand: a library for it would
//! outweigh the monitor.
//!
//! `host_*` are the names the agent reads (docs/compatibility/agent.md §2.2); they are read from
//! the kernel at each scrape. A figure that cannot be had is left out: the agent then keeps its
//! previous one, where a zero would mislead it.

use std::fmt::Write as _;
use std::path::Path;

use super::memory;
use crate::core::StateDump;
use crate::core::cache::CacheState;
use crate::core::counters::Family;
use crate::core::files;
use crate::core::runnable::RunnableLoad;

/// The page. Without `dump` it has only the machine's figures.
#[must_use]
pub fn metrics(
    proc_root: &Path,
    cgroup: Option<&Path>,
    runnable: &RunnableLoad,
    dump: Option<&StateDump>,
) -> String {
    let mut page = Page(String::with_capacity(8 * 1024));
    page.machine(proc_root);
    page.runnable(runnable);
    page.pressure(proc_root, cgroup);
    if let Some(dump) = dump {
        page.watch(dump);
        page.counters(dump);
    }
    page.0
}

struct Page(String);

impl Page {
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        // Writing to a string does not fail.
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn gauge<T: std::fmt::Display>(&mut self, name: &str, help: &str, value: T) {
        self.head(name, "gauge", help);
        let _ = writeln!(self.0, "{name} {value}");
    }

    fn counter(&mut self, name: &str, help: &str, value: u64) {
        self.head(name, "counter", help);
        let _ = writeln!(self.0, "{name} {value}");
    }

    fn family(&mut self, name: &str, help: &str, label: &str, family: &Family) {
        self.head(name, "counter", help);
        for (value, count) in family.iter() {
            let _ = writeln!(self.0, "{name}{{{label}=\"{value}\"}} {count}");
        }
    }

    fn machine(&mut self, proc_root: &Path) {
        let load = memory::text(&proc_root.join("loadavg"));
        if let Some((one, five)) = load.as_deref().and_then(files::load_averages) {
            self.gauge("host_load1", "Load average of the last minute.", one);
            self.gauge("host_load5", "Load average of the last five minutes.", five);
        }
        if let Ok(memory) = memory::machine_memory(proc_root) {
            let name = "host_memory_total_bytes";
            self.gauge(name, "Memory the kernel has.", memory.total.0);
            let name = "host_memory_available_bytes";
            self.gauge(
                name,
                "Memory programs could still get without swapping.",
                memory.available.0,
            );
            let name = "host_memory_cached_bytes";
            self.gauge(name, "Memory in the page cache.", memory.cached.0);
        }
        if let Ok(swap) = memory::parsed(&proc_root.join("meminfo"), files::swap_of_meminfo) {
            let name = "host_swap_used_bytes";
            self.gauge(name, "Memory that was moved to swap.", swap.0);
        }
    }

    fn runnable(&mut self, load: &RunnableLoad) {
        let Some((one, five)) = load.averages() else {
            return;
        };
        for (name, help, value) in [
            (
                "host_runnable_load1",
                "Load average of the last minute, of runnable tasks only.",
                one,
            ),
            (
                "host_runnable_load5",
                "Load average of the last five minutes, of runnable tasks only.",
                five,
            ),
        ] {
            self.gauge(name, help, format_args!("{value:.4}"));
        }
    }

    fn pressure(&mut self, proc_root: &Path, cgroup: Option<&Path>) {
        let machine = proc_root.join("pressure");
        let mut sources = vec![
            ("machine", "cpu", machine.join("cpu")),
            ("machine", "memory", machine.join("memory")),
            ("machine", "io", machine.join("io")),
        ];
        if let Some(group) = cgroup {
            sources.push(("cgroup", "memory", group.join("memory.pressure")));
        }
        let (mut percent, mut total) = (String::new(), String::new());
        for (scope, resource, path) in sources {
            let Some(text) = memory::text(&path) else {
                continue;
            };
            for line in files::pressure_lines(&text) {
                let labels = format!(
                    "scope=\"{scope}\",resource=\"{resource}\",kind=\"{}\"",
                    line.kind
                );
                let _ = writeln!(
                    percent,
                    "host_pressure_percent{{{labels},window=\"10s\"}} {}",
                    line.avg10
                );
                let (seconds, micros) = (line.total_us / 1_000_000, line.total_us % 1_000_000);
                let _ = writeln!(
                    total,
                    "host_pressure_stalled_seconds_total{{{labels}}} {seconds}.{micros:06}"
                );
            }
        }
        if percent.is_empty() {
            return;
        }
        self.head(
            "host_pressure_percent",
            "gauge",
            "Share of time tasks were stalled (PSI).",
        );
        self.0.push_str(&percent);
        let name = "host_pressure_stalled_seconds_total";
        self.head(name, "counter", "Time tasks were stalled since boot (PSI).");
        self.0.push_str(&total);
    }

    fn watch(&mut self, dump: &StateDump) {
        let is_connected = u8::from(dump.connection.is_some());
        self.gauge(
            "vm_monitor_agent_connected",
            "Whether an agent is being served.",
            is_connected,
        );
        if let Some(mean) = dump.mean {
            let help = "Mean of the newest readings of anonymous memory.";
            self.gauge("vm_monitor_memory_in_use_bytes", help, mean.0);
        }
        if let Some(threshold) = dump.threshold {
            let help = "Use at which more memory is asked for.";
            self.gauge("vm_monitor_memory_threshold_bytes", help, threshold.0);
        }
        if let CacheState::Managed { size } = dump.file_cache {
            let help = "Limit last set for the database's file cache.";
            self.gauge("vm_monitor_file_cache_bytes", help, size.0);
        }
        self.gauge(
            "vm_monitor_requests_waiting",
            "Requests not answered yet.",
            dump.waiting,
        );
    }

    fn counters(&mut self, dump: &StateDump) {
        let counters = &dump.counters;
        let name = "vm_monitor_connections_total";
        self.counter(
            name,
            "Agents that completed a handshake.",
            counters.connections,
        );
        let name = "vm_monitor_connections_replaced_total";
        self.counter(
            name,
            "Connections ended by a newer agent.",
            counters.replaced,
        );
        let name = "vm_monitor_upscale_requests_total";
        let asked = counters.sent.get("UpscaleRequest");
        self.counter(name, "Times more memory was asked for.", asked);
        for (name, help, label, family) in [
            (
                "vm_monitor_handshake_failures_total",
                "Handshakes that failed.",
                "reason",
                &counters.handshake_failures,
            ),
            (
                "vm_monitor_frames_received_total",
                "Frames from agents by type, bad ones by what was wrong.",
                "type",
                &counters.received,
            ),
            (
                "vm_monitor_frames_sent_total",
                "Frames to agents by type.",
                "type",
                &counters.sent,
            ),
            (
                "vm_monitor_downscales_total",
                "Shrinks asked for.",
                "outcome",
                &counters.downscales,
            ),
            (
                "vm_monitor_upscales_total",
                "Growth told of.",
                "outcome",
                &counters.upscales,
            ),
            (
                "vm_monitor_memory_reads_total",
                "Readings of memory use.",
                "outcome",
                &counters.samples,
            ),
            (
                "vm_monitor_file_cache_sets_total",
                "Attempts to set the file cache.",
                "outcome",
                &counters.file_cache_sets,
            ),
        ] {
            self.family(name, help, label, family);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::Monitor;
    use std::collections::BTreeMap;

    use crate::core::runnable::Reading;
    use crate::shell::config::Config;
    use protocol::time::{Span, Timestamp};

    fn folder() -> tempfile::TempDir {
        let folder = tempfile::tempdir().expect("a folder");
        let write = |name: &str, text: &str| {
            std::fs::write(folder.path().join(name), text).expect("written")
        };
        write("loadavg", "0.26 1.75 0.80 1/150 4242\n");
        write(
            "meminfo",
            "MemTotal: 1000 kB\nMemAvailable: 600 kB\nCached: 50 kB\nSwapTotal: 90 kB\nSwapFree: 20 kB\n",
        );
        std::fs::create_dir(folder.path().join("pressure")).expect("made");
        write(
            "pressure/memory",
            "some avg10=1.50 avg60=0.00 avg300=0.00 total=1000077\n",
        );
        folder
    }

    #[test]
    fn the_gauges_of_memory_are_typed_and_single() {
        let folder = folder();
        let dump = Monitor::new(Config::default().setup()).snapshot(Timestamp(0));
        let page = metrics(folder.path(), None, &RunnableLoad::default(), Some(&dump));
        for (name, value) in [
            ("host_load1", "0.26"),
            ("host_load5", "1.75"),
            ("host_memory_total_bytes", "1024000"),
            ("host_memory_available_bytes", "614400"),
            ("host_memory_cached_bytes", "51200"),
            ("host_swap_used_bytes", "71680"),
        ] {
            assert_eq!(
                page.matches(&format!("# TYPE {name} gauge\n")).count(),
                1,
                "{page}"
            );
            assert_eq!(
                page.matches(&format!("\n{name} {value}\n")).count(),
                1,
                "{page}"
            );
        }
    }

    #[test]
    fn every_series_has_a_type_and_comes_right_after_it() {
        let folder = folder();
        let dump = Monitor::new(Config::default().setup()).snapshot(Timestamp(0));
        let mut load = RunnableLoad::default();
        for second in [0, 60] {
            let reading = Reading {
                runnable_ns: BTreeMap::from([(0, second * 2_000_000_000)]),
                total: None,
            };
            load.observe(Timestamp(0) + Span::from_secs(second), reading);
        }
        let page = metrics(folder.path(), Some(folder.path()), &load, Some(&dump));
        assert!(page.contains("\nhost_runnable_load1 2.0000\n"), "{page}");
        let mut typed = std::collections::BTreeSet::new();
        let mut current = "";
        for line in page.lines() {
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                current = rest.split(' ').next().expect("a name");
                assert!(typed.insert(current), "{current} is typed twice");
            } else if !line.starts_with('#') {
                let name = line.split(['{', ' ']).next().expect("a name");
                assert_eq!(name, current, "{line}");
                let value = line.rsplit(' ').next().expect("a value");
                assert!(value.parse::<f64>().is_ok(), "{line}");
            }
        }
        assert!(page.contains("host_pressure_stalled_seconds_total{scope=\"machine\",resource=\"memory\",kind=\"some\"} 1.000077\n"), "{page}");
    }

    #[test]
    fn what_cannot_be_read_is_left_out() {
        let page = metrics(Path::new("/nowhere"), None, &RunnableLoad::default(), None);
        assert_eq!(page, "");
    }
}
