//! The scheduler's binary over real HTTP: permits a second with few and many VMs, and the time
//! without grants when the leader ends.
//!
//! For permits this process simulates the API (`api`), so that only the scheduler is measured. With
//! two processors the scheduler has one, and the simulated API shares the other with the clients.
//! For the gaps everything is real: two replicas, the embedded API server and one Lease. With very
//! many VMs only the Lease is. For bound pods a second the API server and kube-scheduler are
//! Kubernetes' own.

mod api;
mod cores;
mod failover;
mod load;
mod numbers;
mod placing;
mod readiness;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use bellows_tests::figures::{Benchmark, Figure, Machine, Output, percentile};
use bellows_tests::kubeconfig::install_crypto;
use bellows_tests::process::Process;
use clap::Parser;

use api::{Played, PlayedApi};
use cores::{Cores, run_on};
use load::{Kind, Load};
use numbers::{as_f64, mib};
use readiness::{addresses, until_ready};

/// Targets of the figures: the rows of SPECIFICATION.md.
const IDLE_TARGET: f64 = 50_000.0;
const MOVE_TARGET: f64 = 20_000.0;
const P99_TARGET_MS: f64 = 5.0;
const KILL_TARGET_MS: f64 = 20_000.0;
const TERM_TARGET_MS: f64 = 3_000.0;
/// With more VMs than this, taking over is measured too.
const MANY: usize = 10_000;
/// Most rounds with many VMs. Each of them lists everything.
const MANY_ROUNDS: usize = 3;

/// Measures the scheduler: permits and bound pods a second, and time without a leader.
#[derive(Parser)]
struct Cli {
    /// Numbers of VMs known
    #[arg(long, value_delimiter = ',', default_value = "1000,200000")]
    vms: Vec<usize>,
    /// A quarter as many leaders are killed, and as many told to go; 0 leaves it out
    #[arg(long, default_value_t = 20)]
    repeats: usize,
    /// Seconds of each load
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// Pods that kube-scheduler binds; 0 leaves it out
    #[arg(long, default_value_t = 1000)]
    pods: usize,
    /// Where the binaries are, if not beside this one
    #[arg(long)]
    bin_dir: Option<PathBuf>,
    #[command(flatten)]
    output: Output,
}

#[tokio::main]
async fn main() -> Result<ExitCode> {
    let cli = Cli::parse();
    install_crypto();
    let beside = std::env::current_exe()?;
    let beside = beside.parent().context("a program is in a directory")?;
    let bin_dir = cli.bin_dir.clone().unwrap_or_else(|| beside.to_owned());
    let mut figures = Vec::new();
    for count in &cli.vms {
        figures.extend(permits(&cli, &bin_dir, *count).await?);
    }
    let rounds = cli.repeats.div_ceil(4);
    if rounds > 0 {
        figures.extend(gaps(&bin_dir, rounds, 1).await?);
        for count in cli.vms.iter().filter(|count| **count > MANY) {
            figures.extend(gaps(&bin_dir, rounds.min(MANY_ROUNDS), *count).await?);
        }
    }
    figures.extend(placed(&bin_dir, cli.pods).await?);
    Benchmark {
        bench: "scheduler".into(),
        machine: Machine::here("none")?,
        figures,
    }
    .finish(&cli.output)
}

/// Permits a second with a number of VMs: with silent watches, so that only permits are measured,
/// and with watches that report each write, as a real API does.
async fn permits(cli: &Cli, bin_dir: &Path, count: usize) -> Result<Vec<Figure>> {
    let lasts = Duration::from_secs(cli.seconds);
    let named = |name: &str| format!("{name}_{count}_vms");
    tell(&format!("{count} VMs: start"));
    let mut silent = Pair::start(bin_dir, count, false).await?;
    let mut figures = vec![
        Figure::lower(named("ready_s"), silent.ready_s, "s", None),
        Figure::lower(named("rss_mib"), mib(silent.scheduler.rss()?), "MiB", None),
    ];
    for (kind, word, target) in [
        (Kind::Nothing, "idle", IDLE_TARGET),
        (Kind::UpAndDown, "up_down", MOVE_TARGET),
    ] {
        tell(&format!("{count} VMs: {word}"));
        let name = |name: &str| named(&format!("{name}_{word}"));
        figures.extend(silent.load(kind, lasts, target, name).await?);
    }
    drop(silent);
    tell(&format!("{count} VMs: up_down, told by watches"));
    let mut told = Pair::start(bin_dir, count, true).await?;
    let name = |name: &str| named(&format!("{name}_up_down_told"));
    figures.extend(told.load(Kind::UpAndDown, lasts, MOVE_TARGET, name).await?);
    Ok(figures)
}

/// A scheduler and its API.
struct Pair {
    api: PlayedApi,
    scheduler: Process,
    /// Address of its permit server.
    permits: SocketAddr,
    /// Time until it was ready, in seconds.
    ready_s: f64,
    count: usize,
    cores: Option<Cores>,
    _dir: tempfile::TempDir,
}

impl Pair {
    async fn start(bin_dir: &Path, count: usize, tells: bool) -> Result<Self> {
        let cores = Cores::find()?;
        let api = PlayedApi::start(Played {
            count,
            tells,
            leases: None,
            core: cores.map(|cores| cores.played),
        })?;
        let dir = tempfile::tempdir()?;
        let kubeconfig = dir.path().join("kubeconfig");
        std::fs::write(&kubeconfig, api.kubeconfig())?;
        let began = Instant::now();
        let mut command = Command::new(bin_dir.join("autoscale-scheduler"));
        command
            .args(["--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0"])
            .env("SCHEDULER_PERMITS_FOR_ANYONE", "true")
            .args(["--takeover-wait-ms", "0"])
            .env("KUBECONFIG", &kubeconfig)
            .env("RUST_LOG", "warn");
        let log = std::fs::File::create(dir.path().join("log"))?;
        let mut scheduler = run_on(cores.map(|cores| cores.scheduler), || {
            Process::start(&mut command, log)
        })?;
        let (permits, ready) = addresses(&scheduler.first_line()?)?;
        until_ready(&ready).await?;
        Ok(Self {
            api,
            scheduler,
            permits,
            ready_s: began.elapsed().as_secs_f64(),
            count,
            cores,
            _dir: dir,
        })
    }

    async fn load(
        &mut self,
        kind: Kind,
        lasts: Duration,
        target: f64,
        named: impl Fn(&str) -> String,
    ) -> Result<Vec<Figure>> {
        let (spent, played) = (self.scheduler.cpu()?, self.api.cpu()?);
        let asked = (kind, self.count);
        let core = self.cores.map(|cores| cores.played);
        let load = Load::run(self.permits, asked, lasts, core).await?;
        let used = Used {
            scheduler: (self.scheduler.cpu()?.saturating_sub(spent)).as_secs_f64(),
            played: (self.api.cpu()?.saturating_sub(played)).as_secs_f64(),
        };
        let figures = Measured {
            kind,
            load,
            used,
            has_own_core: core.is_some(),
        };
        Ok(figures.figures(target, named))
    }
}

/// Processor time during a load, in seconds.
struct Used {
    scheduler: f64,
    played: f64,
}

/// A load and its cost.
struct Measured {
    kind: Kind,
    load: Load,
    used: Used,
    /// Whether the scheduler had its processor alone.
    has_own_core: bool,
}

impl Measured {
    fn figures(&self, target: f64, named: impl Fn(&str) -> String) -> Vec<Figure> {
        let Self { load, used, .. } = self;
        let answers = as_f64(load.took.len());
        let lower = |name: &str, value, unit| Figure::lower(named(name), value, unit, None);
        let took = |percent| percentile(&load.took, percent);
        let each_us = |seconds: f64| seconds / answers * 1e6;
        let per_cpu_second = answers / used.scheduler;
        let p99 = Some(P99_TARGET_MS);
        let mut figures = self.rates(answers, target, &named);
        figures.extend([
            lower("permit_ms_p50", took(50), "ms"),
            Figure::lower(named("permit_ms_p99"), took(99), "ms", p99),
            Figure::higher(named("permits_per_cpu_s"), per_cpu_second, "1/s", None),
            lower("cpu_us_per_permit", each_us(used.scheduler), "us"),
            lower("played_api_cpu_us_per_permit", each_us(used.played), "us"),
            // Share of one processor. A value well below 1 means that the simulated side was the
            // limit.
            Figure::higher(named("cpu_busy"), used.scheduler / load.seconds, "", None),
        ]);
        figures
    }

    /// Permits a second. Where the scheduler shares the only processor with the played API, the way
    /// up and down is held against its target without the API's time: a real one runs elsewhere.
    fn rates(&self, answers: f64, target: f64, named: impl Fn(&str) -> String) -> Vec<Figure> {
        let rate = |name: &str, seconds: f64, target| {
            Figure::higher(named(name), answers / seconds, "1/s", target)
        };
        let seconds = self.load.seconds;
        if self.has_own_core || self.kind == Kind::Nothing {
            return vec![rate("permits_per_s", seconds, Some(target))];
        }
        let without = seconds - self.used.played;
        vec![
            rate("permits_per_s", seconds, None),
            rate("permits_per_s_without_api", without, Some(target)),
        ]
    }
}

/// Time without permitted increases when the leader is killed, and when it is terminated.
async fn gaps(bin_dir: &Path, rounds: usize, vms: usize) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    for (word, signal, target) in [
        ("kill", failover::End::Kill, KILL_TARGET_MS),
        ("sigterm", failover::End::Term, TERM_TARGET_MS),
    ] {
        tell(&format!("{rounds} leaders, {vms} VMs: {word}"));
        let failover::Gaps { gaps, waiting } = failover::gaps(bin_dir, signal, rounds, vms).await?;
        let known = if vms == 1 {
            String::new()
        } else {
            format!("_{vms}_vms")
        };
        let name = |percent: usize| format!("failover_gap_ms_{word}_p{percent}{known}");
        figures.push(Figure::lower(name(50), percentile(&gaps, 50), "ms", None));
        figures.push(Figure::lower(
            name(100),
            percentile(&gaps, 100),
            "ms",
            Some(target),
        ));
        let largest = waiting.into_iter().max().unwrap_or(0);
        let name = format!("standby_rss_mib_{word}{known}");
        figures.push(Figure::lower(name, mib(largest), "MiB", None));
    }
    Ok(figures)
}

/// Pods a second that kube-scheduler binds, with our extender and without.
async fn placed(bin_dir: &Path, pods: usize) -> Result<Vec<Figure>> {
    if pods == 0 {
        return Ok(Vec::new());
    }
    tell(&format!(
        "{pods} pods: kube-scheduler with its extender, and alone"
    ));
    let Some((together, alone)) = placing::rates(bin_dir, pods).await? else {
        tell("left out: `cargo xtask cluster build` builds what it needs");
        return Ok(Vec::new());
    };
    let rate = |name: &str, value| Figure::higher(name, value, "1/s", None);
    Ok(vec![
        rate("pods_bound_per_s", together),
        rate("pods_bound_per_s_without_us", alone),
    ])
}

/// Prints the name of the measurement.
#[expect(clippy::print_stdout, reason = "progress for the person who asked")]
fn tell(what: &str) {
    println!("==> {what}");
}
