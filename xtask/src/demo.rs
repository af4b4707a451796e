//! `cargo xtask demo`: the main job, end to end, on a real guest, with a report.
//!
//! A VM with PostgreSQL and our monitor inside goes from its smallest size to its largest and back
//! under a rising and falling pgbench load and a memory burst. The run fails if the VM did not grow
//! to three times its smallest size, did not come back, or the guest restarted.

mod fleet;
pub(crate) mod load;
mod plot;
mod policy;
pub(crate) mod report;
pub(crate) mod site;
mod view;
mod watch;

use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use clap::Args;
use serde_json::Value;

use self::load::{Database, Lines, Pgbench, Plan};
use self::report::{ComputeUnits, Report, Sample};
use self::site::{BOOT_PATIENCE, Site, VM};
use self::watch::Watch;
use crate::{build, interrupt, shell};

/// Options of `demo`.
#[derive(Args)]
pub(crate) struct Options {
    /// Write the JSON report to FILE, and the plot beside it as .svg and .png
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// How long the whole demonstration may take, at least 4
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u64).range(4..=120))]
    minutes: u64,
    /// Keep the state directory and leave everything running at the end
    #[arg(long, conflicts_with = "fleet")]
    keep: bool,
    /// Let the policy of a Lua file decide, and compare its answers with the built-in goal
    #[arg(long, value_name = "FILE", conflicts_with = "fleet")]
    policy: Option<PathBuf>,
    /// Roll a good and three bad monitors out to three guests instead
    #[arg(long)]
    fleet: bool,
    /// With `--fleet`: how often `bellows up` is killed at random points
    #[arg(long, value_name = "N", default_value_t = 0, requires = "fleet")]
    kills: u32,
    /// With `--fleet`: seed of these points
    #[arg(long, value_name = "SEED", requires = "fleet")]
    seed: Option<u64>,
}

/// Smallest and largest size in compute units of 0.25 CPU and 1 GiB.
const MIN_CU: f64 = 1.0;
const MAX_CU: f64 = 8.0;
/// The growth the run is judged by.
const PEAK_OVER_MIN: f64 = 3.0;

/// The load: clients and, as a share of the load time, how long.
const STEPS: [(u32, u64); 6] = [(1, 10), (2, 15), (4, 20), (8, 30), (4, 15), (1, 10)];

/// Runs the demonstration.
pub(crate) fn run(options: &Options) -> Result<()> {
    if options.fleet {
        return fleet::run(options);
    }
    let bellows = build::images(build::Scope::Binaries)?;
    let state = tempfile::Builder::new()
        .prefix("bellows-demo-")
        .tempdir()
        .context("make a state directory")?;
    interrupt::catch()?;
    let mut site = Site::up(&bellows, state.path())?;
    let outcome = demonstrate(&mut site, options);
    if options.keep {
        let kept = state.keep();
        shell::say(&format!(
            "left running; look with: {} top --state-dir {}",
            bellows.display(),
            kept.display()
        ));
        std::mem::forget(site);
    } else {
        site.down()?;
    }
    let report = outcome?;
    finish(&report, options.report.as_deref())
}

fn demonstrate(site: &mut Site, options: &Options) -> Result<Report> {
    let vm = boot(site)?;
    let address = vm["status"]["podIP"]
        .as_str()
        .context("the VM has no address")?
        .to_owned();
    let show_password = &mut site.command(&["psql", VM, "--show-password"]);
    let database = Database {
        address,
        password: shell::output(show_password)?.trim().to_owned(),
    };
    load::wait_for_database(&database, BOOT_PATIENCE)?;
    let runner = site.runner_state(&vm)?;
    let mut report = first_page(&runner);
    let boot_id = runner["boot_id"].clone();
    if let Some(file) = &options.policy {
        policy::decide(site, file)?;
    }
    let mut run = Run::new(site, &database, options.minutes)?;
    run.all_steps()?;
    report.resizes = site.resizes(run.origin_unix_us)?;
    report.kubectl_watch_events = run.watch.events();
    report.samples = run.samples;
    report.pgbench = run
        .lines
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
        .clone();
    let vm = site.vm()?;
    report.upscale_requests = count(site, &vm, "vm_monitor_upscale_requests_total");
    report.denied_downscales = count(site, &vm, "vm_monitor_downscales_total{outcome=\"refused\"");
    let restarted = site.runner_state(&vm)?["boot_id"] != boot_id;
    report.guest_restarts =
        vm["status"]["restartCount"].as_u64().unwrap_or(0) + u64::from(restarted);
    let compared = options.policy.as_ref().map(|_| policy::compared(site));
    report.policy = compared.transpose()?;
    judge(&mut report);
    Ok(report)
}

fn boot(site: &Site) -> Result<Value> {
    let create = [
        "vm",
        "create",
        VM,
        "--image",
        "bellows/postgres:15",
        "--cpu-min",
        "0.25",
        "--cpu-max",
        "2",
        "--memory-min",
        "1Gi",
        "--memory-max",
        "8Gi",
        "--port",
        "5432",
        "--autoscale",
    ];
    shell::run("create the VM", &mut site.command(&create))?;
    shell::say("==> boot the guest");
    let began = Instant::now();
    let mut last = String::new();
    let vm = site.wait_running(VM, BOOT_PATIENCE, |phase| {
        if phase != last {
            shell::say(&format!(
                "    {:5.1} s  {phase}",
                began.elapsed().as_secs_f64()
            ));
            phase.clone_into(&mut last);
        }
    })?;
    shell::say(&format!(
        "    {:5.1} s  Running at {}",
        began.elapsed().as_secs_f64(),
        vm["status"]["podIP"]
    ));
    Ok(vm)
}

fn first_page(runner: &Value) -> Report {
    let text = |key: &str| runner[key].as_str().unwrap_or_default().to_owned();
    Report {
        accel: text("accel"),
        qemu_version: text("qemu_version"),
        guest_kernel: text("guest_kernel"),
        boot_s: runner["boot_ms"].as_f64().unwrap_or(0.0) / 1e3,
        ..Report::default()
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a small counter printed as a float"
)]
fn count(site: &Site, vm: &Value, name: &str) -> u64 {
    site.guest_metric(vm, name)
        .ok()
        .flatten()
        .unwrap_or(0.0)
        .max(0.0) as u64
}

/// One run of the load with its samples.
struct Run<'a> {
    database: &'a Database,
    origin: Instant,
    origin_unix_us: i64,
    minutes: u64,
    lines: Lines,
    samples: Vec<Sample>,
    view: view::View,
    watch: Watch,
}

impl<'a> Run<'a> {
    fn new(site: &Site, database: &'a Database, minutes: u64) -> Result<Self> {
        Ok(Self {
            database,
            watch: site.watch()?,
            origin: Instant::now(),
            origin_unix_us: jiff::Timestamp::now().as_microsecond(),
            minutes,
            lines: Lines::default(),
            samples: Vec::new(),
            view: view::View::new(),
        })
    }

    /// Load up, load down, memory burst, then wait for the smallest size.
    fn all_steps(&mut self) -> Result<()> {
        // A third of the time is load, the rest lets the one-minute load average decay.
        let load_s = self.minutes * 60 / 3;
        for (clients, share) in STEPS {
            let seconds = (load_s * share / 100).max(5);
            let plan = Plan {
                clients,
                seconds,
                rate: None,
            };
            let mut bench = Pgbench::start(self.database, plan, self.origin, &self.lines)?;
            while !bench.ended()? {
                self.look(&format!("pgbench, {clients} clients"))?;
            }
        }
        let mut burst = load::start_burst(self.database)?;
        self.until_ended(&mut burst, "memory burst")?;
        self.wait_for_smallest()
    }

    fn until_ended(&mut self, child: &mut Child, what: &str) -> Result<()> {
        loop {
            if let Some(status) = child.try_wait()? {
                anyhow::ensure!(status.success(), "{what} failed ({status})");
                return Ok(());
            }
            self.look(what)?;
        }
    }

    fn wait_for_smallest(&mut self) -> Result<()> {
        let deadline = Duration::from_secs(self.minutes * 60);
        while self.origin.elapsed() < deadline {
            self.look("no load: back to the smallest size")?;
            let last = self.samples.last().context("kubectl showed nothing")?;
            if last.phase == "Running" && last.cu() <= MIN_CU {
                return Ok(());
            }
        }
        Ok(())
    }

    /// One sample, shown, then the rest of its second.
    fn look(&mut self, doing: &str) -> Result<()> {
        interrupt::check()?;
        self.watch.check()?;
        let began = Instant::now();
        let t = self.origin.elapsed().as_secs_f64();
        if let Some(vm) = self.watch.newest() {
            self.add(doing, Site::sample(t, &vm));
        }
        std::thread::park_timeout(Duration::from_secs(1).saturating_sub(began.elapsed()));
        Ok(())
    }

    fn add(&mut self, doing: &str, sample: Sample) {
        let tps = self
            .lines
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .last()
            .cloned();
        self.view.show(doing, &sample, tps.as_ref());
        self.samples.push(sample);
    }
}

fn judge(report: &mut Report) {
    let peak = report.samples.iter().map(Sample::cu).fold(0.0, f64::max);
    let last = report.samples.last().map_or(0.0, Sample::cu);
    report.cu = ComputeUnits {
        min: MIN_CU,
        max: MAX_CU,
        peak,
        r#final: last,
    };
    if peak < MIN_CU * PEAK_OVER_MIN {
        report.failures.push(format!(
            "the VM did not grow: peak {peak} CU, needed {}",
            MIN_CU * PEAK_OVER_MIN
        ));
    }
    if last > MIN_CU {
        report.failures.push(format!(
            "the VM did not shrink back: {last} CU at the end, smallest is {MIN_CU}"
        ));
    }
    if report.guest_restarts > 0 {
        report.failures.push(format!(
            "the guest restarted {} times",
            report.guest_restarts
        ));
    }
    if report.resizes.is_empty() {
        report.failures.push("no resize was recorded".into());
    }
    if report.policy.is_some_and(|policy| policy.decided == 0) {
        report.failures.push("the policy never decided".into());
    }
}

fn finish(report: &Report, file: Option<&Path>) -> Result<()> {
    let file = match file {
        Some(file) => file.to_owned(),
        None => shell::target_dir()?.join("demo").join("report.json"),
    };
    if let Some(dir) = file.parent() {
        std::fs::create_dir_all(dir)?;
    }
    std::fs::write(&file, serde_json::to_string_pretty(report)?)
        .with_context(|| format!("write {}", file.display()))?;
    plot::write(report, &file)?;
    view::summary(report, &file);
    if !report.failures.is_empty() {
        bail!(
            "the demonstration failed:\n  {}",
            report.failures.join("\n  ")
        );
    }
    Ok(())
}

/// Draws the plot of an earlier report again.
pub(crate) fn plot_again(file: &Path) -> Result<()> {
    let text = std::fs::read_to_string(file).with_context(|| format!("read {}", file.display()))?;
    plot::write(
        &serde_json::from_str(&text).context("not a report of xtask demo")?,
        file,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(cpu_now: f64) -> Sample {
        Sample {
            cpu_now,
            mem_now_gib: cpu_now * 4.0,
            phase: "Running".into(),
            ..Sample::default()
        }
    }

    #[test]
    fn a_run_that_did_not_move_fails() {
        let mut report = Report {
            samples: vec![sample(0.25), sample(0.25)],
            ..Report::default()
        };
        judge(&mut report);
        assert!(
            report
                .failures
                .iter()
                .any(|failure| failure.contains("did not grow"))
        );
        let mut report = Report {
            samples: vec![sample(0.25), sample(2.0), sample(1.0)],
            guest_restarts: 1,
            ..Report::default()
        };
        judge(&mut report);
        assert!(
            report
                .failures
                .iter()
                .any(|failure| failure.contains("did not shrink"))
        );
        assert!(
            report
                .failures
                .iter()
                .any(|failure| failure.contains("restarted"))
        );
    }
}
