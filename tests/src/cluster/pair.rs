//! The deployed scheduler: an unchanged kube-scheduler with our process beside it. Both have the
//! rights, the configuration and the Lease of `deploy/scheduler`.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use super::files::{fresh_file, private_file};
use super::plane::ControlPlane;
use super::record::Part;
use crate::free_addresses;
use crate::process::Process;

/// The namespace of the deployment.
const NAMESPACE: &str = "kube-system";
/// Service account of both.
const ACCOUNT: &str = "autoscale-scheduler";
/// Address of our extender in the shipped configuration.
const SHIPPED: &str = "http://127.0.0.1:10298";

/// The pair on a control plane.
#[derive(Debug)]
pub struct Pair {
    ours: Option<Process>,
    program: PathBuf,
    kubeconfig: PathBuf,
    config: PathBuf,
    extender: SocketAddr,
    /// Address of the permit server.
    pub permits: SocketAddr,
    /// Address of metrics and state.
    pub metrics: SocketAddr,
}

impl Pair {
    /// Applies `deploy/scheduler` and starts both processes as its service account.
    ///
    /// # Errors
    /// When the API refuses a manifest or a process does not start.
    pub fn start(plane: &mut ControlPlane, program: &Path) -> Result<Self> {
        plane.ask(&["apply", "-k", &folder("")])?;
        let kubeconfig = plane.dir().join("account.kubeconfig");
        let token = plane.ask(&["create", "token", ACCOUNT, "-n", NAMESPACE])?;
        private_file(&kubeconfig, &plane.token_kubeconfig(token.trim()))?;
        // Kept over restarts, so that kube-scheduler's configuration holds.
        let [extender, permits, metrics] = free_addresses();
        let shipped = std::fs::read_to_string(folder("kube-scheduler.yaml"))?;
        if !shipped.contains(SHIPPED) {
            bail!("the shipped configuration does not name {SHIPPED}");
        }
        let mut config = shipped.replace(SHIPPED, &format!("http://{extender}"));
        let (file, rate) = (kubeconfig.display(), "qps: 500, burst: 1000");
        config += &format!("clientConnection: {{kubeconfig: \"{file}\", {rate}}}\n");
        let path = plane.dir().join("kube-scheduler.yaml");
        private_file(&path, &config)?;
        let mut pair = Self {
            ours: None,
            program: program.to_owned(),
            kubeconfig,
            config: path,
            extender,
            permits,
            metrics,
        };
        pair.start_ours(plane)?;
        pair.start_kubes(plane)?;
        Ok(pair)
    }

    /// Starts our process, or another one after a kill.
    ///
    /// # Errors
    ///
    /// If it does not start.
    pub fn start_ours(&mut self, plane: &ControlPlane) -> Result<()> {
        let log = fresh_file(&plane.dir().join("log/autoscale-scheduler.log"))?;
        let mut command = Command::new(&self.program);
        command
            .args(["--lease", "follow", "--lease-name", ACCOUNT])
            .arg("--permits-for-anyone")
            .args(["--config", &folder("autoscale-enforcer-config.json")])
            .arg(format!("--listen={}", self.permits))
            .arg(format!("--metrics-listen={}", self.metrics))
            .arg(format!("--extender-listen={}", self.extender))
            .env("KUBECONFIG", &self.kubeconfig);
        let mut process = Process::start(&mut command, log)?;
        let line: Value = serde_json::from_str(&process.first_line()?)?;
        line["extender"].as_str().context("it has no extender")?;
        self.ours = Some(process);
        Ok(())
    }

    /// Kills our scheduler process.
    pub fn kill_ours(&mut self) {
        self.ours = None;
    }

    /// Starts kube-scheduler, or another one after [`Pair::kill_kubes`].
    ///
    /// # Errors
    /// When it does not start.
    pub fn start_kubes(&self, plane: &mut ControlPlane) -> Result<()> {
        plane.start_scheduler(Some(&self.config))
    }

    /// Kills kube-scheduler.
    ///
    /// # Errors
    /// When it does not end.
    pub fn kill_kubes(&self, plane: &mut ControlPlane) -> Result<()> {
        plane.kill(Part::Scheduler)
    }
}

/// A file of the shipped manifests, which `deploy/scheduler` applies.
fn folder(file: &str) -> String {
    let folder = crate::checkout().join("deploy/chart/bellows/parts/scheduler");
    folder.join(file).display().to_string()
}
