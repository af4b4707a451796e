//! `cargo xtask demo --fleet`: a new monitor reaches three loaded guests, and bad ones are taken
//! back.
//!
//! Three guests with PostgreSQL run pgbench. A good monitor goes to all of them, and one guest asks
//! for growth in its turn. Then come a monitor that ends, one that leaks and one that its agent
//! cannot reach. `bellows up` is killed at random points if asked for.
//!
//! The run fails if fewer than two guests were settled and healthy in a sample, a bad version
//! reached a second guest, a guest or its database ended, or the growth did not come.

mod growth;
mod guests;
mod kills;
mod report;
mod sampler;
mod versions;

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use self::guests::{
    GUESTS, LOOK_EVERY, PATIENCE, create, database, monitors, text, wait_for_parts,
};
use self::kills::Kills;
use self::report::{FleetReport, Rollout, summary};
use self::sampler::Sampler;
use self::versions::{BAD, GOOD, Version};
use super::Options;
use super::load::{self, Database, Lines, Pgbench, Plan};
use super::site::{BOOT_PATIENCE, Site};
use crate::{build, interrupt, shell};

/// Guests that stay settled and healthy.
const LEAST_HEALTHY: usize = 2;

/// A load under which a guest keeps its smallest size.
const LOAD: Plan = Plan {
    clients: 1,
    seconds: PATIENCE.as_secs() * 6,
    rate: Some(4),
};

/// Runs the demonstration.
pub(super) fn run(options: &Options) -> Result<()> {
    let bellows = build::images(build::Scope::Binaries)?;
    let programs = build::guest_bins()?;
    let state = tempfile::Builder::new()
        .prefix("bellows-demo-")
        .tempdir()
        .context("make a state directory")?;
    interrupt::catch()?;
    let seed = options.seed.unwrap_or_else(|| {
        let now = jiff::Timestamp::now().as_microsecond();
        now.unsigned_abs()
    });
    shell::say(&format!("seed {seed}, {} kills", options.kills));
    let site = Site::up(&bellows, state.path())?;
    let mut show = Show::begin(site, programs, Kills::new(seed, options.kills))?;
    show.report.seed = seed;
    show.report.kills = options.kills;
    let outcome = show.all();
    let report = show.end(outcome)?;
    finish(&report, options.report.as_deref())
}

fn finish(report: &FleetReport, file: Option<&Path>) -> Result<()> {
    if let Some(file) = file {
        std::fs::write(file, serde_json::to_string_pretty(report)?)
            .with_context(|| format!("write {}", file.display()))?;
    }
    summary(report);
    if !report.failures.is_empty() {
        let failures = report.failures.join("\n  ");
        bail!("the demonstration failed:\n  {failures}");
    }
    Ok(())
}

/// The running demonstration.
struct Show {
    site: Site,
    programs: PathBuf,
    databases: Vec<Database>,
    loads: Vec<Pgbench>,
    sampler: Sampler,
    kills: Kills,
    origin: Instant,
    report: FleetReport,
}

impl Show {
    fn begin(site: Site, programs: PathBuf, kills: Kills) -> Result<Self> {
        let (mut databases, mut sockets, mut loads) = (Vec::new(), Vec::new(), Vec::new());
        for name in GUESTS {
            create(&site, name)?;
        }
        for name in GUESTS {
            let vm = site.wait_running(name, BOOT_PATIENCE, |_| ())?;
            let database = database(&site, name, &vm)?;
            load::wait_for_database(&database, BOOT_PATIENCE)?;
            sockets.push((name.to_owned(), site.rundir(&vm)?.join("control.sock")));
            databases.push(database);
            shell::say(&format!("    {name} runs, its database answers"));
        }
        wait_for_parts(&site)?;
        let origin = Instant::now();
        for database in &databases {
            loads.push(Pgbench::start(database, LOAD, origin, &Lines::default())?);
        }
        growth::wait_for_smallest(&site)?;
        shell::say("    all guests have their smallest size, under load");
        Ok(Self {
            site,
            programs,
            databases,
            loads,
            sampler: Sampler::start(sockets),
            kills,
            origin,
            report: FleetReport::default(),
        })
    }

    fn all(&mut self) -> Result<()> {
        let good = self.start(&GOOD)?;
        self.grow_in_a_turn()?;
        self.wait_for(&GOOD, good)?;
        for bad in &BAD {
            let begun = self.start(bad)?;
            self.wait_for(bad, begun)?;
            self.wait_for_return(bad)?;
        }
        self.report.kills_in_rollouts = self.report.kills - self.kills.left;
        while self.kills.left > 0 {
            self.step()?;
        }
        self.all_run(&GOOD)
    }

    fn say(&self, text: &str) {
        let at = self.origin.elapsed().as_secs_f64();
        shell::say(&format!("{at:8.1} s  {text}"));
    }

    /// Orders a rollout as a person would.
    fn start(&self, version: &Version) -> Result<Instant> {
        let program = self.programs.join(version.program);
        let program = program.to_str().context("a path that is text")?;
        self.say(&format!("roll out {} ({})", version.version, version.id));
        let mut order = self.site.command(&[
            "fleet",
            "rollout",
            "monitor",
            "--to",
            version.version,
            "--program",
            program,
            "--min-healthy",
            "66",
            "--trial",
            "20",
            "--retries",
            "0",
            "--max-failed",
            "0",
            "--id",
            version.id,
        ]);
        shell::output(&mut order)?;
        Ok(Instant::now())
    }

    /// Rests, kills `bellows up` if that is due, and looks whether all loads go on.
    fn step(&mut self) -> Result<()> {
        interrupt::check()?;
        if self.kills.maybe(&mut self.site)? {
            self.say(&format!(
                "killed bellows up; {} kills are left",
                self.kills.left
            ));
        }
        for (load, name) in self.loads.iter_mut().zip(GUESTS) {
            let ended = load
                .ended()
                .with_context(|| format!("database of {name}"))?;
            anyhow::ensure!(!ended, "the load of {name} ended before the demonstration");
        }
        std::thread::park_timeout(LOOK_EVERY);
        Ok(())
    }

    /// Takes memory in the first guest on trial, and measures how far that guest grows on trial.
    fn grow_in_a_turn(&mut self) -> Result<()> {
        let name = growth::first_on_trial(&self.sampler)?;
        let mut burst = growth::take_memory(&self.databases, &name)?;
        self.say(&format!("{name} is on trial: take memory in its database"));
        // The agent is needed for the growth, so nothing is killed before the trial is over.
        while self.sampler.seen().on_trial.contains(&name) {
            interrupt::check()?;
            std::thread::park_timeout(LOOK_EVERY);
        }
        while growth::goes_on(&mut burst)? {
            self.step()?;
        }
        let growth = growth::of_guest(&self.sampler, name);
        self.say(&format!("{growth}"));
        if growth.in_trial_gib <= growth.before_gib {
            let text = "growth asked for in a turn did not come in it";
            self.report.failures.push(text.to_owned());
        }
        self.report.growth = growth;
        Ok(())
    }

    /// Waits until a deployment has ended, and writes it down.
    fn wait_for(&mut self, version: &Version, begun: Instant) -> Result<()> {
        let ended = self.ended(version.id)?;
        let state = text(&ended, "/status/state");
        let evidence = ended["status"]["evidence"].as_array().into_iter().flatten();
        let evidence: Vec<&str> = evidence.filter_map(Value::as_str).collect();
        let revision = text(&ended, "/spec/revision");
        let revision = self.site.object("controllerrevision", revision)?;
        let sha256 = text(&revision, "/data/resolved/sha256");
        let reached = self.sampler.seen().reached(sha256);
        self.say(&format!(
            "{} is {state}: {}",
            version.id,
            evidence.join("; ")
        ));
        let is_bad = version.ends == "Unhealthy";
        let count = |name: &str| ended["status"]["progress"][name].as_u64().unwrap_or(0);
        let (kept, bad) = (count("done"), count("failed"));
        // A kill can give a turn back without a result. The next turn is another guest's then.
        let is_spread = reached.len() > 1 && self.report.kills == 0;
        if is_bad && (is_spread || kept > 0 || bad != 1) {
            let text = format!(
                "{} was seen in {reached:?}, kept by {kept} guests and bad in {bad}",
                version.id
            );
            self.report.failures.push(text);
        }
        if is_bad || state != version.ends {
            self.print_why(&evidence)?;
        }
        self.report.rollouts.push(Rollout {
            id: version.id.to_owned(),
            version: version.version.to_owned(),
            state: state.to_owned(),
            reached: reached.len(),
            kept,
            bad,
            seconds: begun.elapsed().as_secs_f64(),
            evidence: evidence.join("; "),
        });
        // What comes next rests on this end: no rollback comes of a good version that failed.
        anyhow::ensure!(
            state == version.ends,
            "{} ended {state}, not {}: {}",
            version.id,
            version.ends,
            evidence.join("; ")
        );
        Ok(())
    }

    fn ended(&mut self, id: &str) -> Result<Value> {
        let began = Instant::now();
        loop {
            let object = self.site.object_if_there("fleetdeployment", id)?;
            if let Some(object) = object.filter(|object| !object["status"]["endedAt"].is_null()) {
                return Ok(object);
            }
            anyhow::ensure!(
                began.elapsed() < PATIENCE,
                "{id} did not end in {PATIENCE:?}"
            );
            self.step()?;
        }
    }

    /// Waits for the rollback of a failed deployment.
    fn wait_for_return(&mut self, version: &Version) -> Result<()> {
        let id = format!("{}-rollback", version.id);
        let ended = self.ended(&id)?;
        let state = text(&ended, "/status/state");
        self.say(&format!("{id} is {state}"));
        if state != "Complete" {
            self.report.failures.push(format!("{id} ended {state}"));
        }
        self.all_run(&GOOD)
    }

    /// Prints why the guest of the first evidence runs what it runs.
    fn print_why(&self, evidence: &[&str]) -> Result<()> {
        let guest = evidence.first().and_then(|line| line.split(':').next());
        let Some(name) = guest.and_then(|guest| guest.strip_prefix("vm-")) else {
            return Ok(());
        };
        let why = shell::output(&mut self.site.command(&["fleet", "why", name]))?;
        for line in why.lines() {
            shell::say(&format!("            {line}"));
        }
        Ok(())
    }

    /// Waits until all guests run a version, off trial.
    fn all_run(&self, version: &Version) -> Result<()> {
        let began = Instant::now();
        loop {
            interrupt::check()?;
            let monitors = monitors(&self.site)?;
            let runs_it = |one: &Value| {
                one["version"] == version.version
                    && matches!(&one["phase"], Value::String(phase) if phase != "Trial")
            };
            if monitors.iter().all(runs_it) {
                self.say(&format!("all guests run {}", version.version));
                return Ok(());
            }
            anyhow::ensure!(began.elapsed() < PATIENCE, "not at rest: {monitors:?}");
            std::thread::park_timeout(LOOK_EVERY);
        }
    }

    /// Ends the site, and judges what the samples have shown.
    fn end(mut self, outcome: Result<()>) -> Result<FleetReport> {
        let seen = self.sampler.seen();
        drop(self.sampler);
        drop(self.loads);
        self.site.down()?;
        if let Err(error) = outcome {
            self.report.failures.push(format!("{error:#}"));
        }
        self.report.samples = seen.samples;
        self.report.least_settled_healthy = seen.least.unwrap_or(0);
        self.report.guest_restarts = seen.restarts();
        judge(&mut self.report);
        Ok(self.report)
    }
}

fn judge(report: &mut FleetReport) {
    let least = report.least_settled_healthy;
    if least < LEAST_HEALTHY {
        let text = format!("only {least} guests were settled and healthy in a sample");
        report.failures.push(text);
    }
    if report.guest_restarts > 0 {
        let text = format!("guests restarted {} times", report.guest_restarts);
        report.failures.push(text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_with_too_few_settled_guests_or_a_restart_fails() {
        let mut report = FleetReport {
            least_settled_healthy: LEAST_HEALTHY,
            ..FleetReport::default()
        };
        judge(&mut report);
        assert!(report.failures.is_empty(), "{:?}", report.failures);
        report.least_settled_healthy = LEAST_HEALTHY - 1;
        report.guest_restarts = 1;
        judge(&mut report);
        assert_eq!(report.failures.len(), 2, "{:?}", report.failures);
    }
}
