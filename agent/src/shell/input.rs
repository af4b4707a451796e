//! Inputs of a VM's driver: one bounded queue, in the order of arrival.

use protocol::monitor_v2::GuestMetrics;
use protocol::permit::PluginResponse;
use protocol::time::{Span, Timestamp};
use protocol::units::Resources;
use tokio::sync::mpsc;

use super::monitor::request::LinkRequest;
use super::patch::PatchError;
use super::permit::PermitError;
use crate::core::conversation::{DownscaleResult, MonitorRequestError};
use crate::core::{LfcMetrics, RequestId, SystemMetrics, UpscaleRequest};

/// Capacity of a driver's queue. Both scrapes, messages of the monitor and the ends of four
/// requests fit several times. A sender waits while the queue is full.
pub(super) const INPUT_BOUND: usize = 32;

/// One input and the time it reached this process.
#[derive(Debug)]
pub(super) struct Input {
    pub arrived: Timestamp,
    /// Boxed, because each VM's queue keeps two blocks of 32 slots for its whole life.
    pub kind: Box<InputKind>,
}

impl Input {
    pub(super) fn new(arrived: Timestamp, kind: InputKind) -> Self {
        let kind = Box::new(kind);
        Self { arrived, kind }
    }
}

#[derive(Debug)]
pub(super) enum InputKind {
    System(SystemMetrics),
    Lfc(LfcMetrics),
    /// A link to the monitor is up and takes requests.
    MonitorUp {
        generation: u64,
        requests: mpsc::Sender<LinkRequest>,
    },
    /// The link is down, or could not be made.
    MonitorDown {
        generation: u64,
    },
    /// The monitor requests an upscale.
    MonitorUpscaleRequest {
        generation: u64,
        request: UpscaleRequest,
    },
    /// The monitor pushed metrics.
    Pushed {
        generation: u64,
        metrics: Box<GuestMetrics>,
    },
    /// A health check of the monitor succeeded.
    MonitorHealthy,
    PermitDone {
        id: RequestId,
        took: Took,
        result: Result<PluginResponse, PermitError>,
    },
    VmPatchDone {
        id: RequestId,
        took: Took,
        result: Result<Option<u64>, PatchError>,
    },
    UpscaleDone {
        generation: u64,
        id: RequestId,
        /// Size that the monitor sees in the guest, if it reports one.
        result: Result<Option<Resources>, MonitorRequestError>,
    },
    DownscaleDone {
        generation: u64,
        id: RequestId,
        took: Took,
        result: Result<DownscaleResult, MonitorRequestError>,
    },
}

/// Start and duration of a request.
#[derive(Debug, Clone, Copy)]
pub(super) struct Took {
    pub from: Timestamp,
    pub span: Span,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slot_of_the_input_queue_is_small() {
        assert!(size_of::<Input>() <= 16, "{} bytes", size_of::<Input>());
    }
}
