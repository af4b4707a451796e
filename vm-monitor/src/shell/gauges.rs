//! Figures that are not part of the memory watch: what the guest sees of its size, and what is pushed to the agent.

use std::path::PathBuf;

use protocol::monitor::Allocation;
use protocol::monitor_v2::{GuestMetrics, MachineGauges, Stalls};

use super::config::Config;
use super::memory;
use crate::core::files;
use crate::core::v2::Seen;

/// Where these figures are read.
#[derive(Debug)]
pub struct Gauges {
    proc_root: PathBuf,
    /// The watched group's stalls, if there is a group.
    group_stalls: Option<PathBuf>,
}

impl Gauges {
    /// Those of a configuration.
    #[must_use]
    pub fn new(config: &Config) -> Self {
        let group = config.cgroup.as_ref();
        Self {
            proc_root: config.proc_root.clone(),
            group_stalls: group.map(|group| group.join("memory.pressure")),
        }
    }

    /// CPUs online and memory, as the guest's kernel has them now.
    #[must_use]
    pub fn seen(&self) -> Seen {
        let stat = memory::text(&self.proc_root.join("stat"));
        let memory = memory::machine_memory(&self.proc_root).ok();
        Seen {
            cpus: stat.as_deref().and_then(files::cpus_online),
            total: memory.map(|memory| memory.total),
        }
    }

    /// Everything that is pushed but the group's memory, which the core knows.
    #[must_use]
    pub fn measure(&self) -> GuestMetrics {
        let load = memory::text(&self.proc_root.join("loadavg"));
        let loads = load.as_deref().and_then(files::load_averages);
        let memory = memory::machine_memory(&self.proc_root).ok();
        let stat = memory::text(&self.proc_root.join("stat"));
        let cpus = stat.as_deref().and_then(files::cpus_online);
        GuestMetrics {
            load1: loads.and_then(|(one, _)| one.parse().ok()),
            load5: loads.and_then(|(_, five)| five.parse().ok()),
            memory: memory.map(|memory| MachineGauges {
                total: memory.total.0,
                available: memory.available.0,
                cached: memory.cached.0,
            }),
            machine_stalls: stalls(&self.proc_root.join("pressure/memory")),
            cgroup_stalls: self.group_stalls.as_deref().and_then(stalls),
            guest: cpus.zip(memory).map(|(cpus, memory)| Allocation {
                cpu: f64::from(cpus),
                mem: memory.total.0,
            }),
            ..GuestMetrics::default()
        }
    }
}

/// The stalls a PSI file tells of, none without one. The line `full` may be missing.
fn stalls(path: &std::path::Path) -> Option<Stalls> {
    let text = memory::text(path)?;
    let line = |kind: &str| files::pressure_lines(&text).find(|line| line.kind == kind);
    let percent = |digits: &str| digits.parse().unwrap_or(0.0);
    let some = line("some")?;
    let full = line("full");
    Some(Stalls {
        some_percent: percent(some.avg10),
        full_percent: full.map_or(0.0, |full| percent(full.avg10)),
        some_us: some.total_us,
        full_us: full.map_or(0, |full| full.total_us),
    })
}
