//! New monitors reach running guests by objects alone, and bad ones are taken back.

use std::time::Duration;

use bellows_tests::guest_or_skip;
use bellows_tests::image::guest_program;
use bellows_tests::patience::wait_for;
use bellows_tests::publisher::{Publisher, sha256_of};
use bellows_tests::site::{BOOT_PATIENCE, Site, postgres_vm};
use daemon_kit::clock::Clock;
use fleet_store::{Programs, deployment_object, environment_object, revision_object};
use kube::api::{
    Api, ApiResource, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams, PostParams,
};
use protocol::fleet::{
    DeploymentKind, DeploymentSpec, DeploymentState, EnvironmentSpec, FleetKind, GROUP, Resolved,
    RevisionData, Rollout, VERSION, revision_name,
};
use protocol::parts::{PartName, PartPhase, PartState};
use protocol::time::WallTime;
use serde_json::{Value, json};

const ENVIRONMENT: &str = "monitors";
const NAMESPACE: &str = "default";
const CHANNEL: &str = "stable";
/// Releases of the channel, with the programs that print them as their versions.
const OLDER: (&str, &str) = ("0.1.0", "vm-monitor");
const NEWER: (&str, &str) = ("0.1.1", "next-monitor");
const VMS: [&str; 3] = ["first", "second", "third"];
const A_DAY_US: i64 = 86_400_000_000;
/// Longest rollout to all guests, or its return, without KVM.
const PATIENCE: Duration = Duration::from_secs(400);

/// Guests of an environment, and the API through which people change it.
struct Fleet {
    site: Site,
    environment: Value,
    /// Revisions that the test made.
    made: i64,
    publisher: Publisher,
}

impl Fleet {
    async fn boot() -> Self {
        let site = Site::fresh().await.expect("bellows up");
        for name in VMS {
            // Three of them fit into a node of two CPUs.
            let object = postgres_vm(name, (500, 500, 500), (1, 1, 1), true);
            site.boot(&object).await.expect("a guest");
        }
        let mut fleet = Self {
            site,
            environment: Value::Null,
            made: 0,
            publisher: Publisher::new().expect("folders"),
        };
        let object = environment_object(NAMESPACE, ENVIRONMENT, &spec(&version(0)));
        fleet.environment = fleet.create(FleetKind::Environment, object).await;
        fleet
    }

    fn api(&self, kind: FleetKind) -> Api<DynamicObject> {
        let gvk = GroupVersionKind::gvk(GROUP, VERSION, kind.as_str());
        let resource = ApiResource::from_gvk_with_plural(&gvk, kind.plural());
        Api::namespaced_with(self.site.client(), NAMESPACE, &resource)
    }

    fn revisions(&self) -> Api<DynamicObject> {
        let gvk = GroupVersionKind::gvk("apps", "v1", "ControllerRevision");
        let resource = ApiResource::from_gvk(&gvk);
        Api::namespaced_with(self.site.client(), NAMESPACE, &resource)
    }

    async fn create(&self, kind: FleetKind, object: Value) -> Value {
        let object: DynamicObject = serde_json::from_value(object).expect("an object");
        let created = self.api(kind).create(&PostParams::default(), &object).await;
        serde_json::to_value(created.expect("an accepted object")).expect("JSON")
    }

    async fn read(&self, kind: FleetKind, name: &str) -> Result<Value, String> {
        let object = self.api(kind).get(name).await;
        let object = object.map_err(|error| error.to_string())?;
        serde_json::to_value(object).map_err(|error| error.to_string())
    }

    /// Keeps a program, and starts a deployment of it under the next version. Returns the
    /// deployment's name and the hash.
    async fn deploy(&mut self, program: &[u8]) -> (String, String) {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), program).expect("a program");
        let programs = Programs::new(self.site.state_dir().join("fleet/programs"));
        let sha256 = programs.keep(file.path()).expect("a kept program");
        self.made += 1;
        let number = self.made;
        let version = version(number);
        let data = RevisionData {
            spec: spec(&version),
            resolved: Resolved {
                version,
                sha256: sha256.clone(),
                bundle: String::new(),
            },
        };
        let object = revision_object(&self.environment, number, &data);
        let object: DynamicObject = serde_json::from_value(object).expect("an object");
        let created = self
            .revisions()
            .create(&PostParams::default(), &object)
            .await;
        created.expect("an accepted revision");
        let name = format!("to-{number}");
        let deployment = DeploymentSpec::new(
            ENVIRONMENT,
            revision_name(ENVIRONMENT, number),
            DeploymentKind::User,
        );
        let object = deployment_object(NAMESPACE, &name, &deployment);
        self.create(FleetKind::Deployment, object).await;
        (name, sha256)
    }

    /// The monitor of a guest, as its runner reports it.
    async fn monitor(&self, vm: &str) -> Result<PartState, String> {
        let runner = self.site.runner(vm).await;
        let mut runner = runner.map_err(|error| format!("{error:#}"))?;
        let part = runner.guest_parts.remove(&PartName::Monitor);
        part.ok_or_else(|| format!("{vm} reports no monitor"))
    }

    async fn monitors(&self) -> Result<Vec<PartState>, String> {
        let mut monitors = Vec::new();
        for vm in VMS {
            monitors.push(self.monitor(vm).await?);
        }
        Ok(monitors)
    }

    /// Waits for the end of a deployment. At each look at most one guest is on trial.
    async fn ends(&self, name: &str, state: DeploymentState) -> Value {
        let what = format!("{name} is {state:?}");
        wait_for(&what, PATIENCE, || async {
            let monitors = self.monitors().await?;
            let on_trial = monitors.iter().filter(|one| one.phase == PartPhase::Trial);
            assert!(on_trial.count() <= 1, "{monitors:?}");
            let object = self.read(FleetKind::Deployment, name).await?;
            if object["status"]["state"] == format!("{state:?}") {
                return Ok(object);
            }
            let guests = self.guests_from_outside().await?;
            Err(format!("{} {monitors:?} {guests}", object["status"]))
        })
        .await
        .expect("the end of a deployment")
    }

    /// What keeps guests from being healthy: their VMs' conditions, and what their instances say.
    async fn guests_from_outside(&self) -> Result<String, String> {
        let mut seen = Vec::new();
        for name in VMS {
            let vm = self.site.vm(name).await;
            let status = vm.map_err(|error| format!("{error:#}"))?.status;
            let status = status.unwrap_or_default();
            seen.push(format!(
                "{name}: {:?} {:?}",
                status.phase, status.conditions
            ));
        }
        let listed = self
            .api(FleetKind::Instance)
            .list(&ListParams::default())
            .await;
        let instances = listed.map_err(|error| error.to_string())?.items;
        seen.extend(instances.iter().map(|one| one.data["status"].to_string()));
        let environment = self.read(FleetKind::Environment, ENVIRONMENT).await?;
        seen.push(environment["status"].to_string());
        Ok(seen.join("; "))
    }

    /// Waits until every guest runs the program, settled or gone back to it, and nothing is open.
    async fn rests_at(&self, sha256: &str) {
        wait_for("all guests at rest", PATIENCE, || async {
            let monitors = self.monitors().await?;
            let environment = self.read(FleetKind::Environment, ENVIRONMENT).await?;
            let runs_it = |one: &PartState| one.sha256 == sha256 && one.phase != PartPhase::Trial;
            if monitors.iter().all(runs_it) && environment["status"]["lock"].is_null() {
                return Ok(());
            }
            Err(format!("{monitors:?} {}", environment["status"]))
        })
        .await
        .expect("guests at rest");
    }

    /// Kills `bellows up` and starts it again, after each of the pauses.
    async fn is_killed_after(&mut self, pauses_ms: &[u64]) {
        for pause in pauses_ms {
            tokio::time::sleep(Duration::from_millis(*pause)).await;
            self.site.kill_up().await.expect("kill -9");
            self.site.restart_up().await.expect("bellows up");
        }
    }

    /// Publishes two releases, and lets the environment follow a channel that names the newer one.
    /// `bellows up` is killed during the trials. Returns the hash of its program.
    async fn follows_channel_through_kills(&mut self) -> String {
        self.publisher.init(CHANNEL).await.expect("a repository");
        for (version, name) in [OLDER, NEWER] {
            let released = self.publisher.release(version, &program(name)).await;
            released.expect("a release");
        }
        let promoted = self.publisher.promote(NEWER.0, CHANNEL, false).await;
        promoted.expect("a channel");
        let (url, root) = (self.publisher.url(), self.publisher.root());
        let add = ["fleet", "channel", "add", CHANNEL, "--poll", "10"];
        let add = [&add[..], &["--url", &url, "--root", &root]].concat();
        self.site.bellows(&add).await.expect("a channel object");
        let follow = ["fleet", "env", "set", ENVIRONMENT, "--channel", CHANNEL];
        self.site.bellows(&follow).await.expect("a source");
        self.trial_begins().await;
        self.is_killed_after(&[0, 2_900, 6_100]).await;
        let name = self.deployment_to(NEWER.0).await;
        self.ends(&name, DeploymentState::Complete).await;
        sha256_of(&program(NEWER.1))
    }

    /// Promotes the older release. No window is open for the rollout, until the release is said to
    /// be urgent. Returns the hash of its program.
    async fn goes_back_by_its_channel_once_that_is_urgent(&mut self) -> String {
        let now = Clock::new().wall();
        let to = WallTime(now.0 + A_DAY_US);
        let blackout = json!({"from": now, "to": to, "reason": "a test"});
        let blackout = Patch::Merge(json!({"spec": {"blackouts": [blackout]}}));
        let environments = self.api(FleetKind::Environment);
        let params = PatchParams::default();
        let closed = environments.patch(ENVIRONMENT, &params, &blackout);
        closed.await.expect("a blackout");
        let promoted = self.publisher.promote(OLDER.0, CHANNEL, false).await;
        promoted.expect("a channel");
        let name = self.deployment_to(OLDER.0).await;
        wait_for("a closed window", PATIENCE, || async {
            let held = self.read(FleetKind::Deployment, &name).await?;
            let gate = &held["status"]["blockedBy"]["gate"];
            (gate == "window").then_some(()).ok_or(held.to_string())
        })
        .await
        .expect("a closed window");
        assert_eq!(self.touched_by(&name).await, [""; 0]);
        let promoted = self.publisher.promote(OLDER.0, CHANNEL, true).await;
        promoted.expect("an urgent channel");
        self.ends(&name, DeploymentState::Complete).await;
        sha256_of(&program(OLDER.1))
    }

    async fn trial_begins(&self) {
        wait_for("a trial", PATIENCE, || async {
            let monitors = self.monitors().await?;
            let is_on_trial = monitors.iter().any(|one| one.phase == PartPhase::Trial);
            is_on_trial.then_some(()).ok_or(format!("{monitors:?}"))
        })
        .await
        .expect("a trial");
    }

    /// Waits for a deployment of the revision with a version. Returns its name.
    async fn deployment_to(&self, version: &str) -> String {
        let api = self.api(FleetKind::Deployment);
        let what = format!("a deployment to {version}");
        let found = wait_for(&what, PATIENCE, || async {
            let revisions = self.revisions().list(&ListParams::default()).await;
            let revisions = revisions.map_err(|error| error.to_string())?.items;
            let of_version = revisions
                .iter()
                .find(|one| one.data["data"]["resolved"]["version"] == version)
                .ok_or_else(|| format!("{} revisions", revisions.len()))?;
            let revision = of_version.metadata.name.clone().unwrap_or_default();
            let fields = format!("spec.environment={ENVIRONMENT}");
            let listed = api.list(&ListParams::default().fields(&fields)).await;
            let listed = listed.map_err(|error| error.to_string())?.items;
            let mut of_revision = listed
                .iter()
                .filter(|one| one.data["spec"]["revision"] == revision.as_str());
            let name = of_revision.find_map(|one| one.metadata.name.clone());
            name.ok_or_else(|| format!("none to {revision}"))
        });
        found.await.expect("a deployment")
    }

    /// Names of the guests whose newest turn is of a deployment and was not given back.
    async fn touched_by(&self, deployment: &str) -> Vec<String> {
        let api = self.api(FleetKind::Instance);
        let listed = api.list(&ListParams::default()).await;
        let instances = listed.expect("instances").items.into_iter();
        let of_it = instances.filter(|one| {
            let turn = &one.data["spec"]["parts"]["monitor"];
            let end = &one.data["status"]["parts"]["monitor"]["last"];
            let is_given_back = end["token"] == turn["token"] && end["result"] == "Wait";
            turn["deployment"] == deployment && !is_given_back
        });
        of_it.filter_map(|one| one.metadata.name).collect()
    }
}

fn version(number: i64) -> String {
    format!("0.0.{number}")
}

fn spec(version: &str) -> EnvironmentSpec {
    EnvironmentSpec {
        rollout: Rollout {
            min_healthy_percent: 50,
            max_in_flight: 2,
            trial_seconds: 20,
            retries: 0,
            max_failed_percent: 0,
            ..Rollout::default()
        },
        ..EnvironmentSpec::of_release(PartName::Monitor, version)
    }
}

fn program(name: &str) -> Vec<u8> {
    guest_program(name).expect(name)
}

/// The image's monitor with another hash.
fn monitor(tail: &str) -> Vec<u8> {
    [program("vm-monitor"), tail.as_bytes().to_vec()].concat()
}

/// Requirement: B35, B38, R07, R08, R14
#[tokio::test(flavor = "multi_thread")]
async fn good_version_reaches_all_guests_and_bad_ones_stop_at_the_first() {
    if !guest_or_skip("good_version_reaches_all_guests_and_bad_ones_stop_at_the_first") {
        return;
    }
    let mut fleet = Fleet::boot().await;
    let boots = wait_for("parts of all guests", BOOT_PATIENCE, || async {
        fleet.monitors().await?;
        let first = fleet.site.runner(VMS[0]).await;
        let first = first.map_err(|error| format!("{error:#}"))?;
        first.boot_id.ok_or_else(|| "no boot".to_owned())
    });
    let boot = boots.await.expect("parts");

    let (first, good) = fleet.deploy(&monitor("first")).await;
    let done = fleet.ends(&first, DeploymentState::Complete).await;
    assert_eq!(done["status"]["progress"]["done"], 3, "{done}");
    fleet.rests_at(&good).await;

    for bad in ["crashing-part", "hanging-part", "leaking-part", "deaf-part"] {
        let (name, _) = fleet.deploy(&program(bad)).await;
        if bad == "leaking-part" {
            fleet.is_killed_after(&[1_300, 4_700]).await;
        }
        let failed = fleet.ends(&name, DeploymentState::Unhealthy).await;
        assert_eq!(failed["status"]["progress"]["failed"], 1, "{bad}: {failed}");
        let touched = fleet.touched_by(&name).await;
        assert!(touched.len() <= 1, "{bad}: {touched:?}");
        fleet.rests_at(&good).await;
    }

    let better = fleet.follows_channel_through_kills().await;
    fleet.rests_at(&better).await;

    let older = fleet.goes_back_by_its_channel_once_that_is_urgent().await;
    fleet.rests_at(&older).await;
    let versions = fleet.monitors().await.expect("monitors");
    assert!(
        versions.iter().all(|one| one.version == OLDER.0),
        "{versions:?}"
    );
    let runner = fleet.site.runner(VMS[0]).await.expect("a runner");
    assert_eq!(runner.boot_id.as_ref(), Some(&boot));
}
