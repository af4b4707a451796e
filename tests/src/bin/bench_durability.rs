//! Kills everything under a writing database, many times: how many acknowledged transactions were
//! lost, and how soon the database answered again.

use std::process::ExitCode;

use anyhow::{Context as _, Result, ensure};
use bellows_tests::durability::{Rig, Run, VM};
use bellows_tests::figures::{Benchmark, Figure, Machine, Output, spread};
use clap::Parser;

/// Kills everything under a writing database, and counts lost transactions.
#[derive(Parser)]
struct Cli {
    /// Times that everything is killed
    #[arg(long, default_value_t = 50)]
    repeats: u32,
    #[command(flatten)]
    output: Output,
}

#[tokio::main]
async fn main() -> Result<ExitCode> {
    let cli = Cli::parse();
    let mut rig = Rig::new().await?;
    let mut runs = Vec::new();
    for number in 1..=cli.repeats {
        let run = rig
            .run(number)
            .await
            .with_context(|| format!("run {number}"))?;
        eprintln!("{number} of {}: {run:?}", cli.repeats);
        runs.push(run);
    }
    let status = Benchmark {
        bench: "durability".into(),
        machine: Machine::here(&rig.site.runner(VM).await?.accel)?,
        figures: figures(&runs),
    }
    .finish(&cli.output)?;
    let lost = runs.iter().map(|run| run.lost).max().unwrap_or(0);
    ensure!(lost == 0, "{lost} acknowledged transactions were lost");
    Ok(status)
}

#[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
fn figures(runs: &[Run]) -> Vec<Figure> {
    let back: Vec<f64> = runs
        .iter()
        .map(|run| run.back_after.as_secs_f64())
        .collect();
    let (_, median, most) = spread(&back);
    let acknowledged: usize = runs.iter().map(|run| run.acknowledged).sum();
    let lost = runs.iter().map(|run| run.lost).max().unwrap_or(0);
    let reboots = runs.iter().filter(|run| run.rebooted).count();
    vec![
        Figure::higher("runs", runs.len() as f64, "", None),
        Figure::higher("runs_without_run_directories", reboots as f64, "", None),
        Figure::higher("acknowledged", acknowledged as f64, "", None),
        Figure::lower("lost", lost as f64, "", Some(0.0)),
        Figure::lower("back_s_median", median, "s", None).made_of(&back),
        Figure::lower("back_s_max", most, "s", None),
    ]
}
