//! Agents of nodes before the shipped API server. The test plays the controller of `DaemonSet`s,
//! the kubelets and the agents: a pod that is deleted comes back with the template's image.

#[path = "nodes/audit.rs"]
mod audit;
#[path = "nodes/events.rs"]
mod events;
#[path = "nodes/signatures.rs"]
mod signatures;
mod support;

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use daemon_kit::clock::Clock;
use daemon_kit::journal::Journal;
use fleet::Location;
use fleet_signatures::ImageKey;
use fleet_store::{deployment_object, environment_object, revision_object};
use protocol::fleet::{
    AgentSchedule, DeploymentKind, DeploymentSpec, EnvironmentSpec, KEY_SCHEDULE, Resolved,
    RevisionData, Rollout, SCHEDULE_MEMBER, schedule_map_name,
};
use protocol::parts::PartName;
use serde_json::{Value, json};
use test_api::{Call, Fault, TestApi};
use tokio::net::TcpListener;
use tokio_util::sync::{CancellationToken, DropGuard};

const SYSTEM: &str = "kube-system";
const AGENT: &str = "autoscaler-agent";
const NODES: [&str; 3] = ["node-a", "node-b", "node-c"];
/// Port of an agent's page.
const PAGE_PORT: u16 = 9100;
/// Digests of images: of the manifests, of a good release and of one whose agent ends.
const OLD: &str = "0";
const GOOD: &str = "1";
const BAD: &str = "2";
/// Longest rollout on a busy machine.
const PATIENCE: Duration = Duration::from_secs(240);
/// Most agents that may be away.
const MAX_IN_FLIGHT: u32 = 2;

fn image(digit: &str) -> String {
    format!("bellows/autoscaler-agent@sha256:{}", digit.repeat(64))
}

fn version(digit: &str) -> String {
    format!("1.{digit}.0")
}

fn spec() -> EnvironmentSpec {
    EnvironmentSpec {
        rollout: Rollout {
            min_healthy_percent: 33,
            max_in_flight: MAX_IN_FLIGHT,
            trial_seconds: 20,
            retries: 0,
            max_failed_percent: 0,
            ..Rollout::default()
        },
        ..EnvironmentSpec::of_release(PartName::Agent, "1.1.0")
    }
}

/// A cluster whose nodes this test plays. The most agents that were away at once are counted.
struct Played {
    api: TestApi,
    most_away: Arc<AtomicUsize>,
    restarts: Arc<Mutex<Vec<String>>>,
    _tasks: Vec<DropGuard>,
}

/// Addresses of this process and this test alone: pages have the same port everywhere.
fn address(test: u8, node: usize) -> Ipv4Addr {
    let [.., high, low] = std::process::id().to_be_bytes();
    let node = u8::try_from(node).expect("few nodes");
    Ipv4Addr::new(127, 110 + 10 * test + node, high, low.max(1))
}

/// Serves the `DaemonSet`, a kind that the shipped API server does not have. Each change of it is a
/// new generation, and a change of another version than the present one is a conflict.
fn serve_daemon_set(api: &TestApi) {
    let answer = |api: &TestApi, call: &Call| {
        let mut set = api.get("daemonsets", SYSTEM, AGENT)?;
        let generation = set["metadata"]["generation"].as_i64()?;
        if call.line.starts_with("PUT ") {
            let mut next = call.json();
            let version = generation.to_string();
            if next["metadata"]["resourceVersion"] != version {
                let status = json!({"kind": "Status", "status": "Failure", "code": 409});
                return Some((409, status));
            }
            next["metadata"]["generation"] = json!(generation + 1);
            next["metadata"]["resourceVersion"] = json!((generation + 1).to_string());
            api.put("daemonsets", next.clone());
            return Some((200, next));
        }
        set["metadata"]["resourceVersion"] = json!(generation.to_string());
        Some((200, set))
    };
    for verb in ["GET", "PUT"] {
        let line = format!("{verb} /apis/apps/v1/namespaces/{SYSTEM}/daemonsets/{AGENT}");
        api.always(&line, Fault::answer(answer));
    }
}

impl Played {
    async fn start(test: u8) -> Self {
        let api = TestApi::start().await;
        serve_daemon_set(&api);
        let set = json!({
            "apiVersion": "apps/v1", "kind": "DaemonSet",
            "metadata": {"name": AGENT, "namespace": SYSTEM, "generation": 1},
            "spec": {
                "updateStrategy": {"type": "OnDelete"},
                "template": {"spec": {"containers": [{"name": AGENT, "image": image(OLD)}]}},
            },
            "status": {"observedGeneration": 1},
        });
        api.put("daemonsets", set);
        for (number, name) in NODES.iter().enumerate() {
            let node = json!({
                "apiVersion": "v1", "kind": "Node",
                "metadata": {"name": name, "creationTimestamp": "2026-01-05T12:00:00Z"},
                "status": {"conditions": [{
                    "type": "Ready", "status": "True", "lastTransitionTime": "2026-01-05T12:00:00Z",
                }]},
            });
            api.put("nodes", node);
            serve_page(&api, name, address(test, number)).await;
        }
        let mut played = Self {
            api,
            most_away: Arc::default(),
            restarts: Arc::default(),
            _tasks: Vec::new(),
        };
        played.play(test);
        played
    }

    /// Makes the pods that are missing, and counts those that are away.
    fn play(&mut self, test: u8) {
        let (api, most) = (self.api.clone(), Arc::clone(&self.most_away));
        let restarts = Arc::clone(&self.restarts);
        let token = CancellationToken::new();
        self._tasks.push(token.clone().drop_guard());
        let play = async move {
            let mut made = 0_usize;
            loop {
                let set = api.get("daemonsets", SYSTEM, AGENT).expect("it is there");
                let image = &set["spec"]["template"]["spec"]["containers"][0]["image"];
                if set["metadata"]["generation"] != set["status"]["observedGeneration"] {
                    api.edit("daemonsets", SYSTEM, AGENT, |set| {
                        set["status"]["observedGeneration"] = set["metadata"]["generation"].clone();
                    });
                }
                for pod in api.list("pods") {
                    let name = pod["metadata"]["name"].as_str().expect("a name");
                    if pod["metadata"]["deletionTimestamp"].is_string() {
                        api.take("pods", SYSTEM, name);
                    }
                }
                let pods = api.list("pods");
                let has_pod = |node: &str| pods.iter().any(|pod| pod["spec"]["nodeName"] == node);
                let away: Vec<usize> = (0..NODES.len()).filter(|n| !has_pod(NODES[*n])).collect();
                // The first pods of all are made at once.
                if made >= NODES.len() {
                    most.fetch_max(away.len(), Ordering::Relaxed);
                }
                for number in away {
                    made += 1;
                    let name = format!("{AGENT}-{made}");
                    let pod = pod(&name, NODES[number], image, address(test, number));
                    api.put("pods", pod);
                    if let (true, Ok(mut restarts)) = (made > NODES.len(), restarts.lock()) {
                        restarts.push(NODES[number].to_owned());
                    }
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::spawn(async move { token.run_until_cancelled(play).await });
    }

    fn start_deployment(&self, number: i64, digit: &str) {
        self.start_signed(number, digit, String::new());
    }

    fn start_signed(&self, number: i64, digit: &str, bundle: String) {
        let name = format!("agents-{number}");
        let environment = environment_object(SYSTEM, "agents", &spec());
        if self
            .api
            .get("fleetenvironments", SYSTEM, "agents")
            .is_none()
        {
            self.api.put("fleetenvironments", environment.clone());
        }
        let data = RevisionData {
            spec: spec(),
            resolved: Resolved {
                version: version(digit),
                sha256: digit.repeat(64),
                bundle,
            },
        };
        let revision = revision_object(&environment, number, &data);
        self.api.put("controllerrevisions", revision);
        let deployment =
            DeploymentSpec::new("agents", format!("agents-r{number}"), DeploymentKind::User);
        let mut deployment = deployment_object(SYSTEM, &name, &deployment);
        deployment["metadata"]["creationTimestamp"] = json!(Clock::new().wall());
        self.api.put("fleetdeployments", deployment);
    }

    /// Waits for a state. Trials take their time.
    async fn until<T>(&self, what: &str, find: impl Fn(&TestApi) -> Option<T>) -> T {
        let deadline = tokio::time::Instant::now() + PATIENCE;
        loop {
            if let Some(found) = find(&self.api) {
                return found;
            }
            let deployments = self.api.list("fleetdeployments");
            let is_early = tokio::time::Instant::now() < deadline;
            assert!(
                is_early,
                "{what}: {} {}",
                json!(deployments),
                json!(self.api.list("fleetinstances"))
            );
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    async fn ended(&self, name: &str) -> Value {
        self.until(&format!("the end of {name}"), |api| {
            let deployment = api.get("fleetdeployments", SYSTEM, name)?;
            let status = deployment["status"].clone();
            status["endedAt"].is_string().then_some(status)
        })
        .await
    }

    /// Images of the agents' pods, by node.
    fn images(&self) -> Vec<String> {
        let pods = self.api.list("pods");
        let image = |pod: &Value| pod["spec"]["containers"][0]["image"].to_string();
        let mut images: Vec<String> = pods.iter().map(image).collect();
        images.sort();
        images
    }

    fn all_run(&self, digit: &str) {
        let expected = vec![format!("\"{}\"", image(digit)); NODES.len()];
        assert_eq!(self.images(), expected);
    }

    fn say(&self, node: &str, schedule: &AgentSchedule) {
        let text = serde_json::to_string(schedule).expect("JSON");
        let map = json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {
                "name": schedule_map_name(node), "namespace": SYSTEM,
                "labels": {KEY_SCHEDULE: "agent"},
            },
            "data": {SCHEDULE_MEMBER: text},
        });
        self.api.put("configmaps", map);
    }

    fn restarted(&self) -> Vec<String> {
        self.restarts.lock().expect("no panic").clone()
    }
}

/// A pod that is ready. The agent of the bad image has ended once.
fn pod(name: &str, node: &str, image: &Value, address: Ipv4Addr) -> Value {
    let now = json!(Clock::new().wall());
    let is_bad = image
        .as_str()
        .is_some_and(|it| it.ends_with(&BAD.repeat(64)));
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": name, "namespace": SYSTEM, "labels": {"name": AGENT}, "creationTimestamp": now,
        },
        "spec": {"nodeName": node, "containers": [{"name": AGENT, "image": image}]},
        "status": {
            "podIP": address.to_string(),
            "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": now}],
            "containerStatuses": [{"name": AGENT, "restartCount": u32::from(is_bad)}],
        },
    })
}

/// Serves the page of a node's agent, with the version of the image that its pod has.
async fn serve_page(api: &TestApi, node: &'static str, address: Ipv4Addr) {
    let listener = TcpListener::bind((address, PAGE_PORT)).await;
    let listener = listener.expect("the page's port on a loopback address");
    let api = api.clone();
    let respond = move || {
        let pods = api.list("pods");
        let pod = pods.iter().find(|pod| pod["spec"]["nodeName"] == node);
        let image = pod.map(|pod| pod["spec"]["containers"][0]["image"].to_string());
        let digit = image.and_then(|image| image.chars().rev().nth(1));
        let version = version(&digit.map(String::from).unwrap_or_default());
        let build = format!("autoscaler_agent_build_info{{version=\"{version}\",sha256=\"\"}} 1");
        std::future::ready(format!(
            "{build}\nautoscaling_agent_monitors_connected_current 0\n"
        ))
    };
    let router = Router::new().route("/metrics", get(respond));
    tokio::spawn(async move { axum::serve(listener, router).await });
}

fn drive(played: &Played, state_dir: &std::path::Path) -> DropGuard {
    drive_with(played, state_dir, None, None)
}

fn drive_with(
    played: &Played,
    state_dir: &std::path::Path,
    image_key: Option<ImageKey>,
    journal: Option<Journal>,
) -> DropGuard {
    let location = Location::Cluster {
        allow_dev: false,
        authorities: Vec::new(),
        image_key,
    };
    support::drive(played.api.client(), state_dir, location, journal)
}

/// A good image reaches every node, and one whose agents end is taken back after its first nodes.
/// The journal has each decision of it.
///
/// Requirement: R23, B49
#[tokio::test]
async fn agents_of_all_nodes_are_moved_and_a_bad_image_is_taken_back() {
    let folder = tempfile::tempdir().expect("a folder");
    let played = Played::start(0).await;
    played.start_deployment(1, GOOD);
    let records = folder.path().join("journal");
    let journal = audit::open(&records);
    let driver = drive_with(&played, folder.path(), None, Some(journal.clone()));
    let status = played.ended("agents-1").await;
    assert_eq!(status["state"], "Complete", "{status}");
    assert_eq!(status["progress"]["done"], 3, "{status}");
    played.all_run(GOOD);
    let set = played.api.get("daemonsets", SYSTEM, AGENT).expect("a set");
    let pinned = &set["spec"]["template"]["spec"]["containers"][0]["image"];
    assert_eq!(pinned, &image(GOOD), "by digest, without a tag");
    let instance = played.api.get("fleetinstances", SYSTEM, "node-node-a");
    let owner = instance.expect("an instance")["metadata"]["ownerReferences"][0].clone();
    assert_eq!(
        (&owner["kind"], &owner["name"]),
        (&json!("Node"), &json!("node-a"))
    );

    played.start_deployment(2, BAD);
    let status = played.ended("agents-2").await;
    assert_eq!(status["state"], "Unhealthy", "{status}");
    let text = status["evidence"].to_string();
    assert!(text.contains("ends of its container"), "{text}");
    let good = format!("\"{}\"", image(GOOD));
    let is_back = |_: &TestApi| played.images().iter().all(|it| *it == good).then_some(());
    played.until("the image before on all nodes", is_back).await;
    let most = played.most_away.load(Ordering::Relaxed);
    assert!(most <= 2, "{most} agents were away at once");
    let restarts = played.restarted();
    // Three forward, and there and back on at most two.
    assert!(restarts.len() <= 3 + 4, "{restarts:?}");
    // A line follows its write, so the last line is waited for, and not the last write.
    let is_told = |_: &TestApi| audit::has_end(&records, "agents-2-rollback").then_some(());
    played.until("the end of the rollback", is_told).await;
    drop(driver);
    journal.close().await;
    audit::compare(&played.api, &records);
}

/// Requirement: R24
#[tokio::test]
async fn agent_that_says_no_is_not_restarted_until_it_says_yes() {
    let folder = tempfile::tempdir().expect("a folder");
    let played = Played::start(1).await;
    let reason = "a shrink of default/pg is under way";
    played.say("node-a", &AgentSchedule::of(Some(reason)));
    played.say("node-b", &AgentSchedule::of(None));
    played.start_deployment(1, GOOD);
    let _driver = drive(&played, folder.path());
    let gate = played.until("the gate of node-a", |api| {
        let deployment = api.get("fleetdeployments", SYSTEM, "agents-1")?;
        let blocked = deployment["status"]["blockedBy"].clone();
        (blocked["gate"] == "restart").then_some(blocked)
    });
    let gate = gate.await;
    assert!(gate["detail"].to_string().contains("node-node-a"), "{gate}");
    let restarts = played.restarted();
    assert!(!restarts.contains(&"node-a".to_owned()), "{restarts:?}");
    assert_eq!(restarts.len(), 2, "the others went: {restarts:?}");
    played.say("node-a", &AgentSchedule::of(None));
    let status = played.ended("agents-1").await;
    assert_eq!(status["state"], "Complete", "{status}");
    played.all_run(GOOD);
}
