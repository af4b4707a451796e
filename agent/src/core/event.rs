//! Input of the core: new facts about the VM and the ends of requests.

use protocol::monitor_v2::AskReason;
use protocol::permit::PluginResponse;
use protocol::time::Span;
use protocol::units::{Bytes, Resources};
use serde::Serialize;

use super::actions::RequestId;
use super::advice::{Advice, Terms};
use super::metrics::{LfcMetrics, SystemMetrics};
use super::revision::StampedRevision;
use super::vm::VmInfo;

/// How a request failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Failure {
    /// The peer did not act on it: the request was never sent, or it was refused.
    NotApplied,
    /// The peer may have acted on it: no response came, or one that does not decode.
    Unknown,
}

impl Failure {
    pub(super) fn may_have_arrived(self) -> bool {
        self == Self::Unknown
    }
}

/// A monitor's answer to a request to shrink.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DownscaleResponse {
    /// The monitor approves the size.
    Allowed,
    /// The monitor keeps its old approval.
    Denied(Refusal),
}

/// Details of a refused shrink. Version 1 of the link has none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Refusal {
    /// The smallest size that the monitor would approve.
    pub smallest: Option<Resources>,
    /// Time until it would approve the refused size, if use stays as it is.
    pub again: Option<Span>,
}

impl DownscaleResponse {
    /// A refusal without details.
    pub const DENIED: Self = Self::Denied(Refusal {
        smallest: None,
        again: None,
    });

    /// A refusal that names the smallest size the monitor would approve.
    #[must_use]
    pub const fn denied_below(smallest: Resources) -> Self {
        Self::Denied(Refusal {
            smallest: Some(smallest),
            again: None,
        })
    }
}

/// Details of a monitor's upscale request. Version 1 of the link has none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct UpscaleRequest {
    /// Rule by which the monitor requests more; `None` without details.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<AskReason>,
    /// Memory that would be enough, bytes; `None` = one compute unit more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wanted: Option<Bytes>,
}

/// A new state of the VM object.
#[derive(Debug, Clone, PartialEq)]
pub struct VmUpdate {
    /// Bounds, settings and `use` of the object. The core keeps its own size. A `use` that another
    /// writer set after our last patch makes the size uncertain until the next patch succeeds.
    pub info: VmInfo,
    /// `status.currentRevision` with its time on the core's clock.
    pub current_revision: Option<StampedRevision>,
    /// `status.phase` is `PreMigrating`.
    pub is_pre_migrating: bool,
}

/// Input of [`super::Core`].
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// System metrics, scraped or pushed by the monitor.
    SystemMetrics(SystemMetrics),
    /// Metrics scraped from the file cache.
    LfcMetrics(LfcMetrics),
    /// The watch showed a state of the VM object.
    VmUpdated(Box<VmUpdate>),
    /// The link to the monitor is up.
    MonitorActive,
    /// The link to the monitor is down.
    MonitorReset,
    /// The monitor requests an upscale.
    MonitorUpscaleRequested(UpscaleRequest),
    /// End of [`super::Action::Permit`].
    PermitDone(RequestId, Result<PluginResponse, Failure>),
    /// End of [`super::Action::VmPatch`], with the object's new version if the response has one.
    VmPatchDone(RequestId, Result<Option<u64>, Failure>),
    /// End of [`super::Action::MonitorUpscale`].
    MonitorUpscaleDone(RequestId, Result<(), Failure>),
    /// End of [`super::Action::MonitorDownscale`].
    MonitorDownscaleDone(RequestId, Result<DownscaleResponse, Failure>),
    /// The policy that decides has answered. Faults are answers too.
    Advised(Advice),
    /// Limits of the policy that decides from now on. `None`: no policy decides.
    Bound(Option<Terms>),
    /// Only time has passed: a wait may be over.
    Tick,
}
