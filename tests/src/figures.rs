//! The one shape of figures every benchmark prints and writes.

use std::path::Path;

use anyhow::Result;
use serde::Serialize;

/// A benchmark's result: `{"bench":…,"machine":{…},"figures":[…]}`.
#[derive(Debug, Serialize)]
pub struct Bench {
    /// Name of the benchmark.
    pub bench: String,
    /// Where it ran.
    pub machine: Machine,
    /// What was measured.
    pub figures: Vec<Figure>,
}

/// The machine a figure was taken on.
#[derive(Debug, Serialize)]
pub struct Machine {
    /// Processors.
    pub cpus: usize,
    /// Memory, GiB.
    pub mem: f64,
    /// Kernel release.
    pub kernel: String,
    /// `kvm` or `tcg`.
    pub accel: String,
}

/// Which way is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Better {
    /// Smaller is better.
    Lower,
    /// Larger is better.
    Higher,
}

/// One figure.
#[derive(Debug, Clone, Serialize)]
pub struct Figure {
    /// Name, stable.
    pub name: String,
    /// Value.
    pub value: f64,
    /// Unit.
    pub unit: String,
    /// The promise, if there is one.
    pub target: Option<f64>,
    /// Which way is better.
    pub better: Better,
    /// Whether the promise holds; `null` without one.
    pub met: Option<bool>,
}

impl Figure {
    /// A figure where less is better.
    #[must_use]
    pub fn lower(name: impl Into<String>, value: f64, unit: &str, target: Option<f64>) -> Self {
        let met = target.map(|target| value <= target);
        Self {
            name: name.into(),
            value,
            unit: unit.into(),
            target,
            better: Better::Lower,
            met,
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

impl Bench {
    /// Prints the table, and writes the JSON if a file is given.
    ///
    /// # Errors
    /// When the file cannot be written.
    #[expect(clippy::print_stdout, reason = "the table is what a person asked for")]
    pub fn show(&self, json: Option<&Path>) -> Result<()> {
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
        if let Some(file) = json {
            std::fs::write(file, serde_json::to_string_pretty(self)?)?;
        }
        Ok(())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spread_is_min_median_max() {
        assert_eq!(spread(&[3.0, 1.0, 2.0]), (1.0, 2.0, 3.0));
        assert_eq!(spread(&[]), (0.0, 0.0, 0.0));
    }

    #[test]
    fn a_missed_target_is_told() {
        assert_eq!(Figure::lower("x", 2.0, "ms", Some(1.0)).met, Some(false));
        assert_eq!(Figure::lower("x", 1.0, "ms", Some(1.0)).met, Some(true));
        assert_eq!(Figure::lower("x", 1.0, "ms", None).met, None);
    }
}
