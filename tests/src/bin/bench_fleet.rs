//! Rollouts of the fleet: what `fleet`'s benchmark measured, with targets.

use std::collections::BTreeMap;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use bellows_tests::figures::{Benchmark, Figure, Machine, Output};
use clap::Parser;

/// Name, unit and most of each figure: the rows of SPECIFICATION.md about rollouts.
const TARGETS: [(&str, &str, f64); 5] = [
    ("engine_guest_us", "us", 40.0),
    ("engine_idle_guest_minute_us", "us", 20.0),
    ("rollout_s", "s", 600.0),
    ("writes_per_guest", "writes", 4.0),
    ("idle_writes", "writes", 0.0),
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
    let figure = |(name, unit, most): (&str, &str, f64)| {
        let value = measured
            .get(name)
            .with_context(|| format!("{name} is missing"))?;
        Ok(Figure::lower(name, *value, unit, Some(most)))
    };
    Benchmark {
        bench: "fleet".into(),
        machine: Machine::here("none")?,
        figures: TARGETS.into_iter().map(figure).collect::<Result<_>>()?,
    }
    .finish(&cli.output)
}
