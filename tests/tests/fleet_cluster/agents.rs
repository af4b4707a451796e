//! The fleet replaces agents of two nodes. One says no for a while. An image whose agent ends
//! at once is taken back.

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Result, ensure};
use bellows_tests::cluster::is_ready;
use bellows_tests::explained;
use protocol::fleet::AgentSchedule;
use serde_json::{Value, json};

use super::images::Images;
use super::{CHANNEL, PATIENCE, ROLLOUT, SYSTEM, World, deployment, in_namespace, rights};

const AGENT: &str = "autoscaler-agent";
const AGENTS: &str = "agents";
/// Version that all agents of this build print.
const GOOD: &str = "0.1.0";
const BAD: &str = "0.1.1";
/// Node whose agent says no.
const HELD: &str = "node-2";

fn environment() -> Value {
    json!({
        "apiVersion": "fleet.bellows.dev/v1alpha1",
        "kind": "FleetEnvironment",
        "metadata": {"name": AGENTS, "namespace": SYSTEM},
        "spec": {
            "part": "agent",
            "source": {"channel": CHANNEL},
            "rollout": {
                "minHealthyPercent": 50, "maxInFlight": 1, "trialSeconds": 20, "retries": 0,
                "maxFailedPercent": 0,
            },
        },
    })
}

impl World {
    fn agents(&self) -> Result<Vec<Value>> {
        let label = format!("name={AGENT}");
        let pods = self.get(&["pods", "-n", SYSTEM, "-l", &label])?;
        Ok(pods["items"].as_array().cloned().unwrap_or_default())
    }

    /// Whether both nodes have a ready agent, of an image if one is given.
    fn agents_run(&self, digest: Option<&str>) -> Result<bool> {
        let pods = self.agents()?;
        let ready: Vec<&Value> = pods.iter().filter(|pod| is_ready(pod)).collect();
        let of_image = |pod: &&&Value| {
            let image = pod["spec"]["containers"][0]["image"].as_str();
            let wanted = digest.map(|digest| format!("bellows/{AGENT}@{digest}"));
            wanted.is_none_or(|wanted| image == Some(&wanted))
        };
        Ok(ready.iter().filter(of_image).count() == 2)
    }

    fn say(&self, schedule: &AgentSchedule) -> Result<()> {
        let text = serde_json::to_string(schedule)?;
        let patch = json!({"data": {"schedule.json": text}}).to_string();
        let map = format!("autoscaler-agent-schedule-{HELD}");
        let words = [
            "patch",
            "configmap",
            &map,
            "-n",
            SYSTEM,
            "--type=merge",
            "-p",
            &patch,
        ];
        self.kubectl(&words).map(drop)
    }

    async fn agents_ended(&self, of: impl Fn(&Value) -> bool, state: &str) -> Result<Value> {
        let what = format!("a deployment of agents that is {state}");
        let were_both_away = AtomicBool::new(false);
        let ended = self.until(&what, ROLLOUT, || {
            let ready = self.agents()?.iter().filter(|pod| is_ready(pod)).count();
            were_both_away.fetch_or(ready == 0, Ordering::Relaxed);
            self.ended_as(SYSTEM, &of, state)
        });
        let ended = ended.await?;
        let both = were_both_away.load(Ordering::Relaxed);
        ensure!(!both, "more agents were away than one");
        Ok(ended)
    }

    fn explain_agents(&self) -> String {
        let kinds = "fe,fd,fi,fc,daemonsets,pods,configmaps";
        let words = ["get", kinds, "-n", SYSTEM, "-o", "yaml"];
        self.kubectl(&words)
            .unwrap_or_else(|error| format!("{error:#}"))
    }
}

/// Requirement: B48, R23, R24
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn agents_of_two_nodes_are_replaced_and_taken_back() -> Result<()> {
    let test = "agents_of_two_nodes_are_replaced_and_taken_back";
    let Some(world) = World::of_test(test).await? else {
        return Ok(());
    };
    let replaced = replace(&world).await;
    explained(replaced, || world.explain_agents())
}

async fn replace(world: &World) -> Result<()> {
    let images = Images::load(world, AGENT)?;
    let folder = bellows_tests::checkout().join("deploy/agent-by-fleet");
    world.kubectl(&["apply", "-k", &folder.display().to_string()])?;
    let label = format!("name={AGENT}");
    world.kubectl(&[
        "delete",
        "pods",
        "-n",
        SYSTEM,
        "-l",
        &label,
        "--timeout=120s",
    ])?;
    world.publisher.init(CHANNEL).await?;
    world.release_image(GOOD, "agent", &images.good).await?;
    let (_server, revision) = world.follow(&environment()).await?;
    let all_run = || Ok(world.agents_run(None)?.then_some(()));
    world.until("both agents", PATIENCE, all_run).await?;
    good_image_reaches_both_nodes(world, &revision, &images.good).await?;
    bad_image_is_taken_back(world, &images.bad, &images.good).await?;
    rights::are_used(world, rights::Shown::Agents)
}

async fn good_image_reaches_both_nodes(world: &World, revision: &str, good: &str) -> Result<()> {
    let map = format!("autoscaler-agent-schedule-{HELD}");
    let said = || Ok(world.get(&["configmap", &map, "-n", SYSTEM]).ok());
    let map = world
        .until("the schedule of an agent", PATIENCE, said)
        .await?;
    let owner = &map["metadata"]["ownerReferences"][0];
    ensure!(owner["kind"] == "Node" && owner["name"] == HELD, "{map}");
    world.say(&AgentSchedule::of(Some("a test holds it")))?;
    let mut order = in_namespace(deployment("to-good", revision), SYSTEM);
    order["spec"]["environment"] = json!(AGENTS);
    world.apply(&order)?;
    let held = || {
        let one = world.get(&["fleetdeployment", "to-good", "-n", SYSTEM])?;
        let gate = &one["status"]["blockedBy"]["gate"];
        Ok((gate == "restart").then_some(one))
    };
    let one = world.until("the gate of the agent", ROLLOUT, held).await?;
    ensure!(one["status"]["progress"]["done"] == 1, "{one}");
    world.say(&AgentSchedule::of(None))?;
    let is_it = |one: &Value| one["metadata"]["name"] == "to-good";
    world.agents_ended(is_it, "Complete").await?;
    ensure!(world.agents_run(Some(good))?, "both nodes run the image");
    let set = world.get(&["daemonset", AGENT, "-n", SYSTEM])?;
    let image = set["spec"]["template"]["spec"]["containers"][0]["image"].clone();
    let pinned = format!("bellows/{AGENT}@{good}");
    ensure!(image == pinned, "{image}: pinned, without a tag");
    Ok(())
}

async fn bad_image_is_taken_back(world: &World, bad: &str, good: &str) -> Result<()> {
    world.release_image(BAD, "agent", bad).await?;
    let of_kind = |kind: &'static str| move |one: &Value| one["spec"]["kind"] == kind;
    let is_bad = |one: &Value| {
        let is_second = one["spec"]["revision"] == format!("{AGENTS}-r2");
        is_second && one["spec"]["kind"] == "User"
    };
    let ended = world.agents_ended(is_bad, "Unhealthy").await?;
    let failed = &ended["status"]["progress"]["failed"];
    ensure!(*failed == 1, "{ended}: it stopped at its first node");
    world.agents_ended(of_kind("Rollback"), "Complete").await?;
    let is_back = || Ok(world.agents_run(Some(good))?.then_some(()));
    world.until("the image before", PATIENCE, is_back).await
}
