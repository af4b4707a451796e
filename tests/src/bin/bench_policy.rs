//! Answers of policies: times that `policy-cli`'s benchmark measured, with their targets. And pages
//! of `bellows web` about many VMs.
//!
//! Only `policy/engine` links the interpreter, so its times come from a program of their own.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context as _, Result};
use bellows_tests::figures::{Benchmark, Figure, Machine, Output, percentile};
use bellows_tests::web::site_of;
use clap::Parser;

/// Figures with a target, microseconds or [`MIB`]: the rows of SPECIFICATION.md about policies.
const TARGETS: [(&str, f64); 7] = [
    ("answer_p50", 15.0),
    ("answer_p99", 60.0),
    ("round_trip_p50", 200.0),
    ("stuck_loop", 10_000.0),
    ("period_500_vms_p50", 60_000.0),
    ("worker_resident_mib", 48.0),
    ("whatif_question", 50.0),
];
/// End of the names of figures in MiB.
const MIB: &str = "_mib";

/// VMs of the list whose time is taken.
const VMS: usize = 1_000;
/// Times that the list is read.
const READS: usize = 50;
/// Longest time from the request for the list to its end, microseconds.
const PAGE_TARGET: f64 = 50_000.0;

/// Shows what an answer of a policy takes.
#[derive(Parser)]
struct Cli {
    /// What was measured before: `{"NAME":NUMBER,…}`
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
        let unit = if name.ends_with(MIB) { "MiB" } else { "us" };
        Figure::lower(name, value, unit, target.map(|(_, most)| *most))
    });
    let mut figures: Vec<Figure> = figures.collect();
    figures.push(tokio::runtime::Runtime::new()?.block_on(page())?);
    Benchmark {
        bench: "policy".into(),
        machine: Machine::here("none")?,
        figures,
    }
    .finish(&cli.output)
}

/// Time of the list of VMs, a connection for each.
async fn page() -> Result<Figure> {
    let (_site, web) = site_of(VMS).await?;
    let mut times = Vec::new();
    for _ in 0..READS {
        let begun = Instant::now();
        web.get("/vms").await?;
        times.push(begun.elapsed().as_secs_f64() * 1e6);
    }
    let median = percentile(&times, 50);
    let figure = Figure::lower("web_list_p50", median, "us", Some(PAGE_TARGET));
    Ok(figure.made_of(&times))
}
