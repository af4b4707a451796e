//! The fleet's figures, with targets: rollouts that `fleet`'s benchmark measured, and changes of
//! the monitor in a real guest.

mod agent_log;
mod changes;
mod dials;
mod load;
mod returns;

use std::collections::BTreeMap;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use bellows_tests::figures::{Benchmark, Figure, Machine, Output};
use clap::{Parser, ValueEnum};

/// Name, unit and most of each figure: the rows of SPECIFICATION.md about rollouts.
const ROLLOUTS: [(&str, &str, Option<f64>); 11] = [
    ("engine_guest_us", "us", Some(40.0)),
    ("engine_idle_guest_minute_us", "us", Some(20.0)),
    ("rollout_s", "s", Some(600.0)),
    ("writes_per_guest", "writes", Some(4.0)),
    ("idle_writes", "writes", Some(0.0)),
    ("resident_peak_mib", "MiB", Some(64.0)),
    ("start_to_try_all_s", "s", None),
    ("start_to_try_s_p50", "s", None),
    ("start_to_try_s", "s", Some(1.0)),
    ("stop_to_last_try_s_p50", "s", None),
    ("stop_to_last_try_s", "s", Some(1.0)),
];

/// A part of the benchmark.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Rollouts to 10,000 played guests
    Rollout,
    /// Changes of the monitor in one real guest
    Exec,
}

/// Shows what a rollout takes, and changes the monitor of a real guest under pgbench.
#[derive(Parser)]
struct Cli {
    /// Leave out the other part
    #[arg(long, value_name = "PART")]
    only: Option<Part>,
    /// What was measured before: `{"NAME":VALUE,…}`
    #[arg(long, value_name = "JSON")]
    measured: Option<String>,
    /// Changes from one good monitor to another. Each takes about 10 s without KVM
    #[arg(long, value_name = "N", default_value_t = 100,
        value_parser = clap::value_parser!(u32).range(1..))]
    changes: u32,
    /// Bad monitors: N that crash, and N that do not. The two take about a minute
    #[arg(long, value_name = "N", default_value_t = 5,
        value_parser = clap::value_parser!(u32).range(1..))]
    bad: u32,
    /// Of no use here: a rollout is measured once, and changes have their own number
    #[arg(long, hide = true)]
    repeats: Option<usize>,
    #[command(flatten)]
    output: Output,
}

#[tokio::main]
async fn main() -> Result<ExitCode> {
    let cli = Cli::parse();
    let (mut figures, mut accel) = (Vec::new(), "none".to_owned());
    if cli.only != Some(Part::Exec) {
        figures.extend(rollouts(cli.measured.as_deref())?);
    }
    if cli.only != Some(Part::Rollout) {
        let mut rig = changes::Rig::boot().await?;
        accel = rig.accel().await?;
        figures.extend(rig.changes(cli.changes).await?);
        figures.extend(returns::returns(&mut rig, cli.bad).await?);
        figures.extend(rig.remains().await?);
    }
    Benchmark {
        bench: "fleet".into(),
        machine: Machine::here(&accel)?,
        figures,
    }
    .finish(&cli.output)
}

fn rollouts(measured: Option<&str>) -> Result<Vec<Figure>> {
    let measured = measured.context("--measured is missing: `cargo xtask bench fleet` gives it")?;
    let measured: BTreeMap<String, f64> =
        serde_json::from_str(measured).context("figures of rollouts")?;
    let figure = |(name, unit, most): (&str, &str, Option<f64>)| {
        let value = measured
            .get(name)
            .with_context(|| format!("{name} is missing"))?;
        Ok(Figure::lower(name, *value, unit, most))
    };
    ROLLOUTS.into_iter().map(figure).collect()
}
