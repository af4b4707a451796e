//! What reaches a VM's task. One bounded queue, in order of arrival.

use protocol::monitor_v2::GuestMetrics;
use protocol::permit::PluginResponse;
use protocol::time::{Span, Timestamp};
use protocol::units::Resources;
use tokio::sync::mpsc;

use super::monitor::Call;
use super::patch::PatchError;
use super::permit::PermitError;
use crate::core::conversation::{CallError, Downscaled};
use crate::core::{LfcMetrics, RequestId, SystemMetrics, Wish};

/// Inputs waiting for a VM's task: both scrapes, the monitor's words and the ends of four requests
/// fit several times over; a sender that finds it full waits.
pub(super) const INPUT_BOUND: usize = 32;

/// Something that happened, and when it reached this process.
#[derive(Debug)]
pub(super) struct Input {
    pub arrived: Timestamp,
    /// Boxed, for each VM's queue keeps blocks of 32 places for good, two of them before long.
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
    /// A connection to the monitor is up; calls go through the sender.
    MonitorUp {
        generation: u64,
        calls: mpsc::Sender<Call>,
    },
    /// It is down, or could not be made.
    MonitorDown {
        generation: u64,
    },
    /// The monitor asks to grow.
    MonitorWish {
        generation: u64,
        wish: Wish,
    },
    /// The monitor pushed metrics.
    Pushed {
        generation: u64,
        metrics: Box<GuestMetrics>,
    },
    /// The monitor answered a health check.
    MonitorHealthy,
    PluginDone {
        id: RequestId,
        took: Took,
        result: Result<PluginResponse, PermitError>,
    },
    NeonVmDone {
        id: RequestId,
        took: Took,
        result: Result<Option<u64>, PatchError>,
    },
    UpscaleDone {
        generation: u64,
        id: RequestId,
        /// What the guest is seen to have, where its monitor says so.
        result: Result<Option<Resources>, CallError>,
    },
    DownscaleDone {
        generation: u64,
        id: RequestId,
        took: Took,
        result: Result<Downscaled, CallError>,
    },
}

/// When a request began and how long it took.
#[derive(Debug, Clone, Copy)]
pub(super) struct Took {
    pub from: Timestamp,
    pub span: Span,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_in_a_queue_is_small() {
        assert!(size_of::<Input>() <= 16, "{} bytes", size_of::<Input>());
    }
}
