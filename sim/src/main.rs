//! Runs seeds and says what came of them. Exit code 1 when something did not hold.

mod peers_command;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow};
use clap::Parser;
use protocol::journal::encode;
use protocol::time::Span;
use sim::faults::Tally;
use sim::{Level, Options, Outcome, PolicyKind};

/// Progress is printed at this pace, from this time on.
const TELL_EVERY: Duration = Duration::from_secs(2);

/// Run the cores of the whole system on a virtual clock, with faults
#[derive(Parser)]
#[command(name = "sim", bin_name = "cargo xtask sim")]
struct Args {
    /// The first seed
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How many seeds, counted from the first
    #[arg(long, default_value_t = 1)]
    seeds: u64,
    /// Virtual machines; 0 lets each seed choose 3 to 6
    #[arg(long, default_value_t = 0)]
    vms: usize,
    /// Nodes; 0 takes one per eight VMs
    #[arg(long, default_value_t = 0)]
    nodes: usize,
    /// Hours of virtual time
    #[arg(long, default_value_t = 24.0)]
    hours: f64,
    /// Ends a run after this many steps
    #[arg(long)]
    steps: Option<u64>,
    /// How much goes wrong
    #[arg(long, value_enum, default_value_t = Level::Heavy)]
    faults: Level,
    /// Schedulers: one, or two that hold a Lease in turn
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=2))]
    replicas: u8,
    /// Pods request what their VMs have, as on Kubernetes
    #[arg(long)]
    requests: bool,
    /// Who advises the agents
    #[arg(long, value_enum, default_value_t = PolicyKind::None)]
    policy: PolicyKind,
    /// Go on after a seed that fails
    #[arg(long)]
    keep_going: bool,
    /// How many of the last events of a failing run to print
    #[arg(long, default_value_t = 40)]
    lines: usize,
    /// Write what came of it here
    #[arg(long)]
    json: Option<PathBuf>,
    /// Write the agents' decision journal of the first seed here, and run no other
    #[arg(long)]
    journal: Option<PathBuf>,
    #[command(flatten)]
    peers: peers_command::PeersArgs,
}

impl Args {
    fn options(&self, seed: u64) -> Options {
        let steps = self.steps.unwrap_or(u64::MAX);
        let mut options = Options::short(seed, self.faults, steps);
        if self.vms > 0 {
            (options.vms, options.nodes) = (self.vms, self.nodes);
        }
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a length of time from a person"
        )]
        let length = (self.hours.max(0.0) * 3.6e9) as u64;
        options.length = Span(length);
        options.replicas = usize::from(self.replicas);
        options.requests = self.requests;
        options.policy = self.policy;
        options
    }
}

/// Sums over all runs.
#[derive(Default)]
struct Sums {
    runs: u64,
    steps: u64,
    checks: u64,
    calms: u64,
    virtual_seconds: f64,
    tally: Tally,
    failed: Vec<Outcome>,
}

impl Sums {
    fn add(&mut self, outcome: Outcome) {
        self.runs += 1;
        self.steps += outcome.steps;
        self.checks += outcome.checks;
        self.calms += outcome.calms;
        self.virtual_seconds += outcome.virtual_seconds;
        self.tally.add(&outcome.tally);
        if outcome.violation.is_some() {
            self.failed.push(outcome);
        }
    }
}

fn main() -> ExitCode {
    match simulate(&Args::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            say(&format!("{error:#}"));
            ExitCode::FAILURE
        }
    }
}

/// Writes the journal of one seed as one segment.
fn write_journal(args: &Args, path: &Path) -> Result<bool> {
    let records = sim::recorded(args.options(args.seed));
    let records = records.map_err(|violation| anyhow!("{violation:?}"))?;
    let lines: String = records.iter().map(encode).collect();
    std::fs::write(path, &lines).with_context(|| format!("cannot write {}", path.display()))?;
    say(&format!("{} records in {}", records.len(), path.display()));
    Ok(true)
}

fn simulate(args: &Args) -> Result<bool> {
    if let Some(machines) = args.peers.peers {
        let seeds = args.seed..args.seed.saturating_add(args.seeds);
        return args.peers.run(machines, seeds);
    }
    if let Some(path) = &args.journal {
        return write_journal(args, path);
    }
    let began = Instant::now();
    let mut told = began;
    let mut sums = Sums::default();
    for seed in args.seed..args.seed.saturating_add(args.seeds) {
        let (done, hours) = (sums.steps, sums.virtual_seconds);
        let outcome = sim::run(args.options(seed), |world| {
            if told.elapsed() >= TELL_EVERY {
                told = Instant::now();
                let virtual_hours =
                    (hours + world.now.since(protocol::time::Timestamp(0)).as_secs_f64()) / 3600.0;
                progress(seed, done + world.steps, virtual_hours, began.elapsed());
            }
        });
        if let Some(headline) = outcome.headline() {
            say(&headline);
            let skipped = outcome.last.len().saturating_sub(args.lines);
            outcome.last.iter().skip(skipped).for_each(|line| say(line));
            say(&replay(args, &outcome));
        }
        let failed = outcome.violation.is_some();
        sums.add(outcome);
        if failed && !args.keep_going {
            break;
        }
    }
    summary(&sums, began.elapsed());
    if let Some(path) = &args.json {
        let report = report(args, &sums, began.elapsed());
        let text = serde_json::to_string_pretty(&report).context("the report does not encode")?;
        std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(sums.failed.is_empty())
}

fn replay(args: &Args, outcome: &Outcome) -> String {
    let options = &outcome.options;
    let faults = serde_json::to_value(options.level).ok();
    let faults = faults
        .as_ref()
        .and_then(serde_json::Value::as_str)
        .unwrap_or("heavy");
    let vms = if args.vms > 0 {
        format!(" --vms {} --nodes {}", args.vms, args.nodes)
    } else {
        String::new()
    };
    let replicas = if args.replicas > 1 {
        format!(" --replicas {}", args.replicas)
    } else {
        String::new()
    };
    let requests = if args.requests { " --requests" } else { "" };
    let policy = match args.policy {
        PolicyKind::None => "",
        PolicyKind::Builtin => " --policy builtin",
        PolicyKind::Hostile => " --policy hostile",
        PolicyKind::Batch => " --policy batch",
    };
    format!(
        "replay: cargo xtask sim --seed {} --faults {faults}{vms}{replicas}{requests}{policy} --hours {}",
        options.seed, args.hours
    )
}

#[expect(clippy::cast_precision_loss, reason = "figures for people")]
fn rate(steps: u64, took: Duration) -> f64 {
    steps as f64 / took.as_secs_f64().max(1e-9)
}

fn progress(seed: u64, steps: u64, hours: f64, took: Duration) {
    say(&format!(
        "seed {seed}: {steps} steps, {hours:.1} virtual hours, {:.0} steps/s",
        rate(steps, took)
    ));
}

fn summary(sums: &Sums, took: Duration) {
    let per_step = rate(sums.steps, took);
    say(&format!(
        "{} seeds, {} steps in {:.1} s ({per_step:.0} steps/s), {:.1} virtual hours, {} checks, {} calms, {} violations",
        sums.runs,
        sums.steps,
        took.as_secs_f64(),
        sums.virtual_seconds / 3600.0,
        sums.checks,
        sums.calms,
        sums.failed.len()
    ));
    let faults: Vec<String> = sums
        .tally
        .iter()
        .map(|(what, count)| format!("{what} {count}"))
        .collect();
    if !faults.is_empty() {
        say(&format!("faults: {}", faults.join(", ")));
    }
}

fn report(args: &Args, sums: &Sums, took: Duration) -> serde_json::Value {
    let faults: std::collections::BTreeMap<&str, u64> = sums.tally.iter().collect();
    serde_json::json!({
        "first_seed": args.seed,
        "seeds": sums.runs,
        "faults_level": args.faults,
        "policy": args.policy,
        "steps": sums.steps,
        "seconds": took.as_secs_f64(),
        "steps_per_second": rate(sums.steps, took),
        "virtual_hours": sums.virtual_seconds / 3600.0,
        "checks": sums.checks,
        "calms": sums.calms,
        "faults": faults,
        "violations": sums.failed,
    })
}

fn say(line: &str) {
    // Nobody to tell is no reason to stop.
    let _told = writeln!(std::io::stdout(), "{line}");
}
