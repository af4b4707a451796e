//! Rollouts in a real cluster. `bellows-fleet` runs from its manifests as two pods, and follows a
//! channel of signed releases. Guests in pods of two nodes get a monitor while the leader is
//! killed. A bad monitor stops at its first guest and is taken back. A guest under load moves to
//! another runner. The audit log shows which rights the account uses.

#[path = "fleet_cluster/agents.rs"]
mod agents;
#[path = "fleet_cluster/deploy.rs"]
mod deploy;
#[path = "fleet_cluster/images.rs"]
mod images;
#[path = "fleet_cluster/moves.rs"]
mod moves;
#[path = "fleet_cluster/rights.rs"]
mod rights;
#[path = "fleet_cluster/schedules.rs"]
mod schedules;
#[path = "fleet_cluster/server.rs"]
mod server;
#[path = "fleet_cluster/services.rs"]
mod services;
#[path = "fleet_cluster/upgrade.rs"]
mod upgrade;

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use bellows_tests::cluster::{
    AUDIT_POLICY, Cluster, NodeKit, Programs, helm_or_skip, nodes_or_skip,
};
use bellows_tests::image::guest_program;
use bellows_tests::patience::wait_for;
use bellows_tests::publisher::{Publisher, sha256_of};
use bellows_tests::{explained, guest_or_skip};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use server::Server;

/// A guest boots in 10 s by TCG on an idle machine. This one also runs two nodes.
const PATIENCE: Duration = Duration::from_secs(300);
/// Longest rollout to both guests.
const ROLLOUT: Duration = Duration::from_secs(600);
const SYSTEM: &str = "kube-system";
/// Namespace of the guests.
const NAMESPACE: &str = "default";
const FLEET: &str = "bellows-fleet";
/// The program, as its image names it.
const PROGRAM: &str = "/usr/bin/bellows-fleet";
const VMS: [&str; 2] = ["first", "second"];
const ENVIRONMENT: &str = "monitors";
const CHANNEL: &str = "stable";
/// Port of the server of releases on the nodes' network.
const PORT: u16 = 8443;
/// Releases with the programs that print them as their versions.
const GOOD: (&str, &str) = ("0.1.1", "next-monitor");
const BAD: (&str, &str) = ("0.1.2", "crashing-part");

struct World {
    cluster: Cluster,
    publisher: Publisher,
    /// What its nodes and images are made from.
    _dir: tempfile::TempDir,
}

impl World {
    async fn start(programs: Programs, kit: &NodeKit) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        std::fs::write(dir.path().join(AUDIT_POLICY), rights::audit_policy())?;
        let cluster = Cluster::with_our_images(programs, kit, dir.path(), 2).await?;
        let publisher = Publisher::new()?;
        let world = Self {
            cluster,
            publisher,
            _dir: dir,
        };
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

    fn apply(&self, object: &Value) -> Result<()> {
        self.cluster.plane().apply(&object.to_string()).map(drop)
    }

    /// The world of a test. `None` if a part is missing, and the test is recorded as skipped.
    async fn of_test(test: &str) -> Result<Option<Self>> {
        if !guest_or_skip(test) {
            return Ok(None);
        }
        let Some((programs, kit)) = nodes_or_skip(test) else {
            return Ok(None);
        };
        let _ = rustls::crypto::ring::default_provider().install_default();
        Self::start(programs, &kit).await.map(Some)
    }

    async fn release_image(&self, version: &str, part: &str, digest: &str) -> Result<()> {
        self.publisher.release_image(version, part, digest).await?;
        self.publisher.promote(version, CHANNEL, false).await
    }

    async fn release(&self, (version, name): (&str, &str)) -> Result<()> {
        self.publisher
            .release(version, &guest_program(name)?)
            .await?;
        self.publisher.promote(version, CHANNEL, false).await
    }

    /// Deploys the fleet with a channel that an environment follows. Returns the server of the
    /// channel, and the first revision.
    async fn follow(&self, environment: &Value) -> Result<(Server, String)> {
        let releases = self.publisher.releases();
        let server = Server::start(self.cluster.listen(PORT)?, releases)?;
        self.deploy_fleet(&server.authority, &json!({})).await?;
        let root = std::fs::read_to_string(self.publisher.root())?;
        let metadata = &environment["metadata"];
        let namespace = metadata["namespace"].as_str().context("a namespace")?;
        self.apply(&in_namespace(channel(&server, &root), namespace))?;
        self.apply(environment)?;
        let name = metadata["name"].as_str().context("a name")?;
        let revision = format!("{name}-r1");
        let words = ["controllerrevision", &revision, "-n", namespace];
        let is_made = || Ok(self.get(&words).ok());
        self.until("the first revision", PATIENCE, is_made).await?;
        Ok((server, revision))
    }

    /// Identity of the leader: its pod's name, `_`, its process.
    fn leader(&self) -> Result<String> {
        let lease = self.get(&["lease", FLEET, "-n", SYSTEM])?;
        let holder = lease["spec"]["holderIdentity"].as_str();
        Ok(holder.with_context(|| lease.to_string())?.to_owned())
    }

    /// Kills the process of the leader. Returns its identity.
    fn kill_leader(&self) -> Result<String> {
        let leader = self.leader()?;
        let (pod, _) = leader.split_once('_').context("an identity")?;
        for pid in self.cluster.processes(PROGRAM) {
            let environ = procfs::process::Process::new(pid)?.environ()?;
            let host = environ.get(std::ffi::OsStr::new("HOSTNAME"));
            if host.is_some_and(|host| host == pod) {
                kill(Pid::from_raw(pid), Signal::SIGKILL)?;
                return Ok(leader);
            }
        }
        anyhow::bail!("no process of {pod}")
    }

    async fn until<T>(
        &self,
        what: &str,
        patience: Duration,
        find: impl Fn() -> Result<Option<T>>,
    ) -> Result<T> {
        let waited = wait_for(what, patience, || async {
            match find() {
                Ok(Some(found)) => Ok(found),
                Ok(None) => Err(String::new()),
                Err(error) => Err(format!("{error:#}")),
            }
        });
        waited.await
    }

    fn deployments(&self, namespace: &str) -> Result<Vec<Value>> {
        let list = self.get(&["fleetdeployments", "-n", namespace])?;
        Ok(list["items"].as_array().cloned().unwrap_or_default())
    }

    /// The deployment of a namespace that has ended in a state.
    fn ended_as(
        &self,
        namespace: &str,
        of: impl Fn(&Value) -> bool,
        state: &str,
    ) -> Result<Option<Value>> {
        let mut all = self.deployments(namespace)?.into_iter();
        Ok(all.find(|one| of(one) && one["status"]["state"] == state))
    }

    /// Waits for the end of a deployment in a state. Returns its name.
    async fn ended(&self, of: impl Fn(&Value) -> bool, state: &str) -> Result<String> {
        let what = format!("a deployment that is {state}");
        self.until(&what, ROLLOUT, || {
            let ended = self.ended_as(NAMESPACE, &of, state)?;
            Ok(ended.and_then(|one| one["metadata"]["name"].as_str().map(str::to_owned)))
        })
        .await
    }

    /// Digest of a guest's monitor, from the page at the address of its pod.
    fn monitor(&self, vm: &str) -> Result<String> {
        let object = self.get(&["neonvm", vm])?;
        let ip = object["status"]["podIP"].as_str();
        let ip = ip.with_context(|| object["status"].to_string())?;
        let mut curl = self.cluster.on_network("curl");
        curl.args([
            "-sS",
            "--max-time",
            "10",
            &format!("http://{ip}:9100/metrics"),
        ]);
        let page = String::from_utf8(curl.output()?.stdout)?;
        let line = page
            .lines()
            .find(|line| line.starts_with("vm_monitor_build_info{"));
        let sha256 = line.and_then(|line| line.split("sha256=\"").nth(1)?.split('"').next());
        Ok(sha256.with_context(|| page.clone())?.to_owned())
    }

    async fn all_run(&self, sha256: &str) -> Result<()> {
        for vm in VMS {
            let what = format!("monitor sha256:{sha256} in {vm}");
            self.until(&what, PATIENCE, || {
                Ok((self.monitor(vm)? == sha256).then_some(()))
            })
            .await?;
        }
        Ok(())
    }

    fn explain(&self) -> String {
        let ask = |words: &[&str]| {
            let said = self.kubectl(words);
            said.unwrap_or_else(|error| format!("{error:#}"))
        };
        let label = format!("name={FLEET}");
        let kinds =
            "fleetchannels,fleetenvironments,fleetdeployments,fleetinstances,neonvm,neonvmm";
        [
            ask(&["get", "pods", "-A", "-o", "wide"]),
            ask(&["get", kinds, "-o", "yaml"]),
            ask(&["logs", "--tail=60", "-n", SYSTEM, "-l", &label, "--prefix"]),
            ask(&[
                "logs",
                "--tail=20",
                "-n",
                SYSTEM,
                "-l",
                &label,
                "--prefix",
                "--previous",
            ]),
        ]
        .join("\n---\n")
    }
}

fn vm(name: &str) -> Value {
    json!({
        "apiVersion": "vm.neon.tech/v1",
        "kind": "VirtualMachine",
        "metadata": {"name": name},
        "spec": {"schedulerName": "autoscale-scheduler", "guest": {
            "cpus": {"min": "500m", "use": "500m", "max": "500m"},
            "memorySlots": {"min": 1, "use": 1, "max": 1},
            "rootDisk": {"image": "bellows/vm-postgres:15"},
        }},
    })
}

fn channel(server: &Server, root: &str) -> Value {
    json!({
        "apiVersion": "fleet.bellows.dev/v1alpha1",
        "kind": "FleetChannel",
        "metadata": {"name": CHANNEL, "namespace": NAMESPACE},
        "spec": {
            "url": format!("https://{}/", server.address), "name": CHANNEL, "root": root,
            "pollSeconds": 10,
        },
    })
}

fn in_namespace(mut object: Value, namespace: &str) -> Value {
    object["metadata"]["namespace"] = json!(namespace);
    object
}

fn environment() -> Value {
    json!({
        "apiVersion": "fleet.bellows.dev/v1alpha1",
        "kind": "FleetEnvironment",
        "metadata": {"name": ENVIRONMENT, "namespace": NAMESPACE},
        "spec": {
            "part": "monitor",
            "source": {"channel": CHANNEL},
            "rollout": {
                "minHealthyPercent": 50, "maxInFlight": 1, "trialSeconds": 20, "retries": 0,
                "maxFailedPercent": 0,
            },
        },
    })
}

fn deployment(name: &str, revision: &str) -> Value {
    json!({
        "apiVersion": "fleet.bellows.dev/v1alpha1",
        "kind": "FleetDeployment",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"environment": ENVIRONMENT, "revision": revision, "kind": "User"},
    })
}

/// Guests get a monitor although the leader is killed, then runners, then the chart is upgraded.
///
/// Requirement: B42, B48, R12, R19, R36, R39
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn guests_in_pods_get_monitors_and_runners_by_the_fleets_rights() -> Result<()> {
    let test = "guests_in_pods_get_monitors_and_runners_by_the_fleets_rights";
    let Some(helm) = helm_or_skip(test) else {
        return Ok(());
    };
    let Some(world) = World::of_test(test).await? else {
        return Ok(());
    };
    let rolled = roll(&world, &helm).await;
    explained(rolled, || world.explain())
}

async fn roll(world: &World, helm: &Path) -> Result<()> {
    for name in VMS {
        world.apply(&vm(name))?;
    }
    world.publisher.init(CHANNEL).await?;
    world.release(GOOD).await?;
    let (server, revision) = world.follow(&environment()).await?;
    good_release_reaches_all_guests(world, &revision).await?;
    bad_release_is_taken_back(world).await?;
    moves::guest_gets_another_runner(world, &server).await?;
    schedules::schedule_reaches_the_file_of_an_updater(world, VMS[1]).await?;
    upgrade::chart_asks_before_an_upgrade(world, &server, helm).await?;
    rights::are_used(world, rights::Shown::Guests)
}

/// The leader is killed during the first trial. The other replica fetches the program itself.
async fn good_release_reaches_all_guests(world: &World, revision: &str) -> Result<()> {
    world.apply(&deployment("to-good", revision))?;
    world
        .until("the first turn", PATIENCE, || {
            let list = world.get(&["fleetinstances"])?;
            let any = list["items"].as_array().is_some_and(|all| !all.is_empty());
            Ok(any.then_some(()))
        })
        .await?;
    let killed = world.kill_leader()?;
    world
        .until("another leader", PATIENCE, || {
            let leader = world.leader()?;
            Ok((leader != killed && !leader.is_empty()).then_some(()))
        })
        .await?;
    let is_it = |one: &Value| one["metadata"]["name"] == "to-good";
    world.ended(is_it, "Complete").await?;
    world.all_run(&sha256_of(&guest_program(GOOD.1)?)).await?;
    let list = world.get(&["fleetinstances"])?;
    for instance in list["items"].as_array().into_iter().flatten() {
        let part = &instance["status"]["parts"]["monitor"];
        ensure!(part["last"]["result"] == "Good", "{instance}");
    }
    Ok(())
}

/// The channel names it, and the fleet itself makes the deployment and its rollback.
async fn bad_release_is_taken_back(world: &World) -> Result<()> {
    world.release(BAD).await?;
    let of_revision =
        |one: &Value, number: u32| one["spec"]["revision"] == format!("{ENVIRONMENT}-r{number}");
    let is_bad = |one: &Value| of_revision(one, 2) && one["spec"]["kind"] == "User";
    let bad = world.ended(is_bad, "Unhealthy").await?;
    let is_back = |one: &Value| one["spec"]["kind"] == "Rollback" && of_revision(one, 1);
    world.ended(is_back, "Complete").await?;
    world.all_run(&sha256_of(&guest_program(GOOD.1)?)).await?;
    let all = world.deployments(NAMESPACE)?;
    let one = all
        .iter()
        .find(|one| one["metadata"]["name"] == bad.as_str());
    let progress = one.map(|one| one["status"]["progress"].clone());
    let progress = progress.context("the deployment is there")?;
    ensure!(
        progress["failed"] == 1,
        "{progress}: it stopped at its first guest"
    );
    Ok(())
}
