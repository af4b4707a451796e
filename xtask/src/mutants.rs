//! `cargo xtask mutants`: plants faults in the cores, one at a time, and counts those that the
//! tests catch.
//!
//! cargo-mutants makes the mutants. A seed draws a sample of them. Each mutant is built and tested
//! in a copy of the checkout, so the checkout itself never changes. A mutant that survives shows
//! code that no test holds, unless `explained.txt` says why it is harmless.

mod cores;
mod explained;
mod list;
mod outcomes;
mod report;
#[cfg(test)]
mod tests;
mod workplace;

use std::hash::{BuildHasher as _, RandomState};
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context as _, Result};
use clap::Args;

use self::cores::Core;
use self::explained::Explained;
use self::list::Mutant;
use self::outcomes::MutantResult;
use self::report::Report;
use self::workplace::Workplace;
use crate::{setup, shell};

/// Where reasons for harmless mutants are kept.
const EXPLAINED: &str = "xtask/src/mutants/explained.txt";

/// Options of `mutants`.
#[derive(Args)]
pub(crate) struct Options {
    /// Draws the same sample again, given the same code
    #[arg(long)]
    seed: Option<u64>,
    /// Number of mutants in the sample
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..))]
    count: u32,
    /// Cores to draw from: agent, scheduler, monitor, runner, controller, protocol, events; all by
    /// default
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    core: Vec<String>,
    /// Write the figures and the surviving mutants to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Fail when tests catch less than 95 % of the viable mutants
    #[arg(long)]
    check: bool,
}

/// Draws a sample, tests each mutant of it and shows what survives.
pub(crate) fn run(options: &Options) -> Result<()> {
    let chosen = cores::chosen(&options.core)?;
    setup::ensure(setup::Need::Build)?;
    let workplace = Workplace::prepare()?;
    let all = workplace.list()?;
    let explained = Explained::read(&shell::root().join(EXPLAINED))?.resolve(&all)?;
    let seed = options.seed.unwrap_or_else(fresh_seed);
    let of_chosen = |mutant: &&Mutant| chosen.iter().any(|core| core.holds(mutant));
    let pool: Vec<Mutant> = all.iter().filter(of_chosen).cloned().collect();
    let count = usize::try_from(options.count)?;
    let sample = list::draw(&pool, count, seed);
    let (drawn, of) = (sample.len(), pool.len());
    shell::say(&format!("    {drawn} of {of} mutants, --seed {seed}"));

    let mut report = Report::new(seed, of, explained);
    let began = Instant::now();
    for core in chosen {
        test_core(core, &sample, &workplace, began, &mut report)?;
    }
    shell::say(&report.text());
    if let Some(file) = &options.json {
        std::fs::write(file, report.json())
            .with_context(|| format!("failed to write figures to {}", file.display()))?;
    }
    if options.check {
        report.check()
    } else {
        Ok(())
    }
}

/// Tests the part of the sample that belongs to one core.
fn test_core(
    core: &Core,
    sample: &[Mutant],
    workplace: &Workplace,
    began: Instant,
    report: &mut Report,
) -> Result<()> {
    let mut alive: Vec<Mutant> = sample.iter().filter(|it| core.holds(it)).cloned().collect();
    for pass in 0..core.passes.len() {
        if alive.is_empty() {
            break;
        }
        shell::say(&format!(
            "==> {}: {} mutants, pass {} of {}",
            core.name,
            alive.len(),
            pass + 1,
            core.passes.len()
        ));
        let is_last = pass + 1 == core.passes.len();
        let mutants: Vec<&Mutant> = alive.iter().collect();
        let mut survivors = Vec::new();
        workplace.test(core, pass, &mutants, report.seed(), |result| {
            if result.verdict == MutantResult::Missed && !is_last {
                shell::say(&format!("    for the next pass: {}", result.mutant.name));
                survivors.push(result.mutant);
                return;
            }
            report.add(core.name, result);
            let progress = report.progress(sample.len(), began.elapsed());
            shell::say(&format!("    {progress}"));
        })?;
        alive = survivors;
    }
    Ok(())
}

/// Short enough to be typed again.
fn fresh_seed() -> u64 {
    RandomState::new().hash_one("mutants") % 1_000_000
}
