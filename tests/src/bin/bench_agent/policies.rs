//! Costs of policies: the same VMs under an agent without the section `policies`, under one whose
//! VMs have no policy, and under one whose VMs all have one. `bellows` applies and promotes the
//! versions, and the shipped worker answers.

use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Result, ensure};
use bellows_tests::figures::{Figure, percentile};
use bellows_tests::process::{cpu_of_children, cpu_of_ended};
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams};
use protocol::policy::{GROUP, KIND, PLURAL, VERSION};
use serde_json::{Value, json};
use tokio::process::Command;

use super::follow::Sizes;
use super::guests::Guests;
use super::measure::{SETTLE, tell};
use super::recorded::{Recorded, Window};
use super::round::Round;
use super::start::start;
use super::world::{Extra, World, as_f64, name};

/// Annotation of a VM that names its policy, and the word for none.
const KEY: &str = "autoscaling.neon.tech/policy";
const NONE: &str = "builtin";
/// Name of the policy, and of its file.
const POLICY: &str = "bench";
const FILE: &str = "bench.lua";
const DATABASE: &str = include_str!("../../../../policy/library/database.lua");
const BUILTIN: &str = include_str!("../../../../policy/library/builtin.lua");
const LOOPS: &str = "return function(i) while true do end end\n";
/// Work that no step counts, so that the agent's clock ends it.
const OUTLASTS: &str = "return function(i)
  local t = table.create(45000, 1)
  for n = 1, 9000 do table.find(t, 2) end
end
";

/// Rounds of loads. Every other VM has no policy.
const LOADS: usize = 3;
/// Times that a version in shadow loops, each beside a time without it.
const PAIRS: usize = 3;
/// Time until the questions about another version have begun.
const TURN: Duration = Duration::from_secs(6);
/// Versions that outlast the agent's clock.
const OUTLASTING: usize = 5;
/// Folder of the agent in a journal.
const PART: &str = "agent";
const MIB: f64 = (1 << 20) as f64;

struct Fixture {
    world: World,
    guests: Guests,
    sizes: Sizes,
    vms: Vec<String>,
    samples: usize,
    window: Duration,
}

/// What happened under an agent while versions in shadow misbehaved.
#[derive(Default)]
struct Disturbed {
    /// Nothing was in shadow.
    quiet: Vec<Window>,
    looping: Vec<Window>,
    /// Times from metric to patch of VMs with the policy and of those without, ms.
    with: Vec<f64>,
    without: Vec<f64>,
}

pub(super) async fn run(
    bin_dir: &Path,
    (block, count): (u8, usize),
    samples: usize,
    window: Duration,
) -> Result<Vec<Figure>> {
    let (world, guests, sizes) = start(bin_dir, block, count).await?;
    let fixture = Fixture {
        world,
        guests,
        sizes,
        vms: (0..count).map(name).collect(),
        samples,
        window,
    };
    let absent = fixture.resident_without("absent", None).await?;
    let ready = fixture.resident_without("ready", Some(json!({}))).await?;
    let mut figures = vec![
        Figure::lower("agent_resident_mib", absent, "MiB", None),
        Figure::lower("agent_resident_ready_ratio", ready / absent, "", Some(1.01)),
    ];
    figures.extend(fixture.steady(absent).await?);
    figures.extend(fixture.disturbed().await?);
    Ok(figures)
}

fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    u64::try_from(since.unwrap_or_default().as_micros()).unwrap_or(u64::MAX)
}

/// A span of time during which nothing is changed.
async fn during(span: Duration) -> Window {
    let from = now();
    tokio::time::sleep(span).await;
    Window { from, to: now() }
}

impl Fixture {
    /// Starts an agent with a journal, and waits until its load has settled.
    async fn begin(&self, journal: &str, policies: Option<Value>) -> Result<Round> {
        tell(&format!("{} VMs: an agent, {journal}", self.vms.len()));
        let extra = Extra {
            policies,
            journal: Some(self.world.path(journal)),
            ..Extra::default()
        };
        let round = Round {
            agent: self.world.agent(&extra)?,
            vms: self.vms.clone(),
            guests: self.guests.clone(),
            sizes: self.sizes.clone(),
            samples: self.samples,
            window: self.window,
        };
        self.world.permitted(&round.agent, self.vms.len()).await?;
        round.attended().await?;
        tokio::time::sleep(SETTLE).await;
        Ok(round)
    }

    async fn resident_without(&self, journal: &str, policies: Option<Value>) -> Result<f64> {
        let round = self.begin(journal, policies).await?;
        let resident = round.resident().await?;
        round.end().await?;
        Ok(resident)
    }

    /// An agent whose VMs have the policy, and then a candidate too.
    async fn steady(&self, absent: f64) -> Result<Vec<Figure>> {
        self.decide(DATABASE).await?;
        let round = self
            .begin("steady", Some(json!({"default": POLICY})))
            .await?;
        let pid = round.agent.process.pid();
        let before = cpu_of_children(pid)?;
        let resident = round.resident().await?;
        let worked = cpu_of_children(pid)?.saturating_sub(before);
        tell("a candidate is applied");
        let applied = now();
        self.apply(&format!("{DATABASE}-- A candidate.\n")).await?;
        tokio::time::sleep(SETTLE).await;
        let window = during(self.window).await;
        round.end().await?;
        let journal = self.world.path("steady").join(PART);
        let recorded = Recorded::read(&journal)?;
        recorded.check_live()?;
        let asked = recorded.first_asked(applied);
        let unanswered = as_f64(recorded.unanswered(applied));
        let bytes = recorded.bytes_of_policies(&window)?;
        let busy = worked.as_secs_f64() / self.window.as_secs_f64() * 100.0;
        let more = (resident - absent).max(0.0);
        let lower = Figure::lower;
        Ok(vec![
            lower("agent_resident_policy_mib_more", more, "MiB", Some(2.0)),
            lower("workers_busy", busy, "%", None),
            lower("journal_bytes_per_vm_s_more", bytes, "B/s", Some(5.0)),
            lower("apply_to_asked_s_p50", percentile(&asked, 50), "s", None),
            lower("apply_to_asked_s", percentile(&asked, 100), "s", Some(2.0)),
            lower("apply_vms_unanswered", unanswered, "", Some(0.0)),
            self.replayed(&journal, recorded.samples()).await?,
        ])
    }

    /// An agent whose VMs have the policy that is the built-in goal, and bad versions in shadow.
    async fn disturbed(&self) -> Result<Vec<Figure>> {
        self.decide(BUILTIN).await?;
        self.leave_out().await?;
        let journal = "disturbed";
        let round = self
            .begin(journal, Some(json!({"default": POLICY})))
            .await?;
        let mut seen = Disturbed::default();
        for _ in 0..LOADS {
            for (n, took) in round.load_times().await?.into_iter().enumerate() {
                let of = if n % 2 == 0 {
                    &mut seen.with
                } else {
                    &mut seen.without
                };
                of.push(took);
            }
        }
        for pair in 1..=PAIRS {
            tell(&format!("a shadow loops, {pair} of {PAIRS}"));
            let turns = [(BUILTIN, &mut seen.quiet), (LOOPS, &mut seen.looping)];
            for (source, windows) in turns {
                self.apply(source).await?;
                tokio::time::sleep(TURN).await;
                windows.push(during(self.window / 3).await);
            }
        }
        for number in 1..=OUTLASTING {
            tell(&format!(
                "a shadow outlasts the clock, {number} of {OUTLASTING}"
            ));
            self.apply(&format!("{OUTLASTS}-- {number}\n")).await?;
            tokio::time::sleep(TURN).await;
        }
        round.end().await?;
        let recorded = Recorded::read(&self.world.path(journal).join(PART))?;
        recorded.check_live()?;
        Ok(seen.figures(&recorded))
    }

    /// Every other measured VM gets no policy.
    async fn leave_out(&self) -> Result<()> {
        let vms = self.world.vms();
        let patch = Patch::Merge(json!({"metadata": {"annotations": {KEY: NONE}}}));
        for vm in self.vms[..self.samples].iter().skip(1).step_by(2) {
            vms.patch(vm, &PatchParams::default(), &patch).await?;
        }
        Ok(())
    }

    /// Applies a version: a candidate, unless it decides already.
    async fn apply(&self, source: &str) -> Result<()> {
        let file = self.world.path(FILE);
        std::fs::write(&file, source)?;
        let mut command = self.bellows();
        command
            .args(["policy", "apply", "--name", POLICY])
            .arg(file);
        command
            .arg("--kubeconfig")
            .arg(self.world.path("kubeconfig"));
        said(&mut command).await.map(drop)
    }

    /// Applies a version and lets it decide, as the policy controller does in its status.
    async fn decide(&self, source: &str) -> Result<()> {
        self.apply(source).await?;
        let mut command = self.bellows();
        command.args(["policy", "pack", "-o", "json", "--to"]);
        command
            .arg(self.world.path("packed"))
            .arg(self.world.path(FILE));
        let packed: Value = serde_json::from_str(&said(&mut command).await?)?;
        let kind = GroupVersionKind::gvk(GROUP, VERSION, KIND);
        let kind = ApiResource::from_gvk_with_plural(&kind, PLURAL);
        let api: Api<DynamicObject> = Api::all_with(self.world.client.clone(), &kind);
        let live = json!({"digest": packed["version"], "since": "2026-01-01T00:00:00Z"});
        let patch = Patch::Merge(json!({"status": {"live": live}}));
        api.patch_status(POLICY, &PatchParams::default(), &patch)
            .await?;
        Ok(())
    }

    fn bellows(&self) -> Command {
        Command::new(self.world.bin_dir.join("bellows"))
    }

    /// Samples of the journal that `bellows replay` decides again, and asks the policies about
    /// again, in a second of a core.
    async fn replayed(&self, journal: &Path, samples: usize) -> Result<Figure> {
        tell("the journal is replayed");
        let before = cpu_of_ended()?;
        let said = said(self.bellows().arg("replay").arg(journal)).await?;
        let took = cpu_of_ended()?.saturating_sub(before);
        ensure!(said.contains("equal, 0 were not asked again"), "{said}");
        let rate = as_f64(samples) / took.as_secs_f64();
        let target = Some(50_000.0);
        Ok(Figure::higher(
            "replay_samples_per_core_s",
            rate,
            "1/s",
            target,
        ))
    }
}

/// Output of a command that succeeds.
async fn said(command: &mut Command) -> Result<String> {
    let output = command.output().await?;
    ensure!(output.status.success(), "{output:?}");
    Ok(String::from_utf8(output.stdout)?)
}

impl Round {
    /// Median of the agent's resident memory during the window, MiB.
    async fn resident(&self) -> Result<f64> {
        let mut sizes = Vec::new();
        for _ in 0..self.window.as_secs().max(1) {
            tokio::time::sleep(Duration::from_secs(1)).await;
            sizes.push(as_f64(usize::try_from(self.agent.process.rss()?)?) / MIB);
        }
        Ok(percentile(&sizes, 50))
    }

    /// Ends the agent, so that its journal is whole.
    async fn end(mut self) -> Result<()> {
        self.agent.process.terminate()?;
        let mut last = None;
        while last.is_none() {
            tokio::time::sleep(Duration::from_millis(100)).await;
            last = self.agent.process.exit_code()?;
        }
        Ok(())
    }
}

impl Disturbed {
    fn figures(&self, recorded: &Recorded) -> Vec<Figure> {
        let more = |percent| percentile(&self.with, percent) - percentile(&self.without, percent);
        let quiet = percentile(&recorded.live_answers(&self.quiet), 50);
        let looping = percentile(&recorded.live_answers(&self.looping), 50);
        let late = recorded.first_late();
        let without = |percent| percentile(&self.without, percent);
        let lower = Figure::lower;
        vec![
            lower("metric_to_patch_ms_p50_more", more(50), "ms", Some(5.0)),
            lower("metric_to_patch_ms_p99_more", more(99), "ms", Some(20.0)),
            lower("metric_to_patch_ms_p50_without", without(50), "ms", None),
            lower("metric_to_patch_ms_p99_without", without(99), "ms", None),
            lower("live_answer_us_p50", quiet, "us", None),
            lower(
                "live_answer_shadow_loops_ratio",
                looping / quiet,
                "",
                Some(1.05),
            ),
            lower(
                "stuck_by_clock_ms",
                percentile(&late, 100),
                "ms",
                Some(100.0),
            )
            .made_of(&late),
        ]
    }
}
