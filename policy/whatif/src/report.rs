//! The report: the model's error first, then the figures.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::adviser::Questions;
use crate::columns::Columns;
use crate::tried::Tried;

/// Largest error with which a candidate is judged, percent.
const MAX_ERROR: f64 = 10.0;

/// How far the model is from the record, where what decided in truth decides. Differences of VMs do
/// not cancel.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ModelError {
    /// Difference of the unit-hours, percent of the recorded ones.
    pub unit_hours_percent: f64,
    /// Difference of the resizes, percent of the recorded ones. One resize of a VM is none.
    pub resizes_percent: f64,
    /// Unit-hours that the record shows.
    pub recorded_unit_hours: f64,
    /// The model's unit-hours.
    pub modelled_unit_hours: f64,
    /// Resizes that the record shows.
    pub recorded_resizes: u64,
    /// The model's resizes.
    pub modelled_resizes: u64,
}

impl ModelError {
    fn of(vms: &[Tried]) -> Self {
        let mut error = Self::default();
        let (mut hours, mut resizes) = (0.0, 0);
        for vm in vms {
            let (recorded, modelled) = (&vm.recorded, &vm.modelled);
            error.recorded_unit_hours += recorded.unit_hours;
            error.modelled_unit_hours += modelled.unit_hours;
            error.recorded_resizes += recorded.resizes;
            error.modelled_resizes += modelled.resizes;
            hours += (recorded.unit_hours - modelled.unit_hours).abs();
            let difference = recorded.resizes.abs_diff(modelled.resizes);
            resizes += if difference > 1 { difference } else { 0 };
        }
        error.unit_hours_percent = percent(hours, error.recorded_unit_hours);
        error.resizes_percent = percent(resizes as f64, error.recorded_resizes as f64);
        error
    }

    /// The larger of both errors, percent.
    #[must_use]
    pub fn percent(&self) -> f64 {
        self.unit_hours_percent.max(self.resizes_percent)
    }

    /// Whether the error is small enough to judge by the model.
    #[must_use]
    pub fn is_judged(&self) -> bool {
        self.recorded_unit_hours > 0.0 && self.percent() <= MAX_ERROR
    }
}

fn percent(part: f64, whole: f64) -> f64 {
    if part == 0.0 {
        0.0
    } else {
        100.0 * part / whole.max(1e-9)
    }
}

/// Figures of one VM, or of all.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct VmReport {
    /// What the record shows.
    pub recorded: Columns,
    /// What decided in truth, in the model.
    pub modelled: Columns,
    /// The candidate, in the model.
    pub candidate: Columns,
    /// Questions to the candidate.
    pub questions: Questions,
}

impl VmReport {
    fn add(&mut self, tried: &Tried) {
        self.recorded.add(&tried.recorded);
        self.modelled.add(&tried.modelled);
        self.candidate.add(&tried.candidate);
        self.questions.add(&tried.questions);
    }
}

/// See the module.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// The model's error.
    pub error: ModelError,
    /// `judged`, or `not judged` where the error is too large.
    pub verdict: &'static str,
    /// Gaps in the records of VMs.
    pub gaps: u64,
    /// Sums over all VMs.
    pub total: VmReport,
    /// Each VM, by name.
    pub vms: BTreeMap<String, VmReport>,
}

impl Report {
    /// Sums up what was tried for each VM.
    #[must_use]
    pub fn of(vms: &[Tried]) -> Self {
        let error = ModelError::of(vms);
        let mut report = Self {
            error,
            verdict: if error.is_judged() {
                "judged"
            } else {
                "not judged"
            },
            ..Self::default()
        };
        for tried in vms {
            report.gaps += tried.gaps;
            report.total.add(tried);
            report.vms.entry(tried.name.clone()).or_default().add(tried);
        }
        report
    }

    /// First line of the report: the model's error and the verdict.
    #[must_use]
    pub fn first_line(&self) -> String {
        let error = &self.error;
        format!(
            "Model's error: unit-hours {:.1} % (recorded {:.2}, modelled {:.2}), resizes {:.1} % (recorded {}, modelled {}): {}.",
            error.unit_hours_percent,
            error.recorded_unit_hours,
            error.modelled_unit_hours,
            error.resizes_percent,
            error.recorded_resizes,
            error.modelled_resizes,
            self.verdict
        )
    }
}
