//! Figures that are not part of the memory watch: what the guest sees of its size, and what is
//! pushed to the agent.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use protocol::monitor::Allocation;
use protocol::monitor_v2::{GuestMetrics, MachineGauges, Stalls};
use protocol::units::Bytes;
use tokio::sync::{mpsc, watch};

use super::config::Config;
use super::inbox::Inbox;
use super::memory::{self, Kept};
use super::reclaim;
use crate::core::decision::Weight;
use crate::core::event::Seen;
use crate::core::files;
use crate::core::runnable::RunnableLoad;
use crate::core::working_set::Gauge;
use crate::core::zones::{Zones, zones};
use crate::core::{Event, OperationId};

/// Size of a page on x86-64, which all guests are.
const PAGE_BYTES: u64 = 4096;
/// Most that is read of `/proc/zoneinfo`, bytes: it has some lines for each zone and CPU. Of a
/// longer one nothing is used.
const ZONEINFO_LIMIT_BYTES: u64 = 1 << 20;

/// Where these figures are read.
#[derive(Debug)]
pub struct Gauges {
    proc_root: PathBuf,
    /// The watched group, if there is one.
    group: Option<PathBuf>,
    /// Load averages that a shrink does not disturb.
    runnable: watch::Receiver<RunnableLoad>,
    weighed: Weighed,
}

/// The files that are read for each shrink, kept open, with a buffer to read into.
#[derive(Debug)]
struct Weighed {
    pressure: Kept,
    meminfo: Kept,
    buffer: Box<[u8]>,
}

impl Weighed {
    fn new(proc_root: &Path, group: Option<&Path>) -> Self {
        let pressure = group.map_or_else(
            || proc_root.join("pressure/memory"),
            |group| group.join("memory.pressure"),
        );
        Self {
            pressure: Kept::new(pressure),
            meminfo: Kept::new(proc_root.join("meminfo")),
            buffer: vec![0; memory::FILE_LIMIT_BYTES].into_boxed_slice(),
        }
    }
}

impl Gauges {
    /// Those of a configuration.
    #[must_use]
    pub fn new(config: &Config, runnable: watch::Receiver<RunnableLoad>) -> Self {
        Self {
            runnable,
            weighed: Weighed::new(&config.proc_root, config.cgroup.as_deref()),
            proc_root: config.proc_root.clone(),
            group: config.cgroup.clone(),
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

    /// What weighs on memory beside what is in use: of the group if there is one, else of the
    /// machine. All of it is read at each call, but the zones and `swap`, which the caller has read
    /// of the group.
    pub fn weigh(&mut self, swap: Option<Bytes>) -> Weight {
        let Weighed {
            pressure,
            meminfo,
            buffer,
        } = &mut self.weighed;
        let stalls = pressure.look(buffer, stalls_of);
        let machine = meminfo.look(buffer, files::machine_room);
        let of_machine = machine.and_then(|machine| machine.swap);
        let swap = if self.group.is_some() {
            swap
        } else {
            of_machine
        };
        Weight {
            swap,
            some_permille: stalls.map(|stalls| permille(stalls.some_percent)),
            total: machine.map(|machine| machine.total),
            idle: machine.and_then(|machine| machine.idle),
            zones: None,
        }
    }

    /// What the zones hold now.
    #[must_use]
    pub fn zones(&self) -> Option<Zones> {
        let file = File::open(self.proc_root.join("zoneinfo")).ok()?;
        let mut text = String::new();
        let mut whole = file.take(ZONEINFO_LIMIT_BYTES);
        whole.read_to_string(&mut text).ok()?;
        // A zone cut off would be missing from the sum.
        (whole.limit() > 0).then(|| zones(&text, PAGE_BYTES))?
    }

    /// What the estimator's step goes by; none without a group or without PSI.
    #[must_use]
    pub fn gauge(&self) -> Option<Gauge> {
        gauge(self.group.as_ref()?)
    }

    /// A step of the soft squeeze, in a thread of its own, told of when it has ended.
    pub fn squeeze(&self, operation: OperationId, bytes: Bytes, inbox: mpsc::Sender<Inbox>) {
        let group = self.group.clone();
        tokio::task::spawn_blocking(move || {
            let gauge = group.and_then(|group| squeezed(&group, bytes));
            // The process is ending if nobody wants to know.
            let _ = inbox.blocking_send(Inbox::Event(Event::Squeezed { operation, gauge }));
        });
    }

    /// Takes this much from the group, in a thread of its own. That it could not be taken shows in
    /// the next step.
    pub fn reclaim(&self, bytes: Bytes) {
        let Some(group) = self.group.clone() else {
            return;
        };
        tokio::task::spawn_blocking(move || {
            if let Err(error) = reclaim::reclaim(&group, bytes) {
                tracing::debug!(%error, bytes = bytes.0, "could not take as much");
            }
        });
    }

    /// Everything that is pushed but the group's memory, which the core knows.
    #[must_use]
    pub fn measure(&self) -> GuestMetrics {
        let load = memory::text(&self.proc_root.join("loadavg"));
        let loads = load.as_deref().and_then(files::load_averages);
        let runnable = self.runnable.borrow().averages();
        let memory = memory::machine_memory(&self.proc_root).ok();
        let stat = memory::text(&self.proc_root.join("stat"));
        let cpus = stat.as_deref().and_then(files::cpus_online);
        let group = self.group.as_ref();
        let group_stalls = group.and_then(|group| stalls(&group.join("memory.pressure")));
        GuestMetrics {
            load1: loads.and_then(|(one, _)| one.parse().ok()),
            load5: loads.and_then(|(_, five)| five.parse().ok()),
            runnable_load1: runnable.map(|(one, _)| one),
            runnable_load5: runnable.map(|(_, five)| five),
            memory: memory.map(|memory| MachineGauges {
                total: memory.total.0,
                available: memory.available.0,
                cached: memory.cached.0,
            }),
            machine_stalls: stalls(&self.proc_root.join("pressure/memory")),
            cgroup_stalls: group_stalls,
            guest: cpus.zip(memory).map(|(cpus, memory)| Allocation {
                cpu: f64::from(cpus),
                mem: memory.total.0,
            }),
            ..GuestMetrics::default()
        }
    }
}

/// Takes this much from a group, if anything; its figures after that, none where it cannot be done.
fn squeezed(group: &Path, bytes: Bytes) -> Option<Gauge> {
    if bytes.0 > 0
        && let Err(error) = reclaim::reclaim(group, bytes)
        // Less than that was there to be taken: the figures say so.
        && error.raw_os_error() != Some(Errno::EAGAIN as i32)
    {
        tracing::warn!(%error, "the group cannot be squeezed: a shrink is decided without");
        return None;
    }
    gauge(group)
}

fn gauge(group: &Path) -> Option<Gauge> {
    let parse = files::bytes_of_memory_current;
    Some(Gauge {
        current: memory::parsed(&group.join("memory.current"), parse).ok()?,
        some_us: stalls(&group.join("memory.pressure"))?.some_us,
    })
}

/// A percentage in thousandths, no more than all.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "clamped to 0..=1000 first"
)]
fn permille(percent: f64) -> u16 {
    (percent * 10.0).clamp(0.0, 1000.0) as u16
}

/// The stalls a PSI file tells of, none without one.
fn stalls(path: &Path) -> Option<Stalls> {
    memory::parsed(path, stalls_of).ok()
}

/// The stalls in the text of a PSI file. The line `full` may be missing.
fn stalls_of(text: &[u8]) -> Result<Stalls, &'static str> {
    let text = std::str::from_utf8(text).map_err(|_| "it is no text")?;
    let line = |kind| files::pressure_lines(text).find(|line| line.kind == kind);
    let percent = |text: &str| text.parse().unwrap_or(0.0);
    let some = line("some").ok_or("it has no line some")?;
    let full = line("full");
    Ok(Stalls {
        some_percent: percent(some.avg10),
        full_percent: full.map_or(0.0, |full| percent(full.avg10)),
        some_us: some.total_us,
        full_us: full.map_or(0, |full| full.total_us),
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use protocol::time::Timestamp;

    use super::*;
    use crate::core::runnable::Reading;

    #[test]
    fn runnable_loads_are_pushed_as_they_are_served() {
        let (to, runnable) = watch::channel(RunnableLoad::default());
        let gauges = Gauges::new(&Config::default(), runnable);
        assert_eq!(gauges.measure().runnable_load1, None, "nothing seen yet");
        for second in 0..1200 {
            let reading = Reading {
                runnable_ns: BTreeMap::from([(0, second * 2_000_000_000)]),
                total: None,
            };
            to.send_modify(|load| load.observe(Timestamp(second * 1_000_000), reading));
        }
        let pushed = gauges.measure();
        for load in [pushed.runnable_load1, pushed.runnable_load5] {
            assert!(
                load.is_some_and(|load| (load - 2.0).abs() < 0.01),
                "{load:?}"
            );
        }
    }
}
