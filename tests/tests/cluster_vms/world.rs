//! The cluster that all cases share, one VM in it, and waits for its states.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result};
use bellows_tests::cluster::{CertManager, Cluster, Dials, NodeKit, Programs};
use bellows_tests::explained;
use bellows_tests::patience::wait_for;
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use super::{given, network, rows};

/// A guest boots in 10 s by TCG on a machine of its own, and shares this one with two nodes.
pub(super) const PATIENCE: Duration = Duration::from_secs(240);

/// Bytes of a GiB.
const GIB: u64 = 1 << 30;

/// Foreign programs that some features need.
pub(super) struct Others {
    pub(super) cert_manager: CertManager,
    /// The network plugin multus, which gives pods further interfaces.
    pub(super) multus: PathBuf,
}

/// A cluster with all our components.
pub(super) struct World {
    pub(super) cluster: Cluster,
    pub(super) dials: Dials,
    pub(super) dir: tempfile::TempDir,
    pub(super) others: Others,
    pub(super) fixture: OnceCell<rows::Fixture>,
}

impl World {
    pub(super) async fn start(programs: Programs, kit: &NodeKit, others: Others) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let cluster = Cluster::with_our_images(programs, kit, dir.path(), 2).await?;
        let world = Self {
            dials: cluster.dials().and_pods_of(cluster.plane().client().await?),
            cluster,
            dir,
            others,
            fixture: OnceCell::new(),
        };
        explained(world.cluster.deploy().await, || world.explain())?;
        Ok(world)
    }

    /// The running VM. Its spec sets only required fields and what [`given`] adds.
    pub(super) async fn vm(&self) -> Result<Value> {
        rows::end(self)?;
        let made = self.cluster.plane().ask(&["get", "neonvm", "pg"]);
        if made.is_err() {
            given::make(self)?;
            let mut vm = minimal();
            given::add(&mut vm["spec"]);
            self.cluster.plane().apply(&vm.to_string())?;
        }
        self.vm_that("runs", |vm| vm["status"]["phase"] == "Running")
            .await
    }

    /// Waits until the VM is as it should be.
    pub(super) async fn vm_that(
        &self,
        what: &str,
        holds: impl Fn(&Value) -> bool,
    ) -> Result<Value> {
        self.that("neonvm", "pg", what, holds).await
    }

    /// Waits until the VM has been brought to a size.
    pub(super) async fn vm_has(&self, cpus: &str, memory: &str) -> Result<()> {
        let holds = |vm: &Value| {
            let status = &vm["status"];
            status["cpus"] == cpus && status["memorySize"] == memory && status["phase"] == "Running"
        };
        let what = format!("has {cpus} and {memory}");
        self.vm_that(&what, holds).await.map(drop)
    }

    /// Waits until an object is as it should be.
    pub(super) async fn that(
        &self,
        kind: &str,
        name: &str,
        what: &str,
        holds: impl Fn(&Value) -> bool,
    ) -> Result<Value> {
        wait_for(&format!("{kind} {name} that {what}"), PATIENCE, || async {
            let found = self.get(kind, name).map_err(|error| format!("{error:#}"))?;
            if holds(&found) {
                Ok(found)
            } else {
                Err(format!("{} {}", found["spec"]["guest"], found["status"]))
            }
        })
        .await
    }

    /// Waits until the VM has `count` pods, including the one it runs in.
    pub(super) async fn pods_are(&self, count: usize) -> Result<()> {
        let args = ["get", "pods", "-l", "vm.neon.tech/name=pg", "-o", "name"];
        wait_for(&format!("{count} pods of the VM"), PATIENCE, || async {
            let pods = self.cluster.plane().ask(&args);
            let pods = pods.map_err(|error| format!("{error:#}"))?;
            if pods.lines().count() == count {
                Ok(())
            } else {
                Err(pods)
            }
        })
        .await
    }

    /// Waits until `count` guests run in the whole cluster.
    pub(super) async fn guests_are(&self, count: usize) -> Result<()> {
        wait_for(&format!("{count} QEMUs"), PATIENCE, || async {
            let all = self.cluster.qemus();
            if all.len() == count {
                Ok(())
            } else {
                Err(format!("{all:?}"))
            }
        })
        .await
    }

    /// Output of a command in the guest. Retries until the guest answers.
    pub(super) async fn guest_says(&self, vm: &Value, command: &str) -> Result<String> {
        wait_for("a guest that answers", PATIENCE, || async {
            self.guest(vm, command)
                .map_err(|error| format!("{error:#}"))
        })
        .await
    }

    pub(super) fn get(&self, kind: &str, name: &str) -> Result<Value> {
        let text = self
            .cluster
            .plane()
            .ask(&["get", kind, name, "-o", "json"])?;
        Ok(serde_json::from_str(&text)?)
    }

    pub(super) fn patch(&self, patch: &Value) -> Result<()> {
        let patch = patch.to_string();
        let args = ["patch", "neonvm", "pg", "--type=merge", "-p", &patch];
        self.cluster.plane().ask(&args).map(drop)
    }

    /// Has the agents size the VM, or leave it alone.
    pub(super) fn is_sized(&self, is: bool) -> Result<()> {
        let enabled = is.then_some("true");
        self.patch(&json!({"metadata": {"labels": {"autoscaling.neon.tech/enabled": enabled}}}))
    }

    /// Sets the mode of the namespace, which bounds what agents may do.
    pub(super) fn mode(&self, word: &str) -> Result<()> {
        let label = format!("autoscaling.neon.tech/mode={word}");
        let args = ["label", "--overwrite", "namespace", "default", &label];
        self.cluster.plane().ask(&args).map(drop)
    }

    /// Output of a command in the guest.
    pub(super) fn guest(&self, vm: &Value, command: &str) -> Result<String> {
        self.cluster.guest(vm, command)
    }

    /// A command that enters the guest at the pod's address. The file holds the controller's key.
    pub(super) fn ssh(&self, vm: &Value) -> Result<(Command, tempfile::NamedTempFile)> {
        let (mut ssh, root, file) = self.cluster.reach("ssh", vm)?;
        ssh.arg(root);
        Ok((ssh, file))
    }

    /// Response of the runner at the pod's address to a request without a token.
    pub(super) fn runner_says(&self, vm: &Value, request: &str) -> Result<String> {
        self.runner_response_with(vm, request, "")
    }

    /// Response of the runner to a request with another header line.
    pub(super) fn runner_response_with(
        &self,
        vm: &Value,
        request: &str,
        line: &str,
    ) -> Result<String> {
        let address = vm["status"]["podIP"].as_str().context("an address")?;
        // The connection stays open in both directions until the response. A server may take a
        // half-closed one for a client that has left.
        let ask = format!(
            "exec 3<>/dev/tcp/{address}/25183; printf '{request} HTTP/1.0\\r\\n{line}\\r\\n' >&3; timeout 10 cat <&3"
        );
        let mut bash = self.cluster.on_network("bash");
        let output = bash.args(["-c", &ask]).output()?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Waits until the guest's kernel sees these CPUs and GiB.
    pub(super) async fn guest_sees(&self, vm: &Value, cpus: u32, gib: u64) -> Result<()> {
        let look = "grep -c ^processor /proc/cpuinfo; grep MemTotal /proc/meminfo";
        wait_for("a guest of that size", PATIENCE, || async {
            let text = self.guest(vm, look).map_err(|error| format!("{error:#}"))?;
            let words: Vec<&str> = text.split_whitespace().collect();
            let [seen, _, kib, _] = words[..] else {
                return Err(text);
            };
            let kib: u64 = kib.parse().map_err(|_| text.clone())?;
            // The kernel reserves a seventh of the first GiB.
            let (most, least) = (gib * GIB, gib * GIB - GIB / 4);
            if seen == cpus.to_string() && (least..=most).contains(&(kib << 10)) {
                Ok(())
            } else {
                Err(text)
            }
        })
        .await
    }

    /// Waits until some agent's newest decision about the VM is held back by that.
    pub(super) async fn is_held_by(&self, bound: &str) -> Result<()> {
        let plane = self.cluster.plane();
        let agents = [
            "get",
            "pods",
            "-n",
            "kube-system",
            "-l",
            "name=autoscaler-agent",
            "-o",
            "name",
        ];
        wait_for(&format!("a decision held by {bound}"), PATIENCE, || async {
            let ask = |args: &[&str]| plane.ask(args).map_err(|error| format!("{error:#}"));
            let mut seen = Vec::new();
            for agent in ask(&agents)?.split_whitespace() {
                let name = agent.trim_start_matches("pod/");
                let state = network::page(self, "kube-system", name, 9100, "/debug/state").await;
                let state = state.map_err(|error| format!("{error:#}"))?;
                let state: Value =
                    serde_json::from_str(&state).map_err(|error| error.to_string())?;
                let pods = state["pods"].as_array().cloned().unwrap_or_default();
                seen.extend(
                    pods.iter()
                        .map(|pod| pod["lastDecision"]["boundedBy"].clone()),
                );
            }
            let is_held = seen.iter().any(|bounds| {
                let mut words = bounds.as_array().into_iter().flatten();
                words.any(|word| word == bound)
            });
            if is_held {
                Ok(())
            } else {
                Err(format!("{seen:?}"))
            }
        })
        .await
    }

    pub(super) fn explain(&self) -> String {
        let plane = self.cluster.plane();
        let ask = |args: &[&str]| plane.ask(args).unwrap_or_else(|error| format!("{error:#}"));
        let mut text = ask(&["get", "pods", "-A", "-o", "wide"]);
        text += &ask(&["get", "events", "-A", "--sort-by=.lastTimestamp"]);
        for (namespace, label) in [
            ("neonvm-system", "name=neonvm-controller"),
            ("kube-system", "name=autoscale-scheduler"),
            ("kube-system", "name=autoscaler-agent"),
            ("neonvm-system", "name=neonvm-vxlan-controller"),
            ("default", "vm.neon.tech/name"),
        ] {
            let args = [
                "logs",
                "-n",
                namespace,
                "-l",
                label,
                "--tail=15",
                "--all-containers",
            ];
            text += &format!("--- {label}\n{}", ask(&args));
        }
        text + &rows::explain(self)
    }
}

/// A VM with only the required fields.
pub(super) fn minimal() -> Value {
    json!({"apiVersion": "vm.neon.tech/v1", "kind": "VirtualMachine", "metadata": {"name": "pg"},
        "spec": {"schedulerName": "autoscale-scheduler", "guest": {
            "cpus": {"min": "250m", "use": "250m", "max": "1250m"},
            "memorySlots": {"min": 1, "use": 1, "max": 5},
            "rootDisk": {"image": "bellows/vm-postgres:15"}, "ports": [{"port": 5432}]}}})
}
