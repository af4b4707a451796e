//! The two HTTP servers of a runner: the private one on its control socket ([`protocol::runner`])
//! and the one at the pod's address (docs/compatibility/neonvm.md §3.6).

use std::path::{Path, PathBuf};
use std::time::Duration;

use axum::body::to_bytes;
use axum::extract::{Path as UrlPath, Query, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, delete, get, post, put};
use axum::{Json, Router};
use protocol::migration::{IncomingOrder, OutgoingOrder};
use protocol::runner::{CpuState, CpusAhead, RunnerPhase, RunnerState, SizeOrder, StopOrder};
use protocol::units::MilliCpu;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use super::bounded_server::{self, Accepted, Bounds};
use super::guest_parts::{self, GuestLink};
use super::input::{Input, MigrationOrder, ReplySender};
use super::tls_acceptor::TlsAcceptor;

/// Longest wait of a long-poll, whatever the request says.
const MAX_WAIT: Duration = Duration::from_secs(60);
/// Longest body of an order in bytes.
const MAX_BODY_BYTES: usize = 2 << 20;

/// State that the routes of both servers share.
#[derive(Debug, Clone)]
pub struct Handle {
    /// Channel to the VM's driver.
    pub inputs: mpsc::Sender<Input>,
    /// The driver's published state, for reads and long-polls.
    pub state: watch::Receiver<RunnerState>,
    /// Whether the guest switches its own CPUs: then its count is reported, not the order.
    pub guest_counts: bool,
    /// Way to the guest's daemon, for orders about the guest's parts.
    pub guest: GuestLink,
}

/// Binds the control socket, mode 0600. A socket left over by a killed runner is replaced; the
/// caller holds the lock.
///
/// # Errors
/// The system's error.
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
    let routes = control().merge(guest_parts::routes()).with_state(handle);
    let ended = cancel.clone().cancelled_owned();
    // Open long-polls do not delay the end: the runner's process ends after this.
    tokio::select! {
        () = ended => {}
        _ = axum::serve(listener, routes) => {}
    }
}

fn control() -> Router<Handle> {
    Router::new()
        .route("/v1/state", get(state))
        .route("/v1/size", put(size))
        .route("/v1/ahead", put(ahead))
        .route("/v1/stop", post(stop))
        .route("/v1/outgoing", put(send))
        .route("/v1/outgoing/{id}", delete(recall))
        .route("/v1/outgoing/{id}/done", post(quit))
        .route("/v1/incoming", put(receive))
        .route("/v1/incoming/{id}/begin", post(begin))
}

/// File with the token of orders at the pod's address. It is read at each request: the kubelet
/// replaces it when the secret changes.
#[derive(Debug, Clone)]
pub struct Token(PathBuf);

impl Token {
    /// The token in this file.
    ///
    /// # Errors
    /// The file is missing, unreadable or empty.
    pub fn new(path: &Path) -> std::io::Result<Self> {
        let token = Self(path.to_owned());
        token.digest().map(|_| token)
    }

    fn digest(&self) -> std::io::Result<[u8; 32]> {
        match std::fs::read_to_string(&self.0)?.trim() {
            // An empty token would authenticate every peer.
            "" => Err(std::io::ErrorKind::InvalidData.into()),
            token => Ok(Sha256::digest(token).into()),
        }
    }

    /// Compares digests, so that the time reveals nothing about the token.
    fn is_shown(&self, headers: &HeaderMap) -> bool {
        let shown = headers
            .get(header::AUTHORIZATION)
            .and_then(|value| value.as_bytes().strip_prefix(b"Bearer "))
            .map(|token| <[u8; 32]>::from(Sha256::digest(token)));
        shown.is_some() && self.digest().ok() == shown
    }
}

/// Serves the pod's routes until cancelled.
///
/// With a token, a peer that shows it may do here what the control socket allows, over TLS if it
/// chooses ([`TlsAcceptor`]), and no other peer changes anything. Without a token the routes of
/// NeonVM's runner are open, as they are there. Metrics are always open.
///
/// At a loopback address no orders are taken, as every user of the machine can connect there. The
/// controller uses the socket.
pub async fn serve_pod(
    listener: TcpListener,
    handle: Handle,
    token: Option<Token>,
    metrics: Router,
    cancel: CancellationToken,
) {
    let is_loopback = listener
        .local_addr()
        .is_ok_and(|address| address.ip().is_loopback());
    let acceptor = TlsAcceptor::new(token.as_ref().map(|token| token.0.as_path()));
    let bounds = Bounds::DEPLOYED;
    let routes = pod(token, is_loopback, bounds)
        .with_state(handle)
        .merge(metrics);
    bounded_server::serve(listener, acceptor, routes, bounds, cancel).await;
}

fn pod(token: Option<Token>, is_loopback: bool, bounds: Bounds) -> Router<Handle> {
    let in_time = middleware::from_fn_with_state(bounds.patience, read);
    let open = Router::new()
        .route("/cpu_current", any(bad_method).get(cpu_current))
        .route("/ready", any(ready));
    if is_loopback {
        return open.route("/cpu_change", any(bad_address));
    }
    let orders = Router::new().route("/cpu_change", any(bad_method).post(cpu_change));
    match token {
        Some(token) => {
            let guard = middleware::from_fn_with_state(token, admit);
            let orders = orders.merge(control()).route_layer(in_time);
            // Programs are streamed on, which may take longer.
            let orders = orders.merge(guest_parts::routes());
            // The check precedes reading a body.
            open.merge(orders.route_layer(guard))
        }
        None => open.merge(orders.route_layer(in_time)),
    }
}

/// Reads a request's body within a time limit.
async fn read(State(patience): State<Duration>, request: Request, next: Next) -> Response {
    let (head, body) = request.into_parts();
    match tokio::time::timeout(patience, to_bytes(body, MAX_BODY_BYTES)).await {
        Ok(Ok(body)) => next.run(Request::from_parts(head, body.into())).await,
        Ok(Err(error)) => (StatusCode::BAD_REQUEST, format!("{error}\n")).into_response(),
        Err(_) => StatusCode::REQUEST_TIMEOUT.into_response(),
    }
}

async fn admit(State(token): State<Token>, request: Request, next: Next) -> Response {
    if token.is_shown(request.headers()) {
        if let Some(accepted) = request.extensions().get::<Accepted>() {
            accepted.authenticate();
        }
        return next.run(request).await;
    }
    (
        StatusCode::UNAUTHORIZED,
        "only this VM's controller is listened to\n",
    )
        .into_response()
}

#[derive(Debug, Default, Deserialize)]
struct Wait {
    after: Option<u64>,
    wait_ms: Option<u64>,
}

async fn state(State(mut handle): State<Handle>, Query(wait): Query<Wait>) -> Json<RunnerState> {
    if let Some(after) = wait.after {
        let limit = Duration::from_millis(wait.wait_ms.unwrap_or(0)).min(MAX_WAIT);
        let newer = handle.state.wait_for(|state| state.generation > after);
        // At a change or at the timeout: the newest state is the response.
        let _ = tokio::time::timeout(limit, newer).await;
    }
    Json(handle.state.borrow().clone())
}

#[derive(Debug, Deserialize)]
struct Over {
    over: Option<u64>,
}

async fn size(
    State(handle): State<Handle>,
    Query(Over { over }): Query<Over>,
    Json(order): Json<SizeOrder>,
) -> Response {
    let accepted = order_and_wait(&handle, |reply| Input::Order { order, over, reply }).await;
    response(accepted, StatusCode::PRECONDITION_FAILED)
}

async fn ahead(State(handle): State<Handle>, Json(request): Json<CpusAhead>) -> Response {
    let accepted = order_and_wait(&handle, |reply| Input::Ahead(request, reply)).await;
    response(accepted, StatusCode::CONFLICT)
}

/// The state after an accepted order, or a refusal with this status.
fn response(accepted: Option<Result<RunnerState, String>>, refused: StatusCode) -> Response {
    match accepted {
        Some(Ok(state)) => Json(state).into_response(),
        Some(Err(why)) => (refused, format!("{why}\n")).into_response(),
        None => gone(),
    }
}

async fn stop(State(handle): State<Handle>, Json(order): Json<StopOrder>) -> Response {
    match handle.inputs.send(Input::Stop(order)).await {
        Ok(()) => StatusCode::ACCEPTED.into_response(),
        Err(_) => gone(),
    }
}

async fn send(State(handle): State<Handle>, Json(order): Json<OutgoingOrder>) -> Response {
    transfer(&handle, MigrationOrder::Send(order)).await
}

async fn recall(State(handle): State<Handle>, UrlPath(id): UrlPath<String>) -> Response {
    transfer(&handle, MigrationOrder::Recall(id)).await
}

async fn quit(State(handle): State<Handle>, UrlPath(id): UrlPath<String>) -> Response {
    transfer(&handle, MigrationOrder::Quit(id)).await
}

async fn receive(State(handle): State<Handle>, Json(order): Json<IncomingOrder>) -> Response {
    transfer(&handle, MigrationOrder::Receive(Box::new(order))).await
}

async fn begin(State(handle): State<Handle>, UrlPath(id): UrlPath<String>) -> Response {
    transfer(&handle, MigrationOrder::Begin(id)).await
}

async fn transfer(handle: &Handle, order: MigrationOrder) -> Response {
    let accepted = order_and_wait(handle, |reply| Input::Migration(order, reply)).await;
    response(accepted, StatusCode::CONFLICT)
}

/// Response after the driver's end, and so the VM's.
fn gone() -> Response {
    (StatusCode::SERVICE_UNAVAILABLE, "the runner is ending\n").into_response()
}

/// Sends an order to the driver and waits for its reply. `None` after the driver's end.
async fn order_and_wait(
    handle: &Handle,
    input: impl FnOnce(ReplySender) -> Input,
) -> Option<Result<RunnerState, String>> {
    let (reply, accepted) = oneshot::channel();
    handle.inputs.send(input(reply)).await.ok()?;
    accepted.await.ok()
}

/// `{"VCPUs": …}`, with exactly this member name.
#[derive(Debug, Serialize, Deserialize)]
struct Vcpus {
    #[serde(rename = "VCPUs")]
    vcpus: MilliCpu,
}

async fn bad_method() -> Response {
    (StatusCode::BAD_REQUEST, "wrong method\n").into_response()
}

async fn bad_address() -> Response {
    (
        StatusCode::FORBIDDEN,
        "every user of the machine reaches this address: sizes are ordered on control.sock in the runner's directory\n",
    )
        .into_response()
}

async fn cpu_change(State(handle): State<Handle>, body: axum::body::Bytes) -> Response {
    let vcpus = match serde_json::from_slice::<Vcpus>(&body) {
        Ok(Vcpus { vcpus }) => vcpus,
        Err(error) => return (StatusCode::BAD_REQUEST, format!("{error}\n")).into_response(),
    };
    match order_and_wait(&handle, |reply| Input::CpuChange(vcpus, reply)).await {
        Some(Ok(_)) => StatusCode::OK.into_response(),
        refused => response(refused, StatusCode::CONFLICT),
    }
}

async fn cpu_current(State(handle): State<Handle>) -> Json<Vcpus> {
    let cpus = handle.state.borrow().cpus;
    Json(Vcpus {
        vcpus: reported(cpus, handle.guest_counts),
    })
}

/// The CPU limit. If the guest counts and has another number of CPUs, that number, so that a
/// comparison shows the difference.
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
mod tests;
