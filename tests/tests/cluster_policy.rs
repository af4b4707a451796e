//! A policy in a real cluster. Our components run from their own manifests as pods of two nodes. A
//! policy is applied and promoted by `bellows`, and a real guest follows it. Its worker is killed,
//! and then the agent's pod. The policy controller counts what the agents report of a candidate.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use bellows_tests::cluster::{Cluster, NodeKit, Programs, nodes_or_skip};
use bellows_tests::patience::wait_for;
use bellows_tests::{bellows_bin, checkout, explained, guest_or_skip};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use protocol::vm::VirtualMachine;
use serde_json::{Value, json};

/// A guest boots in 10 s by TCG on an idle machine. This one also runs two nodes.
const PATIENCE: Duration = Duration::from_secs(240);
const POLICY: &str = "db";
/// The label by which the policy wants a size, compute units.
const UNITS: &str = "units";
const BY_LABEL: &str = "\
return function(i)
  return { cu = tonumber(i.vm.labels.units) or 1, reason = \"by_label\" }
end
";
/// A later version, which nobody promotes.
const WANTS_ALL: &str = "return function(i) return { cu = i.vm.max_cu, reason = \"all\" } end\n";
/// The program that asks policies, as the agent starts it.
const WORKER: &str = "/usr/bin/bellows-policy";
/// Exit code of a command that a rule refuses.
const REFUSED: i32 = 1;
/// Exit code of a command that needs what a cluster does not have.
const MISSING: i32 = 69;

struct World {
    cluster: Cluster,
    dir: tempfile::TempDir,
}

impl World {
    async fn start(programs: Programs, kit: &NodeKit) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let cluster = Cluster::with_our_images(programs, kit, dir.path(), 2).await?;
        let world = Self { cluster, dir };
        let deployed = world.cluster.deploy().await;
        explained(deployed, || world.explain())?;
        Ok(world)
    }

    fn run(&self, words: &[&str]) -> Result<Output> {
        let mut bellows = Command::new(bellows_bin());
        bellows
            .args(words)
            .arg("--kubeconfig")
            .arg(self.cluster.plane().kubeconfig());
        Ok(bellows.output()?)
    }

    /// Output of a command of `bellows` in the cluster.
    fn bellows(&self, words: &[&str]) -> Result<String> {
        let output = self.run(words)?;
        ensure!(output.status.success(), "{words:?}: {output:?}");
        Ok(String::from_utf8(output.stdout)?)
    }

    fn json(&self, words: &[&str]) -> Result<Value> {
        let text = self.bellows(&[words, &["-o", "json"]].concat())?;
        serde_json::from_str(&text).with_context(|| text.clone())
    }

    fn kubectl(&self, words: &[&str]) -> Result<String> {
        self.cluster.plane().ask(words)
    }

    fn source(&self, name: &str, text: &str) -> Result<PathBuf> {
        let file = self.dir.path().join(name);
        std::fs::write(&file, text)?;
        Ok(file)
    }

    /// Applies a version of the policy. Returns the first digits of its digest.
    fn apply(&self, name: &str, source: &str) -> Result<String> {
        let file = self.source(name, source)?;
        let file = file.to_str().context("a path of UTF-8")?;
        self.bellows(&["policy", "apply", file, "--name", POLICY])?;
        let listed = self.json(&["policy", "list"])?;
        let candidate = listed["policies"][0]["candidate"].as_str();
        Ok(candidate.with_context(|| listed.to_string())?.to_owned())
    }

    /// Has the policy want a size.
    fn label(&self, units: u32) -> Result<()> {
        let label = format!("{UNITS}={units}");
        let words = ["label", "--overwrite", "neonvm", "pg", &label];
        self.kubectl(&words).map(drop)
    }

    /// Waits until the agent's sentence about the VM has a part.
    async fn why(&self, part: &str) -> Result<()> {
        wait_for(&format!("{part:?} in why"), PATIENCE, || async {
            match self.bellows(&["why", "pg"]) {
                Ok(text) if text.contains(part) => Ok(()),
                Ok(text) => Err(text),
                Err(error) => Err(format!("{error:#}")),
            }
        })
        .await
    }

    /// Waits until the guest has at least a size, compute units of a quarter of a CPU.
    async fn has_units(&self, units: u32) -> Result<()> {
        wait_for(&format!("a guest of {units} units"), PATIENCE, || async {
            let vm = self.vm().map_err(|error| format!("{error:#}"))?;
            let cpus = vm.status.as_ref().and_then(|status| status.cpus);
            if cpus.is_some_and(|cpus| cpus.0 >= units * 250) {
                Ok(())
            } else {
                Err(format!("{:?}", vm.status))
            }
        })
        .await
    }

    fn vm(&self) -> Result<VirtualMachine> {
        let text = self.kubectl(&["get", "neonvm", "pg", "-o", "json"])?;
        Ok(serde_json::from_str(&text)?)
    }

    fn workers(&self) -> BTreeSet<i32> {
        self.cluster.processes(WORKER)
    }

    /// Waits until a worker runs that is none of these.
    async fn other_worker(&self, than: &BTreeSet<i32>) -> Result<()> {
        let what = format!("a worker other than {than:?}");
        wait_for(&what, PATIENCE, || async {
            let now = self.workers();
            if now.is_empty() || now.iter().any(|pid| than.contains(pid)) {
                Err(format!("{now:?}"))
            } else {
                Ok(())
            }
        })
        .await
    }

    fn explain(&self) -> String {
        let ask = |words: &[&str]| {
            let said = self.kubectl(words);
            said.unwrap_or_else(|error| format!("{error:#}"))
        };
        let agents = ["-n", "kube-system", "-l", "name=autoscaler-agent"];
        let log = [&["logs", "--tail=30"][..], &agents].concat();
        let controllers = ["-n", "kube-system", "-l", "name=policy-controller"];
        let controllers = [&["logs", "--tail=30"][..], &controllers].concat();
        let show = self.bellows(&["policy", "show", POLICY]);
        [
            ask(&["get", "pods", "-A", "-o", "wide"]),
            ask(&["get", "scalingpolicies", "-o", "yaml"]),
            ask(&log),
            ask(&controllers),
            show.unwrap_or_else(|error| format!("{error:#}")),
        ]
        .join("\n---\n")
    }
}

fn vm() -> Value {
    json!({
        "apiVersion": "vm.neon.tech/v1",
        "kind": "VirtualMachine",
        "metadata": {
            "name": "pg",
            "labels": {"autoscaling.neon.tech/enabled": "true", UNITS: "2"},
            "annotations": {"autoscaling.neon.tech/policy": POLICY},
        },
        "spec": {"schedulerName": "autoscale-scheduler", "guest": {
            "cpus": {"min": "250m", "use": "250m", "max": "1250m"},
            "memorySlots": {"min": 1, "use": 1, "max": 5},
            "rootDisk": {"image": "bellows/vm-postgres:15"},
            "ports": [{"port": 5432}],
        }},
    })
}

/// Requirement: V33
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn v33_promoted_version_decides_in_a_cluster_also_after_its_worker_was_killed() -> Result<()>
{
    let test = "v33_promoted_version_decides_in_a_cluster_also_after_its_worker_was_killed";
    if !guest_or_skip(test) {
        return Ok(());
    }
    let Some((programs, kit)) = nodes_or_skip(test) else {
        return Ok(());
    };
    let world = World::start(programs, &kit).await?;
    let followed = follow(&world).await;
    explained(followed, || world.explain())
}

async fn follow(world: &World) -> Result<()> {
    let first = world.apply("first.lua", BY_LABEL)?;
    world.cluster.plane().apply(&vm().to_string())?;
    // The agents of the manifests only observe. The candidate is asked all the same.
    world.why(&format!("{first} would ask for 2")).await?;
    let words = ["policy", "promote", POLICY, "--force", "--reason", "a test"];
    world.bellows(&words)?;
    world
        .why(&format!("Policy {POLICY} ({first}) asks for 2 units"))
        .await?;
    let mode = "autoscaling.neon.tech/mode=grow";
    world.kubectl(&["label", "namespace", "default", mode])?;
    world.has_units(2).await?;

    let killed = world.workers();
    ensure!(!killed.is_empty(), "no worker runs");
    for pid in &killed {
        kill(Pid::from_raw(*pid), Signal::SIGKILL)?;
    }
    world.label(3)?;
    world.has_units(3).await?;
    world.other_worker(&killed).await?;
    world.why("asks for 3 units").await?;

    restarted_agent_asks_the_kept_version(world, &first).await?;
    controller_counts_reports_of_agents(world).await?;
    commands(world, &first).await
}

/// An agent that starts while a newer version is in the spec reads the version that decides from
/// its `ControllerRevision`.
async fn restarted_agent_asks_the_kept_version(world: &World, live: &str) -> Result<()> {
    let newest = world.apply("newest.lua", WANTS_ALL)?;
    ensure!(newest != live, "it is another version");
    let before = world.workers();
    let agents = ["-n", "kube-system", "-l", "name=autoscaler-agent"];
    let delete = ["delete", "pods", "--timeout=120s"];
    world.kubectl(&[&delete[..], &agents].concat())?;
    world.label(4)?;
    world.has_units(4).await?;
    world.other_worker(&before).await?;
    world
        .why(&format!("Policy {POLICY} ({live}) asks for 4 units"))
        .await
}

/// The policy controller of the manifests reads what each node's agent reports of the candidate.
async fn controller_counts_reports_of_agents(world: &World) -> Result<()> {
    let manifests = checkout().join("deploy/policies");
    world.kubectl(&["apply", "-k", &manifests.display().to_string()])?;
    wait_for("the VM in the gate's figures", PATIENCE, || async {
        let output = world.run(&["policy", "promote", POLICY, "--reason", "a test"]);
        let output = output.map_err(|error| format!("{error:#}"))?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let is_refused = output.status.code() == Some(REFUSED);
        if is_refused && said.contains("VMs 1 of 3") {
            Ok(())
        } else {
            Err(format!("{}: {said}", output.status))
        }
    })
    .await
}

/// The commands about policies in a cluster, and those that need a journal.
async fn commands(world: &World, live: &str) -> Result<()> {
    let listed = world.json(&["policy", "list"])?;
    let row = &listed["policies"][0];
    ensure!(row["live"] == live && row["vms"] == 1, "{listed}");
    ensure!(row["problem"].is_null(), "{listed}");
    let shown = world.json(&["policy", "show", POLICY])?;
    ensure!(shown["vms"][0]["vm"] == "default/pg", "{shown}");
    let refused = world.run(&["policy", "report", POLICY])?;
    ensure!(refused.status.code() == Some(MISSING), "{refused:?}");

    world.bellows(&["policy", "pause", POLICY, "--reason", "a test"])?;
    world.why("decides nothing").await?;
    world.bellows(&["policy", "resume", POLICY])?;
    world
        .why(&format!("Policy {POLICY} ({live}) asks for"))
        .await?;
    let demoted = world.bellows(&["policy", "demote", POLICY, "--reason", "a test"])?;
    ensure!(demoted.contains("built-in goal decides again"), "{demoted}");
    let listed = world.json(&["policy", "list"])?;
    ensure!(listed["policies"][0]["live"].is_null(), "{listed}");
    Ok(())
}
