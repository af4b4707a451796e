//! What the core wants done, as plain comparable data. Source: docs/compatibility/agent.md §3.2.

use protocol::permit::RequestMetrics;
use protocol::revision::Revision;
use protocol::time::Span;
use protocol::units::Resources;
use serde::Serialize;

/// Ask the scheduler for a permit, or tell it of a decrease, or just show that we are there.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PluginRequest {
    /// The newest permit held.
    pub last_permit: Option<Resources>,
    /// What is asked.
    pub target: Resources,
    /// Load, once known.
    pub metrics: Option<RequestMetrics>,
    /// The wish it serves.
    pub revision: Revision,
}

/// Patch the VM object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct NeonVmRequest {
    /// Size in use when the patch starts.
    pub current: Resources,
    /// Size after; memory is a whole number of slots.
    pub target: Resources,
    /// The wish it serves; goes into `spec.targetRevision`.
    pub revision: Revision,
}

/// Tell the monitor that the VM has grown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct MonitorUpscale {
    /// What it knows.
    pub current: Resources,
    /// What it has.
    pub target: Resources,
    /// The wish it serves.
    pub revision: Revision,
}

/// Ask the monitor whether the VM may shrink.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct MonitorDownscale {
    /// What it knows.
    pub current: Resources,
    /// What it would have.
    pub target: Resources,
    /// The wish it serves.
    pub revision: Revision,
}

/// Everything that may be started now, and how long until there may be more.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct Actions {
    /// To the scheduler.
    pub plugin: Option<PluginRequest>,
    /// To the VM object.
    pub neonvm: Option<NeonVmRequest>,
    /// To the monitor, after a growth.
    pub monitor_up: Option<MonitorUpscale>,
    /// To the monitor, before a shrink.
    pub monitor_down: Option<MonitorDownscale>,
    /// Look again after this long even if nothing happens.
    pub wait: Option<Span>,
}

/// One action taken out of [`Actions`].
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// POST to the scheduler.
    Plugin(PluginRequest),
    /// PATCH of the VM object.
    NeonVm(NeonVmRequest),
    /// `UpscaleNotification` to the monitor, after the VM has grown.
    MonitorUpscale(MonitorUpscale),
    /// `DownscaleRequest` to the monitor, before the VM shrinks.
    MonitorDownscale(MonitorDownscale),
}

impl Actions {
    /// The first action in the order of evaluation.
    #[must_use]
    pub fn first(&self) -> Option<Action> {
        None.or_else(|| self.plugin.clone().map(Action::Plugin))
            .or_else(|| self.neonvm.map(Action::NeonVm))
            .or_else(|| self.monitor_up.map(Action::MonitorUpscale))
            .or_else(|| self.monitor_down.map(Action::MonitorDownscale))
    }
}

/// Names one started request, so that a late answer cannot be taken for another's. Never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct RequestId(pub u64);
