//! Abnormal conditions of a decision, and violated invariants. Source: docs/compatibility/agent.md
//! §3.12.

use serde::{Serialize, Serializer};

/// An abnormal condition of a decision. Each computation determines its warnings again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Warning {
    /// W-METRICS: some metrics are missing.
    MissingMetrics,
    /// W-LFC-SHORT: the working-set series is too short for the configured windows.
    WorkingSetSeriesShort,
    /// W-DENIED-MAX: the VM's maximum is not above the size that the monitor refused.
    DeniedAtMaximum,
    /// W-PLUGIN-ONGOING: the target changed while a permit request for another one is in flight.
    #[serde(rename = "plugin_ongoing")]
    PermitOngoing,
    /// W-PLUGIN-FAILED: the pause after a failed permit request lasts.
    #[serde(rename = "plugin_failed")]
    PermitFailed,
    /// W-PLUGIN-DENIED: the pause after a permit below the request lasts.
    #[serde(rename = "plugin_denied")]
    PermitDenied,
    /// W-NEONVM-FAILED: the pause after a failed patch lasts.
    #[serde(rename = "neon_vm_failed")]
    VmPatchFailed,
    /// W-NEONVM-BUSY: a patch waits for another request to end.
    #[serde(rename = "neon_vm_busy")]
    VmPatchBusy,
    /// W-MON-UP-BUSY: a notification waits for another monitor request to end.
    MonitorUpscaleBusy,
    /// W-MON-UP-FAILED: the pause after a failed notification lasts.
    MonitorUpscaleFailed,
    /// W-MON-DOWN-INACTIVE: a shrink needs a connected monitor.
    MonitorDownscaleInactive,
    /// W-MON-DOWN-PLANNED-UP: the notification of a growth comes first.
    MonitorDownscalePlannedUp,
    /// W-MON-DOWN-BUSY: a downscale request waits for another request to end.
    MonitorDownscaleBusy,
    /// W-MON-DOWN-FAILED: the pause after a failed downscale request lasts.
    MonitorDownscaleFailed,
    /// W-REV-FUTURE: the VM reports a revision that this core has not issued.
    RevisionFromFuture,
    /// The VM's policy has not answered in time.
    PolicyLate,
    /// The VM's policy has a fault in the place of an answer.
    PolicyFault,
}

impl Warning {
    /// Label in dumps and the journal.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::MissingMetrics => "missing_metrics",
            Self::WorkingSetSeriesShort => "working_set_series_short",
            Self::DeniedAtMaximum => "denied_at_maximum",
            Self::PermitOngoing => "plugin_ongoing",
            Self::PermitFailed => "plugin_failed",
            Self::PermitDenied => "plugin_denied",
            Self::VmPatchFailed => "neon_vm_failed",
            Self::VmPatchBusy => "neon_vm_busy",
            Self::MonitorUpscaleBusy => "monitor_upscale_busy",
            Self::MonitorUpscaleFailed => "monitor_upscale_failed",
            Self::MonitorDownscaleInactive => "monitor_downscale_inactive",
            Self::MonitorDownscalePlannedUp => "monitor_downscale_planned_up",
            Self::MonitorDownscaleBusy => "monitor_downscale_busy",
            Self::MonitorDownscaleFailed => "monitor_downscale_failed",
            Self::RevisionFromFuture => "revision_from_future",
            Self::PolicyLate => "policy_late",
            Self::PolicyFault => "policy_fault",
        }
    }
}

const ALL: [Warning; 17] = [
    Warning::MissingMetrics,
    Warning::WorkingSetSeriesShort,
    Warning::DeniedAtMaximum,
    Warning::PermitOngoing,
    Warning::PermitFailed,
    Warning::PermitDenied,
    Warning::VmPatchFailed,
    Warning::VmPatchBusy,
    Warning::MonitorUpscaleBusy,
    Warning::MonitorUpscaleFailed,
    Warning::MonitorDownscaleInactive,
    Warning::MonitorDownscalePlannedUp,
    Warning::MonitorDownscaleBusy,
    Warning::MonitorDownscaleFailed,
    Warning::RevisionFromFuture,
    Warning::PolicyLate,
    Warning::PolicyFault,
];

/// A set of [`Warning`]s. It has four bytes, because decisions are made far more often than read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Warnings(pub(super) u32);

impl Warnings {
    /// Adds `warning` to the set.
    pub fn insert(&mut self, warning: Warning) {
        self.0 |= 1 << warning as u32;
    }

    /// Whether the set contains `warning`.
    #[must_use]
    pub fn contains(self, warning: Warning) -> bool {
        self.0 & (1 << warning as u32) != 0
    }

    /// Whether the set has no member.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Adds all members of `other`.
    pub fn extend(&mut self, other: Self) {
        self.0 |= other.0;
    }

    /// Members in the order of their declaration.
    pub fn iter(self) -> impl Iterator<Item = Warning> {
        ALL.into_iter()
            .filter(move |warning| self.contains(*warning))
    }
}

impl FromIterator<Warning> for Warnings {
    fn from_iter<I: IntoIterator<Item = Warning>>(iter: I) -> Self {
        let mut set = Self::default();
        iter.into_iter().for_each(|warning| set.insert(warning));
        set
    }
}

impl Serialize for Warnings {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.iter())
    }
}

/// A violated invariant. The core counts it and holds the size; the VM's task goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// The approved size is above the size in use.
    ApprovedAboveUse,
    /// The size in use is above the permit.
    UseAbovePermit,
    /// A downscale request was planned for the refused size or less.
    DownscaleBelowDenied,
    /// The desired size is outside the VM's bounds.
    DesiredOutOfBounds,
    /// A permit is zero, above the request or below the size in use.
    InvalidPermit,
    /// A response arrived for a request that is not in flight.
    UnknownReply,
    /// An observation was dropped because the queue was full.
    ObservationLost,
}

/// Number of times that each [`Fault`] occurred.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[expect(missing_docs, reason = "one counter per fault, same names")]
pub struct FaultCounts {
    pub approved_above_use: u64,
    pub use_above_permit: u64,
    pub downscale_below_denied: u64,
    pub desired_out_of_bounds: u64,
    pub invalid_permit: u64,
    pub unknown_reply: u64,
    pub observation_lost: u64,
}

impl FaultCounts {
    /// Counts one occurrence, up to the largest `u64`.
    pub fn count(&mut self, fault: Fault) {
        let counter = match fault {
            Fault::ApprovedAboveUse => &mut self.approved_above_use,
            Fault::UseAbovePermit => &mut self.use_above_permit,
            Fault::DownscaleBelowDenied => &mut self.downscale_below_denied,
            Fault::DesiredOutOfBounds => &mut self.desired_out_of_bounds,
            Fault::InvalidPermit => &mut self.invalid_permit,
            Fault::UnknownReply => &mut self.unknown_reply,
            Fault::ObservationLost => &mut self.observation_lost,
        };
        *counter = counter.saturating_add(1);
    }

    /// Sum of all counters; 0 in a core without faults.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.approved_above_use
            + self.use_above_permit
            + self.downscale_below_denied
            + self.desired_out_of_bounds
            + self.invalid_permit
            + self.unknown_reply
            + self.observation_lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn set_holds_what_was_inserted_and_is_listed_by_labels() {
        let mut set = Warnings::default();
        assert!(set.is_empty());
        for (count, warning) in ALL.into_iter().rev().enumerate() {
            assert!(!set.contains(warning));
            set.insert(warning);
            assert!(set.contains(warning));
            assert_eq!(set.iter().count(), count + 1);
        }
        assert!(set.iter().eq(ALL));
        let labels = ALL.map(Warning::as_str);
        assert_eq!(
            serde_json::to_value(set).expect("encodes"),
            serde_json::json!(labels)
        );
    }

    #[test]
    fn sets_are_joined() {
        let mut set = Warnings::from_iter([Warning::PermitFailed]);
        set.extend(
            [Warning::PermitFailed, Warning::VmPatchBusy]
                .into_iter()
                .collect(),
        );
        let both = [Warning::PermitFailed, Warning::VmPatchBusy];
        assert!(set.iter().eq(both));
    }

    #[test]
    fn total_is_the_sum_of_all_counters() {
        let mut counts = FaultCounts::default();
        let faults = [
            Fault::ApprovedAboveUse,
            Fault::UseAbovePermit,
            Fault::DownscaleBelowDenied,
            Fault::DesiredOutOfBounds,
            Fault::InvalidPermit,
            Fault::UnknownReply,
            Fault::ObservationLost,
        ];
        for (before, fault) in (0..).zip(faults) {
            assert_eq!(counts.total(), before);
            counts.count(fault);
        }
        assert_eq!(counts.total(), 7);
        let values = serde_json::to_value(counts).expect("encodes");
        let values: Vec<_> = values.as_object().expect("an object").values().collect();
        assert_eq!(values, [1; 7]);
    }
}
