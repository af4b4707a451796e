//! State of a runner, from its control socket.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use daemon_kit::http_client::over_unix;
use hyper::Method;
use protocol::runner::RunnerState;

/// Longest time for a response.
const PATIENCE: Duration = Duration::from_secs(60);

/// State of the runner of a directory.
///
/// # Errors
/// When the runner does not answer.
pub async fn runner_state(rundir: &Path) -> Result<RunnerState> {
    let socket = rundir.join("control.sock");
    let body = over_unix(&socket, Method::GET, "/v1/state", "", PATIENCE).await?;
    Ok(serde_json::from_slice(&body)?)
}
