//! Figures of the VMs that a candidate decides about, beside those of the other VMs, as the gate
//! compares them.

use policy_contract::tally::{Evidence, Tally};
use protocol::policy::ScalingPolicyStatus;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::state::short;
use crate::output::Table;
use crate::terminal::{Paint, out};

/// Columns of the figures of a VM, for each of its hours.
const COLUMNS: [&str; 6] = [
    "VM",
    "HOURS",
    "OOM-RISK MIN/H",
    "CPU-SHORT MIN/H",
    "UNITS",
    "REFUSED SHRINKS/H",
];

/// The canary of a policy.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Canary {
    /// First digits of the candidate.
    pub(crate) candidate: String,
    /// When the canary began.
    pub(crate) since: Option<String>,
    /// Number of hours that were judged.
    pub(crate) hours: u32,
    /// Figures of each VM that it decides about, in truth.
    vms: Vec<(String, Tally)>,
    /// All of these.
    all: Tally,
    /// The other VMs of the policy.
    others: Tally,
}

impl Canary {
    /// `None` while no version is in canary.
    pub(crate) fn of(object: &Value) -> Option<Self> {
        let status = ScalingPolicyStatus::of_object(object).ok()?;
        let candidate = status.canary().map(short)?;
        let evidence = status.evidence.unwrap_or_default();
        let figures = Evidence::deserialize(&evidence["figures"]).unwrap_or_default();
        Some(Self {
            candidate,
            since: status
                .candidate
                .and_then(|one| Some(one.since?.to_string())),
            hours: figures.hours,
            vms: figures.canary_vms.into_iter().collect(),
            all: figures.canary,
            others: figures.others,
        })
    }

    /// What the figures are of, in a sentence.
    pub(crate) fn sentence(&self) -> String {
        let (candidate, hours) = (&self.candidate, self.hours);
        let since = self.since.as_deref().unwrap_or("its promotion");
        if self.vms.is_empty() {
            return format!("Canary of {candidate} since {since}: no hour is judged so far.");
        }
        format!("Canary of {candidate} since {since}: {hours} hours are judged.")
    }

    /// A row for each VM, for all of them and for the other VMs.
    pub(crate) fn rows(&self) -> Vec<[String; 6]> {
        if self.vms.is_empty() {
            return Vec::new();
        }
        let own = self.vms.iter().map(|(vm, tally)| row(vm, tally));
        let all = row("all in canary", &self.all);
        own.chain([all, row("other VMs", &self.others)]).collect()
    }

    pub(crate) fn columns(&self) -> &'static [&'static str] {
        if self.vms.is_empty() { &[] } else { &COLUMNS }
    }

    pub(super) fn print(&self, paint: Paint) {
        out(&self.sentence());
        if self.vms.is_empty() {
            return;
        }
        let mut table = Table::new(&COLUMNS);
        for row in self.rows() {
            table.row(row.into_iter().map(Into::into).collect());
        }
        table.print(paint);
    }
}

fn row(name: &str, tally: &Tally) -> [String; 6] {
    let rate = |figure: f64| format!("{:.2}", tally.rate(figure));
    [
        name.to_owned(),
        format!("{:.1}", tally.vm_hours),
        rate(tally.oom_risk_minutes),
        rate(tally.cpu_short_minutes),
        rate(tally.unit_hours),
        rate(tally.refused_shrinks as f64),
    ]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Requirement: V07
    #[test]
    fn v07_figures_of_each_vm_in_canary_stand_beside_the_others() {
        let tally = |hours: f64, units: f64| json!({"vmHours": hours, "unitHours": units, "oomRiskMinutes": 1.0});
        let mut object = json!({"status": {
            "candidate": {"digest": "77ab90c4ffff", "stage": "canary", "since": "2026-01-02T03:04:05Z"},
            "evidence": {"figures": {
                "hours": 2,
                "canary": tally(4.0, 12.0),
                "others": tally(8.0, 16.0),
                "canaryVms": {"a/b": tally(2.0, 8.0), "a/c": tally(2.0, 4.0)},
            }},
        }});
        let canary = Canary::of(&object).expect("a canary");
        let rows = canary.rows();
        let units: Vec<(&str, &str)> = rows.iter().map(|row| (&*row[0], &*row[4])).collect();
        let expected = [
            ("a/b", "4.00"),
            ("a/c", "2.00"),
            ("all in canary", "3.00"),
            ("other VMs", "2.00"),
        ];
        assert_eq!(units, expected);
        assert!(
            canary.sentence().contains("77ab90c4"),
            "{}",
            canary.sentence()
        );
        object["status"]["evidence"] = Value::Null;
        let new = Canary::of(&object).expect("a canary");
        assert!(new.rows().is_empty() && new.sentence().contains("no hour is judged"));
        object["status"]["candidate"]["stage"] = json!("shadow");
        assert_eq!(Canary::of(&object), None);
    }
}
