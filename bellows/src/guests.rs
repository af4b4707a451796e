//! The guests of a state directory. Works with and without `bellows up`.

use std::time::Duration;

use hyper::http::Method;
use protocol::runner::{CONTROL_SOCKET, RunnerPhase, RunnerState, control_socket};
use serde_json::Value;

use crate::instance::Instance;
use crate::places::StateDir;
use crate::unix_http::exchange;

/// Time between the power button and the forced end.
pub(crate) const GRACE: Duration = Duration::from_secs(60);
/// Interval at which the guests are read.
const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// Guests whose runners answer and have not ended, as `namespace_pod`, sorted.
pub(crate) async fn running(state: &StateDir) -> Vec<String> {
    let mut guests = Vec::new();
    for entry in std::fs::read_dir(state.vms())
        .into_iter()
        .flatten()
        .flatten()
    {
        let Ok(name) = entry.file_name().into_string() else {
            continue;
        };
        let socket = entry.path().join(CONTROL_SOCKET);
        let Ok(answer) = exchange(&socket, Method::GET, "/v1/state", None).await else {
            continue;
        };
        let is_over = serde_json::from_value::<RunnerState>(answer)
            .is_ok_and(|state| state.phase == RunnerPhase::Exited);
        if !is_over {
            guests.push(name);
        }
    }
    guests.sort_unstable();
    guests
}

/// State of the runner of a pod, as its control socket answers. `None` if it does not.
pub(crate) async fn runner_state(state: &StateDir, namespace: &str, pod: &str) -> Option<Value> {
    let socket = control_socket(state.path(), namespace, pod);
    exchange(&socket, Method::GET, "/v1/state", None).await.ok()
}

/// Presses the power button of every guest and waits until all have ended. After the grace period
/// it ends them by force. Returns the number of guests.
pub(crate) async fn stop_all(
    state: &StateDir,
    grace: Duration,
    say: &mut dyn FnMut(&str),
) -> usize {
    let count = running(state).await.len();
    let stopping = neonvm_runner::node::stop_all(state.path(), grace);
    let telling = async {
        let mut told = Vec::new();
        loop {
            let left = running(state).await;
            if !left.is_empty() && left != told {
                say(&format!("powering down {}", left.join(", ")));
                told = left;
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    };
    tokio::select! {
        stopped = stopping => {
            if let Ok(Some(instance)) = Instance::load(state) {
                neonvm_runner::node::remove_host_wall(instance.block()).await;
            }
            for one in &stopped {
                tracing::debug!(dir = %one.dir.display(), exit = ?one.exit, "stopped");
            }
        }
        () = telling => {}
    }
    count
}
