//! Played guests: a runner's socket each, and one page for all.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::routing::{get, post, put};
use protocol::parts::{PartName, PartPhase, PartSource, PartState, PartStates};
use protocol::runner::control_socket;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::net::{TcpListener, UnixListener};

/// Port of a monitor's page.
const PAGE_PORT: u16 = 9100;
/// Every address of 127.0.0.0/8 leads to it.
pub(crate) const PAGE_ADDRESS: &str = "127.0.0.1";

#[derive(Deserialize)]
struct Pushed {
    sha256: String,
    version: String,
    token: String,
}

#[derive(Deserialize)]
struct Order {
    token: String,
    #[serde(default)]
    seconds: u64,
}

/// When guests began to try programs, in this order.
#[derive(Clone, Default)]
pub(crate) struct Tries(Arc<Mutex<Vec<Instant>>>);

impl Tries {
    fn after(&self, since: Instant) -> Vec<Duration> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let later = all.iter().filter(|at| **at >= since);
        later.map(|at| at.duration_since(since)).collect()
    }

    pub(crate) fn since(&self, since: Instant) -> usize {
        self.after(since).len()
    }

    pub(crate) fn first_since(&self, since: Instant) -> Option<Duration> {
        self.after(since).first().copied()
    }

    pub(crate) fn last_since(&self, since: Instant) -> Option<Duration> {
        self.after(since).last().copied()
    }
}

struct Guest {
    part: PartState,
    staged: Option<Pushed>,
    trial_ends: Instant,
    tries: Tries,
}

type Shared = State<Arc<Mutex<Guest>>>;

fn lock(guest: &Mutex<Guest>) -> std::sync::MutexGuard<'_, Guest> {
    guest.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Guest {
    fn parts(&self) -> PartStates {
        let mut part = self.part.clone();
        let left = self.trial_ends.saturating_duration_since(Instant::now());
        part.left_s = left.as_secs();
        [(PartName::Monitor, part)].into()
    }
}

async fn state(State(guest): Shared) -> axum::Json<Value> {
    let state = include_str!("../../../../protocol/testdata/runner/state_booting.json");
    let mut state: Value = serde_json::from_str(state).expect("JSON");
    state["phase"] = json!("running");
    state["boot_id"] = json!("boot");
    state["qemu_pid"] = Value::Null;
    state["guest_parts"] = json!(lock(&guest).parts());
    axum::Json(state)
}

async fn parts(State(guest): Shared) -> axum::Json<PartStates> {
    axum::Json(lock(&guest).parts())
}

async fn push(State(guest): Shared, Query(pushed): Query<Pushed>) {
    let mut guest = lock(&guest);
    guest.part.phase = PartPhase::Staged;
    guest.part.token.clone_from(&pushed.token);
    guest.staged = Some(pushed);
}

async fn begin(State(guest): Shared, order: axum::Json<Order>) -> StatusCode {
    let mut guest = lock(&guest);
    if guest.part.token != order.token {
        return StatusCode::PRECONDITION_FAILED;
    }
    let Some(pushed) = guest.staged.take() else {
        return StatusCode::NOT_FOUND;
    };
    guest.part.sha256 = pushed.sha256;
    guest.part.version = pushed.version;
    guest.part.from = PartSource::A;
    guest.part.phase = PartPhase::Trial;
    let now = Instant::now();
    guest.trial_ends = now + Duration::from_secs(order.seconds);
    let mut tries = guest.tries.0.lock().unwrap_or_else(PoisonError::into_inner);
    tries.push(now);
    StatusCode::OK
}

async fn keep(State(guest): Shared, order: axum::Json<Order>) -> StatusCode {
    let mut guest = lock(&guest);
    if guest.part.token != order.token {
        return StatusCode::PRECONDITION_FAILED;
    }
    guest.part.phase = PartPhase::Settled;
    guest.trial_ends = Instant::now();
    StatusCode::OK
}

/// Serves a guest of `pod` at its runner's socket.
pub(crate) fn serve(state_dir: &Path, pod: &str, tries: &Tries) {
    let socket = control_socket(state_dir, "default", pod);
    std::fs::create_dir_all(socket.parent().expect("a folder")).expect("a folder");
    let listener = UnixListener::bind(&socket).expect("a socket");
    let part = PartState {
        version: "1.0.0".to_owned(),
        sha256: "0".repeat(64),
        from: PartSource::Image,
        phase: PartPhase::Settled,
        left_s: 0,
        token: String::new(),
        reason: String::new(),
        starts: 1,
        resident_bytes: 1 << 20,
    };
    let guest = Guest {
        part,
        staged: None,
        trial_ends: Instant::now(),
        tries: tries.clone(),
    };
    let router = Router::new()
        .route("/v1/state", get(state))
        .route("/v1/guest/parts", get(parts))
        .route("/v1/guest/parts/monitor", put(push))
        .route("/v1/guest/parts/monitor/try", post(begin))
        .route("/v1/guest/parts/monitor/keep", post(keep))
        .with_state(Arc::new(Mutex::new(guest)));
    tokio::spawn(async move { axum::serve(listener, router).await });
}

/// Serves the page of a working monitor.
pub(crate) async fn serve_page() {
    let listener = TcpListener::bind((PAGE_ADDRESS, PAGE_PORT)).await;
    let listener = listener.expect("the page's port on a loopback address");
    let page = "host_memory_total_bytes 1073741824\nvm_monitor_agent_connected 1\n\
                vm_monitor_upscale_requests_total 0\nprocess_resident_memory_bytes 4000000\n\
                vm_monitor_oom_kills_total 0\n";
    let router = Router::new().route("/metrics", get(move || std::future::ready(page)));
    tokio::spawn(async move { axum::serve(listener, router).await });
}
