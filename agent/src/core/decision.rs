//! Why a VM has its size, as data. Log, metrics, dump and the command `why` read this value.

use protocol::revision::Revision;
use protocol::units::Resources;
use serde::{Serialize, Serializer};

use super::goal::{Signal, Votes};
use super::lfc::WorkingSet;

/// Signal or rule that decided the target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// No signal votes for more than 0 units.
    Idle,
    /// Vote by the load average.
    Cpu,
    /// Vote by memory usage.
    Memory,
    /// Vote by the file cache's working set.
    WorkingSet,
    /// The monitor requested an upscale.
    RequestedUpscale,
    /// The monitor refused a shrink.
    DeniedDownscale,
    /// Metrics have never arrived, so the VM does not shrink.
    MissingMetrics,
    /// Metrics are too old, so the VM does not shrink.
    StaleMetrics,
    /// The scheduler has announced a migration, so the size stays.
    Migrating,
    /// Vote by the monitor's estimate of the working set.
    MonitorEstimate,
    /// Tasks wait for memory, so the VM does not shrink.
    MemoryPressure,
    /// The VM's policy asks for it, or has no answer, so the VM does not shrink.
    Policy,
}

impl Reason {
    /// Label in logs, metrics, dumps and the journal.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Cpu => "cpu",
            Self::Memory => "memory",
            Self::WorkingSet => "working_set",
            Self::RequestedUpscale => "requested_upscale",
            Self::DeniedDownscale => "denied_downscale",
            Self::MissingMetrics => "missing_metrics",
            Self::StaleMetrics => "stale_metrics",
            Self::Migrating => "migrating",
            Self::MonitorEstimate => "monitor_estimate",
            Self::MemoryPressure => "memory_pressure",
            Self::Policy => "policy",
        }
    }
}

impl From<Option<Signal>> for Reason {
    fn from(winner: Option<Signal>) -> Self {
        match winner {
            None => Self::Idle,
            Some(Signal::Cpu) => Self::Cpu,
            Some(Signal::Memory) => Self::Memory,
            Some(Signal::WorkingSet) => Self::WorkingSet,
            Some(Signal::MonitorEstimate) => Self::MonitorEstimate,
        }
    }
}

/// Rule that keeps the VM from the goal, or from reaching it now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    /// The VM's minimum raised the size.
    Min,
    /// The VM's maximum cut the size.
    Max,
    /// The permit is below the target.
    Permit,
    /// The monitor has not approved the target so far.
    MonitorApproval,
    /// No monitor is connected, so the VM does not shrink.
    MonitorAbsent,
    /// The scheduler has announced a migration.
    Migration,
    /// The smaller size lacks the margin above the votes.
    DownscaleMargin,
    /// The goal was below the size for less than the hold.
    DownscaleHold,
    /// The VM grew within the cooldown.
    DownscaleCooldown,
    /// The VM shrank within the cooldown, and only the load votes for more.
    UpscaleCooldown,
    /// Observe mode: the size is never patched.
    ObserveMode,
    /// Grow mode: the size is never reduced.
    GrowMode,
    /// The policy asked for more units than it may.
    PolicyLimit,
    /// The policy may shrink the VM by only a few units in a minute.
    DeclineRate,
}

const ALL: [Bound; 14] = [
    Bound::Min,
    Bound::Max,
    Bound::Permit,
    Bound::MonitorApproval,
    Bound::MonitorAbsent,
    Bound::Migration,
    Bound::DownscaleMargin,
    Bound::DownscaleHold,
    Bound::DownscaleCooldown,
    Bound::UpscaleCooldown,
    Bound::ObserveMode,
    Bound::GrowMode,
    Bound::PolicyLimit,
    Bound::DeclineRate,
];

impl Bound {
    /// Label in logs, metrics, dumps and the journal.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Min => "min",
            Self::Max => "max",
            Self::Permit => "permit",
            Self::MonitorApproval => "monitor_approval",
            Self::MonitorAbsent => "monitor_absent",
            Self::Migration => "migration",
            Self::DownscaleMargin => "downscale_margin",
            Self::DownscaleHold => "downscale_hold",
            Self::DownscaleCooldown => "downscale_cooldown",
            Self::UpscaleCooldown => "upscale_cooldown",
            Self::ObserveMode => "observe_mode",
            Self::GrowMode => "grow_mode",
            Self::PolicyLimit => "policy_limit",
            Self::DeclineRate => "decline_rate",
        }
    }
}

/// A set of [`Bound`]s in two bytes. JSON: a list of labels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Bounds(pub(super) u16);

impl Bounds {
    /// Adds `bound` to the set.
    pub fn insert(&mut self, bound: Bound) {
        self.0 |= 1 << bound as u8;
    }

    /// Whether the set contains `bound`.
    #[must_use]
    pub fn contains(self, bound: Bound) -> bool {
        self.0 & (1 << bound as u8) != 0
    }

    /// Members in the order of their declaration.
    pub fn iter(self) -> impl Iterator<Item = Bound> {
        ALL.into_iter().filter(move |bound| self.contains(*bound))
    }
}

impl Serialize for Bounds {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.iter())
    }
}

/// Result of one evaluation of the core: the wanted size and its causes.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Decision {
    /// Size in use.
    pub current: Resources,
    /// Desired size. The VM's mode may keep it from there.
    pub target: Resources,
    /// Goal by the metrics alone, compute units.
    pub goal_units: u32,
    /// Signal or rule that decided `target`.
    pub reason: Reason,
    /// Vote of each signal, and of the policy.
    pub votes: Votes,
    /// Rules that keep the VM from the goal or from the target.
    pub bounded_by: Bounds,
    /// Revision that the patch carries, and the monitor acknowledges.
    pub revision: Revision,
    /// All metrics that the settings use were fresh.
    pub has_all_metrics: bool,
    /// Working set of the file cache; `None` without one.
    #[serde(skip)]
    pub working_set: Option<WorkingSet>,
}

impl Decision {
    /// Whether target, reason or bounds differ. Other members, such as votes, may differ freely.
    #[must_use]
    pub fn differs_from(&self, other: &Self) -> bool {
        (self.target, self.reason, self.bounded_by)
            != (other.target, other.reason, other.bounded_by)
    }

    /// Whether the target differs.
    #[must_use]
    pub fn moves_from(&self, other: &Self) -> bool {
        self.target != other.target
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_listed_by_the_labels_of_the_journal() {
        let mut bounds = Bounds::default();
        for (count, bound) in ALL.into_iter().rev().enumerate() {
            assert!(!bounds.contains(bound));
            bounds.insert(bound);
            assert_eq!(bounds.iter().count(), count + 1);
        }
        let labels = [
            "min",
            "max",
            "permit",
            "monitor_approval",
            "monitor_absent",
            "migration",
            "downscale_margin",
            "downscale_hold",
            "downscale_cooldown",
            "upscale_cooldown",
            "observe_mode",
            "grow_mode",
            "policy_limit",
            "decline_rate",
        ];
        assert_eq!(ALL.map(Bound::as_str), labels);
        assert_eq!(
            serde_json::to_value(bounds).expect("encodes"),
            serde_json::json!(labels)
        );
    }
}
