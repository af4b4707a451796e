//! `cargo xtask bench all`: every benchmark, one after the other, and one table at the end.

use std::fmt::Write as _;

use anyhow::{Context as _, Result, bail, ensure};
use clap::ValueEnum as _;
use serde_json::{Value, json};

use super::record::{Outcome, Part};
use super::report::{Figure, Report};
use super::{Name, Options, Ran, measure};
use crate::shell;

/// Result of one benchmark.
struct Entry {
    label: String,
    report: Option<Report>,
    /// Why there are no figures, or why they do not count.
    problem: Option<Problem>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Problem {
    /// The machine lacks something. Holds what.
    LeftOut(String),
    Failed(String),
}

/// Runs all of them. One that fails does not keep the others from running.
pub(super) fn run(options: &Options) -> Result<()> {
    ensure!(
        options.vms.is_none() && options.own.is_empty(),
        "options of a single benchmark do not go with `all`"
    );
    let dir = tempfile::tempdir()?;
    let run = options.begin_record()?;
    let names = Name::value_variants();
    let mut entries = Vec::new();
    for (index, name) in names.iter().enumerate() {
        let (number, of, label) = (index + 1, names.len(), name.label());
        shell::say(&format!("==> benchmark {number} of {of}: {label}"));
        let entry = match name.lacks() {
            Ok(Some(what)) => Entry::left_out(label, what),
            Ok(None) => Entry::of(label, measure(*name, options, dir.path()), options.check),
            Err(error) => Entry::of(label, Err(error), options.check),
        };
        if let Some(problem) = &entry.problem {
            shell::say(&format!("    {problem}"));
        }
        entries.push(entry);
    }
    shell::say(&table(&entries));
    if let Some(file) = &options.json {
        std::fs::write(file, serde_json::to_string_pretty(&whole(&entries))?)
            .with_context(|| format!("failed to write figures to {}", file.display()))?;
    }
    if let Some(run) = run {
        let parts: Vec<Part<'_>> = entries.iter().map(Entry::part).collect();
        run.record(&parts)?;
    }
    verdict(&entries, options.check)
}

impl Entry {
    fn left_out(label: String, what: &str) -> Self {
        Self {
            label,
            report: None,
            problem: Some(Problem::LeftOut(what.to_owned())),
        }
    }

    /// With `checked`, a missed target makes the program fail. It is not an additional problem.
    fn of(label: String, ran: Result<Ran>, checked: bool) -> Self {
        let (report, problem) = match ran {
            Ok(ran) => {
                let counts = ran.counts(checked);
                (ran.report, ran.ended.err().filter(|_| !counts))
            }
            Err(error) => (None, Some(error)),
        };
        Self {
            label,
            report,
            problem: problem.map(|error| Problem::Failed(format!("{error:#}"))),
        }
    }

    /// What is recorded of it.
    fn part(&self) -> Part<'_> {
        let outcome = match (&self.problem, &self.report) {
            (Some(Problem::LeftOut(reason)), _) => Outcome::LeftOut(reason),
            (None, Some(report)) => Outcome::Figures(report),
            _ => Outcome::Failed,
        };
        Part {
            label: &self.label,
            outcome,
        }
    }

    fn failure(&self) -> Option<&str> {
        match &self.problem {
            Some(Problem::Failed(reason)) => Some(reason),
            _ => None,
        }
    }

    fn missed(&self) -> usize {
        self.report
            .as_ref()
            .map_or(0, |report| report.missed().count())
    }
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::LeftOut(reason) => write!(f, "left out: {reason}"),
            Self::Failed(reason) => write!(f, "failed: {reason}"),
        }
    }
}

/// Table of all figures with a target, and of benchmarks without figures.
fn table(entries: &[Entry]) -> String {
    let mut rows = vec![["benchmark", "figure", "value", "target", "met"].map(str::to_owned)];
    for entry in entries {
        let figures = entry.report.iter().flat_map(Report::with_target);
        rows.extend(figures.map(|figure| row(&entry.label, figure)));
    }
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let [first, second, third, fourth] = [0, 1, 2, 3].map(|column| width(column).unwrap_or(0));
    let mut text = String::new();
    for [benchmark, figure, value, target, met] in &rows {
        let _infallible = writeln!(
            text,
            "{benchmark:<first$}  {figure:<second$}  {value:>third$}  {target:>fourth$}  {met}"
        );
    }
    for entry in entries {
        if let Some(problem) = &entry.problem {
            let _infallible = writeln!(text, "{:<first$}  {problem}", entry.label);
        }
    }
    text.trim_end().to_owned()
}

fn row(label: &str, figure: &Figure) -> [String; 5] {
    let number = |value: Option<f64>| match value {
        Some(value) => format!("{value:.2} {}", figure.unit).trim_end().to_owned(),
        None => "none".to_owned(),
    };
    [
        label.to_owned(),
        figure.name.clone(),
        number(figure.value),
        number(figure.target),
        if figure.is_met() { "met" } else { "MISSED" }.to_owned(),
    ]
}

/// All results as JSON.
fn whole(entries: &[Entry]) -> Value {
    let benches: Vec<&Value> = entries
        .iter()
        .filter_map(|entry| Some(&entry.report.as_ref()?.whole))
        .collect();
    let problems = |is_left_out: bool| -> Vec<Value> {
        let of = |entry: &Entry| {
            let (left_out, reason) = match entry.problem.as_ref()? {
                Problem::LeftOut(reason) => (true, reason),
                Problem::Failed(reason) => (false, reason),
            };
            (left_out == is_left_out).then(|| json!({"bench": entry.label, "reason": reason}))
        };
        entries.iter().filter_map(of).collect()
    };
    json!({"benches": benches, "failed": problems(false), "left_out": problems(true)})
}

/// An error of one line when a benchmark failed, or when targets are checked and one is missed.
fn verdict(entries: &[Entry], checked: bool) -> Result<()> {
    let failed = entries.iter().filter(|entry| entry.failure().is_some());
    let labels: Vec<&str> = failed.map(|entry| entry.label.as_str()).collect();
    let counted = entries.iter().filter(|_| checked);
    let missed: usize = counted.map(Entry::missed).sum();
    match (labels.is_empty(), missed) {
        (true, 0) => Ok(()),
        (true, missed) => bail!("targets missed: {missed}"),
        (false, 0) => bail!("benchmarks failed: {}", labels.join(", ")),
        (false, missed) => bail!(
            "targets missed: {missed}; benchmarks failed: {}",
            labels.join(", ")
        ),
    }
}

#[cfg(test)]
mod tests;
