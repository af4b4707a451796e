//! A driver of a played API server.

use std::path::Path;

use daemon_kit::StageLog;
use daemon_kit::clock::Clock;
use daemon_kit::journal::Journal;
use fleet::{Location, Metrics, Params, Pulses};
use tokio_util::sync::{CancellationToken, DropGuard};

/// Starts a driver. It ends with the guard.
#[allow(dead_code, reason = "not every test starts one so")]
pub(crate) fn drive(
    client: kube::Client,
    state_dir: &Path,
    location: Location,
    journal: Option<Journal>,
) -> DropGuard {
    let token = CancellationToken::new();
    let params = params(client, state_dir, location, journal);
    tokio::spawn(fleet::run(params, token.clone()));
    token.drop_guard()
}

/// Parameters of a driver that writes no schedules.
pub(crate) fn params(
    client: kube::Client,
    state_dir: &Path,
    location: Location,
    journal: Option<Journal>,
) -> Params {
    Params {
        client,
        clock: Clock::new(),
        state_dir: state_dir.to_owned(),
        location,
        stages: StageLog::new(16),
        metrics: Metrics::default(),
        journal,
        pulses: Pulses::default(),
        schedules: false,
    }
}
