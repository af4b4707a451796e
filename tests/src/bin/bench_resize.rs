//! Patch of the VM object to guest-visible, beside raw QMP on the same guest in the same run.
//!
//! Each repeat does the step once through the object and once by hand over QMP, in turn, so that a change in the machine's
//! speed meets both. While QMP is used by hand the VM's runner is stopped (SIGSTOP), because it would put back the size it
//! was told to hold. "Guest-visible" is what the daemon in the guest reports: CPUs online, MemTotal.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use bellows_tests::figures::{Bench, Figure, Machine, spread};
use bellows_tests::guest::Guest;
use bellows_tests::patience::wait_for;
use bellows_tests::qmp::Qmp;
use bellows_tests::site::{BOOT_PATIENCE, Site, postgres_vm};
use clap::Parser;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

const VM: &str = "bench";
/// How long one step may take.
const PATIENCE: Duration = Duration::from_secs(120);
/// Bytes of a slot.
const SLOT: u64 = 1 << 30;
/// CPUs of the "+N" step.
const MANY: u32 = 3;
/// Plugs one QEMU may be asked for in its life under TCG; a fresh guest is taken before that.
const PLUGS_PER_GUEST: u32 = 50;
/// How long memory stands still before the runner takes it to be at rest, and a little.
const AT_REST: Duration = Duration::from_millis(2500);
/// What a resize may take over raw QMP, as a ratio of medians.
const RATIO_TARGET: f64 = 1.2;

/// Options.
#[derive(Parser)]
struct Cli {
    /// Repeats of each measurement
    #[arg(long, default_value_t = 20)]
    repeats: u32,
    /// Write the figures to FILE
    #[arg(long)]
    json: Option<PathBuf>,
}

/// A step: CPUs and slots before and after.
struct Step {
    name: &'static str,
    from: (u32, u32),
    to: (u32, u32),
}

const STEPS: [(Step, Step); 3] = [
    (
        Step {
            name: "cpu_plus_1",
            from: (1, 1),
            to: (2, 1),
        },
        Step {
            name: "cpu_minus_1",
            from: (2, 1),
            to: (1, 1),
        },
    ),
    (
        Step {
            name: "cpu_plus_n",
            from: (1, 1),
            to: (1 + MANY, 1),
        },
        Step {
            name: "cpu_minus_n",
            from: (1 + MANY, 1),
            to: (1, 1),
        },
    ),
    (
        Step {
            name: "mem_plus_1gib",
            from: (1, 1),
            to: (1, 2),
        },
        Step {
            name: "mem_minus_1gib",
            from: (1, 2),
            to: (1, 1),
        },
    ),
];

/// The guest measured now.
struct Rig {
    site: Site,
    guest: Guest,
    revision: i64,
    plugs: u32,
    /// `MemTotal` with one slot.
    base_total: u64,
    accel: String,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let cli = Cli::parse();
    let mut rig = Rig::new().await?;
    let mut figures = Vec::new();
    for (up, down) in &STEPS {
        let mut ours = (Vec::new(), Vec::new());
        let mut raw = (Vec::new(), Vec::new());
        for _ in 0..cli.repeats {
            rig.fresh_if_worn(up).await?;
            ours.0.push(rig.by_object(up).await?);
            ours.1.push(rig.by_object(down).await?);
            let (grow, shrink) = rig.by_hand(up, down).await?;
            raw.0.push(grow);
            raw.1.push(shrink);
        }
        figures.extend(figures_of(up.name, &ours.0, &raw.0));
        figures.extend(figures_of(down.name, &ours.1, &raw.1));
    }
    let bench = Bench {
        bench: "resize".into(),
        machine: Machine::here(&rig.accel)?,
        figures,
    };
    bench.show(cli.json.as_deref())
}

fn figures_of(name: &str, ours: &[f64], raw: &[f64]) -> Vec<Figure> {
    let (min, median, max) = spread(ours);
    let (raw_min, raw_median, raw_max) = spread(raw);
    vec![
        Figure::lower(format!("{name}_ms_min"), min, "ms", None),
        Figure::lower(format!("{name}_ms_median"), median, "ms", None),
        Figure::lower(format!("{name}_ms_max"), max, "ms", None),
        Figure::lower(format!("{name}_raw_ms_min"), raw_min, "ms", None),
        Figure::lower(format!("{name}_raw_ms_median"), raw_median, "ms", None),
        Figure::lower(format!("{name}_raw_ms_max"), raw_max, "ms", None),
        Figure::lower(
            format!("{name}_ratio"),
            median / raw_median,
            "x",
            Some(RATIO_TARGET),
        ),
    ]
}

impl Rig {
    async fn new() -> Result<Self> {
        let site = Site::fresh().await?;
        let (guest, base_total, accel) = boot(&site).await?;
        Ok(Self {
            site,
            guest,
            revision: 0,
            plugs: 0,
            base_total,
            accel,
        })
    }

    /// A QEMU under TCG can plug only so many CPUs in its life.
    async fn fresh_if_worn(&mut self, step: &Step) -> Result<()> {
        let for_memory = u32::from(step.from.1 != step.to.1);
        let plugs = 2 * (step.to.0 - step.from.0.min(step.to.0)) + for_memory;
        if self.plugs + plugs > PLUGS_PER_GUEST {
            self.site
                .kubectl(&["delete", "neonvm", VM, "--wait=true"])
                .await?;
            (self.guest, self.base_total, self.accel) = boot(&self.site).await?;
            self.plugs = 0;
        }
        self.plugs += plugs;
        Ok(())
    }

    async fn seen(&self, cpus: u32, slots: u32) -> Result<()> {
        let total = self.base_total + SLOT * u64::from(slots - 1);
        // The kernel keeps a little of what is plugged for itself; 64 MiB tell one slot from the next with ease.
        let slack = 64 << 20;
        self.guest
            .wait(
                &format!("{cpus} CPUs and {slots} slots"),
                PATIENCE,
                |state| state.cpus_online == cpus && state.mem_total.0.abs_diff(total) < slack,
            )
            .await
            .map(drop)
    }

    /// Milliseconds from the patch until the guest sees it; then waits until the object says so too.
    async fn by_object(&mut self, step: &Step) -> Result<f64> {
        self.revision += 1;
        let began = Instant::now();
        self.site
            .patch_size(VM, step.to.0 * 1000, step.to.1, self.revision)
            .await?;
        self.seen(step.to.0, step.to.1)
            .await
            .with_context(|| step.name)?;
        let took = began.elapsed().as_secs_f64() * 1e3;
        let revision = self.revision;
        self.site
            .wait_vm(VM, "the revision in the status", PATIENCE, |vm| {
                vm.status
                    .as_ref()
                    .and_then(|status| status.current_revision)
                    .is_some_and(|r| r.revision.value == revision)
            })
            .await?;
        Ok(took)
    }

    /// Milliseconds of the same two steps by raw QMP, with the runner stopped.
    async fn by_hand(&mut self, up: &Step, down: &Step) -> Result<(f64, f64)> {
        let rundir = self.site.rundir(VM).await?;
        let stopped = Stopped::runner_of(&rundir)?;
        let mut qmp = Qmp::connect(&rundir.join("qmp-manual.sock")).await?;
        let grow = self.timed(&mut qmp, up).await?;
        let shrink = self.timed(&mut qmp, down).await?;
        // All the way back, by QEMU's account too, before the runner looks again.
        let began = Instant::now();
        while !qmp.plugged_cpus().await?.is_empty() || qmp.memory().await? != 0 {
            anyhow::ensure!(
                began.elapsed() < PATIENCE,
                "QEMU did not come back to the smallest size"
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        drop(stopped);
        if up.from.1 != up.to.1 {
            self.let_the_runner_look().await?;
        }
        Ok((grow, shrink))
    }

    /// A runner that stood still reads first what the guest said meanwhile. It sees the guest as it is before it is
    /// measured again: memory at rest, and a report made then, which one CPU more and less brings about.
    async fn let_the_runner_look(&mut self) -> Result<()> {
        let (site, base_total) = (&self.site, self.base_total);
        wait_for("a runner that sees its guest", PATIENCE, || async {
            let state = site.runner(VM).await.map_err(|error| error.to_string())?;
            let total = state.memory.guest_total.map_or(0, |total| total.0);
            if state.memory.plugged.0 == 0 && total.abs_diff(base_total) < 1 << 20 {
                Ok(())
            } else {
                Err(format!("{:?}", state.memory))
            }
        })
        .await?;
        tokio::time::sleep(AT_REST).await;
        for step in [&STEPS[0].0, &STEPS[0].1] {
            self.by_object(step).await?;
        }
        Ok(())
    }

    async fn timed(&self, qmp: &mut Qmp, step: &Step) -> Result<f64> {
        let began = Instant::now();
        let id = |cpu: u32| format!("bench-cpu{cpu}");
        for cpu in step.from.0..step.to.0 {
            qmp.plug_cpu(&id(cpu)).await?;
        }
        for cpu in (step.to.0..step.from.0).rev() {
            qmp.unplug_cpu(&id(cpu)).await?;
        }
        if step.from.1 != step.to.1 {
            qmp.set_memory(u64::from(step.to.1 - 1) * SLOT).await?;
        }
        self.seen(step.to.0, step.to.1)
            .await
            .with_context(|| format!("{} by raw QMP", step.name))?;
        Ok(began.elapsed().as_secs_f64() * 1e3)
    }
}

/// A runner that is stopped until this is dropped.
struct Stopped(Pid);

impl Stopped {
    fn runner_of(rundir: &std::path::Path) -> Result<Self> {
        let wanted = rundir.to_string_lossy().into_owned();
        for entry in std::fs::read_dir("/proc")?.flatten() {
            let Some(pid) = entry
                .file_name()
                .to_str()
                .and_then(|name| name.parse::<i32>().ok())
            else {
                continue;
            };
            let Ok(line) = std::fs::read(entry.path().join("cmdline")) else {
                continue;
            };
            let words: Vec<String> = line
                .split(|byte| *byte == 0)
                .map(|w| String::from_utf8_lossy(w).into_owned())
                .collect();
            if words.contains(&wanted) && !words[0].contains("qemu") {
                kill(Pid::from_raw(pid), Signal::SIGSTOP).context("stop the runner")?;
                return Ok(Self(Pid::from_raw(pid)));
            }
        }
        anyhow::bail!("no runner process for {wanted}")
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        // A runner that has gone needs no waking.
        let _ = kill(self.0, Signal::SIGCONT);
    }
}

async fn boot(site: &Site) -> Result<(Guest, u64, String)> {
    site.create(&postgres_vm(VM, (1000, 1000, 4000), (1, 1, 4), false))
        .await?;
    let vm = site
        .wait_vm(VM, "phase Running", BOOT_PATIENCE, |vm| {
            vm.status
                .as_ref()
                .is_some_and(|status| status.phase == protocol::vm::VmPhase::Running)
        })
        .await?;
    let ip = vm.status.context("a status")?.pod_ip.parse()?;
    let guest = Guest::new(ip)?;
    let state = guest
        .wait("one CPU", BOOT_PATIENCE, |state| state.cpus_online == 1)
        .await?;
    let accel = site.runner(VM).await?.accel;
    Ok((guest, state.mem_total.0, accel))
}
