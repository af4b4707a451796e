//! Figures about versions of policies: what agents report for each hour, and what the gate decides
//! by.

use std::collections::{BTreeMap, BTreeSet};

use protocol::policy::Fault;
use protocol::time::WallTime;
use serde::{Deserialize, Serialize};

/// Figures of a group of VMs under one version.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Tally {
    /// Time covered, in sum over the VMs.
    pub vm_hours: f64,
    /// Time in which a VM may have run out of memory.
    pub oom_risk_minutes: f64,
    /// Time in which the load was over the CPUs.
    pub cpu_short_minutes: f64,
    /// Size in use over time, compute units.
    pub unit_hours: f64,
    /// Resizes up and down within ten minutes.
    pub reversals: u64,
    /// Shrinks that monitors refused.
    pub refused_shrinks: u64,
}

impl Tally {
    /// Adds the figures of another hour or node.
    pub fn add(&mut self, other: &Self) {
        self.vm_hours += other.vm_hours;
        self.oom_risk_minutes += other.oom_risk_minutes;
        self.cpu_short_minutes += other.cpu_short_minutes;
        self.unit_hours += other.unit_hours;
        self.reversals += other.reversals;
        self.refused_shrinks += other.refused_shrinks;
    }

    /// A figure for each hour of a VM.
    #[must_use]
    pub fn rate(&self, figure: f64) -> f64 {
        if self.vm_hours > 0.0 {
            figure / self.vm_hours
        } else {
            0.0
        }
    }
}

/// What was seen of a version since it has its stage, or in one hour.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Evidence {
    /// Whole hours that were judged.
    pub hours: u32,
    /// Answers of the candidate.
    pub decisions: u64,
    /// VMs that it was asked about.
    pub vms: BTreeSet<String>,
    /// Faults of it, by kind.
    pub faults: BTreeMap<Fault, u64>,
    /// The candidate, in the model.
    pub candidate: Tally,
    /// The live version or the built-in goal about the same VMs, in the model.
    pub live: Tally,
    /// Largest error of the model in an hour, percent.
    pub error_percent: f64,
    /// Gaps in journals.
    pub gaps: u64,
    /// Time in which a candidate of sets wanted fewer members of a set than `live`. No model says
    /// what they would lack.
    #[serde(skip_serializing_if = "is_zero")]
    pub fewer_minutes: f64,
    /// VMs that it decides about in the canary, in truth.
    pub canary: Tally,
    /// All other VMs of the policy, in truth. For a policy of sets, the members that there were.
    pub others: Tally,
    /// Each of the VMs that it decides about in the canary, in truth.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub canary_vms: BTreeMap<String, Tally>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn is_zero(figure: &f64) -> bool {
    *figure == 0.0
}

impl Evidence {
    /// Adds the figures of the next hour, of all nodes.
    pub fn add(&mut self, hour: &Self) {
        self.hours += hour.hours;
        self.decisions += hour.decisions;
        self.vms.extend(hour.vms.iter().cloned());
        for (fault, count) in &hour.faults {
            *self.faults.entry(*fault).or_default() += count;
        }
        self.candidate.add(&hour.candidate);
        self.live.add(&hour.live);
        self.error_percent = self.error_percent.max(hour.error_percent);
        self.gaps += hour.gaps;
        self.fewer_minutes += hour.fewer_minutes;
        self.canary.add(&hour.canary);
        self.others.add(&hour.others);
        for (vm, tally) in &hour.canary_vms {
            self.canary_vms.entry(vm.clone()).or_default().add(tally);
        }
    }
}

/// What a node's agent counted of a version.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Counts {
    /// Number of valid answers.
    pub answers: u64,
    /// Faults, by kind. Breaches of fixpoint and determinism are among them.
    pub faults: BTreeMap<Fault, u64>,
    /// Requests for growth after an OOM kill in VMs that it decided about.
    pub oom_kills: u64,
    /// Shrinks that monitors refused in VMs that it decided about.
    pub refused_shrinks: u64,
    /// VMs that it was asked about, as `namespace/name`.
    pub vms: BTreeSet<String>,
    /// Those among them that it decided about.
    pub decided: BTreeSet<String>,
}

/// An hour that ended, on one node.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct HourReport {
    /// Begin of the hour. Hours are those of the calendar in UTC.
    pub from: WallTime,
    /// Whether the agent followed the version for the whole hour.
    pub is_whole: bool,
    /// What was counted.
    pub counts: Counts,
    /// What the model says, once it has run.
    pub judged: Option<Evidence>,
    /// Why the model did not run.
    pub problem: Option<String>,
    /// Age of `judged`, seconds.
    pub age_seconds: Option<u64>,
}

/// What a node's agent saw of a version within minutes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct NodeAlarms {
    /// Most faults in a row about one VM.
    pub faults_in_a_row: u32,
    /// Calls of the last ten minutes.
    pub calls: u64,
    /// Faults among these calls.
    pub faulty_calls: u64,
    /// VMs that ran out of memory in the last ten minutes while the node had headroom.
    pub out_of_memory: u32,
    /// Deaths of the worker in the last ten minutes.
    pub worker_deaths: u32,
    /// VMs that it decides about.
    pub deciding: u32,
    /// Smallest number of them, during the last minute, that it wanted smaller.
    pub shrinking: u32,
}

/// What a node's agent reports of a version.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct VersionReport {
    /// Name of the policy.
    pub policy: String,
    /// Digest of the version, 64 hex digits.
    pub digest: String,
    /// Whether the agent keeps a journal. Without one nothing is judged.
    pub has_journal: bool,
    /// Why the version is not asked.
    pub problem: Option<String>,
    /// Limits of the policy that are looser than those of the agent's file, as sentences.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cut_limits: Vec<String>,
    /// The hour that runs.
    pub running: Counts,
    /// Hours that ended, the oldest first.
    pub hours: Vec<HourReport>,
    /// What happened within minutes.
    pub alarms: NodeAlarms,
}
