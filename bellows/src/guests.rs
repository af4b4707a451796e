//! The guests of a state directory, asked through their runners' control sockets. Works with and without `bellows up`.

use std::path::PathBuf;
use std::time::Duration;

use hyper::http::Method;
use protocol::runner::{RunnerPhase, RunnerState, StopOrder};
use serde_json::{Value, json};

use crate::fail::{Fail, Outcome};
use crate::places::StateDir;
use crate::unix_http::exchange;

/// Time between the power button and the end by force.
pub(crate) const GRACE: Duration = Duration::from_secs(60);
/// Time a runner gets beyond the grace period to say that its guest has ended.
const LAST_WORD: Duration = Duration::from_secs(15);
/// How often a wait looks again.
const LOOK_AGAIN: Duration = Duration::from_millis(250);

/// A guest whose runner answers and has not ended.
#[derive(Debug, Clone)]
pub(crate) struct Guest {
    /// `namespace_pod`, the name of its directory.
    pub(crate) name: String,
    /// Its runner's control socket.
    socket: PathBuf,
}

/// All guests that run, by name.
pub(crate) async fn running(state: &StateDir) -> Vec<Guest> {
    let mut names: Vec<String> = std::fs::read_dir(state.vms())
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    names.sort_unstable();
    let mut guests = Vec::new();
    for name in names {
        let socket = state.vms().join(&name).join("control.sock");
        let Ok(answer) = exchange(&socket, Method::GET, "/v1/state", None).await else {
            continue;
        };
        match serde_json::from_value::<RunnerState>(answer) {
            Ok(found) if found.phase != RunnerPhase::Exited => guests.push(Guest { name, socket }),
            _ => {}
        }
    }
    guests
}

/// Presses the power button of every guest and waits until all have ended.
///
/// # Errors
/// 75 with the names of guests that are still there after grace period and force.
pub(crate) async fn stop_all(
    state: &StateDir,
    grace: Duration,
    say: &mut dyn FnMut(&str),
) -> Outcome<usize> {
    let guests = running(state).await;
    let order = StopOrder {
        grace_ms: u64::try_from(grace.as_millis()).unwrap_or(u64::MAX),
    };
    let body: Value = json!(order);
    for guest in &guests {
        // A runner that does not take the order shows up below as a guest that does not end.
        if let Err(error) = exchange(&guest.socket, Method::POST, "/v1/stop", Some(&body)).await {
            tracing::warn!(
                guest = guest.name,
                error = telemetry::chain(&error),
                "power button"
            );
        }
    }
    let wait = async {
        loop {
            let left = running(state).await;
            if left.is_empty() {
                return;
            }
            let names: Vec<&str> = left.iter().map(|guest| guest.name.as_str()).collect();
            say(&format!("powering down {}", names.join(", ")));
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    };
    if tokio::time::timeout(grace + LAST_WORD, wait).await.is_ok() {
        return Ok(guests.len());
    }
    let left: Vec<String> = running(state)
        .await
        .into_iter()
        .map(|guest| guest.name)
        .collect();
    Err(Fail::try_again(format!(
        "still running after {} s: {}",
        (grace + LAST_WORD).as_secs(),
        left.join(", ")
    ))
    .rule("a guest that does not power down in its grace period is ended by force")
    .fix("look into its directory under vms/ for the runner's log, and try again"))
}
