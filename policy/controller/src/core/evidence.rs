//! What was seen of a candidate since it has its stage. Hours that ended are kept in the policy's
//! status, each once; the running hour is added at each look and kept nowhere.

use std::collections::BTreeSet;

use policy_contract::tally::{Counts, Evidence, HourReport, VersionReport};
use protocol::time::WallTime;
use serde::{Deserialize, Serialize};
use serde_json::Value;

const HOUR: i64 = 3_600_000_000;
/// Time after an hour in which its figures are waited for.
const GRACE: i64 = HOUR / 2;
/// Names of VMs that are kept, unless the rules want more VMs.
const NAMES_KEPT: usize = 64;

/// The object in `status.evidence`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Kept {
    /// End of the last hour that was added.
    until: WallTime,
    since: WallTime,
    figures: Evidence,
}

impl Kept {
    /// What is kept for a version that has its stage since a time.
    pub(super) fn of(kept: Option<&Value>, since: WallTime) -> Self {
        let kept = kept.and_then(|value| Self::deserialize(value).ok());
        let same = kept.filter(|kept| kept.since == since);
        same.unwrap_or_else(|| Self {
            since,
            ..Self::default()
        })
    }

    /// Adds the hours that have ended. While agents are missing, or an hour is not judged, it is
    /// waited for.
    pub(super) fn add_hours(
        &mut self,
        nodes: &[&VersionReport],
        is_incomplete: bool,
        now: WallTime,
    ) {
        let hours = nodes.iter().flat_map(|node| &node.hours);
        let begins: BTreeSet<WallTime> = hours.map(|hour| hour.from).collect();
        for from in begins {
            if !self.is_new(from) {
                continue;
            }
            let hours = nodes.iter().flat_map(|node| &node.hours);
            let parts: Vec<&HourReport> = hours.filter(|hour| hour.from == from).collect();
            let is_late = now.0 >= from.0 + HOUR + GRACE;
            if !is_late && (is_incomplete || parts.iter().any(|hour| is_open(hour))) {
                return;
            }
            self.add(from, &parts);
        }
    }

    fn is_new(&self, from: WallTime) -> bool {
        let end = from.0 + HOUR;
        end > self.until.0 && end > self.since.0
    }

    fn add(&mut self, from: WallTime, parts: &[&HourReport]) {
        self.until = WallTime(from.0 + HOUR);
        let mut sum = Evidence::default();
        let mut is_judged = false;
        for part in parts {
            if let Some(judged) = &part.judged {
                is_judged = true;
                sum.add(judged);
            }
        }
        let has_problem = parts
            .iter()
            .any(|part| part.problem.is_some() || is_open(part));
        let counts = from >= self.since && is_judged && !has_problem;
        if !counts {
            // Faults count all the same.
            sum = Evidence {
                faults: std::mem::take(&mut sum.faults),
                ..Evidence::default()
            };
        }
        sum.hours = u32::from(counts);
        // What was answered in truth counts, not what was in the model.
        sum.decisions = 0;
        sum.vms = BTreeSet::new();
        for part in parts {
            add_counts(&mut sum, &part.counts);
        }
        self.figures.add(&sum);
    }

    /// With the running hour, and the hours that are waited for.
    pub(super) fn with_running(&self, nodes: &[&VersionReport]) -> Evidence {
        let mut evidence = self.figures.clone();
        for node in nodes {
            let waiting = node.hours.iter().filter(|hour| self.is_new(hour.from));
            let waiting = waiting.map(|hour| &hour.counts);
            for counts in waiting.chain([&node.running]) {
                add_counts(&mut evidence, counts);
            }
        }
        evidence
    }

    /// As it is kept, without the names of more VMs than the rules want.
    pub(super) fn limited(mut self, vms: u32) -> Value {
        let most = usize::try_from(vms).unwrap_or(usize::MAX).max(NAMES_KEPT);
        let names = std::mem::take(&mut self.figures.vms);
        self.figures.vms = names.into_iter().take(most).collect();
        let canaries = std::mem::take(&mut self.figures.canary_vms);
        self.figures.canary_vms = canaries.into_iter().take(NAMES_KEPT).collect();
        serde_json::to_value(self).unwrap_or_default()
    }
}

/// Whether an hour is still to be judged.
fn is_open(hour: &HourReport) -> bool {
    let is_asked = hour.is_whole && !hour.counts.vms.is_empty();
    is_asked && hour.judged.is_none() && hour.problem.is_none()
}

fn add_counts(evidence: &mut Evidence, counts: &Counts) {
    evidence.decisions += counts.answers;
    evidence.vms.extend(counts.vms.iter().cloned());
    for (fault, count) in &counts.faults {
        *evidence.faults.entry(*fault).or_default() += count;
    }
}
