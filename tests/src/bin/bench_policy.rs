//! Answers of policies: times that `policy-cli`'s benchmark measured, with their targets.
//!
//! Only `policy/engine` links the interpreter, so its times come from a program of their own.

use std::collections::BTreeMap;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use bellows_tests::figures::{Benchmark, Figure, Machine, Output};
use clap::Parser;

/// Figures with a target, microseconds: the first rows of SPECIFICATION.md about policies.
const TARGETS: [(&str, f64); 4] = [
    ("answer_p50", 15.0),
    ("answer_p99", 60.0),
    ("round_trip_p50", 200.0),
    ("stuck_loop", 10_000.0),
];

/// Shows what an answer of a policy takes.
#[derive(Parser)]
struct Cli {
    /// What was measured before: `{"NAME":MICROSECONDS,…}`
    #[arg(long, value_name = "JSON")]
    measured: String,
    /// Of no use here: each time is of thousands of calls
    #[arg(long, hide = true)]
    repeats: Option<usize>,
    #[command(flatten)]
    output: Output,
}

fn main() -> Result<ExitCode> {
    let cli = Cli::parse();
    let measured: BTreeMap<String, f64> =
        serde_json::from_str(&cli.measured).context("times of answers")?;
    let figures = measured.into_iter().map(|(name, value)| {
        let target = TARGETS.iter().find(|(figure, _)| *figure == name);
        Figure::lower(name, value, "us", target.map(|(_, most)| *most))
    });
    Benchmark {
        bench: "policy".into(),
        machine: Machine::here("none")?,
        figures: figures.collect(),
    }
    .finish(&cli.output)
}
