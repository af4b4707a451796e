//! Stops every VM of a state directory, with or without a node driver.

use std::path::{Path, PathBuf};
use std::time::Duration;

use daemon_kit::http_client::over_unix;
use futures::future::join_all;
use hyper::Method;
use protocol::runner::ExitReport;
use tracing::warn;

use super::link;
use crate::core::paths::Paths;
use crate::shell::record::{Record, read_json};

/// Time that a runner has beyond the grace period.
const BEYOND: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(100);

/// Result of stopping one VM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stopped {
    /// The runner's directory of the VM.
    pub dir: PathBuf,
    /// Report of the end; `None` without a runner.
    pub exit: Option<ExitReport>,
}

/// Stops all VMs below `state_dir/vms` concurrently, each with this grace period. A VM's runner
/// stops it; without a runner QEMU is killed. Directories stay.
pub async fn stop_all(state_dir: &Path, grace: Duration) -> Vec<Stopped> {
    let Ok(entries) = std::fs::read_dir(state_dir.join("vms")) else {
        return Vec::new();
    };
    let dirs = entries.flatten().map(|entry| entry.path());
    join_all(dirs.map(|dir| stop_one(dir, grace))).await
}

async fn stop_one(dir: PathBuf, grace: Duration) -> Stopped {
    let paths = Paths::new(&dir);
    let record = || read_json::<Record>(&paths.record()).ok().flatten();
    let alive = || {
        record()
            .and_then(|record| record.qemu)
            .filter(|qemu| qemu.is_alive())
    };
    let grace_ms = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
    if link::stop(&dir, grace_ms).await.is_ok() {
        let end = tokio::time::Instant::now() + grace + BEYOND;
        while alive().is_some() && tokio::time::Instant::now() < end {
            tokio::time::sleep(LOOK).await;
        }
    }
    if let Some(qemu) = alive() {
        warn!(dir = %dir.display(), pid = qemu.pid, "QEMU is killed");
        qemu.kill();
    }
    // The runner writes the report right after QEMU's end.
    let quiet = async {
        while over_unix(&paths.control(), Method::GET, "/v1/state", "", LOOK)
            .await
            .is_ok()
        {
            tokio::time::sleep(LOOK).await;
        }
    };
    // A runner that does not exit has written the report nevertheless.
    let _ = tokio::time::timeout(BEYOND, quiet).await;
    Stopped {
        exit: read_json(&paths.exit()).ok().flatten(),
        dir,
    }
}
