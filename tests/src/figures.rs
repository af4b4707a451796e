//! The one shape of figures every benchmark prints and writes.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::Args;
use serde::{Deserialize, Serialize};

/// Options that every benchmark has for its result.
#[derive(Debug, Clone, Default, Args)]
pub struct Output {
    /// Write the figures to FILE
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Exit with status 1 when a figure misses its target, and name such figures on stderr
    #[arg(long)]
    check: bool,
}

/// A benchmark's result: `{"bench":…,"machine":{…},"figures":[…]}`.
#[derive(Debug, Serialize)]
pub struct Benchmark {
    /// Name of the benchmark.
    pub bench: String,
    /// Machine that ran the benchmark.
    pub machine: Machine,
    /// Measured values, in the order in which they are printed.
    pub figures: Vec<Figure>,
}

/// Machine on which a figure was measured.
#[derive(Debug, Serialize)]
pub struct Machine {
    /// Processors that this process may use.
    pub cpus: usize,
    /// `MemTotal` in GiB, with one decimal.
    pub mem: f64,
    /// Release of the running kernel, as `uname -r` prints it.
    pub kernel: String,
    /// `kvm` or `tcg`, `none` where no guest runs.
    pub accel: String,
}

/// Better direction of a figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Better {
    /// Small values are better.
    Lower,
    /// Large values are better.
    Higher,
}

/// One measured value, with its target where it has one.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Figure {
    /// Name of the figure, the same from run to run, so that runs can be compared.
    pub name: String,
    /// Measured value, in `unit`.
    pub value: f64,
    /// Unit of value, target and samples; empty for a plain number.
    pub unit: String,
    /// The promise, if there is one.
    pub target: Option<f64>,
    /// Whether more or less is better.
    pub better: Better,
    /// Whether the promise holds; `null` without one.
    pub met: Option<bool>,
    /// Measurements behind the value, in order. Left out if they are not kept.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub samples: Vec<f64>,
}

impl Figure {
    /// A figure where less is better.
    #[must_use]
    pub fn lower(name: impl Into<String>, value: f64, unit: &str, target: Option<f64>) -> Self {
        Self::new(name, value, unit, target, Better::Lower)
    }

    /// A figure where more is better.
    #[must_use]
    pub fn higher(name: impl Into<String>, value: f64, unit: &str, target: Option<f64>) -> Self {
        Self::new(name, value, unit, target, Better::Higher)
    }

    fn new(
        name: impl Into<String>,
        value: f64,
        unit: &str,
        target: Option<f64>,
        better: Better,
    ) -> Self {
        let met = target.map(|target| match better {
            Better::Lower => value <= target,
            Better::Higher => value >= target,
        });
        Self {
            name: name.into(),
            value,
            unit: unit.into(),
            target,
            better,
            met,
            samples: Vec::new(),
        }
    }

    /// Adds the measurements behind the value, so that several runs can be combined.
    #[must_use]
    pub fn made_of(self, samples: &[f64]) -> Self {
        Self {
            samples: samples.to_vec(),
            ..self
        }
    }
}

impl Machine {
    /// This machine.
    ///
    /// # Errors
    /// When `/proc` cannot be read.
    pub fn here(accel: &str) -> Result<Self> {
        let meminfo = std::fs::read_to_string("/proc/meminfo")?;
        let kib: f64 = meminfo
            .lines()
            .find_map(|line| {
                line.strip_prefix("MemTotal:")?
                    .split_whitespace()
                    .next()?
                    .parse()
                    .ok()
            })
            .unwrap_or(0.0);
        Ok(Self {
            cpus: std::thread::available_parallelism()?.get(),
            mem: (kib / f64::from(1 << 20) * 10.0).round() / 10.0,
            kernel: std::fs::read_to_string("/proc/sys/kernel/osrelease")?
                .trim()
                .to_owned(),
            accel: accel.to_owned(),
        })
    }
}

impl Figure {
    /// The line that names this figure when it misses its target.
    fn miss(&self) -> Option<String> {
        let target = self.target.filter(|_| self.met == Some(false))?;
        let bound = match self.better {
            Better::Lower => "at most",
            Better::Higher => "at least",
        };
        let Self {
            name, value, unit, ..
        } = self;
        let space = if unit.is_empty() { "" } else { " " };
        Some(format!(
            "missed: {name}, {value:.2}{space}{unit}, target {bound} {target:.2}{space}{unit}"
        ))
    }
}

impl Benchmark {
    /// Prints the table and writes the requested file. The exit status is 1 if the figures are
    /// checked and one misses its target, else 0.
    ///
    /// # Errors
    ///
    /// If the file cannot be written.
    pub fn finish(&self, output: &Output) -> Result<ExitCode> {
        self.print();
        if let Some(file) = &output.json {
            std::fs::write(file, serde_json::to_string_pretty(self)?)
                .with_context(|| format!("failed to write figures to {}", file.display()))?;
        }
        let misses: Vec<String> = self.figures.iter().filter_map(Figure::miss).collect();
        if !output.check || misses.is_empty() {
            return Ok(ExitCode::SUCCESS);
        }
        for miss in misses {
            eprintln!("{miss}");
        }
        Ok(ExitCode::FAILURE)
    }

    #[expect(clippy::print_stdout, reason = "the table is what a person asked for")]
    fn print(&self) {
        println!(
            "{} on {} CPUs, {} GiB, kernel {}, {}",
            self.bench,
            self.machine.cpus,
            self.machine.mem,
            self.machine.kernel,
            self.machine.accel
        );
        println!(
            "{:<34} {:>12} {:<6} {:>10}  met",
            "figure", "value", "unit", "target"
        );
        for figure in &self.figures {
            let target = figure
                .target
                .map_or_else(|| "-".into(), |target| format!("{target:.2}"));
            let met = match figure.met {
                Some(true) => "yes",
                Some(false) => "NO",
                None => "-",
            };
            println!(
                "{:<34} {:>12.2} {:<6} {:>10}  {met}",
                figure.name, figure.value, figure.unit, target
            );
        }
    }
}

/// Smallest, median and largest of some measurements; zeros of none.
#[must_use]
pub fn spread(values: &[f64]) -> (f64, f64, f64) {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let Some((first, last)) = sorted.first().zip(sorted.last()) else {
        return (0.0, 0.0, 0.0);
    };
    (*first, sorted[sorted.len() / 2], *last)
}

/// By how much the median of some measurements may be off, as a part of it: half of the distance
/// between the ranks a root of their number below and above it. In 19 of 20 samples this interval
/// holds the median of the whole distribution, whatever its shape. Zero of none.
#[must_use]
pub fn median_error(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let (middle, reach) = (sorted.len() / 2, sorted.len().isqrt());
    let low = sorted.get(middle.saturating_sub(reach));
    let high = sorted.get(middle + reach).or(sorted.last());
    low.zip(high)
        .map_or(0.0, |(low, high)| (high - low) / 2.0 / sorted[middle])
}

/// The value that `percent` of a hundred measurements do not exceed (nearest rank); zero of none.
#[must_use]
pub fn percentile(values: &[f64], percent: usize) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spread_is_min_median_max() {
        assert_eq!(spread(&[3.0, 1.0, 2.0]), (1.0, 2.0, 3.0));
        assert_eq!(spread(&[]), (0.0, 0.0, 0.0));
    }

    #[test]
    fn percentiles_are_nearest_ranks() {
        let values: Vec<f64> = (1..=200).rev().map(f64::from).collect();
        assert_eq!(percentile(&values, 50), 100.0);
        assert_eq!(percentile(&values, 99), 198.0);
        assert_eq!(percentile(&values, 1), 2.0);
        assert_eq!(percentile(&[7.0], 1), 7.0);
        assert_eq!(percentile(&[], 50), 0.0);
    }

    #[test]
    fn a_median_is_the_surer_the_more_was_measured() {
        // Ranks 40 and 60 of a hundred, about 50.
        let hundred: Vec<f64> = (0..100).map(f64::from).collect();
        assert_eq!(median_error(&hundred), 10.0 / 50.0);
        let spread_alike: Vec<f64> = (0..10_000).map(|n| f64::from(n) / 100.0).collect();
        assert_eq!(median_error(&spread_alike), 1.0 / 50.0);
        // Few measurements give a width equal to their spread.
        assert_eq!(median_error(&[1.0, 2.0, 3.0]), 0.5);
        assert_eq!(median_error(&[7.0]), 0.0);
        assert_eq!(median_error(&[]), 0.0);
    }

    #[test]
    fn figure_is_held_against_its_target() {
        assert_eq!(Figure::lower("x", 2.0, "ms", Some(1.0)).met, Some(false));
        assert_eq!(Figure::lower("x", 1.0, "ms", Some(1.0)).met, Some(true));
        assert_eq!(Figure::lower("x", 1.0, "ms", None).met, None);
        assert_eq!(Figure::higher("x", 2.0, "1/s", Some(1.0)).met, Some(true));
        assert_eq!(Figure::higher("x", 0.5, "1/s", Some(1.0)).met, Some(false));
        assert_eq!(Figure::higher("x", 2.0, "1/s", None).met, None);
    }

    #[test]
    fn value_that_is_no_number_misses_its_target() {
        let ratio = Figure::lower("x", f64::NAN, "x", Some(1.2));
        assert_eq!(ratio.met, Some(false));
        let rate = Figure::higher("x", f64::NAN, "1/s", Some(1.0));
        assert_eq!(rate.met, Some(false));
    }

    #[test]
    fn missed_figure_is_named_with_value_and_target() {
        let slow = Figure::lower("reply_p99", 2.5, "ms", Some(1.0)).miss();
        let line = "missed: reply_p99, 2.50 ms, target at most 1.00 ms";
        assert_eq!(slow.as_deref(), Some(line));
        let few = Figure::higher("kept", 0.0, "", Some(3.0)).miss();
        let line = "missed: kept, 0.00, target at least 3.00";
        assert_eq!(few.as_deref(), Some(line));
        assert_eq!(Figure::lower("x", 1.0, "ms", Some(1.0)).miss(), None);
        assert_eq!(Figure::lower("x", 9.0, "ms", None).miss(), None);
    }
}
