//! Conditions a decision was made under that are not right, and invariants that did not hold.
//! Source: docs/compatibility/agent.md §3.12.

use serde::{Serialize, Serializer};

/// One abnormal condition of a decision. They are recomputed each time and say nothing about the
/// past.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Warning {
    /// W-METRICS: decided without all metrics.
    MissingMetrics,
    /// W-LFC-SHORT: the working-set series is too short for the windows configured.
    WorkingSetSeriesShort,
    /// W-DENIED-MAX: the VM's maximum is not above what the monitor refused to shrink to.
    DeniedAtMaximum,
    /// W-PLUGIN-ONGOING: the target changed while a permit request for another one is under way.
    PluginOngoing,
    /// W-PLUGIN-FAILED: waiting after a permit request that failed.
    PluginFailed,
    /// W-PLUGIN-DENIED: waiting after a permit below what was asked.
    PluginDenied,
    /// W-NEONVM-FAILED: waiting after a patch that failed.
    NeonVmFailed,
    /// W-NEONVM-BUSY: a patch waits for another request.
    NeonVmBusy,
    /// W-MON-UP-BUSY: the monitor cannot be told yet.
    MonitorUpscaleBusy,
    /// W-MON-UP-FAILED: waiting after telling the monitor failed.
    MonitorUpscaleFailed,
    /// W-MON-DOWN-INACTIVE: cannot shrink without a monitor.
    MonitorDownscaleInactive,
    /// W-MON-DOWN-PLANNED-UP: the monitor is told of a growth first.
    MonitorDownscalePlannedUp,
    /// W-MON-DOWN-BUSY: the monitor cannot be asked yet.
    MonitorDownscaleBusy,
    /// W-MON-DOWN-FAILED: waiting after asking the monitor failed.
    MonitorDownscaleFailed,
    /// W-REV-FUTURE: the VM reports a revision that was never issued.
    RevisionFromFuture,
}

impl Warning {
    /// Its word in dumps and journals.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::MissingMetrics => "missing_metrics",
            Self::WorkingSetSeriesShort => "working_set_series_short",
            Self::DeniedAtMaximum => "denied_at_maximum",
            Self::PluginOngoing => "plugin_ongoing",
            Self::PluginFailed => "plugin_failed",
            Self::PluginDenied => "plugin_denied",
            Self::NeonVmFailed => "neon_vm_failed",
            Self::NeonVmBusy => "neon_vm_busy",
            Self::MonitorUpscaleBusy => "monitor_upscale_busy",
            Self::MonitorUpscaleFailed => "monitor_upscale_failed",
            Self::MonitorDownscaleInactive => "monitor_downscale_inactive",
            Self::MonitorDownscalePlannedUp => "monitor_downscale_planned_up",
            Self::MonitorDownscaleBusy => "monitor_downscale_busy",
            Self::MonitorDownscaleFailed => "monitor_downscale_failed",
            Self::RevisionFromFuture => "revision_from_future",
        }
    }
}

/// All warnings in order.
const ALL: [Warning; 15] = [
    Warning::MissingMetrics,
    Warning::WorkingSetSeriesShort,
    Warning::DeniedAtMaximum,
    Warning::PluginOngoing,
    Warning::PluginFailed,
    Warning::PluginDenied,
    Warning::NeonVmFailed,
    Warning::NeonVmBusy,
    Warning::MonitorUpscaleBusy,
    Warning::MonitorUpscaleFailed,
    Warning::MonitorDownscaleInactive,
    Warning::MonitorDownscalePlannedUp,
    Warning::MonitorDownscaleBusy,
    Warning::MonitorDownscaleFailed,
    Warning::RevisionFromFuture,
];

/// A set of [`Warning`]s in two bytes, because a decision is made far more often than it is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Warnings(pub(super) u16);

impl Warnings {
    /// Adds `warning`; a member that is already there stays.
    pub fn insert(&mut self, warning: Warning) {
        self.0 |= 1 << warning as u16;
    }

    /// Whether one is in it.
    #[must_use]
    pub fn contains(self, warning: Warning) -> bool {
        self.0 & (1 << warning as u16) != 0
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Adds all of another set.
    pub fn extend(&mut self, other: Self) {
        self.0 |= other.0;
    }

    /// The members in order.
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

/// Something that must not be: it is counted, the state is clamped, and the size is held. Nothing
/// here ends a VM's task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Fault {
    /// The monitor agreed to more than is in use.
    ApprovedAboveUse,
    /// More is in use than permitted.
    UseAbovePermit,
    /// A shrink below what the monitor refused was about to be asked.
    DownscaleBelowDenied,
    /// The desired size left the VM's bounds.
    DesiredOutOfBounds,
    /// A permit with a zero, above what was asked or below what is in use.
    InvalidPermit,
    /// An answer to a request that is not under way.
    UnknownReply,
    /// An observation was dropped because nobody took the older ones.
    ObservationLost,
}

/// How often each [`Fault`] happened.
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
    /// Adds one to the counter of `fault`, up to the largest `u64`.
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
