//! Policies: what the benchmarks of `policy-cli` and `sim` measured, with targets; what
//! `bench-agent` measures of an agent whose VMs have one; pages of `bellows web` about many VMs.
//!
//! Only `policy/engine` links the interpreter, so its times come from a program of their own.

use std::collections::BTreeMap;
use std::process::{Command, ExitCode};
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use bellows_tests::figures::{Benchmark, Better, Figure, Machine, Output, percentile};
use bellows_tests::web::site_of;
use clap::Parser;
use serde_json::Value;

/// Figures with a target: the rows of SPECIFICATION.md about policies.
const TARGETS: [(&str, f64, Better); 12] = [
    ("answer_p50", 15.0, Better::Lower),
    ("answer_p99", 60.0, Better::Lower),
    ("round_trip_p50", 200.0, Better::Lower),
    ("stuck_loop", 10_000.0, Better::Lower),
    ("period_500_vms_p50", 60_000.0, Better::Lower),
    ("worker_resident_mib", 48.0, Better::Lower),
    ("whatif_question", 50.0, Better::Lower),
    ("whatif_100_vms_day_s", 90.0, Better::Lower),
    ("whatif_samples_per_core_s", 20_000.0, Better::Higher),
    ("peers_16_join_known_s_p99", 10.0, Better::Lower),
    ("peers_16_death_known_s_p99", 15.0, Better::Lower),
    ("peers_16_next_plan_s_p99", 30.0, Better::Lower),
];
/// Units by the end or the middle of a name. Others are microseconds.
const UNITS: [(&str, &str); 4] = [
    ("_mib", "MiB"),
    ("_per_core_s", "1/s"),
    ("_s_p", "s"),
    ("_day_s", "s"),
];

/// VMs whose agent is measured.
const AGENT_VMS: &str = "500";

/// VMs of the list whose time is taken.
const VMS: usize = 1_000;
/// Times that the list is read.
const READS: usize = 50;
/// Longest time from the request for the list to its end, microseconds.
const PAGE_TARGET: f64 = 50_000.0;

/// Shows what policies take.
#[derive(Parser)]
struct Cli {
    /// What was measured before: `{"NAME":NUMBER,…}`; may be given again
    #[arg(long, value_name = "JSON")]
    measured: Vec<String>,
    /// Passed on to the benchmark of the agent
    #[arg(long, default_value_t = 20)]
    repeats: usize,
    /// Seconds of each window of the benchmark of the agent
    #[arg(long, default_value_t = 60)]
    window: u64,
    #[command(flatten)]
    output: Output,
}

fn main() -> Result<ExitCode> {
    let cli = Cli::parse();
    let mut figures = Vec::new();
    for measured in &cli.measured {
        let measured: BTreeMap<String, f64> =
            serde_json::from_str(measured).context("figures of an inner loop")?;
        figures.extend(measured.into_iter().map(figure));
    }
    figures.extend(of_agent(&cli)?);
    figures.push(tokio::runtime::Runtime::new()?.block_on(page())?);
    Benchmark {
        bench: "policy".into(),
        machine: Machine::here("none")?,
        figures,
    }
    .finish(&cli.output)
}

fn figure((name, value): (String, f64)) -> Figure {
    let unit = UNITS.iter().find(|(part, _)| name.contains(part));
    let unit = unit.map_or("us", |(_, unit)| unit);
    match TARGETS.iter().find(|(figure, ..)| *figure == name) {
        Some((_, least, Better::Higher)) => Figure::higher(name, value, unit, Some(*least)),
        Some((_, most, Better::Lower)) => Figure::lower(name, value, unit, Some(*most)),
        None => Figure::lower(name, value, unit, None),
    }
}

/// Figures of an agent whose VMs have a policy.
fn of_agent(cli: &Cli) -> Result<Vec<Figure>> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("agent.json");
    let program = std::env::current_exe()?.with_file_name("bench-agent");
    let (repeats, window) = (cli.repeats.to_string(), cli.window.to_string());
    let mut command = Command::new(program);
    command
        .args(["--policies", "--vms", AGENT_VMS])
        .args(["--repeats", &repeats, "--window", &window, "--json"])
        .arg(&file);
    ensure!(command.status()?.success(), "bench-agent has failed");
    let mut whole: Value = serde_json::from_str(&std::fs::read_to_string(&file)?)?;
    Ok(serde_json::from_value(whole["figures"].take())?)
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
