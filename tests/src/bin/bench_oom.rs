//! Programs that misuse memory in a real guest while its node has free memory: killed processes,
//! reached rates, and requests of the monitor.

use std::process::ExitCode;

use anyhow::{Context as _, Result, ensure};
use bellows_tests::figures::{Benchmark, Figure, Machine, Output, percentile, spread};
use bellows_tests::loads::{LOADS, Load, Rig, Run, VM};
use clap::Parser;

/// Runs programs that exhaust memory in a real guest, and counts those that are killed.
#[derive(Parser)]
struct Cli {
    /// Runs of each load
    #[arg(long, default_value_t = 50)]
    repeats: u32,
    /// Only these loads: flood, storm, leak, climb
    #[arg(long, value_delimiter = ',', value_name = "LOAD,LOAD,…", value_parser = load)]
    loads: Option<Vec<Load>>,
    #[command(flatten)]
    output: Output,
}

fn load(name: &str) -> Result<Load, String> {
    let found = LOADS.into_iter().find(|load| load.name() == name);
    found.ok_or_else(|| {
        let names = LOADS.map(Load::name).join(", ");
        format!("there is no such load: one of {names}")
    })
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<ExitCode> {
    let cli = Cli::parse();
    let rig = Rig::new().await?;
    let mut figures = Vec::new();
    let mut killed = 0;
    for load in cli.loads.clone().unwrap_or_else(|| LOADS.to_vec()) {
        let mut runs = Vec::new();
        for number in 1..=cli.repeats {
            let run = rig.run(load).await;
            let run = run.with_context(|| format!("{} {number}", load.name()))?;
            if run.oom_kills > 0 || run.done.is_none() {
                eprintln!("{} {number}: {run:?}", load.name());
            } else {
                eprintln!("{}", progress(load, number, cli.repeats, &run));
            }
            killed += run.oom_kills;
            runs.push(run);
        }
        figures.extend(figures_of(load, &runs));
    }
    let status = Benchmark {
        bench: "oom".into(),
        machine: Machine::here(&rig.site.runner(VM).await?.accel)?,
        figures,
    }
    .finish(&cli.output)?;
    ensure!(killed == 0, "{killed} tasks were killed for want of memory");
    Ok(status)
}

/// One line of progress about a run that went well.
fn progress(load: Load, number: u32, of: u32, run: &Run) -> String {
    let seconds = run.done.as_ref().map_or(0, |done| done.took_ms / 1000);
    format!(
        "{} {number} of {of}: {seconds} s, {} requests, {} MiB in swap",
        load.name(),
        run.requests,
        run.swapped >> 20
    )
}

#[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
fn figures_of(load: Load, runs: &[Run]) -> Vec<Figure> {
    let name = |what: &str| format!("{}_{what}", load.name());
    let sum = |value: fn(&Run) -> u64| runs.iter().map(value).sum::<u64>() as f64;
    let done = || runs.iter().filter_map(|run| run.done.as_ref());
    let failed = runs.len() - done().count();
    // Page cache alone is no reason to grow.
    let requests_target = (load == Load::Flood).then_some(0.0);
    let mut figures = vec![
        Figure::higher(name("runs"), runs.len() as f64, "", None),
        Figure::lower(name("oom_kills"), sum(|run| run.oom_kills), "", Some(0.0)),
        Figure::lower(name("failed"), failed as f64, "", Some(0.0)),
        Figure::lower(
            name("upscale_requests"),
            sum(|run| run.requests),
            "",
            requests_target,
        ),
    ];
    let rates = done().filter_map(|done| done.bytes_per_second);
    let rates: Vec<f64> = rates
        .map(|rate| rate as f64 / (1_u64 << 20) as f64)
        .collect();
    if !rates.is_empty() {
        let (least, median, most) = spread(&rates);
        for (what, value) in [("min", least), ("median", median), ("max", most)] {
            let name = name(&format!("mib_per_s_{what}"));
            figures.push(Figure::higher(name, value, "MiB/s", None));
        }
    }
    let waits: Vec<f64> = done()
        .filter_map(|done| done.slowest_mib_ms)
        .map(|ms| ms as f64)
        .collect();
    if !waits.is_empty() {
        let worst = percentile(&waits, 100);
        figures.push(Figure::lower(name("slowest_mib_ms_max"), worst, "ms", None));
    }
    let swapped = runs.iter().map(|run| run.swapped).max().unwrap_or(0);
    let swapped = swapped as f64 / (1_u64 << 20) as f64;
    figures.push(Figure::lower(name("swapped_mib_max"), swapped, "MiB", None));
    figures
}
