//! Requests of a VM's task to the monitor, and the channels for their outcomes.

use protocol::units::Resources;
use tokio::sync::oneshot;

use crate::core::conversation::{DownscaleResult, MonitorRequestError, MonitorResponse};

/// Requests that wait for the link. The core has one in flight at most.
pub(in crate::shell) const REQUEST_BOUND: usize = 4;

/// A request and the channel for its outcome.
#[derive(Debug)]
pub(in crate::shell) enum LinkRequest {
    Upscale {
        size: Resources,
        outcome: oneshot::Sender<Result<Option<Resources>, MonitorRequestError>>,
    },
    Downscale {
        size: Resources,
        outcome: oneshot::Sender<Result<DownscaleResult, MonitorRequestError>>,
    },
}

/// Channel for the outcome of a request that was sent.
#[derive(Debug)]
pub(super) enum Responder {
    Upscale(oneshot::Sender<Result<Option<Resources>, MonitorRequestError>>),
    Downscale(oneshot::Sender<Result<DownscaleResult, MonitorRequestError>>),
}

impl Responder {
    /// Sends the outcome. A receiver that is gone needs none.
    pub(super) fn send(self, outcome: Result<MonitorResponse, MonitorRequestError>) {
        match (self, outcome) {
            (Self::Upscale(to), Ok(MonitorResponse::Upscale { observed })) => {
                drop(to.send(Ok(observed)));
            }
            (Self::Downscale(to), Ok(MonitorResponse::Downscale(result))) => {
                drop(to.send(Ok(result)));
            }
            (Self::Upscale(to), outcome) => drop(to.send(Err(error_of(outcome)))),
            (Self::Downscale(to), outcome) => drop(to.send(Err(error_of(outcome)))),
        }
    }
}

fn error_of(outcome: Result<MonitorResponse, MonitorRequestError>) -> MonitorRequestError {
    outcome.err().unwrap_or(MonitorRequestError::WrongKind)
}
