//! Reads how long tasks ran and waited to run, every two seconds, for as long as the monitor runs.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::alarm::Alarm;
use super::clock::Clock;
use super::memory;
use crate::core::files;
use crate::core::runnable::{PERIOD, Reading, RunnableLoad};

/// Most read of `schedstat`, bytes: a line for each CPU and for each of its scheduling domains.
const LIMIT_BYTES: u64 = 1024 * 1024;

/// Reads until cancelled. On a kernel without `schedstat` there are no averages, and the agent
/// takes the kernel's load.
pub async fn run(
    to: watch::Sender<RunnableLoad>,
    proc_root: PathBuf,
    clock: Clock,
    cancel: CancellationToken,
) {
    let mut alarm = match Alarm::new(clock) {
        Ok(alarm) => alarm,
        Err(error) => {
            tracing::warn!(%error, "no timer: runnable tasks are not averaged");
            return;
        }
    };
    loop {
        let now = clock.now();
        let Some(runnable_ns) = runnable_ns(&proc_root) else {
            tracing::info!(
                "no schedstat in {}: runnable tasks are not averaged",
                proc_root.display()
            );
            return;
        };
        let total = memory::machine_memory(&proc_root)
            .ok()
            .map(|memory| memory.total);
        to.send_modify(|load| load.observe(now, Reading { runnable_ns, total }));
        tokio::select! {
            () = cancel.cancelled() => return,
            rung = alarm.at(Some(now + PERIOD)) => if rung.is_err() { return },
        }
    }
}

fn runnable_ns(proc_root: &Path) -> Option<BTreeMap<u32, u64>> {
    let file = std::fs::File::open(proc_root.join("schedstat")).ok()?;
    let mut text = String::new();
    file.take(LIMIT_BYTES).read_to_string(&mut text).ok()?;
    Some(files::runnable_ns(&text)).filter(|cpus| !cpus.is_empty())
}
