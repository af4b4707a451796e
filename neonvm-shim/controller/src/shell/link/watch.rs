//! The state of a runner, by requests that it holds until the state changes.

use std::time::Duration;

use daemon_kit::chain;
use protocol::runner::RunnerState;
use tokio_util::sync::CancellationToken;

use super::client::RunnerLink;
use crate::shell::clock::pause;

/// First and longest pause between attempts to reach a runner. A refused connection to a unix
/// socket costs microseconds, and a runner that has just come up should be found at once.
const RETRY_FIRST: Duration = Duration::from_millis(10);
const RETRY_CAP: Duration = Duration::from_millis(250);

/// Keeps a request open at a runner until `cancel`. Passes each new state, and each failure, to
/// `update`.
pub(crate) async fn watch_state(
    mut link: RunnerLink,
    update: impl Fn(Result<RunnerState, String>) + Send,
    cancel: CancellationToken,
) {
    let mut after = None;
    let mut retry = RETRY_FIRST;
    loop {
        let response = tokio::select! {
            () = cancel.cancelled() => return,
            response = link.state(after) => response,
        };
        match response {
            Ok(state) => {
                retry = RETRY_FIRST;
                // A lower generation is that of a new runner, whose state is passed on too.
                if after != Some(state.generation) {
                    after = Some(state.generation);
                    update(Ok(state));
                }
            }
            Err(error) => {
                after = None;
                update(Err(chain(&error)));
                tokio::select! {
                    () = cancel.cancelled() => return,
                    () = pause(retry) => {}
                }
                retry = (retry * 2).min(RETRY_CAP);
            }
        }
    }
}
