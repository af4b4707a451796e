//! Requests that the core wants made, as plain comparable data. Source:
//! docs/compatibility/agent.md §3.2.

use protocol::permit::RequestMetrics;
use protocol::revision::Revision;
use protocol::time::Span;
use protocol::units::Resources;

/// Asks the scheduler for a larger permit, reports a smaller size, or repeats the size as a
/// heartbeat.
#[derive(Debug, Clone, PartialEq)]
pub struct PermitRequest {
    /// The newest permit held; `None` in the first request.
    pub last_permit: Option<Resources>,
    /// Size to permit.
    pub target: Resources,
    /// Load of the guest; `None` without fresh metrics.
    pub metrics: Option<RequestMetrics>,
    /// Revision of the resize that the request belongs to.
    pub revision: Revision,
}

/// Patches the size of the VM object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VmPatch {
    /// Size in use when the patch starts.
    pub current: Resources,
    /// Size after the patch; memory is a whole number of slots.
    pub target: Resources,
    /// Value for `spec.targetRevision`.
    pub revision: Revision,
}

/// Notifies the monitor that the VM has grown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MonitorUpscale {
    /// Size that the monitor counts on.
    pub current: Resources,
    /// Size that the VM has.
    pub target: Resources,
    /// Revision of the resize that the notification belongs to.
    pub revision: Revision,
}

/// Asks the monitor to approve a smaller size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MonitorDownscale {
    /// Size that the monitor has approved so far.
    pub current: Resources,
    /// Size to approve.
    pub target: Resources,
    /// Revision of the resize that the request belongs to.
    pub revision: Revision,
}

/// Result of planning: at most one request per peer and direction, and the next deadline.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Actions {
    /// Request to the scheduler.
    pub permit: Option<PermitRequest>,
    /// Patch of the VM object.
    pub vm_patch: Option<VmPatch>,
    /// Notification of the monitor after a growth.
    pub monitor_up: Option<MonitorUpscale>,
    /// Request to the monitor before a shrink.
    pub monitor_down: Option<MonitorDownscale>,
    /// Longest time until the next computation; `None` = only an event is a reason for one.
    pub wait: Option<Span>,
}

/// One request taken out of [`Actions`].
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// POST to the scheduler.
    Permit(PermitRequest),
    /// PATCH of the VM object.
    VmPatch(VmPatch),
    /// `UpscaleNotification` to the monitor, after the VM has grown.
    MonitorUpscale(MonitorUpscale),
    /// `DownscaleRequest` to the monitor, before the VM shrinks.
    MonitorDownscale(MonitorDownscale),
}

impl Actions {
    /// The first request in the order scheduler, object, monitor.
    #[must_use]
    pub fn first(&self) -> Option<Action> {
        None.or_else(|| self.permit.clone().map(Action::Permit))
            .or_else(|| self.vm_patch.map(Action::VmPatch))
            .or_else(|| self.monitor_up.map(Action::MonitorUpscale))
            .or_else(|| self.monitor_down.map(Action::MonitorDownscale))
    }
}

/// Number of a started request. It is never reused, so a late response cannot end another request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);
