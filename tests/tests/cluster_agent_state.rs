//! What an agent keeps on its node outlives its pod, in a real cluster: usage events that nobody
//! has received, and the journal of decisions. A real guest runs on one of two nodes.

#[path = "cluster_agent_state/receiver.rs"]
mod receiver;

use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use bellows_tests::cluster::{Cluster, NodeKit, Programs, nodes_or_skip};
use bellows_tests::patience::wait_for;
use bellows_tests::{bellows_bin, explained, guest_or_skip};
use daemon_kit::clock::Clock;
use receiver::Receiver;
use serde_json::{Value, json};

/// A guest boots in 10 s by TCG on an idle machine. This one also runs two nodes.
const PATIENCE: Duration = Duration::from_secs(240);
const NAMESPACE: &str = "kube-system";
const AGENT: &str = "autoscaler-agent";
/// Folder of a node, as the manifests have it.
const STATE: &str = "/var/lib/autoscaler-agent";
/// The user of the agent in the manifests, and the mode of its folder.
const OWNER_AND_MODE: &str = "65532 65532 700";
/// Port of the receiver on the nodes' network.
const PORT: u16 = 4318;

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

    fn kubectl(&self, words: &[&str]) -> Result<String> {
        self.cluster.plane().ask(words)
    }

    fn get(&self, words: &[&str]) -> Result<Value> {
        let text = self.kubectl(&[&["get", "-o", "json"], words].concat())?;
        serde_json::from_str(&text).with_context(|| text.clone())
    }

    /// Output of a command of `bellows`.
    fn bellows(&self, words: &[&str]) -> Result<String> {
        let output = Command::new(bellows_bin()).args(words).output()?;
        ensure!(output.status.success(), "{words:?}: {output:?}");
        Ok(String::from_utf8(output.stdout)?)
    }

    /// Output of a command of `bellows` in the cluster.
    fn in_cluster(&self, words: &[&str]) -> Result<String> {
        let kubeconfig = self.cluster.plane().kubeconfig();
        let kubeconfig = kubeconfig.to_str().context("a path of UTF-8")?;
        self.bellows(&[words, &["--kubeconfig", kubeconfig]].concat())
    }

    /// Adds a receiver of usage events to the agents' configuration, and restarts them.
    async fn bill(&self, receiver: &Receiver) -> Result<()> {
        let set = self.get(&["daemonset", AGENT, "-n", NAMESPACE])?;
        let volumes = set["spec"]["template"]["spec"]["volumes"].as_array();
        let mut maps = volumes.into_iter().flatten();
        let map = maps.find_map(|volume| volume["configMap"]["name"].as_str());
        let map = map.with_context(|| set.to_string())?;
        let object = self.get(&["configmap", map, "-n", NAMESPACE])?;
        let config = object["data"]["config.json"].as_str().context("a text")?;
        let mut config: Value = serde_json::from_str(config)?;
        config["billing"]["collectEverySeconds"] = 1.into();
        config["billing"]["accumulateEverySeconds"] = 2.into();
        config["billing"]["clients"] = json!({"http": {
            "url": receiver.url, "pushEverySeconds": 1, "pushRequestTimeoutSeconds": 5,
            "maxBatchSize": 100,
        }});
        let patch = json!({"data": {"config.json": config.to_string()}}).to_string();
        let words = ["patch", "configmap", map, "-n", NAMESPACE, "--type=merge"];
        self.kubectl(&[&words[..], &["-p", &patch]].concat())?;
        for node in self.cluster.names() {
            self.replace_agent(&node).await?;
        }
        Ok(())
    }

    /// The pod of a node's agent.
    fn agent(&self, node: &str) -> Result<Value> {
        let on = format!("--field-selector=spec.nodeName={node}");
        let label = format!("name={AGENT}");
        let pods = self.get(&["pods", "-n", NAMESPACE, "-l", &label, &on])?;
        let pods = pods["items"].as_array().context("a list")?;
        ensure!(pods.len() == 1, "{} agents on {node}", pods.len());
        Ok(pods[0].clone())
    }

    /// Deletes the pod of a node's agent and waits for its successor.
    async fn replace_agent(&self, node: &str) -> Result<()> {
        let before = self.agent(node)?["metadata"].clone();
        let name = before["name"].as_str().context("a name")?;
        self.kubectl(&["delete", "pod", "-n", NAMESPACE, name, "--timeout=120s"])?;
        wait_for(&format!("another agent on {node}"), PATIENCE, || async {
            let pod = self.agent(node).map_err(|error| format!("{error:#}"))?;
            let is_other = pod["metadata"]["uid"] != before["uid"];
            if is_other && bellows_tests::cluster::is_ready(&pod) {
                Ok(())
            } else {
                Err(pod["status"].to_string())
            }
        })
        .await
    }

    /// Waits for a decision about the VM. Returns the VM's node.
    async fn decided(&self) -> Result<String> {
        wait_for("a decision", PATIENCE, || async {
            let why = self.in_cluster(&["why", "pg", "--timeout", "0"]);
            why.map(drop).map_err(|error| format!("{error:#}"))
        })
        .await?;
        let vm = self.get(&["neonvm", "pg"])?;
        let node = vm["status"]["node"].as_str();
        Ok(node.with_context(|| vm.to_string())?.to_owned())
    }

    fn explain(&self) -> String {
        let ask = |words: &[&str]| {
            let said = self.kubectl(words);
            said.unwrap_or_else(|error| format!("{error:#}"))
        };
        let label = format!("name={AGENT}");
        let agents = ["-n", NAMESPACE, "-l", &label];
        let options = ["logs", "--tail=30", "--all-containers", "--prefix"];
        [
            ask(&["get", "pods", "-A", "-o", "wide"]),
            ask(&[&["describe", "pods"][..], &agents].concat()),
            ask(&[&options[..], &agents].concat()),
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
            "labels": {"autoscaling.neon.tech/enabled": "true"},
            "annotations": {"autoscaling.neon.tech/billing-endpoint-id": "ep-1"},
        },
        "spec": {"schedulerName": "autoscale-scheduler", "guest": {
            "cpus": {"min": "250m", "use": "250m", "max": "1250m"},
            "memorySlots": {"min": 1, "use": 1, "max": 5},
            "rootDisk": {"image": "bellows/vm-postgres:15"},
            "ports": [{"port": 5432}],
        }},
    })
}

/// Requirement: N40
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unsent_events_and_the_journal_outlive_an_agents_pod() -> Result<()> {
    let test = "unsent_events_and_the_journal_outlive_an_agents_pod";
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
    let receiver = Receiver::start(world.cluster.listen(PORT)?)?;
    world.bill(&receiver).await?;
    world.cluster.plane().apply(&vm().to_string())?;
    let node = world.decided().await?;
    folder_is_the_agents_alone(world, &node)?;

    let unsent = wait_for("events that are refused", PATIENCE, || async {
        let refused = receiver.refused();
        if refused.is_empty() {
            Err(String::new())
        } else {
            Ok(refused)
        }
    })
    .await?;
    world.replace_agent(&node).await?;
    let replaced = Clock::new().wall().to_micro_string();
    receiver.accept();
    wait_for("the events from before", PATIENCE, || async {
        let received = receiver.received();
        let mut missing = unsent.iter().filter(|key| !received.contains(key));
        missing.next().map_or(Ok(()), |key| Err(key.clone()))
    })
    .await?;
    let mut keys = receiver.received();
    let all = keys.len();
    keys.sort_unstable();
    keys.dedup();
    ensure!(keys.len() == all, "{} events came twice", all - keys.len());

    journal_goes_on(world, &node, &replaced).await
}

fn folder_is_the_agents_alone(world: &World, node: &str) -> Result<()> {
    let mut stat = world.cluster.in_node(node, "stat")?;
    let output = stat.args(["-c", "%u %g %a", STATE]).output()?;
    let found = String::from_utf8(output.stdout)?;
    ensure!(found.trim() == OWNER_AND_MODE, "{found}");
    Ok(())
}

/// The journal that is fetched has decisions of both pods, decides again to the same bytes and has
/// no broken link.
async fn journal_goes_on(world: &World, node: &str, replaced: &str) -> Result<()> {
    let dir = world.dir.path().join("fetched");
    let fetched = dir.to_str().context("a path of UTF-8")?;
    let state = format!("{fetched}/{node}");
    let journal = format!("{state}/journal/agent");
    wait_for("decisions of both pods", PATIENCE, || async {
        let times = || -> Result<Vec<String>> {
            world.in_cluster(&["journal", "fetch", fetched, "--node", node])?;
            let past = world.bellows(&["history", "pg", "-o", "json", "--state-dir", &state])?;
            let past: Value = serde_json::from_str(&past)?;
            let entries = past["decisions"].as_array().into_iter().flatten();
            let times = entries.filter_map(|entry| entry["at"].as_str());
            Ok(times.map(str::to_owned).collect())
        };
        let times = times().map_err(|error| format!("{error:#}"))?;
        let is_after = |at: &String| at.as_str() > replaced;
        if times.iter().any(is_after) && !times.iter().all(is_after) {
            Ok(())
        } else {
            Err(format!("{times:?}, replaced at {replaced}"))
        }
    })
    .await?;
    let verified = world.bellows(&["journal", "verify", &journal])?;
    ensure!(
        verified.contains("every line and every link is good"),
        "{verified}"
    );
    let replayed = world.bellows(&["replay", "--no-policies", &journal])?;
    ensure!(replayed.contains("different: 0"), "{replayed}");
    Ok(())
}
