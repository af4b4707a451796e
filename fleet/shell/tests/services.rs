//! The control plane before the shipped API server. The test plays the controller of `Deployment`s
//! and the leader's Lease: pods get the template's image, and one of those that run leads.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use daemon_kit::clock::Clock;
use fleet::Location;
use fleet_store::{deployment_object, environment_object, revision_object};
use protocol::fleet::{
    DeploymentKind, DeploymentSpec, EnvironmentSpec, Resolved, RevisionData, Rollout, Service,
};
use protocol::parts::PartName;
use serde_json::{Value, json};
use test_api::{Call, Fault, TestApi};
use tokio_util::sync::{CancellationToken, DropGuard};

const NAMESPACE: &str = "kube-system";
const OLD: &str = "0";
const GOOD: &str = "1";
/// Digest of an image whose pods never become ready.
const BAD: &str = "2";
const REPLICAS: usize = 3;
/// Longest rollout on a busy machine.
const PATIENCE: Duration = Duration::from_secs(240);

/// A part with its `Deployment`, which is its container too, and its Lease.
#[derive(Clone, Copy)]
struct Played {
    part: PartName,
    name: &'static str,
    lease: &'static str,
    is_ready_without_lead: bool,
}

const CONTROLLER: Played = Played {
    part: PartName::Controller,
    name: "neonvm-controller",
    lease: "a3b22509.neon.tech",
    is_ready_without_lead: true,
};
const SCHEDULER: Played = Played {
    part: PartName::Scheduler,
    name: "autoscale-scheduler",
    lease: "autoscale-scheduler",
    is_ready_without_lead: false,
};
const FLEET: Played = Played {
    part: PartName::Fleet,
    name: "bellows-fleet",
    lease: "bellows-fleet",
    is_ready_without_lead: true,
};

impl Played {
    fn image(&self, digit: &str) -> String {
        format!("bellows/{}@sha256:{}", self.name, digit.repeat(64))
    }

    fn spec(&self) -> EnvironmentSpec {
        EnvironmentSpec {
            rollout: Rollout {
                min_healthy_percent: 66,
                trial_seconds: 20,
                retries: 0,
                max_failed_percent: 0,
                ..Rollout::default()
            },
            service: Some(Service {
                max_active_percent: 134,
                progress_seconds: 60,
            }),
            ..EnvironmentSpec::of_release(self.part, "1.1.0")
        }
    }
}

/// A cluster that this test plays. The most and fewest pods of any part are counted.
struct World {
    api: TestApi,
    most: Arc<AtomicUsize>,
    fewest: Arc<AtomicUsize>,
    _tasks: Vec<DropGuard>,
}

/// Serves a `Deployment`, a kind that the shipped API server does not have. An applied image is
/// merged, and its writer owns it.
fn serve(api: &TestApi, part: Played) {
    let answer = move |api: &TestApi, call: &Call| {
        let mut object = api.get("deployments", NAMESPACE, part.name)?;
        let generation = object["metadata"]["generation"].as_i64()?;
        let version = generation.to_string();
        if call.line.starts_with("PATCH ") {
            let fields = call.json();
            if fields["metadata"]["resourceVersion"] != version {
                let status = json!({"kind": "Status", "status": "Failure", "code": 409});
                return Some((409, status));
            }
            let image = &fields["spec"]["template"]["spec"]["containers"][0]["image"];
            set_image(&mut object, part.name, image, "bellows-fleet");
            object["spec"]["strategy"] = fields["spec"]["strategy"].clone();
            object["metadata"]["annotations"] = fields["metadata"]["annotations"].clone();
            object["metadata"]["generation"] = json!(generation + 1);
            api.put("deployments", object.clone());
        }
        object["metadata"]["resourceVersion"] = object["metadata"]["generation"].to_string().into();
        Some((200, object))
    };
    for verb in ["GET", "PATCH"] {
        let line = format!(
            "{verb} /apis/apps/v1/namespaces/{NAMESPACE}/deployments/{}",
            part.name
        );
        api.always(&line, Fault::answer(answer));
    }
}

fn set_image(object: &mut Value, name: &str, image: &Value, writer: &str) {
    object["spec"]["template"]["spec"]["containers"][0]["image"] = image.clone();
    let container = format!("k:{{\"name\":\"{name}\"}}");
    let owned = json!({"f:spec": {"f:template": {"f:spec": {
        "f:containers": {container: {"f:image": {}}},
    }}}});
    object["metadata"]["managedFields"] = json!([{"manager": writer, "fieldsV1": owned}]);
}

impl World {
    async fn start(parts: &[Played]) -> Self {
        let api = TestApi::start().await;
        let mut world = Self {
            api,
            most: Arc::default(),
            fewest: Arc::new(AtomicUsize::new(REPLICAS)),
            _tasks: Vec::new(),
        };
        for part in parts {
            world.install(*part);
        }
        world
    }

    fn install(&mut self, part: Played) {
        serve(&self.api, part);
        self.api.put(
            "deployments",
            json!({
                "apiVersion": "apps/v1", "kind": "Deployment",
                "metadata": {"name": part.name, "namespace": NAMESPACE, "uid": "u", "generation": 1},
                "spec": {
                    "replicas": REPLICAS,
                    "selector": {"matchLabels": {"name": part.name}},
                    "template": {"spec": {
                        "containers": [{"name": part.name, "image": part.image(OLD)}],
                    }},
                },
            }),
        );
        let token = CancellationToken::new();
        self._tasks.push(token.clone().drop_guard());
        let play = play(
            self.api.clone(),
            part,
            Arc::clone(&self.most),
            Arc::clone(&self.fewest),
        );
        tokio::spawn(async move { token.run_until_cancelled(play).await });
    }

    fn start_deployment(&self, part: Played, number: i64, digit: &str) -> String {
        let environment_name = part.part.as_str();
        let name = format!("{environment_name}-{number}");
        let environment = environment_object(NAMESPACE, environment_name, &part.spec());
        let known = self
            .api
            .get("fleetenvironments", NAMESPACE, environment_name);
        if known.is_none() {
            self.api.put("fleetenvironments", environment.clone());
        }
        let data = RevisionData {
            spec: part.spec(),
            resolved: Resolved {
                version: format!("1.{digit}.0"),
                sha256: digit.repeat(64),
                bundle: String::new(),
            },
        };
        let revision = revision_object(&environment, number, &data);
        self.api.put("controllerrevisions", revision);
        let deployment = DeploymentSpec::new(
            environment_name,
            format!("{environment_name}-r{number}"),
            DeploymentKind::User,
        );
        let mut deployment = deployment_object(NAMESPACE, &name, &deployment);
        deployment["metadata"]["creationTimestamp"] = json!(Clock::new().wall());
        self.api.put("fleetdeployments", deployment);
        name
    }

    async fn until<T>(&self, what: &str, find: impl Fn(&TestApi) -> Option<T>) -> T {
        let deadline = tokio::time::Instant::now() + PATIENCE;
        loop {
            if let Some(found) = find(&self.api) {
                return found;
            }
            let is_early = tokio::time::Instant::now() < deadline;
            assert!(
                is_early,
                "{what}: {} {}",
                json!(self.api.list("fleetdeployments")),
                json!(self.api.list("fleetinstances"))
            );
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    async fn ended(&self, name: &str) -> Value {
        self.until(&format!("the end of {name}"), |api| {
            let deployment = api.get("fleetdeployments", NAMESPACE, name)?;
            let status = deployment["status"].clone();
            status["endedAt"].is_string().then_some(status)
        })
        .await
    }

    async fn blocked(&self, name: &str, gate: &str) {
        self.until(&format!("gate {gate} of {name}"), |api| {
            let deployment = api.get("fleetdeployments", NAMESPACE, name)?;
            (deployment["status"]["blockedBy"]["gate"] == gate).then_some(())
        })
        .await;
    }

    fn image_of(&self, part: Played) -> String {
        let object = self.api.get("deployments", NAMESPACE, part.name);
        let object = object.expect("a Deployment");
        let image = &object["spec"]["template"]["spec"]["containers"][0]["image"];
        image.as_str().expect("an image").to_owned()
    }
}

/// Replaces one pod of another image at a time, while all the others run.
async fn play(api: TestApi, part: Played, most: Arc<AtomicUsize>, fewest: Arc<AtomicUsize>) {
    let clock = Clock::new();
    let mut made = 0;
    loop {
        let object = api
            .get("deployments", NAMESPACE, part.name)
            .expect("it is there");
        let image = object["spec"]["template"]["spec"]["containers"][0]["image"].clone();
        let is_own = |pod: &Value| pod["metadata"]["labels"]["name"] == part.name;
        let pods: Vec<Value> = api.list("pods").into_iter().filter(is_own).collect();
        let is_ready = |pod: &Value| pod["status"]["conditions"][0]["status"] == "True";
        let ready = pods.iter().filter(|pod| is_ready(pod)).count();
        if made >= REPLICAS && part.is_ready_without_lead {
            most.fetch_max(pods.len(), Ordering::Relaxed);
            fewest.fetch_min(ready, Ordering::Relaxed);
        }
        let is_old = |pod: &&Value| pod["spec"]["containers"][0]["image"] != image;
        if pods.len() < REPLICAS {
            made += 1;
            let name = format!("{}-{made}", part.name);
            api.put("pods", pod(part, &name, &image, clock.wall()));
        } else if let Some(old) = pods.iter().find(is_old)
            && (ready == REPLICAS || !is_ready(old) || !part.is_ready_without_lead)
        {
            let name = old["metadata"]["name"].as_str().expect("a name");
            api.take("pods", NAMESPACE, name);
        }
        api.edit("deployments", NAMESPACE, part.name, |object| {
            object["status"]["availableReplicas"] = json!(ready);
        });
        let leader = pods.iter().find(|pod| is_ready(pod));
        let leader = leader.and_then(|pod| pod["metadata"]["name"].as_str());
        api.put(
            "leases",
            json!({
                "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
                "metadata": {"name": part.lease, "namespace": NAMESPACE},
                "spec": {
                    "holderIdentity": leader.map(|pod| format!("{pod}_1-2f")),
                    "renewTime": clock.wall().to_micro_string(),
                },
            }),
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// A pod that is ready at once, unless its image is the bad one. Of a scheduler only the first is.
fn pod(part: Played, name: &str, image: &Value, now: protocol::time::WallTime) -> Value {
    let image = image.as_str().expect("an image");
    let is_bad = image.ends_with(&BAD.repeat(64));
    let state = match is_bad {
        true => json!({"waiting": {"reason": "ContainerCreating"}}),
        false => json!({"running": {"startedAt": now}}),
    };
    let is_ready =
        !is_bad && (part.is_ready_without_lead || name.ends_with("-1") || name.ends_with("-4"));
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": name, "namespace": NAMESPACE, "labels": {"name": part.name},
            "creationTimestamp": now,
        },
        "spec": {"containers": [{"name": part.name, "image": image}]},
        "status": {
            "phase": "Running",
            "conditions": [{
                "type": "Ready", "status": if is_ready { "True" } else { "False" },
                "lastTransitionTime": now,
            }],
            "containerStatuses": [{"name": part.name, "restartCount": 0, "state": state}],
        },
    })
}

fn drive(world: &World, state_dir: &std::path::Path) -> DropGuard {
    let location = Location::Cluster {
        allow_dev: false,
        authorities: Vec::new(),
        image_key: None,
    };
    support::drive(world.api.client(), state_dir, location, None)
}

/// Requirement: B23
#[tokio::test]
async fn control_plane_is_moved_by_its_deployment_and_a_bad_image_is_put_back() {
    let folder = tempfile::tempdir().expect("a folder");
    let world = World::start(&[CONTROLLER]).await;
    let name = world.start_deployment(CONTROLLER, 1, GOOD);
    let _driver = drive(&world, folder.path());
    let status = world.ended(&name).await;
    assert_eq!(status["state"], "Complete", "{status}");
    assert_eq!(world.image_of(CONTROLLER), CONTROLLER.image(GOOD));
    let object = world.api.get("deployments", NAMESPACE, CONTROLLER.name);
    let object = object.expect("a Deployment");
    let budget = json!({"rollingUpdate": {"maxUnavailable": 1, "maxSurge": 1}});
    assert_eq!(object["spec"]["strategy"], budget);
    let instance = "deployment-neonvm-controller";
    let instance = world.api.get("fleetinstances", NAMESPACE, instance);
    let instance = instance.expect("an instance");
    let owner = &instance["metadata"]["ownerReferences"][0];
    assert_eq!(
        (&owner["kind"], &owner["name"]),
        (&json!("Deployment"), &json!(CONTROLLER.name))
    );

    let name = world.start_deployment(CONTROLLER, 2, BAD);
    let status = world.ended(&name).await;
    assert_eq!(status["state"], "Unhealthy", "{status}");
    let text = status["evidence"].to_string();
    assert!(text.contains("of its 3 pods have the image"), "{text}");
    world
        .until("the image before", |_| {
            (world.image_of(CONTROLLER) == CONTROLLER.image(GOOD)).then_some(())
        })
        .await;
    let fewest = world.fewest.load(Ordering::Relaxed);
    assert!(fewest >= REPLICAS - 1, "{fewest} were ready");
}

/// Requirement: B23
#[tokio::test]
async fn image_of_another_writer_blocks_until_a_new_order() {
    let folder = tempfile::tempdir().expect("a folder");
    let world = World::start(&[CONTROLLER]).await;
    let name = world.start_deployment(CONTROLLER, 1, GOOD);
    let _driver = drive(&world, folder.path());
    let is_set = |_: &TestApi| (world.image_of(CONTROLLER) == CONTROLLER.image(GOOD)).then_some(());
    world.until("the image of the turn", is_set).await;
    let other = json!(CONTROLLER.image(OLD));
    world
        .api
        .edit("deployments", NAMESPACE, CONTROLLER.name, |object| {
            set_image(object, CONTROLLER.name, &other, "helm");
        });
    world.blocked(&name, "drift").await;
    let image = world.image_of(CONTROLLER);
    assert_eq!(image, CONTROLLER.image(OLD), "it is left alone");
    let next = world.start_deployment(CONTROLLER, 2, GOOD);
    assert_eq!(world.ended(&next).await["state"], "Complete");
    assert_eq!(world.ended(&name).await["state"], "Stopped");
    assert_eq!(world.image_of(CONTROLLER), CONTROLLER.image(GOOD));
}

/// Requirement: B23, R11
#[tokio::test]
async fn fleet_goes_after_scheduler_and_controller() {
    let folder = tempfile::tempdir().expect("a folder");
    let world = World::start(&[CONTROLLER, SCHEDULER, FLEET]).await;
    let fleet = world.start_deployment(FLEET, 1, GOOD);
    let scheduler = world.start_deployment(SCHEDULER, 1, GOOD);
    let controller = world.start_deployment(CONTROLLER, 1, GOOD);
    let _driver = drive(&world, folder.path());
    world.blocked(&fleet, "order").await;
    world.blocked(&scheduler, "order").await;
    assert_eq!(world.ended(&controller).await["state"], "Complete");
    let is_old = || world.image_of(FLEET) == FLEET.image(OLD);
    assert!(is_old(), "it waits for the scheduler");
    assert_eq!(world.ended(&scheduler).await["state"], "Complete");
    assert_eq!(world.ended(&fleet).await["state"], "Complete");
    let set = world.api.get("deployments", NAMESPACE, SCHEDULER.name);
    let strategy = &set.expect("a Deployment")["spec"]["strategy"];
    assert!(strategy.is_null(), "{strategy}: it stays as shipped");
    let next = world.start_deployment(FLEET, 2, "3");
    world.blocked(&next, "order").await;
}
