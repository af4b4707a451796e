//! Why a VM has the size it has, as data: log, metric, dump and `why` read this value.

use protocol::revision::Revision;
use protocol::units::Resources;
use serde::{Serialize, Serializer};

use super::goal::{Signal, Votes};
use super::lfc::WorkingSet;

/// What decided the wanted size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// No signal asks for anything.
    Idle,
    /// The load average.
    Cpu,
    /// Memory usage of the guest.
    Memory,
    /// The file cache's working set.
    WorkingSet,
    /// The monitor asked to grow.
    RequestedUpscale,
    /// The monitor refused to shrink.
    DeniedDownscale,
    /// Metrics never came: the size is not reduced.
    MissingMetrics,
    /// Metrics stopped coming: the size is not reduced.
    StaleMetrics,
    /// The VM is about to migrate: nothing changes any more.
    Migrating,
    /// The monitor's estimate of the working set.
    MonitorEstimate,
    /// Tasks wait for memory: the size is not reduced.
    MemoryPressure,
}

impl Reason {
    /// Its word in logs, metrics and dumps.
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

/// What keeps the VM from the size the metrics ask for, or from getting there now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    /// The VM's smallest size raised it.
    Min,
    /// The VM's largest size cut it.
    Max,
    /// The permit is below what is wanted.
    Permit,
    /// The monitor has not (yet) agreed to less.
    MonitorApproval,
    /// No monitor is connected, so nothing shrinks.
    MonitorAbsent,
    /// The VM is about to migrate.
    Migration,
    /// The smaller size has too little room above the votes.
    DownscaleMargin,
    /// The goal has not been below the size for long enough.
    DownscaleHold,
    /// It grew a short while ago.
    DownscaleCooldown,
    /// It shrank a short while ago, and only the load asks for more.
    UpscaleCooldown,
    /// It is only observed.
    ObserveMode,
    /// It may only grow.
    GrowMode,
}

const ALL: [Bound; 12] = [
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
];

impl Bound {
    /// Its word in logs, metrics and dumps.
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
        }
    }
}

/// A set of [`Bound`]s.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Bounds(pub(super) u16);

impl Bounds {
    /// Adds `bound`; a member that is already there stays.
    pub fn insert(&mut self, bound: Bound) {
        self.0 |= 1 << bound as u8;
    }

    /// Whether one is in it.
    #[must_use]
    pub fn contains(self, bound: Bound) -> bool {
        self.0 & (1 << bound as u8) != 0
    }

    /// The members in order.
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
    /// What the VM has.
    pub current: Resources,
    /// What it should have; by its mode it may not be brought there.
    pub target: Resources,
    /// What the metrics alone ask for, compute units.
    pub goal_units: u32,
    /// Signal or rule that decided `target`.
    pub reason: Reason,
    /// Who asked for how much.
    pub votes: Votes,
    /// What stands between.
    pub bounded_by: Bounds,
    /// The wish it belongs to.
    pub revision: Revision,
    /// All metrics were known and fresh.
    pub has_all_metrics: bool,
    /// The file cache's working set, when one was found.
    #[serde(skip)]
    pub working_set: Option<WorkingSet>,
}

impl Decision {
    /// Whether a person would call it another decision than `other`: votes and the way there may
    /// differ.
    #[must_use]
    pub fn differs_from(&self, other: &Self) -> bool {
        (self.target, self.reason, self.bounded_by)
            != (other.target, other.reason, other.bounded_by)
    }

    /// Whether it changes what is done, not only why.
    #[must_use]
    pub fn moves_from(&self, other: &Self) -> bool {
        self.target != other.target
    }
}
