//! The monitor as a process: start, pages, what the kernel says of its costs.

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;
use tokio::runtime::{Builder, Runtime};

use super::{PATIENCE, pause};

/// A running monitor. Killed when dropped.
pub(super) struct Monitor {
    child: Child,
    /// Where agents dial.
    pub(super) addr: SocketAddr,
    metrics: SocketAddr,
    runtime: Runtime,
}

impl Monitor {
    /// Starts the binary on free loopback ports.
    pub(super) fn start(binary: &Path, arguments: &[String]) -> Result<Self> {
        let mut child = Command::new(binary)
            .args(["--addr=127.0.0.1:0", "--metrics-addr=127.0.0.1:0"])
            .args(arguments)
            .env_clear()
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| format!("cannot start {}", binary.display()))?;
        let stdout = child.stdout.take().context("piped")?;
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line)?;
        let said: Value = serde_json::from_str(&line).context("the line with the ports")?;
        let port = |name: &str| -> Result<SocketAddr> {
            let text = said["listening"][name].as_str().context("no address")?;
            Ok(text.parse()?)
        };
        Ok(Self {
            addr: port("monitor")?,
            metrics: port("metrics")?,
            child,
            runtime: Builder::new_current_thread().enable_all().build()?,
        })
    }

    /// What `/debug/state` says.
    pub(super) fn state(&self) -> Result<Value> {
        let url = format!("http://{}/debug/state", self.metrics);
        let body = self.runtime.block_on(async {
            let page = reqwest::get(&url).await?.error_for_status()?;
            page.bytes().await
        })?;
        serde_json::from_slice(&body).context("/debug/state")
    }

    /// Waits until the state is so.
    pub(super) fn wait_state(&self, what: &str, is_so: impl Fn(&Value) -> bool) -> Result<()> {
        let began = Instant::now();
        loop {
            let state = self.state()?;
            if is_so(&state) {
                return Ok(());
            }
            if began.elapsed() > PATIENCE {
                bail!("{what}: not within {PATIENCE:?}: {state}");
            }
            pause(Duration::from_millis(20));
        }
    }

    /// Time on a processor so far, of all threads.
    pub(super) fn cpu(&self) -> Result<Duration> {
        let mut nanos = 0;
        for task in std::fs::read_dir(format!("/proc/{}/task", self.child.id()))? {
            let text = std::fs::read_to_string(task?.path().join("schedstat"))?;
            let first = text.split_whitespace().next().context("empty schedstat")?;
            nanos += first.parse::<u64>().context("schedstat")?;
        }
        Ok(Duration::from_nanos(nanos))
    }

    /// Resident memory, bytes.
    pub(super) fn rss(&self) -> Result<u64> {
        let text = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = line.and_then(|line| line.split_whitespace().next());
        Ok(kib.context("no VmRSS")?.parse::<u64>()? << 10)
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        // It may have ended by itself, which showed before.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
