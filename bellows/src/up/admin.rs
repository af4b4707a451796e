//! The admin API: HTTP over `<state>/admin.sock`, for the commands of `bellows`.
//!
//! | route | answer |
//! |---|---|
//! | `GET /v1/status` | [`Status`]: components, readiness, versions, addresses |
//! | `GET /v1/resizes` | `{"resizes":[`[`Resize`](crate::resize::Resize)`…]}`, oldest first |
//! | `GET /v1/decisions` | `{"decisions":{"NAMESPACE/NAME":`[`Decision`](crate::decision::Decision)`…}}`, the last of each VM |
//! | `GET /v1/summary` | `{"status":…,"decisions":…,"policies":…,"refused":…,"resizes":…,"peers":…}`: the answers above, the agent's policies, the scheduler's refused requests, and the machines that know each other or null, of one moment |
//! | `GET /v1/state` | `{"agent":…,"scheduler":…,"controller":…}`: each component's own dump |
//! | `GET /v1/orphans` | `{"orphans":[`[`Orphan`](neonvm_runner::node::Orphan)`…]}`: guests whose pods the store does not have |
//! | `POST /v1/orphans/release` `{"pod":"NAMESPACE/POD"}` | 202; the guest is ended, its directory moved aside |
//! | `POST /v1/store/backup` `{"file":"/…"}` | a copy of the store is in that file, which must not exist |
//! | `GET /v1/peers` | machines that know each other; 404 without `--peers-listen` |
//! | `POST /v1/peers/sets` `{"set":…,"count":…}` | members of a set over all machines |
//! | `POST /v1/peers/policies` | a policy for each other machine; errors by machine |
//! | `POST /v1/shutdown` `{"stop_vms":bool}` | 202; the process ends |
//!
//! Only the owner can open the socket (0600, in a directory of 0700), and may send any request.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use apiserver::Backups;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use daemon_kit::StageLog;
use daemon_kit::unix_socket::ShortPath;
use neonvm_runner::node::Orphans;
use peers_mesh::Mesh;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::net::UnixListener;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::part_registry::PartRegistry;
use super::status::Status;
use crate::fail::{Fail, Outcome};
use crate::resize;

/// A request to end the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Shutdown {
    #[default]
    No,
    /// Ends the components. Guests keep running.
    Leave,
    /// Powers the guests down, too.
    StopVms,
}

/// State and handles behind the routes of the admin API.
#[derive(Clone)]
pub(crate) struct AdminApi {
    /// Builds a [`Status`].
    pub(crate) status: std::sync::Arc<dyn Fn() -> Status + Send + Sync>,
    pub(crate) parts: PartRegistry,
    /// Stages of resizes, from all components.
    pub(crate) stages: StageLog,
    /// Receives shutdown requests.
    pub(crate) shutdown: watch::Sender<Shutdown>,
    /// Guests whose pods the store lacks.
    pub(crate) orphans: Orphans,
    /// Copies the store, once it is open.
    pub(crate) backups: Arc<OnceLock<Backups>>,
    /// This machine among others, once it has joined.
    pub(crate) peers: Arc<OnceLock<Mesh>>,
}

/// Body of `POST /v1/shutdown`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ShutdownOrder {
    #[serde(default)]
    stop_vms: bool,
}

/// Body of `POST /v1/orphans/release`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ReleaseOrder {
    pod: String,
}

/// Body of `POST /v1/store/backup`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct BackupOrder {
    file: PathBuf,
}

/// Body of `POST /v1/peers/sets`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct SetOrder {
    set: String,
    count: u32,
}

/// Binds the socket and replaces one that an earlier process left. The lock on the directory makes
/// that safe.
pub(crate) fn bind(path: &Path) -> Outcome<UnixListener> {
    let broken = |error: std::io::Error| {
        Fail::missing(format!("{} cannot be listened on: {error}", path.display()))
            .rule("our own commands reach us by this socket")
            .fix("mend the rights of the state directory, or use another --state-dir")
    };
    match std::fs::remove_file(path) {
        Ok(()) => {}
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => return Err(broken(error)),
    }
    let short = ShortPath::new(path).map_err(broken)?;
    let listener = UnixListener::bind(short.path()).map_err(broken)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).map_err(broken)?;
    Ok(listener)
}

/// Serves until `cancel` is cancelled.
pub(crate) async fn serve(
    listener: UnixListener,
    api: AdminApi,
    cancel: CancellationToken,
) -> std::io::Result<()> {
    let router = Router::new()
        .route("/v1/status", get(status))
        .route("/v1/resizes", get(resizes))
        .route("/v1/decisions", get(decisions))
        .route("/v1/summary", get(summary))
        .route("/v1/state", get(state))
        .route("/v1/orphans", get(orphans))
        .route("/v1/orphans/release", post(release))
        .route("/v1/store/backup", post(backup))
        .route("/v1/peers", get(peers))
        .route("/v1/peers/sets", post(peers_set))
        .route("/v1/peers/policies", post(peers_policy))
        .route("/v1/shutdown", post(shutdown))
        .with_state(api);
    axum::serve(listener, router)
        .with_graceful_shutdown(cancel.cancelled_owned())
        .await
}

async fn status(State(api): State<AdminApi>) -> Json<Status> {
    Json((api.status)())
}

async fn resizes(State(api): State<AdminApi>) -> Json<Value> {
    Json(json!({"resizes": resize::join(&api.stages.snapshot())}))
}

async fn decisions(State(api): State<AdminApi>) -> Json<Value> {
    // The dump holds many decisions per VM. A view that polls every second needs only the last.
    let decisions = crate::decision::by_vm(&api.parts.dump_of(super::agent::NAME));
    Json(json!({"decisions": decisions}))
}

async fn summary(State(api): State<AdminApi>) -> Json<Value> {
    let mut agent = api.parts.dump_of(super::agent::NAME);
    let mut scheduler = api.parts.dump_of(super::scheduler::NAME);
    Json(json!({
        "status": (api.status)(),
        "decisions": crate::decision::by_vm(&agent),
        "policies": agent["policies"].take(),
        "refused": scheduler["refused"].take(),
        "resizes": resize::join(&api.stages.snapshot()),
        "peers": api.peers.get().map(Mesh::status),
    }))
}

async fn state(State(api): State<AdminApi>) -> Json<Value> {
    Json(api.parts.dump())
}

async fn orphans(State(api): State<AdminApi>) -> Json<Value> {
    Json(json!({"orphans": api.orphans.list()}))
}

async fn release(State(api): State<AdminApi>, Json(order): Json<ReleaseOrder>) -> Response {
    if api.orphans.release(&order.pod) {
        return StatusCode::ACCEPTED.into_response();
    }
    let text = format!("no guest without objects has the pod {:?}\n", order.pod);
    (StatusCode::NOT_FOUND, text).into_response()
}

async fn backup(State(api): State<AdminApi>, Json(order): Json<BackupOrder>) -> Response {
    let written = match api.backups.get() {
        Some(backups) => backups.write(order.file).await,
        None => None,
    };
    match written {
        Some(Ok(position)) => Json(json!({"revision": position.revision})).into_response(),
        Some(Err(error)) => {
            let text = format!("{}\n", daemon_kit::chain(&error));
            (StatusCode::CONFLICT, text).into_response()
        }
        None => {
            let text = "the store is not open: try again in a moment\n";
            (StatusCode::SERVICE_UNAVAILABLE, text).into_response()
        }
    }
}

/// The mesh, or the refusal of a machine that is alone.
fn mesh(api: &AdminApi) -> Result<&Mesh, (StatusCode, &'static str)> {
    let text = "this machine has no peers: start it with --peers-listen ADDR --peers-key FILE\n";
    api.peers.get().ok_or((StatusCode::NOT_FOUND, text))
}

async fn peers(State(api): State<AdminApi>) -> Response {
    match mesh(&api) {
        Ok(mesh) => Json(mesh.status()).into_response(),
        Err(refusal) => refusal.into_response(),
    }
}

async fn peers_set(State(api): State<AdminApi>, Json(order): Json<SetOrder>) -> Response {
    let mesh = match mesh(&api) {
        Ok(mesh) => mesh,
        Err(refusal) => return refusal.into_response(),
    };
    match mesh.want(&order.set, order.count) {
        Ok(()) => StatusCode::ACCEPTED.into_response(),
        Err(why) => (StatusCode::BAD_REQUEST, format!("{why}\n")).into_response(),
    }
}

async fn peers_policy(State(api): State<AdminApi>, body: axum::body::Bytes) -> Response {
    let mesh = match mesh(&api) {
        Ok(mesh) => mesh,
        Err(refusal) => return refusal.into_response(),
    };
    let applied = mesh.apply_policy(body).await;
    let errors: serde_json::Map<String, Value> = applied
        .into_iter()
        .map(|(id, result)| (id.to_string(), json!(result.err())))
        .collect();
    Json(json!({"machines": errors})).into_response()
}

async fn shutdown(State(api): State<AdminApi>, body: axum::body::Bytes) -> Response {
    let order: ShutdownOrder = match serde_json::from_slice(&body) {
        Ok(order) => order,
        Err(error) => return (StatusCode::BAD_REQUEST, format!("{error}\n")).into_response(),
    };
    let wanted = if order.stop_vms {
        Shutdown::StopVms
    } else {
        Shutdown::Leave
    };
    api.shutdown.send_replace(wanted);
    StatusCode::ACCEPTED.into_response()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::unix_http::{UnixHttpError, exchange};
    use hyper::http::Method;
    use protocol::trace::{Stage, StageRecord, TraceId};

    /// Requirement: N45
    #[tokio::test]
    async fn state_resizes_and_shutdown_over_a_private_socket() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("admin.sock");
        std::fs::write(&path, "left by a dead process").unwrap();
        let listener = bind(&path).unwrap();
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        let parts = PartRegistry::default();
        parts.register(
            "agent",
            None,
            Box::new(|| Ok(())),
            Some(Box::new(|| json!({"vms": 2}))),
        );
        let stages = StageLog::new(4);
        stages.record(StageRecord {
            trace: TraceId {
                vm: "default/pg".into(),
                revision: 3,
            },
            stage: Stage::Patch,
            start_unix_us: 1,
            duration_us: 2,
            change: String::new(),
        });
        let (shutdown, asked) = watch::channel(Shutdown::No);
        let shown = parts.clone();
        let status = std::sync::Arc::new(move || sample_status(&shown));
        let cancel = CancellationToken::new();
        let api = AdminApi {
            status,
            parts,
            stages,
            shutdown,
            orphans: Orphans::default(),
            backups: Arc::default(),
            peers: Arc::default(),
        };
        let server = tokio::spawn(serve(listener, api, cancel.clone()));
        let state = exchange(&path, Method::GET, "/v1/state", None)
            .await
            .unwrap();
        assert_eq!(state, json!({"agent": {"vms": 2}}));
        let resizes = exchange(&path, Method::GET, "/v1/resizes", None)
            .await
            .unwrap();
        assert_eq!(resizes["resizes"][0]["revision"], 3);
        let decisions = exchange(&path, Method::GET, "/v1/decisions", None)
            .await
            .unwrap();
        assert_eq!(decisions, json!({"decisions": {}}));
        let summary = exchange(&path, Method::GET, "/v1/summary", None)
            .await
            .unwrap();
        assert_eq!(summary["status"]["node"], "n");
        assert_eq!(summary["resizes"], resizes["resizes"]);
        assert_eq!(summary["decisions"], json!({}));
        assert_eq!(
            (&summary["policies"], &summary["refused"]),
            (&Value::Null, &Value::Null)
        );
        let status = exchange(&path, Method::GET, "/v1/status", None)
            .await
            .unwrap();
        assert_eq!(status["parts"][0]["phase"], "ready");
        let wrong = exchange(&path, Method::POST, "/v1/shutdown", Some(&json!({"x": 1}))).await;
        assert!(matches!(
            wrong,
            Err(UnixHttpError::Refused { status: 400, .. })
        ));
        assert_eq!(*asked.borrow(), Shutdown::No);
        exchange(
            &path,
            Method::POST,
            "/v1/shutdown",
            Some(&json!({"stop_vms": true})),
        )
        .await
        .unwrap();
        assert_eq!(*asked.borrow(), Shutdown::StopVms);
        cancel.cancel();
        server.await.unwrap().unwrap();
    }

    fn sample_status(parts: &PartRegistry) -> Status {
        Status {
            version: "0".into(),
            pid: 1,
            uptime_s: 2,
            node: "n".into(),
            block: 7,
            state_dir: "/s".into(),
            kubeconfig: "/s/kubeconfig".into(),
            accel: "tcg".into(),
            ready: true,
            parts: parts.statuses(),
            orphans: Vec::new(),
            walls: Vec::new(),
        }
    }
}
