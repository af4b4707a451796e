//! The one shape of figures, for benchmarks that run here and not in the black-box kit.

use std::path::Path;

use anyhow::Result;
use serde::Serialize;

use crate::shell;

/// A benchmark's result: `{"bench":…,"machine":{…},"figures":[…]}`.
#[derive(Serialize)]
pub(super) struct Bench {
    /// Name of the benchmark.
    pub(super) bench: String,
    /// Where it ran.
    pub(super) machine: Machine,
    /// What was measured.
    pub(super) figures: Vec<Figure>,
}

/// The machine a figure was taken on.
#[derive(Serialize)]
pub(super) struct Machine {
    cpus: usize,
    mem: f64,
    kernel: String,
    accel: String,
}

/// Which way is better.
#[derive(Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Better {
    Lower,
    Higher,
}

/// One figure.
#[derive(Serialize)]
pub(super) struct Figure {
    name: String,
    value: f64,
    unit: String,
    target: Option<f64>,
    better: Better,
    met: Option<bool>,
}

impl Figure {
    /// A figure where less is better.
    pub(super) fn lower(name: &str, value: f64, unit: &str, target: Option<f64>) -> Self {
        let met = target.map(|target| value <= target);
        Self::new(name, value, unit, target, (Better::Lower, met))
    }

    /// A figure where more is better.
    pub(super) fn higher(name: &str, value: f64, unit: &str, target: Option<f64>) -> Self {
        let met = target.map(|target| value >= target);
        Self::new(name, value, unit, target, (Better::Higher, met))
    }

    fn new(
        name: &str,
        value: f64,
        unit: &str,
        target: Option<f64>,
        (better, met): (Better, Option<bool>),
    ) -> Self {
        Self {
            name: name.to_owned(),
            value,
            unit: unit.to_owned(),
            target,
            better,
            met,
        }
    }
}

impl Machine {
    /// This machine; `accel` is `none` where no guest runs.
    pub(super) fn here(accel: &str) -> Result<Self> {
        let meminfo = std::fs::read_to_string("/proc/meminfo")?;
        let line = meminfo.lines().find_map(|l| l.strip_prefix("MemTotal:"));
        let kib = line.and_then(|line| line.split_whitespace().next());
        let kib: f64 = kib.and_then(|kib| kib.parse().ok()).unwrap_or(0.0);
        let release = std::fs::read_to_string("/proc/sys/kernel/osrelease")?;
        Ok(Self {
            cpus: std::thread::available_parallelism()?.get(),
            mem: (kib / f64::from(1 << 20) * 10.0).round() / 10.0,
            kernel: release.trim().to_owned(),
            accel: accel.to_owned(),
        })
    }
}

impl Bench {
    /// Prints the table, and writes the JSON if a file is given.
    pub(super) fn show(&self, json: Option<&Path>) -> Result<()> {
        let machine = &self.machine;
        shell::say(&format!(
            "{} on {} CPUs, {} GiB, kernel {}, accel {}",
            self.bench, machine.cpus, machine.mem, machine.kernel, machine.accel
        ));
        let (value, target) = ("value", "target");
        shell::say(&format!(
            "{:<34} {value:>12} {:<6} {target:>12}  met",
            "figure", "unit"
        ));
        for figure in &self.figures {
            let target = figure.target.map(|target| format!("{target:.2}"));
            let met = match figure.met {
                Some(true) => "yes",
                Some(false) => "NO",
                None => "-",
            };
            shell::say(&format!(
                "{:<34} {:>12.2} {:<6} {:>12}  {met}",
                figure.name,
                figure.value,
                figure.unit,
                target.as_deref().unwrap_or("-")
            ));
        }
        if let Some(file) = json {
            std::fs::write(file, serde_json::to_string_pretty(self)?)?;
        }
        Ok(())
    }
}

/// The value that `percent` of a hundred measurements do not exceed (nearest rank); zero of none.
pub(super) fn percentile(values: &[f64], percent: usize) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted.get(rank - 1).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn a_missed_target_is_told() {
        assert_eq!(Figure::lower("x", 2.0, "ms", Some(1.0)).met, Some(false));
        assert_eq!(Figure::higher("x", 2.0, "1/s", Some(1.0)).met, Some(true));
        assert_eq!(Figure::higher("x", 2.0, "1/s", None).met, None);
    }
}
