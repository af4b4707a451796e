//! The figures that a benchmark wrote.

use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use serde::Deserialize;
use serde_json::Value;

/// The JSON of one benchmark.
#[derive(Debug)]
pub(super) struct Report {
    bench: String,
    pub(super) figures: Vec<Figure>,
    /// The whole document.
    pub(super) whole: Value,
}

/// A figure, as far as its target is concerned.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Figure {
    pub(super) name: String,
    /// `None` if it is not a number.
    pub(super) value: Option<f64>,
    pub(super) unit: String,
    pub(super) target: Option<f64>,
    /// Side of the target on which values meet it.
    pub(super) better: Option<Better>,
    pub(super) met: Option<bool>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Better {
    Lower,
    Higher,
}

/// Machine that ran a benchmark.
#[derive(Debug, Deserialize)]
pub(super) struct Machine {
    pub(super) cpus: usize,
    /// Memory in GiB.
    pub(super) mem: f64,
    pub(super) kernel: String,
    /// `kvm` or `tcg`, `none` where no guest runs.
    pub(super) accel: String,
}

impl Report {
    pub(super) fn read(file: &Path) -> Result<Self> {
        Self::parse(&std::fs::read_to_string(file)?)
    }

    pub(super) fn parse(text: &str) -> Result<Self> {
        let whole: Value = serde_json::from_str(text)?;
        let figures = whole.get("figures").context("no figures")?;
        Ok(Self {
            bench: whole["bench"].as_str().context("no name")?.to_owned(),
            figures: Vec::deserialize(figures)?,
            whole,
        })
    }

    pub(super) fn write(&self, file: &Path) -> Result<()> {
        std::fs::write(file, serde_json::to_string_pretty(&self.whole)?)
            .with_context(|| format!("failed to write figures to {}", file.display()))
    }

    pub(super) fn machine(&self) -> Result<Machine> {
        Ok(Machine::deserialize(&self.whole["machine"])?)
    }

    /// The figures that have a target.
    pub(super) fn with_target(&self) -> impl Iterator<Item = &Figure> {
        self.figures.iter().filter(|figure| figure.target.is_some())
    }

    /// The figures that miss their targets.
    pub(super) fn missed(&self) -> impl Iterator<Item = &Figure> {
        self.with_target().filter(|figure| !figure.is_met())
    }

    /// An error of one line when a figure misses its target.
    pub(super) fn check(&self) -> Result<()> {
        let missed: Vec<&str> = self.missed().map(|figure| figure.name.as_str()).collect();
        ensure!(
            missed.is_empty(),
            "benchmark {} missed {} of {} targets: {}",
            self.bench,
            missed.len(),
            self.with_target().count(),
            missed.join(", ")
        );
        Ok(())
    }
}

impl Figure {
    pub(super) fn is_met(&self) -> bool {
        self.met == Some(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(figures: &str) -> Report {
        let text = format!(r#"{{"bench":"monitor","figures":[{figures}]}}"#);
        Report::parse(&text).expect("a report")
    }

    #[test]
    fn missed_targets_fail_in_one_line() {
        let report = report(
            r#"{"name":"a","value":1,"unit":"ms","target":2,"met":true},
               {"name":"b","value":3,"unit":"ms","target":2,"met":false},
               {"name":"c","value":null,"unit":"","target":2,"met":false},
               {"name":"d","value":9,"unit":"ms","target":null,"met":null}"#,
        );
        let error = report.check().expect_err("two are missed").to_string();
        assert_eq!(error, "benchmark monitor missed 2 of 3 targets: b, c");
    }

    #[test]
    fn met_targets_and_figures_without_one_pass() {
        let met = r#"{"name":"a","value":1,"unit":"ms","target":2,"met":true}"#;
        report(met).check().expect("met");
        let untargeted = r#"{"name":"d","value":9,"unit":"ms","target":null,"met":null}"#;
        report(untargeted).check().expect("no target");
    }

    #[test]
    fn text_without_figures_is_no_report() {
        assert!(Report::parse(r#"{"bench":"monitor"}"#).is_err());
        assert!(Report::parse("").is_err());
    }
}
