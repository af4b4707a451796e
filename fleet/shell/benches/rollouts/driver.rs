//! The driver in a process of its own, so that its memory is its alone.

use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use daemon_kit::StageLog;
use daemon_kit::clock::Clock;
use fleet::{Location, Metrics, Params, Pulses};
use test_api::TestApi;
use tokio_util::sync::CancellationToken;

/// Address of the API server and the state directory, for the process of the driver.
const API: &str = "BELLOWS_BENCH_API";
const STATE: &str = "BELLOWS_BENCH_STATE";

/// A running driver. Killed when dropped.
pub(crate) struct Driver(Child);

impl Driver {
    pub(crate) fn start(api: &TestApi, state_dir: &Path) -> Self {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        let command = command.env(API, api.url()).env(STATE, state_dir);
        Self(command.spawn().expect("a driver"))
    }

    /// Most of its memory that was ever resident, MiB.
    pub(crate) fn peak_mib(&self) -> f64 {
        let status = format!("/proc/{}/status", self.0.id());
        let status = std::fs::read_to_string(status).expect("it runs");
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
        kib.expect("a number") / 1024.0
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        // It may have ended on its own.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs the driver until it is killed, if this process is to be one.
pub(crate) fn run_if_asked() {
    let (Ok(api), Ok(state_dir)) = (std::env::var(API), std::env::var(STATE)) else {
        return;
    };
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let config = kube::Config::new(api.parse().expect("a URL"));
        let params = Params {
            client: api_client::connect(config).expect("a client"),
            clock: Clock::new(),
            state_dir: PathBuf::from(state_dir),
            stages: StageLog::new(16),
            metrics: Metrics::default(),
            journal: None,
            location: Location::Machine,
            pulses: Pulses::default(),
            schedules: false,
        };
        fleet::run(params, CancellationToken::new()).await;
    });
}
