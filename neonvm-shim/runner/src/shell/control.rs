//! The two HTTP servers of a runner: the private one on its control socket ([`protocol::runner`]) and the one at the
//! pod's address (spec/neonvm.md §3.6).

use std::path::Path;
use std::time::Duration;

use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get, post, put};
use axum::{Json, Router};
use protocol::runner::{CpuState, RunnerPhase, RunnerState, SizeOrder, StopOrder};
use protocol::units::MilliCpu;
use serde::{Deserialize, Serialize};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use super::supervisor::Input;

/// Longest wait of a long-poll, whatever was asked.
const MAX_WAIT: Duration = Duration::from_secs(60);

/// What the routes need.
#[derive(Debug, Clone)]
pub struct Handle {
    /// The supervisor.
    pub inputs: mpsc::Sender<Input>,
    /// The newest state.
    pub state: watch::Receiver<RunnerState>,
    /// Whether the guest itself switches its CPUs: then its count is asked for, not what was ordered.
    pub guest_counts: bool,
}

/// Binds the control socket, mode 0600. A socket left over by a killed runner is replaced; the caller holds the lock.
///
/// # Errors
/// As the system says.
pub fn bind_private(path: &Path) -> std::io::Result<UnixListener> {
    use std::os::unix::fs::PermissionsExt;
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

/// Serves the control routes until cancelled.
pub async fn serve_private(listener: UnixListener, handle: Handle, cancel: CancellationToken) {
    let routes = Router::new()
        .route("/v1/state", get(state))
        .route("/v1/size", put(size))
        .route("/v1/stop", post(stop))
        .with_state(handle);
    let ended = cancel.clone().cancelled_owned();
    // Open long-polls do not hold up the end: the runner's process ends after this.
    tokio::select! {
        () = ended => {}
        _ = axum::serve(listener, routes) => {}
    }
}

/// Serves the pod's routes until cancelled.
pub async fn serve_pod(listener: TcpListener, handle: Handle, cancel: CancellationToken) {
    let routes = Router::new()
        .route("/cpu_change", any(bad_method).post(cpu_change))
        .route("/cpu_current", any(bad_method).get(cpu_current))
        .route("/ready", any(ready))
        .with_state(handle);
    tokio::select! {
        () = cancel.cancelled_owned() => {}
        _ = axum::serve(listener, routes) => {}
    }
}

/// `?after=GEN&wait_ms=MS`.
#[derive(Debug, Default, Deserialize)]
struct Wait {
    after: Option<u64>,
    wait_ms: Option<u64>,
}

async fn state(State(mut handle): State<Handle>, Query(wait): Query<Wait>) -> Json<RunnerState> {
    if let Some(after) = wait.after {
        let limit = Duration::from_millis(wait.wait_ms.unwrap_or(0)).min(MAX_WAIT);
        let newer = handle.state.wait_for(|state| state.generation > after);
        // Whether it came or the time is up: the newest state is the answer.
        let _ = tokio::time::timeout(limit, newer).await;
    }
    Json(handle.state.borrow().clone())
}

async fn size(State(handle): State<Handle>, Json(order): Json<SizeOrder>) -> Response {
    match ask(&handle, |reply| Input::Order(order, reply)).await {
        Some(state) => Json(state).into_response(),
        None => gone(),
    }
}

async fn stop(State(handle): State<Handle>, Json(order): Json<StopOrder>) -> Response {
    match handle.inputs.send(Input::Stop(order)).await {
        Ok(()) => StatusCode::ACCEPTED.into_response(),
        Err(_) => gone(),
    }
}

/// The supervisor has ended: so has the VM.
fn gone() -> Response {
    (StatusCode::SERVICE_UNAVAILABLE, "the runner is ending\n").into_response()
}

async fn ask(
    handle: &Handle,
    input: impl FnOnce(oneshot::Sender<RunnerState>) -> Input,
) -> Option<RunnerState> {
    let (reply, answer) = oneshot::channel();
    handle.inputs.send(input(reply)).await.ok()?;
    answer.await.ok()
}

/// `{"VCPUs": …}`, the member's name exactly so.
#[derive(Debug, Serialize, Deserialize)]
struct Vcpus {
    #[serde(rename = "VCPUs")]
    vcpus: MilliCpu,
}

async fn bad_method() -> Response {
    (StatusCode::BAD_REQUEST, "wrong method\n").into_response()
}

async fn cpu_change(State(handle): State<Handle>, body: axum::body::Bytes) -> Response {
    let vcpus = match serde_json::from_slice::<Vcpus>(&body) {
        Ok(Vcpus { vcpus }) => vcpus,
        Err(error) => return (StatusCode::BAD_REQUEST, format!("{error}\n")).into_response(),
    };
    match ask(&handle, |reply| Input::CpuChange(vcpus, reply)).await {
        Some(_) => StatusCode::OK.into_response(),
        None => gone(),
    }
}

async fn cpu_current(State(handle): State<Handle>) -> Json<Vcpus> {
    let cpus = handle.state.borrow().cpus;
    Json(Vcpus {
        vcpus: reported(cpus, handle.guest_counts),
    })
}

/// The limit, unless the guest counts and has another number of CPUs: then that one, so that whoever compares sees it.
fn reported(cpus: CpuState, guest_counts: bool) -> MilliCpu {
    match cpus.guest_online {
        Some(online) if guest_counts && online != cpus.limit.rounded_up_cores() => {
            MilliCpu(online.saturating_mul(1000))
        }
        _ => cpus.limit,
    }
}

async fn ready(State(handle): State<Handle>) -> StatusCode {
    let phase = handle.state.borrow().phase;
    if phase == RunnerPhase::Running {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_members_name_is_the_peers() {
        let text = serde_json::to_string(&Vcpus {
            vcpus: MilliCpu(1500),
        })
        .unwrap();
        assert_eq!(text, r#"{"VCPUs":"1500m"}"#);
        let read: Vcpus = serde_json::from_str(r#"{"VCPUs":0.25}"#).unwrap();
        assert_eq!(read.vcpus, MilliCpu(250));
    }

    #[test]
    fn a_guest_that_counts_is_believed() {
        let cpus = CpuState {
            limit: MilliCpu(1500),
            plugged: 4,
            guest_online: Some(2),
        };
        assert_eq!(reported(cpus, true), MilliCpu(1500));
        let fewer = CpuState {
            guest_online: Some(1),
            ..cpus
        };
        assert_eq!(reported(fewer, true), MilliCpu(1000));
        assert_eq!(reported(fewer, false), MilliCpu(1500));
    }
}
