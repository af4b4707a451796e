//! A runner at a real unix socket: holds orders, reports states, and does what the test tells it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::routing::{get, put};
use axum::{Json, Router};
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use neonvm_controller::shell::RunnerLink;
use protocol::overtaken;
use protocol::runner::{
    CpuState, MemoryState, QuotaState, ResizeReport, RunnerPhase, RunnerState, SizeOrder,
    StageStamp,
};
use protocol::trace::Stage;
use protocol::units::{Bytes, MilliCpu};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

use super::DEADLINE;

pub(crate) struct FakeRunner {
    state: watch::Sender<RunnerState>,
    orders: watch::Sender<Vec<SizeOrder>>,
    path: PathBuf,
    server: JoinHandle<()>,
}

type Shared = (watch::Sender<RunnerState>, watch::Sender<Vec<SizeOrder>>);

impl FakeRunner {
    /// A runner of pod `default/<pod>` whose guest runs at this size.
    pub(crate) fn start(state_dir: &Path, pod: &str, milli_cpu: u32, gib: u64) -> Self {
        let cpu = MilliCpu(milli_cpu);
        let whole = cpu.rounded_up_cores();
        Self::resume(
            state_dir,
            pod,
            RunnerState {
                generation: 1,
                phase: RunnerPhase::Running,
                qemu_pid: Some(1),
                qemu_version: Some("10.0.2".into()),
                accel: "tcg".into(),
                boot_id: Some("boot".into()),
                guest_kernel: None,
                boot_ms: Some(1),
                cpus: CpuState {
                    limit: cpu,
                    plugged: whole,
                    guest_online: Some(whole),
                    ahead: None,
                },
                memory: MemoryState {
                    base: Bytes::gib(1),
                    plugged: Bytes::gib(gib - 1),
                    requested: Bytes::gib(gib - 1),
                    guest_total: None,
                },
                resize: None,
                orders: Some(0),
                exit: None,
                quota: QuotaState::default(),
                outgoing: None,
                incoming: None,
                guest_silent: None,
                programs: Vec::new(),
                guest_parts: std::collections::BTreeMap::new(),
                disk_full: None,
            },
        )
    }

    /// A runner that is in this state.
    pub(crate) fn resume(state_dir: &Path, pod: &str, state: RunnerState) -> Self {
        let path = RunnerLink::socket(state_dir, "default", pod);
        std::fs::create_dir_all(path.parent().expect("a directory")).expect("makes it");
        let _ = std::fs::remove_file(&path);
        let listener = tokio::net::UnixListener::bind(&path).expect("binds");
        let (state, orders) = (watch::Sender::new(state), watch::Sender::new(Vec::new()));
        let router = Router::new()
            .route("/v1/state", get(get_state))
            .route("/v1/size", put(put_size))
            .with_state((state.clone(), orders.clone()));
        let server = tokio::spawn(async move {
            // Ended with the task, connections and all, as those of a killed process are.
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let service = TowerToHyperService::new(router.clone());
                let http = hyper::server::conn::http1::Builder::new();
                connections.spawn(http.serve_connection(TokioIo::new(stream), service));
            }
        });
        Self {
            state,
            orders,
            path,
            server,
        }
    }

    /// Dies: connections break, the socket stays behind. Gives back its last state.
    pub(crate) fn kill(self) -> RunnerState {
        self.server.abort();
        self.state.borrow().clone()
    }

    pub(crate) fn socket(&self) -> &Path {
        &self.path
    }

    pub(crate) fn orders(&self) -> Vec<SizeOrder> {
        self.orders.borrow().clone()
    }

    /// Waits for the `count`th order.
    pub(crate) async fn wait_order(&self, count: usize) -> SizeOrder {
        let mut orders = self.orders.subscribe();
        let found =
            tokio::time::timeout(DEADLINE, orders.wait_for(|list| list.len() >= count)).await;
        let list = found
            .expect("an order in time")
            .expect("the runner stands")
            .clone();
        list[count - 1].clone()
    }

    pub(crate) fn change(&self, change: impl FnOnce(&mut RunnerState)) {
        self.state.send_modify(|state| {
            change(state);
            state.generation += 1;
        });
    }

    /// Carries out the newest order.
    pub(crate) fn finish(&self) {
        self.change(|state| {
            let report = state.resize.as_mut().expect("an order");
            report.done = true;
            report.stages = vec![
                StageStamp {
                    stage: Stage::Qmp,
                    start_unix_us: 1,
                    duration_us: 2,
                },
                StageStamp {
                    stage: Stage::GuestVisible,
                    start_unix_us: 3,
                    duration_us: 4,
                },
            ];
            state.cpus.limit = report.order.cpu;
            state.cpus.plugged = report.order.cpu.rounded_up_cores();
            state.cpus.guest_online = Some(state.cpus.plugged);
            state.memory.plugged = Bytes(report.order.memory.0 - state.memory.base.0);
            state.memory.requested = state.memory.plugged;
        });
    }
}

impl Drop for FakeRunner {
    fn drop(&mut self) {
        self.server.abort();
    }
}

async fn get_state(
    State((state, _)): State<Shared>,
    Query(query): Query<BTreeMap<String, u64>>,
) -> Json<RunnerState> {
    let mut state = state.subscribe();
    if let Some(after) = query.get("after") {
        let wait = Duration::from_millis(query.get("wait_ms").copied().unwrap_or(0));
        let newer = state.wait_for(|state| state.generation > *after);
        let _ = tokio::time::timeout(wait, newer).await;
    }
    let now = state.borrow().clone();
    Json(now)
}

async fn put_size(
    State((state, orders)): State<Shared>,
    Query(query): Query<BTreeMap<String, u64>>,
    Json(order): Json<SizeOrder>,
) -> Result<Json<RunnerState>, (StatusCode, String)> {
    let (taken, is_held) = {
        let state = state.borrow();
        let held = state.resize.as_ref().map(|resize| &resize.order);
        (state.orders.expect("it counts"), held == Some(&order))
    };
    let taken = overtaken::count(taken, query.get("over").copied(), is_held)
        .map_err(|why| (StatusCode::PRECONDITION_FAILED, why.to_string()))?;
    orders.send_modify(|list| list.push(order.clone()));
    state.send_modify(|state| {
        state.generation += 1;
        state.orders = Some(taken);
        state.resize = Some(ResizeReport {
            order,
            done: false,
            stages: vec![],
            problem: None,
        });
    });
    let now = state.borrow().clone();
    Ok(Json(now))
}
