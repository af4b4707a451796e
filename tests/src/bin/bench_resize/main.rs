//! Time from a patch of the VM object until the guest sees the size, compared with raw QMP on the
//! same guest in the same run.
//!
//! Each repeat does the step once through the object and once by hand over QMP, in turn, so that
//! changes of the machine's speed affect both. During the step by hand the VM's runner is stopped
//! (SIGSTOP), because it would restore its own size. The guest's daemon reports the visible size:
//! CPUs online and MemTotal.
//!
//! The first step in a guest's life is slow, because the kernel allocates structures. Each pair of
//! steps is therefore done once by hand before it is measured. The time of that is reported, too.
//!
//! With `--cluster` the guest is in a pod of a real cluster, and the patch goes through a real API
//! server to the deployed components. The main thread is then on the nodes' network.
//!
//! A visible CPU is usable once QEMU's quota grants its time. That is reported as "usable".
//!
//! The report breaks the time down: the API's response to the patch, the stages that the components
//! recorded, and, with `--costs`, the CPU time of each program of the machine, which shares
//! processors with the guest.

mod environment;
mod progress;
mod quota;
mod rig;
mod steps;
mod stopped;

use std::collections::BTreeSet;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use bellows_tests::figures::{
    Benchmark, Figure, Machine, Output, median_error, percentile, spread,
};
use clap::Parser;
use nix::unistd::Pid;

use environment::Environment;
use progress::Progress;
use rig::{Rig, STAMPED, Took};
use steps::{STEPS, Step, Which};
use stopped::{Stopped, catch_signals};

/// Target of the ratio to raw QMP, of medians.
const RATIO_TARGET: f64 = 1.2;
/// Target of the difference between the slowest resizes and the slowest by raw QMP, in ms at the
/// 99th percentile.
const EXCESS_TARGET_MS: f64 = 100.0;

/// CPU time of a program below which it is not reported, in ms per step.
const WORTH_TELLING_MS: f64 = 0.5;

/// Times a resize from the patch until the guest sees it, beside raw QMP.
#[derive(Parser)]
struct Cli {
    /// Repeats of each measurement
    #[arg(long, default_value_t = 20)]
    repeats: u32,
    /// Measure these steps only (all when none is named)
    #[arg(long, value_enum, value_name = "STEPS", value_delimiter = ',')]
    steps: Vec<Which>,
    /// In a cluster of one node, not under `bellows up`; needs root
    #[arg(long)]
    cluster: bool,
    /// Measure what each program works meanwhile, which costs each step some milliseconds
    #[arg(long)]
    costs: bool,
    /// Stop this process as a runner is stopped, and wait: for a test of what signals leave behind
    #[arg(long, value_name = "PID", hide = true,
        value_parser = clap::value_parser!(i32).range(2..))]
    hold: Option<i32>,
    #[command(flatten)]
    output: Output,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<ExitCode> {
    let cli = Cli::parse();
    let interrupted = catch_signals()?;
    // On a signal the dropped values continue a stopped runner and end the guests.
    tokio::select! {
        status = run(&cli) => status,
        status = interrupted => {
            let status = status.context("signals are no longer received")?;
            eprintln!("interrupted");
            Ok(ExitCode::from(status))
        }
    }
}

async fn run(cli: &Cli) -> Result<ExitCode> {
    if let Some(process) = cli.hold {
        return hold(process).await;
    }
    let progress = Progress::start()?;
    progress.step("start the parts and boot a guest");
    let environment = if cli.cluster {
        Environment::cluster().await?
    } else {
        Environment::machine().await?
    };
    let mut rig = Rig::new(environment, cli.costs).await?;
    let mut figures = Vec::new();
    for (which, pair) in &STEPS {
        if cli.steps.is_empty() || cli.steps.contains(which) {
            figures.extend(pair_figures(&mut rig, &progress, pair, cli.repeats).await?);
        }
    }
    let bench = Benchmark {
        bench: rig.bench().into(),
        machine: Machine::here(&rig.accel)?,
        figures,
    };
    bench.finish(&cli.output)
}

/// Holds a process still until a signal ends this program.
#[expect(clippy::print_stdout, reason = "the test waits for this line")]
async fn hold(process: i32) -> Result<ExitCode> {
    let _stopped = Stopped::of(Pid::from_raw(process))?;
    println!("stopped");
    std::future::pending().await
}

/// Both ways of both steps of a pair, in turn.
async fn pair_figures(
    rig: &mut Rig,
    progress: &Progress,
    (up, down): &'static (Step, Step),
    repeats: u32,
) -> Result<Vec<Figure>> {
    let mut ours = (Vec::new(), Vec::new());
    let mut raw = (Vec::new(), Vec::new());
    let mut first = (Vec::new(), Vec::new());
    for repeat in 1..=repeats {
        let step = |what: &str| progress.step(format!("repeat {repeat} of {repeats}: {what}"));
        step(&format!("a guest that can make {}", up.name));
        if let Some((grow, shrink)) = rig.be_ready(up, down).await? {
            first.0.push(grow);
            first.1.push(shrink);
        }
        step(&format!("{} by the object", up.name));
        ours.0.push(rig.by_object(up).await?);
        step(&format!("{} by the object", down.name));
        ours.1.push(rig.by_object(down).await?);
        step(&format!("{} and {} by raw QMP", up.name, down.name));
        let (grow, shrink) = rig.by_hand(up, down).await?;
        raw.0.push(grow);
        raw.1.push(shrink);
    }
    let mut figures = figures_of(up.name, &ours.0, &raw.0, &first.0);
    figures.extend(figures_of(down.name, &ours.1, &raw.1, &first.1));
    Ok(figures)
}

/// Standard error of the ratio. These times vary so much that twenty of them cannot tell 1.1 from
/// 1.2.
fn ratio_error(name: &str, ratio: f64, ours: &[f64], raw: &[f64]) -> Figure {
    let error = ratio * median_error(ours).hypot(median_error(raw));
    Figure::lower(format!("{name}_ratio_error"), error, "x", None)
}

fn figures_of(name: &str, ours: &[Took], raw: &[f64], first: &[f64]) -> Vec<Figure> {
    let whole: Vec<f64> = ours.iter().map(|took| took.visible_ms).collect();
    let (min, median, max) = spread(&whole);
    let (raw_min, raw_median, raw_max) = spread(raw);
    let ratio = median / raw_median;
    let ms = |what: &str, value| Figure::lower(format!("{name}_{what}"), value, "ms", None);
    let mut figures = vec![
        ms("ms_min", min),
        ms("ms_median", median).made_of(&whole),
        ms("ms_max", max),
        ms("raw_ms_min", raw_min),
        ms("raw_ms_median", raw_median).made_of(raw),
        ms("raw_ms_max", raw_max),
        ms("raw_first_ms_median", spread(first).1),
    ];
    let usable: Vec<f64> = ours.iter().map(|took| took.usable_ms).collect();
    figures.push(ms("usable_ms_median", spread(&usable).1).made_of(&usable));
    let answered: Vec<f64> = ours.iter().map(|took| took.answered_ms).collect();
    figures.push(ms("answer_ms_median", spread(&answered).1).made_of(&answered));
    let programs: BTreeSet<&String> = ours.iter().flat_map(|took| took.worked_ms.keys()).collect();
    for program in programs {
        let worked = ours.iter().filter_map(|took| took.worked_ms.get(program));
        let mean = worked.sum::<f64>() / ours.len() as f64;
        if mean >= WORTH_TELLING_MS {
            figures.push(ms(&format!("{program}_worked_ms_mean"), mean));
        }
    }
    for (index, (stage, _)) in STAMPED.iter().enumerate() {
        let stamped: Vec<f64> = ours.iter().filter_map(|took| took.stages[index]).collect();
        if !stamped.is_empty() {
            figures.push(ms(&format!("{stage}_ms_median"), spread(&stamped).1));
        }
    }
    figures.push(Figure::lower(
        format!("{name}_ratio"),
        ratio,
        "x",
        Some(RATIO_TARGET),
    ));
    figures.push(ratio_error(name, ratio, &whole, raw));
    figures.push(Figure::lower(
        format!("{name}_p99_excess_ms"),
        percentile(&whole, 99) - percentile(raw, 99),
        "ms",
        Some(EXCESS_TARGET_MS),
    ));
    figures
}
