//! Rollouts of the fleet: what `fleet`'s benchmark measured, with targets.

use std::collections::BTreeMap;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use bellows_tests::figures::{Benchmark, Figure, Machine, Output};
use clap::Parser;

/// Name, unit and most of each figure: the rows of SPECIFICATION.md about rollouts.
const FIGURES: [(&str, &str, Option<f64>); 11] = [
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

/// Shows what a rollout takes.
#[derive(Parser)]
struct Cli {
    /// What was measured before: `{"NAME":VALUE,…}`
    #[arg(long, value_name = "JSON")]
    measured: String,
    /// Of no use here: a rollout is measured once
    #[arg(long, hide = true)]
    repeats: Option<usize>,
    #[command(flatten)]
    output: Output,
}

fn main() -> Result<ExitCode> {
    let cli = Cli::parse();
    let measured: BTreeMap<String, f64> =
        serde_json::from_str(&cli.measured).context("figures of rollouts")?;
    let figure = |(name, unit, most): (&str, &str, Option<f64>)| {
        let value = measured
            .get(name)
            .with_context(|| format!("{name} is missing"))?;
        Ok(Figure::lower(name, *value, unit, most))
    };
    Benchmark {
        bench: "fleet".into(),
        machine: Machine::here("none")?,
        figures: FIGURES.into_iter().map(figure).collect::<Result<_>>()?,
    }
    .finish(&cli.output)
}
