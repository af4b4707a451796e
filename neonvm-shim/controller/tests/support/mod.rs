//! Peers of the controller for its shell tests: the embedded API server with faults before it, and
//! a runner at a real unix socket, which speaks what a real one speaks as far as the controller can
//! see.

#![allow(dead_code, reason = "each test binary uses its part")]

pub(crate) mod api;
pub(crate) mod runner;

use std::time::Duration;

use daemon_kit::StageLog;
use daemon_kit::clock::Clock;
use neonvm_controller::{Metrics, Params, RunError, Settings, StateHandle};
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use api::FakeApi;

/// Nothing that is waited for takes longer.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

/// A controller that runs.
pub(crate) struct Controller {
    pub(crate) stages: StageLog,
    pub(crate) state: StateHandle,
    cancel: CancellationToken,
    task: JoinHandle<Result<(), RunError>>,
}

impl Controller {
    pub(crate) fn start(api: &FakeApi, state_dir: &std::path::Path) -> Self {
        Self::start_with(api, state_dir, Settings::one_machine())
    }

    pub(crate) fn start_with(
        api: &FakeApi,
        state_dir: &std::path::Path,
        settings: Settings,
    ) -> Self {
        let client = api.client();
        let clock = Clock::new();
        let (stages, state) = (StageLog::new(256), StateHandle::new(clock));
        let cancel = CancellationToken::new();
        let params = Params {
            client,
            state_dir: state_dir.to_owned(),
            settings,
            clock,
            stages: stages.clone(),
            metrics: Metrics::register(&mut Registry::default()),
            state: state.clone(),
            set_journal: None,
        };
        let task = tokio::spawn(neonvm_controller::run(params, cancel.clone()));
        Self {
            stages,
            state,
            cancel,
            task,
        }
    }

    /// Ends as a drained process would.
    pub(crate) async fn stop(self) {
        self.cancel.cancel();
        self.task.await.expect("no panic").expect("no error");
    }

    /// Ends as a killed process would: in the middle of whatever it does.
    pub(crate) async fn kill(self) {
        self.task.abort();
        let _ = self.task.await;
    }
}

/// VM `default/<name>`: a quarter CPU of 0.25 to 2, one slot of 1 to 4.
pub(crate) fn vm(name: &str) -> Value {
    json!({
        "apiVersion": "vm.neon.tech/v1",
        "kind": "VirtualMachine",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "guest": {
                "cpus": {"min": "250m", "use": "250m", "max": 2},
                "memorySlotSize": "1Gi",
                "memorySlots": {"min": 1, "use": 1, "max": 4},
                "rootDisk": {"image": "postgres"},
            },
        },
    })
}
