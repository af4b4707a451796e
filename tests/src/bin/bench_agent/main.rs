//! The agent's binary with many VMs, between the real API server and the real scheduler.
//!
//! All guests are endpoints of this process, each at its own loopback address. This process also
//! plays the controller and copies the wanted size into the status, so that the API carries the
//! same writes as in production.

mod flood;
mod follow;
mod fresh;
mod guests;
mod hot_paths;
mod measure;
mod policies;
mod recorded;
mod round;
mod start;
mod world;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use bellows_tests::figures::{Benchmark, Figure, Machine, Output, percentile};
use bellows_tests::kubeconfig::install_crypto;
use clap::Parser;

use measure::{IDLE, LARGEST, PATIENCE, SETTLE, TWO_UNITS, millis, tell};
use round::Round;
use start::start;
use world::{Extra, MAX_UNITS, as_f64, name};

/// Targets of the figures: the rows of SPECIFICATION.md.
const RSS_TARGET_BYTES: f64 = (40 << 20) as f64;
const CPU_TARGET_FRACTION: f64 = 0.000_05;
const LOG_TARGET_BYTES_S: f64 = 10.0;
/// A decision in the running process, seconds after the VM's last one.
const COLD_DECISION_TARGET_NS: f64 = 2_000.0;
/// Of the median and of the 99th percentile alike.
const METRIC_TARGET_MS: f64 = 100.0;
const WISH_TARGETS_MS: [f64; 2] = [20.0, 100.0];
/// Number of VMs the promises about memory, CPU and log are made for.
const PROMISED_VMS: usize = 500;
/// VMs, seconds until the last one is up, seconds until the last one is down.
const STEP_TARGETS_S: [(usize, f64, f64); 2] = [(100, 5.0, 15.0), (500, 7.0, 30.0)];

/// VMs measured one by one per repeat, at most the number of VMs.
const SAMPLES_PER_REPEAT: usize = 5;
/// Interval between two of these measurements.
const PACE: Duration = Duration::from_millis(60);
/// Open files: two listeners and two connections per VM, and some.
const FILES: u64 = 16_384;

/// Measures the agent with many VMs: memory, CPU, log, decisions and time to patches.
#[derive(Parser)]
struct Cli {
    /// Numbers of VMs, one round each; 0 leaves a round out
    #[arg(long, value_delimiter = ',', default_value = "10,100,500,1000")]
    vms: Vec<usize>,
    /// Five VMs are measured one by one for each repeat
    #[arg(long, default_value_t = 20)]
    repeats: usize,
    /// Seconds over which memory, CPU and log of an idle agent are measured
    #[arg(long, default_value_t = 60)]
    window: u64,
    /// Measure the agent while every tenth guest floods, stalls or lies, beside the same agent
    /// without
    #[arg(long)]
    flood: bool,
    /// Measure what policies cost the agent: memory, journal, time to patches
    #[arg(long, conflicts_with = "flood")]
    policies: bool,
    /// What the inner loops take, measured before: `{"NAME":NANOSECONDS,…}`
    #[arg(long, value_name = "JSON")]
    hot_paths: Option<String>,
    /// Where the binaries are, if not beside this one
    #[arg(long)]
    bin_dir: Option<PathBuf>,
    #[command(flatten)]
    output: Output,
}

fn main() -> Result<ExitCode> {
    let cli = Cli::parse();
    install_crypto();
    raise_file_limit()?;
    let beside = std::env::current_exe()?;
    let beside = beside.parent().context("a program is in a directory")?;
    let bin_dir = cli.bin_dir.clone().unwrap_or_else(|| beside.to_owned());
    let mut figures = hot_paths::figures(cli.hot_paths.as_deref())?;
    let counts: Vec<usize> = cli.vms.iter().copied().filter(|vms| *vms > 0).collect();
    for (round, count) in counts.iter().copied().enumerate() {
        // A runtime per round, so that no task of the last round is left.
        let runtime = tokio::runtime::Runtime::new()?;
        let block = block(round)?;
        figures.extend(if cli.policies {
            let samples = count.min(cli.repeats * SAMPLES_PER_REPEAT);
            let window = Duration::from_secs(cli.window);
            runtime.block_on(policies::run(&bin_dir, (block, count), samples, window))?
        } else {
            runtime.block_on(run(&cli, &bin_dir, block, count))?
        });
    }
    if !counts.is_empty() && cli.repeats > 0 && !cli.flood && !cli.policies {
        let runtime = tokio::runtime::Runtime::new()?;
        let block = block(counts.len())?;
        figures.extend(runtime.block_on(fresh::run(&bin_dir, block, cli.repeats))?);
    }
    Benchmark {
        bench: "agent".into(),
        machine: Machine::here("none")?,
        figures,
    }
    .finish(&cli.output)
}

/// The block of loopback addresses of a round.
fn block(round: usize) -> Result<u8> {
    Ok(64 + u8::try_from((std::process::id() as usize + round) % 128)?)
}

fn raise_file_limit() -> Result<()> {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current.is_some_and(|current| current < FILES) {
        limit.current = Some(limit.maximum.map_or(FILES, |maximum| maximum.min(FILES)));
        setrlimit(Resource::Nofile, limit).context("raise the limit of open files")?;
    }
    Ok(())
}

async fn run(cli: &Cli, bin_dir: &std::path::Path, block: u8, count: usize) -> Result<Vec<Figure>> {
    tell(&format!("{count} VMs: start"));
    let (world, guests, sizes) = start(bin_dir, block, count).await?;
    let agent = world.agent(&Extra {
        open_files: cli.flood.then_some(flood::DESCRIPTORS),
        ..Extra::default()
    })?;
    let round = Round {
        vms: (0..count).map(name).collect(),
        samples: count.min(cli.repeats * SAMPLES_PER_REPEAT),
        guests,
        sizes,
        agent,
        window: Duration::from_secs(cli.window),
    };
    round.attended().await?;
    world.permitted(&round.agent, count).await?;
    tokio::time::sleep(SETTLE).await;
    let figures = if cli.flood {
        round.flood().await?
    } else {
        let mut figures = round.idle().await?;
        figures.extend(round.single_steps().await?);
        figures.extend(round.wishes().await?);
        figures.extend(round.all_at_once().await?);
        figures
    };
    let at = |figure: Figure| Figure {
        name: format!("{}@{count}", figure.name),
        ..figure
    };
    Ok(figures.into_iter().map(at).collect())
}

impl Round {
    async fn attended(&self) -> Result<()> {
        bellows_tests::patience::wait_for("an agent at every guest", PATIENCE, || async {
            match self.guests.attended() {
                all if all == self.vms.len() => Ok(()),
                some => Err(format!("{some} of {}", self.vms.len())),
            }
        })
        .await
    }

    /// Memory, CPU, log and decisions while loads only flicker.
    async fn idle(&self) -> Result<Vec<Figure>> {
        let count = self.vms.len();
        tell(&format!(
            "{count} VMs: {} s of nothing",
            self.window.as_secs()
        ));
        const DECISIONS: &str = "autoscaling_agent_runner_next_actions_total ";
        const DECIDING: &str = "autoscaling_agent_decision_seconds_total ";
        let before = (
            self.agent.counter(DECISIONS).await?,
            self.agent.counter(DECIDING).await,
            self.agent.process.cpu()?,
            self.agent.logged()?,
        );
        let began = Instant::now();
        tokio::time::sleep(self.window).await;
        let cpu = self.agent.process.cpu()?.saturating_sub(before.2);
        let elapsed = began.elapsed().as_secs_f64();
        let logged = as_f64(usize::try_from(self.agent.logged()? - before.3)?);
        let rss = as_f64(usize::try_from(self.agent.process.rss()?)?);
        let decisions = self.agent.counter(DECISIONS).await? - before.0;
        // An older agent, measured for comparison, does not count this.
        let deciding = match before.1 {
            Ok(before) => Some(self.agent.counter(DECIDING).await? - before),
            Err(_) => None,
        };
        let vms = as_f64(count);
        let promised = |target: f64| (count == PROMISED_VMS).then_some(target);
        let mut figures = vec![
            Figure::lower("rss_bytes", rss, "B", promised(RSS_TARGET_BYTES)),
            Figure::lower(
                "rss_per_vm_bytes",
                rss / vms,
                "B",
                promised(RSS_TARGET_BYTES / vms),
            ),
            // Parts per million, so that the table shows more than zeros.
            Figure::lower(
                "cpu_per_vm_fraction",
                cpu.as_secs_f64() / elapsed / vms * 1e6,
                "ppm",
                promised(CPU_TARGET_FRACTION * 1e6),
            ),
            Figure::lower(
                "log_bytes_per_vm_s",
                logged / elapsed / vms,
                "B/s",
                promised(LOG_TARGET_BYTES_S),
            ),
        ];
        figures.extend(deciding.map(|seconds| {
            let each = seconds / decisions.max(1.0) * 1e9;
            let target = Some(COLD_DECISION_TARGET_NS);
            Figure::lower("decision_in_process_ns", each, "ns", target)
        }));
        Ok(figures)
    }

    fn sampled(&self) -> &[String] {
        &self.vms[..self.samples]
    }

    /// From the first reading of a higher load to the patched object, one VM after the other.
    async fn single_steps(&self) -> Result<Vec<Figure>> {
        let took = self.load_times().await?;
        Ok(vec![
            Figure::lower(
                "metric_to_patch_ms_p50",
                percentile(&took, 50),
                "ms",
                Some(METRIC_TARGET_MS),
            ),
            Figure::lower(
                "metric_to_patch_ms_p99",
                percentile(&took, 99),
                "ms",
                Some(METRIC_TARGET_MS),
            ),
        ])
    }

    /// Time of each sampled VM from the first reading of a higher load to its patch, ms.
    async fn load_times(&self) -> Result<Vec<f64>> {
        tell(&format!("{} VMs: {} loads", self.vms.len(), self.samples));
        for n in 0..self.samples {
            self.guests.set_load(n, TWO_UNITS, false);
            tokio::time::sleep(PACE).await;
        }
        let is_up = |units| units == 2;
        self.sizes
            .until("a load's patch", self.sampled(), PATIENCE, is_up)
            .await?;
        let mut took = Vec::new();
        for (n, vm) in self.sampled().iter().enumerate() {
            let read = self.guests.first_read(n).context("the load was not read")?;
            let seen = self.sizes.of(vm).context("the VM is known")?;
            took.push(millis(seen.at, read));
        }
        self.back_to_idle(self.samples).await?;
        Ok(took)
    }

    /// From the monitor's request to the patched object, one VM after the other.
    async fn wishes(&self) -> Result<Vec<Figure>> {
        let took = self.wish_times().await?;
        let [p50, p99] = WISH_TARGETS_MS;
        Ok(vec![
            Figure::lower(
                "upscale_request_to_patch_ms_p50",
                percentile(&took, 50),
                "ms",
                Some(p50),
            ),
            Figure::lower(
                "upscale_request_to_patch_ms_p99",
                percentile(&took, 99),
                "ms",
                Some(p99),
            ),
        ])
    }

    /// Time of each growth request in ms.
    async fn wish_times(&self) -> Result<Vec<f64>> {
        tell(&format!("{} VMs: {} wishes", self.vms.len(), self.samples));
        let mut took = Vec::new();
        for (n, vm) in self.sampled().iter().enumerate() {
            let asked = Instant::now();
            self.guests.wish(n);
            let one = std::slice::from_ref(vm);
            let is_up = |units| units > 1;
            let seen = self
                .sizes
                .until("a wish's patch", one, PATIENCE, is_up)
                .await?;
            took.push(millis(seen, asked));
            tokio::time::sleep(PACE).await;
        }
        self.back_to_idle(self.samples).await?;
        Ok(took)
    }

    /// All VMs request the largest size at the same instant, and then the smallest.
    async fn all_at_once(&self) -> Result<Vec<Figure>> {
        let count = self.vms.len();
        tell(&format!("{count} VMs: all up, all down"));
        let logged = self.agent.logged()?;
        let began = Instant::now();
        (0..count).for_each(|n| self.guests.set_load(n, LARGEST, false));
        let is_up = |units| units == MAX_UNITS;
        let up = self
            .sizes
            .until("all up", &self.vms, PATIENCE, is_up)
            .await?;
        // Permits, patches and messages of the last requests are still under way.
        tokio::time::sleep(SETTLE / 2).await;
        let approvals = self.guests.approvals();
        let turned = Instant::now();
        let down = self.back_to_idle(count).await?;
        let approvals = self.guests.approvals() - approvals;
        let logged = as_f64(usize::try_from(self.agent.logged()? - logged)?);
        let target = STEP_TARGETS_S.iter().find(|(vms, ..)| *vms == count);
        let seconds = |until: Instant, from| until.duration_since(from).as_secs_f64();
        Ok(vec![
            Figure::lower(
                "step_up_all_s",
                seconds(up, began),
                "s",
                target.map(|t| t.1),
            ),
            Figure::lower(
                "step_down_all_s",
                seconds(down, turned),
                "s",
                target.map(|t| t.2),
            ),
            Figure::lower(
                "approvals_per_vm_down",
                as_f64(approvals) / as_f64(count),
                "",
                None,
            ),
            Figure::lower(
                "log_bytes_per_vm_up_and_down",
                logged / as_f64(count),
                "B",
                None,
            ),
        ])
    }

    /// The first `count` guests are idle and their VMs at the smallest size; since when.
    async fn back_to_idle(&self, count: usize) -> Result<Instant> {
        (0..count).for_each(|n| self.guests.set_load(n, IDLE, true));
        let vms = &self.vms[..count];
        let is_down = |units| units == 1;
        self.sizes.until("all down", vms, PATIENCE, is_down).await
    }
}
