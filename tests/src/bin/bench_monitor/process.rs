//! The monitor as a process: start and pages.

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use bellows_tests::process::Process;
use serde_json::Value;
use tokio::runtime::{Builder, Runtime};

use super::timing::{PATIENCE, pause};

/// A running monitor. Killed when dropped.
pub(super) struct Monitor {
    process: Process,
    /// Address for agents.
    pub(super) addr: SocketAddr,
    metrics: SocketAddr,
    runtime: Runtime,
}

impl Monitor {
    /// Starts the binary on free loopback ports.
    pub(super) fn start(binary: &Path, arguments: &[String]) -> Result<Self> {
        let mut command = Command::new(binary);
        command
            .args(["--addr=127.0.0.1:0", "--metrics-addr=127.0.0.1:0"])
            .args(arguments)
            .env_clear();
        let mut process = Process::start(&mut command, Stdio::null())?;
        let said: Value =
            serde_json::from_str(&process.first_line()?).context("the line with the ports")?;
        let port = |name: &str| -> Result<SocketAddr> {
            let text = said["listening"][name].as_str().context("no address")?;
            Ok(text.parse()?)
        };
        Ok(Self {
            addr: port("monitor")?,
            metrics: port("metrics")?,
            process,
            runtime: Builder::new_current_thread().enable_all().build()?,
        })
    }

    /// What the kernel says of it.
    pub(super) fn process(&self) -> &Process {
        &self.process
    }

    /// Content of `/debug/state`.
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
}
