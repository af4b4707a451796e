//! The guest that is measured, and the two ways to resize it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use bellows_tests::guest::Guest;
use bellows_tests::patience::wait_for;
use bellows_tests::process::cpu_by_program;
use bellows_tests::qmp::{Batch, Qmp};
use bellows_tests::site::BOOT_PATIENCE;
use serde_json::Value;
use tokio::task::JoinHandle;

use super::environment::{Environment, VM};
use super::quota::{Raised, has_quota};
use super::steps::{STEPS, Step};
use super::stopped::Stopped;

/// Longest time of one step.
const PATIENCE: Duration = Duration::from_secs(120);
/// Bytes of a memory slot.
const SLOT: u64 = 1 << 30;
/// CPUs that one QEMU may plug under TCG. Then a new guest is booted.
const PLUGS_PER_GUEST: u32 = 50;
/// Time without memory changes after which the runner considers the guest at rest, with a margin.
const AT_REST: Duration = Duration::from_millis(2500);

/// Every measured step begins with a guest at rest: one that has just worked is quicker to answer,
/// one way or the other.
const REST: Duration = Duration::from_millis(500);

/// The stages whose times are shown: the name of the figure, and the stage as `bellows resizes`
/// names it.
pub(crate) const STAMPED: [(&str, &str); 3] = [
    ("controller", "controller"),
    ("qmp", "qmp"),
    ("guest", "guest_visible"),
];

/// One resize through the object, in milliseconds.
pub(crate) struct Took {
    /// From the patch until the guest saw it.
    pub(crate) visible_ms: f64,
    /// From the patch until the guest saw it and its quota, where it has one, gave it the time of
    /// all its CPUs.
    pub(crate) usable_ms: f64,
    /// From the patch until the API answered it.
    pub(crate) answered_ms: f64,
    /// Each of [`STAMPED`], where it was stamped.
    pub(crate) stages: [Option<f64>; STAMPED.len()],
    /// CPU time of each program of this machine from the patch until the guest saw the size.
    pub(crate) worked_ms: BTreeMap<String, f64>,
}

/// The measured guest.
pub(crate) struct Rig {
    environment: Environment,
    guest: Guest,
    revision: i64,
    plugs: u32,
    /// Steps this guest has made before.
    known: BTreeSet<&'static str>,
    /// `MemTotal` with one slot.
    base_total: u64,
    /// `kvm` or `tcg`.
    pub(crate) accel: String,
    /// Whether the CPU time of programs is measured.
    costs: bool,
}

impl Rig {
    pub(crate) async fn new(environment: Environment, costs: bool) -> Result<Self> {
        let (guest, base_total, accel) = boot(&environment).await?;
        Ok(Self {
            environment,
            guest,
            revision: 0,
            plugs: 0,
            known: BTreeSet::new(),
            base_total,
            accel,
            costs,
        })
    }

    /// The name of the benchmark.
    pub(crate) fn bench(&self) -> &'static str {
        self.environment.bench()
    }

    /// Prepares a guest that can do the pair of steps again, and has done it once. QEMU under TCG
    /// can plug a limited number of CPUs, so a worn guest is replaced. Returns the time of the
    /// first pair by hand, if this was it.
    pub(crate) async fn be_ready(
        &mut self,
        up: &'static Step,
        down: &'static Step,
    ) -> Result<Option<(f64, f64)>> {
        let for_memory = u32::from(up.from.1 != up.to.1);
        let plugs = 2 * (up.to.0 - up.from.0) + for_memory;
        if self.plugs + 2 * plugs > PLUGS_PER_GUEST {
            self.environment.end_guest().await?;
            (self.guest, self.base_total, self.accel) = boot(&self.environment).await?;
            self.plugs = 0;
            self.known.clear();
        }
        self.plugs += plugs;
        if !self.known.insert(up.name) {
            return Ok(None);
        }
        self.plugs += plugs;
        self.by_hand(up, down).await.map(Some)
    }

    /// Waits until the guest sees the size of a step. The request reaches the guest before the step
    /// begins, because a guest that is queried during a resize is slower.
    async fn listen(&self, step: &'static Step, by: &str) -> JoinHandle<Result<Seen>> {
        let (cpus, slots) = step.to;
        let total = self.base_total + SLOT * u64::from(slots - 1);
        // The kernel reserves a part of what is plugged. 64 MiB distinguish one slot from the next.
        let slack = 64 << 20;
        let guest = self.guest.clone();
        let what = format!("{} by {by}", step.name);
        let costs = self.costs;
        let seen = tokio::spawn(async move {
            guest
                .wait(&what, PATIENCE, |state| {
                    state.cpus_online == cpus && state.mem_total.0.abs_diff(total) < slack
                })
                .await?;
            let at = Instant::now();
            let work = costs.then(cpu_by_program).unwrap_or_default();
            Ok(Seen { at, work })
        });
        tokio::time::sleep(REST).await;
        seen
    }

    /// Time from the patch until the guest sees it. Then waits until the object's status shows it.
    pub(crate) async fn by_object(&mut self, step: &'static Step) -> Result<Took> {
        self.revision += 1;
        let group = self.environment.quota_group().await?;
        let seen = self.listen(step, "the object").await;
        let before = self.costs.then(cpu_by_program).unwrap_or_default();
        let began = Instant::now();
        self.environment
            .vms()
            .patch_size(VM, step.to.0 * 1000, step.to.1, self.revision)
            .await?;
        let answered = began.elapsed();
        let seen = seen.await??;
        let usable = match group {
            Some(group) => has_quota(&group, step.to.0).await?,
            None => seen.at,
        };
        let revision = self.revision;
        self.environment
            .vms()
            .wait(VM, "the revision in the status", PATIENCE, |vm| {
                vm.status
                    .as_ref()
                    .and_then(|status| status.current_revision)
                    .is_some_and(|r| r.revision.value == revision)
            })
            .await?;
        Ok(Took {
            visible_ms: milliseconds(seen.at - began),
            usable_ms: milliseconds(usable.max(seen.at) - began),
            answered_ms: milliseconds(answered),
            stages: self.stages().await?,
            worked_ms: worked(&before, &seen.work),
        })
    }

    /// Recorded stages of the newest resize.
    async fn stages(&self) -> Result<[Option<f64>; STAMPED.len()]> {
        let Some(answer) = self.environment.resizes().await? else {
            return Ok([None; STAMPED.len()]);
        };
        let rows = answer["resizes"].as_array().context("resizes")?;
        let row = rows
            .iter()
            .find(|row| row["revision"] == self.revision)
            .with_context(|| format!("no resize of revision {}", self.revision))?;
        Ok(STAMPED.map(|(_, stage)| {
            let stages = row["stages"].as_array()?;
            let of = stages.iter().find(|of| of["stage"] == stage)?;
            Some(of["duration_us"].as_f64()? / 1e3)
        }))
    }

    /// Time of the same two steps by raw QMP in ms, with the runner stopped. They are as fast as
    /// raw QMP allows: free slots and commands are prepared before the clock starts, and the guest
    /// may use all its CPUs from the plug on, as the runner allows.
    pub(crate) async fn by_hand(
        &mut self,
        up: &'static Step,
        down: &'static Step,
    ) -> Result<(f64, f64)> {
        let rundir = self.environment.rundir().await?;
        let group = self.environment.quota_group().await?;
        let stopped = Stopped::of(self.environment.runner_process().await?)?;
        // The runner does not read its quota again. The earlier value is restored before it
        // continues.
        let raise = |group: PathBuf| Raised::to(&group, up.to.0);
        let raised = group.map(raise).transpose()?;
        let mut qmp = Qmp::connect(&rundir.join("qmp-manual.sock")).await?;
        let slots = qmp.free_cpus().await?;
        let batch = up.commands(&slots)?;
        let grow = self.timed(&mut qmp, up, &batch).await?;
        let batch = down.commands(&slots)?;
        let shrink = self.timed(&mut qmp, down, &batch).await?;
        // Waits for the original size by QEMU's account, before the runner reads it.
        let began = Instant::now();
        while !qmp.plugged_cpus().await?.is_empty() || qmp.memory().await? != 0 {
            anyhow::ensure!(
                began.elapsed() < PATIENCE,
                "QEMU did not come back to the smallest size"
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        drop(raised);
        drop(stopped);
        if up.from.1 != up.to.1 {
            self.let_the_runner_look().await?;
        }
        Ok((grow, shrink))
    }

    /// Lets the runner process the guest's messages. It must see memory at rest and a fresh report,
    /// which one CPU more and less causes.
    async fn let_the_runner_look(&mut self) -> Result<()> {
        let (environment, base_total) = (&self.environment, self.base_total);
        wait_for("a runner that sees its guest", PATIENCE, || async {
            let state = environment
                .runner()
                .await
                .map_err(|error| error.to_string())?;
            let total = state.memory.guest_total.map_or(0, |total| total.0);
            if state.memory.plugged.0 == 0 && total.abs_diff(base_total) < 1 << 20 {
                Ok(())
            } else {
                Err(format!("{:?}", state.memory))
            }
        })
        .await?;
        tokio::time::sleep(AT_REST).await;
        let (_, (up, down)) = &STEPS[0];
        for step in [up, down] {
            self.by_object(step).await?;
        }
        Ok(())
    }

    async fn timed(&self, qmp: &mut Qmp, step: &'static Step, batch: &Batch) -> Result<f64> {
        let seen = self.listen(step, "raw QMP").await;
        let began = Instant::now();
        qmp.run(batch).await?;
        Ok(milliseconds(seen.await??.at - began))
    }
}

impl Step {
    /// The step over QMP; `slots` are the free ones at the smallest size, the lowest first.
    fn commands(&self, slots: &[Value]) -> Result<Batch> {
        let mut batch = Batch::default();
        let id = |cpu: u32| format!("bench-cpu{cpu}");
        for (cpu, index) in (self.from.0..self.to.0).zip(0..) {
            let slot: &Value = slots.get(index).context("no free CPU slot")?;
            batch.plug_cpu(slot, &id(cpu));
        }
        for cpu in (self.to.0..self.from.0).rev() {
            batch.unplug_cpu(&id(cpu));
        }
        if self.from.1 != self.to.1 {
            batch.set_memory(u64::from(self.to.1 - 1) * SLOT);
        }
        Ok(batch)
    }
}

/// Time at which a guest saw its new size, and the CPU time of each program until then.
struct Seen {
    at: Instant,
    work: BTreeMap<String, Duration>,
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// Milliseconds that each program has worked between two looks.
fn worked(
    before: &BTreeMap<String, Duration>,
    after: &BTreeMap<String, Duration>,
) -> BTreeMap<String, f64> {
    let worked = after.iter().map(|(program, after)| {
        let before = before.get(program).copied().unwrap_or_default();
        (program.clone(), milliseconds(after.saturating_sub(before)))
    });
    worked.collect()
}

async fn boot(environment: &Environment) -> Result<(Guest, u64, String)> {
    let vms = environment.vms();
    vms.create(&environment.object()).await?;
    let vm = vms
        .wait(VM, "phase Running", BOOT_PATIENCE, |vm| {
            vm.status
                .as_ref()
                .is_some_and(|status| status.phase == protocol::vm::VmPhase::Running)
        })
        .await?;
    let ip = vm.status.context("a status")?.pod_ip.parse()?;
    let guest = environment.guest(ip)?;
    let state = guest
        .wait("one CPU", BOOT_PATIENCE, |state| state.cpus_online == 1)
        .await?;
    let accel = environment.runner().await?.accel;
    Ok((guest, state.mem_total.0, accel))
}
