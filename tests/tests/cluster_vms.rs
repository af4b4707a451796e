//! The whole loop in a real cluster: our parts deployed by their own manifests as pods of two
//! kubelet nodes, a VM that the controller makes a pod of, the pair places, the kubelet runs and
//! the agent sizes. The guest is real, by TCG.

#[path = "cluster_vms/attacker.rs"]
mod attacker;
#[path = "cluster_vms/baseline.rs"]
mod baseline;
#[path = "cluster_vms/claims.rs"]
mod claims;
#[path = "cluster_vms/dials.rs"]
mod dials;
#[path = "cluster_vms/faults.rs"]
mod faults;
#[path = "cluster_vms/given.rs"]
mod given;
#[path = "cluster_vms/moving.rs"]
mod moving;
#[path = "cluster_vms/network.rs"]
mod network;
#[path = "cluster_vms/overlay.rs"]
mod overlay;
#[path = "cluster_vms/plugin.rs"]
mod plugin;
#[path = "cluster_vms/quota.rs"]
mod quota;
#[path = "cluster_vms/relief.rs"]
mod relief;
#[path = "cluster_vms/rollout.rs"]
mod rollout;
#[path = "cluster_vms/rows.rs"]
mod rows;

use std::io::Write as _;
use std::path::PathBuf;
use std::pin::Pin;
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bellows_tests::cases::{self, Case, Wanted};
use bellows_tests::cluster::{
    CertManager, Cluster, Dials, Life, NodeKit, Programs, cert_manager_or_skip, is_ready,
    multus_or_skip, nodes_or_skip, pack_all,
};
use bellows_tests::guest_or_skip;
use bellows_tests::patience::wait_for;
use serde_json::{Value, json};
use tokio::sync::OnceCell;

/// A guest boots in 10 s by TCG on a machine of its own, and shares this one with two nodes.
const PATIENCE: Duration = Duration::from_secs(240);
const GIB: u64 = 1 << 30;

/// What a case does.
type Run = for<'a> fn(&'a World) -> Pin<Box<dyn Future<Output = Result<()>> + Send + 'a>>;

/// In this order: first those with a guest of their own; and a QEMU without KVM that has unplugged
/// a CPU seldom sends its guest, so what moves comes before what shrinks.
const CASES: [(&str, Run); 30] = [
    ("n17_a_guest_with_swap_has_it_to_the_page", |world| {
        Box::pin(rows::swap(world))
    }),
    (
        "n17_a_disk_with_quotas_takes_no_more_than_it_may",
        |world| Box::pin(rows::disk_quota(world)),
    ),
    ("n17_a_guest_has_a_certificate_of_its_issuer", |world| {
        Box::pin(rows::tls(world))
    }),
    ("n44_a_guest_that_writes_to_other_disks_stays", |world| {
        Box::pin(rows::stays(world))
    }),
    ("disks_on_claims_outlive_pod_guest_and_vm", |world| {
        Box::pin(claims::check(world))
    }),
    (
        "guest_runs_in_a_namespace_of_level_baseline_and_is_resized",
        |world| Box::pin(baseline::check(world)),
    ),
    (
        "n17_a_vm_has_its_default_values_and_runs_in_a_pod",
        |world| Box::pin(default_values(world)),
    ),
    (
        "n17_a_guest_is_entered_by_its_own_key_and_has_one_daemon",
        |world| Box::pin(rows::ssh(world)),
    ),
    (
        "n18_a_guest_is_in_its_pods_network_and_reaches_nothing_of_its_runner",
        |world| Box::pin(network::check(world)),
    ),
    (
        "pod_reaches_nothing_at_our_ports_but_pages_of_metrics",
        |world| Box::pin(attacker::check(world)),
    ),
    (
        "a_guest_has_the_files_and_settings_of_its_vm_and_follows_a_secret",
        |world| Box::pin(given::check(world)),
    ),
    ("what_a_guest_says_is_in_the_log_of_its_pod", |world| {
        Box::pin(given::is_told(world))
    }),
    ("a_guests_qemu_has_no_privilege_of_its_container", |world| {
        Box::pin(given::is_confined(world))
    }),
    (
        "n44_a_guest_with_a_database_moves_to_the_other_node",
        |world| Box::pin(moving::between_nodes(world)),
    ),
    (
        "n15_a_vm_that_the_scheduler_moves_is_sized_by_the_agent_of_its_new_node",
        |world| Box::pin(relief::moved_by_the_scheduler(world)),
    ),
    (
        "n18_n41_a_patch_is_seen_by_the_guest_and_requested_of_the_node",
        |world| Box::pin(patch_is_seen(world)),
    ),
    (
        "b48_orders_to_a_runner_are_read_by_nobody_on_the_way",
        |world| Box::pin(network::orders_are_encrypted(world)),
    ),
    (
        "n20_a_guest_in_a_pod_cannot_burn_more_than_its_quota",
        |world| Box::pin(quota::holds(world)),
    ),
    (
        "kubectl_bellows_shows_decisions_through_forwarded_ports",
        |world| Box::pin(plugin::check(world)),
    ),
    ("n17_a_revision_that_is_asked_for_is_reported", |world| {
        Box::pin(revisions(world))
    }),
    (
        "n17_a_vm_under_load_grows_by_itself_and_shrinks_after",
        |world| Box::pin(autoscaling(world)),
    ),
    (
        "n48_schedulers_that_are_deleted_again_and_again_hold_up_no_vm_for_long",
        |world| Box::pin(faults::schedulers_deleted(world)),
    ),
    (
        "n48_a_rollout_of_the_scheduler_ends_and_sizes_follow",
        |world| Box::pin(rollout::rolled_out(world)),
    ),
    (
        "n48_the_node_of_the_leader_is_drained_and_another_leads",
        |world| Box::pin(rollout::drained(world)),
    ),
    // By what was seen from the first case on.
    (
        "n49_every_connection_is_one_of_those_in_the_architecture",
        |world| Box::pin(dials::check(world)),
    ),
    ("n17_an_image_that_cannot_be_had_is_told", |world| {
        Box::pin(faults::image_that_is_not_there(world))
    }),
    ("n17_guests_run_on_while_the_api_server_is_away", |world| {
        Box::pin(faults::api_server_away(world))
    }),
    (
        "n17_an_ended_guest_and_a_deleted_pod_are_restarts_that_are_counted",
        |world| Box::pin(faults::restarts(world)),
    ),
    ("n17_guests_of_two_nodes_talk_over_the_overlay", |world| {
        Box::pin(overlay::between_nodes(world))
    }),
    // The last one: the node stays gone.
    ("n17_a_vm_whose_node_is_gone_runs_on_another", |world| {
        Box::pin(faults::node_gone(world))
    }),
];

fn main() -> Result<ExitCode> {
    let chosen = Wanted::from_args().choose(&CASES.map(|(name, _)| name));
    let Some(parts) = cases::shared(&chosen, parts_or_skip) else {
        return Ok(ExitCode::SUCCESS);
    };
    tokio::runtime::Runtime::new()?.block_on(async {
        let (programs, kit, others) = parts;
        let world = World::start(programs, &kit, others).await?;
        let passed = cases::run(&world, cases(&chosen), || world.explain()).await;
        Ok(ExitCode::from(u8::from(!passed)))
    })
}

/// What a world is made of.
fn parts_or_skip(test: &str) -> Option<(Programs, NodeKit, Others)> {
    if !guest_or_skip(test) {
        return None;
    }
    let (programs, kit) = nodes_or_skip(test)?;
    let others = Others {
        cert_manager: cert_manager_or_skip(test)?,
        multus: multus_or_skip(test)?,
    };
    Some((programs, kit, others))
}

/// The cases of these names.
fn cases<'a>(chosen: &[&str]) -> Vec<Case<'a, World>> {
    let chosen = CASES.iter().filter(|(name, _)| chosen.contains(name));
    let cases = chosen.map(|(name, run)| -> Case<'a, World> { (*name, Box::new(*run)) });
    cases.collect()
}

/// Programs of others that some of our features live with.
struct Others {
    cert_manager: CertManager,
    /// The network plugin that gives pods further interfaces.
    multus: PathBuf,
}

/// A cluster with everything of ours in it.
struct World {
    cluster: Cluster,
    dials: Dials,
    dir: tempfile::TempDir,
    others: Others,
    ground: OnceCell<rows::Ground>,
}

impl World {
    async fn start(programs: Programs, kit: &NodeKit, others: Others) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let images = tempfile::tempdir()?;
        let archives = pack_all(&programs, images.path())?;
        let cluster = Cluster::start(programs, kit, dir.path(), 2, &archives, Life::WithUs);
        let cluster = cluster.await?;
        let world = Self {
            dials: cluster.dials().and_pods_of(cluster.plane().client().await?),
            cluster,
            dir,
            others,
            ground: OnceCell::new(),
        };
        world
            .cluster
            .deploy()
            .await
            .with_context(|| world.explain())?;
        Ok(world)
    }

    /// The VM, made with as little as can be said beside what its guest is given, and running.
    async fn vm(&self) -> Result<Value> {
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
    async fn vm_that(&self, what: &str, holds: impl Fn(&Value) -> bool) -> Result<Value> {
        self.that("neonvm", "pg", what, holds).await
    }

    /// Waits until the VM has been brought to a size.
    async fn vm_has(&self, cpus: &str, memory: &str) -> Result<()> {
        let holds = |vm: &Value| {
            let status = &vm["status"];
            status["cpus"] == cpus && status["memorySize"] == memory && status["phase"] == "Running"
        };
        let what = format!("has {cpus} and {memory}");
        self.vm_that(&what, holds).await.map(drop)
    }

    /// Waits until an object is as it should be.
    async fn that(
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

    /// Waits until the VM has so many pods, the one it runs in among them.
    async fn pods_are(&self, count: usize) -> Result<()> {
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

    /// Waits until so many guests run in the whole cluster.
    async fn guests_are(&self, count: usize) -> Result<()> {
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

    /// What a command says in the guest, once it can be asked.
    async fn guest_says(&self, vm: &Value, command: &str) -> Result<String> {
        wait_for("a guest that answers", PATIENCE, || async {
            self.guest(vm, command)
                .map_err(|error| format!("{error:#}"))
        })
        .await
    }

    fn get(&self, kind: &str, name: &str) -> Result<Value> {
        let text = self
            .cluster
            .plane()
            .ask(&["get", kind, name, "-o", "json"])?;
        Ok(serde_json::from_str(&text)?)
    }

    fn patch(&self, patch: &Value) -> Result<()> {
        let patch = patch.to_string();
        let args = ["patch", "neonvm", "pg", "--type=merge", "-p", &patch];
        self.cluster.plane().ask(&args).map(drop)
    }

    /// Has the agents size the VM, or leave it alone.
    fn is_sized(&self, is: bool) -> Result<()> {
        let enabled = is.then_some("true");
        self.patch(&json!({"metadata": {"labels": {"autoscaling.neon.tech/enabled": enabled}}}))
    }

    /// How far agents may go with the VMs of the namespace.
    fn mode(&self, word: &str) -> Result<()> {
        let label = format!("autoscaling.neon.tech/mode={word}");
        let args = ["label", "--overwrite", "namespace", "default", &label];
        self.cluster.plane().ask(&args).map(drop)
    }

    /// What a command says in the guest.
    fn guest(&self, vm: &Value, command: &str) -> Result<String> {
        let (mut ssh, _key) = self.ssh(vm)?;
        let output = ssh.arg(command).output()?;
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(output.status.success(), "ssh: {text}");
        Ok(String::from_utf8(output.stdout)?.trim().to_owned())
    }

    /// The way into the guest: at the pod's address, with the key that the controller made, which
    /// lies in the file.
    fn ssh(&self, vm: &Value) -> Result<(Command, tempfile::NamedTempFile)> {
        let (mut ssh, root, file) = self.reach("ssh", vm)?;
        ssh.arg(root);
        Ok((ssh, file))
    }

    /// A program of ssh's that may enter the guest, whom it is to enter as and where, and the file
    /// with the key.
    fn reach(
        &self,
        program: &str,
        vm: &Value,
    ) -> Result<(Command, String, tempfile::NamedTempFile)> {
        let status = &vm["status"];
        let address = status["podIP"].as_str().context("it has an address")?;
        let name = status["sshSecretName"].as_str().context("it has a key")?;
        let secret = self.get("secret", name)?;
        let key = secret["data"]["ssh-privatekey"]
            .as_str()
            .context("it has no key")?;
        let mut file = tempfile::NamedTempFile::new_in(self.dir.path())?;
        file.write_all(&STANDARD.decode(key)?)?;
        let mut command = self.cluster.on_network(program);
        command.arg("-i").arg(file.path());
        for option in [
            "BatchMode=yes",
            // A busy guest of a quarter of a CPU takes its time to greet.
            "ConnectTimeout=60",
            // A guest that stands still in the middle ends the session, two minutes later.
            "ServerAliveInterval=30",
            "LogLevel=ERROR",
            "StrictHostKeyChecking=no",
            "UserKnownHostsFile=/dev/null",
        ] {
            command.args(["-o", option]);
        }
        Ok((command, format!("root@{address}"), file))
    }

    /// What the runner answers at the pod's address to one without a token.
    fn runner_says(&self, vm: &Value, request: &str) -> Result<String> {
        self.runner_is_told(vm, request, "")
    }

    /// What the runner at a VM's address answers with a line more in the head of what it is asked.
    fn runner_is_told(&self, vm: &Value, request: &str, line: &str) -> Result<String> {
        let address = vm["status"]["podIP"].as_str().context("an address")?;
        // The connection stays open both ways until the answer has come: a server may take its half
        // end for a client that has gone.
        let ask = format!(
            "exec 3<>/dev/tcp/{address}/25183; printf '{request} HTTP/1.0\\r\\n{line}\\r\\n' >&3; timeout 10 cat <&3"
        );
        let mut bash = self.cluster.on_network("bash");
        let output = bash.args(["-c", &ask]).output()?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Waits until the guest sees so many CPUs and so many GiB, by its own kernel.
    async fn guest_sees(&self, vm: &Value, cpus: u32, gib: u64) -> Result<()> {
        let look = "grep -c ^processor /proc/cpuinfo; grep MemTotal /proc/meminfo";
        wait_for("a guest of that size", PATIENCE, || async {
            let text = self.guest(vm, look).map_err(|error| format!("{error:#}"))?;
            let words: Vec<&str> = text.split_whitespace().collect();
            let [seen, _, kib, _] = words[..] else {
                return Err(text);
            };
            let kib: u64 = kib.parse().map_err(|_| text.clone())?;
            // The kernel keeps a part of what it is given, a seventh of the first GiB.
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
    async fn is_held_by(&self, bound: &str) -> Result<()> {
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

    fn explain(&self) -> String {
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

/// A VM of which only what must be said is said.
fn minimal() -> Value {
    json!({"apiVersion": "vm.neon.tech/v1", "kind": "VirtualMachine", "metadata": {"name": "pg"},
        "spec": {"schedulerName": "autoscale-scheduler", "guest": {
            "cpus": {"min": "250m", "use": "250m", "max": "1250m"},
            "memorySlots": {"min": 1, "use": 1, "max": 5},
            "rootDisk": {"image": "bellows/vm-postgres:15"}, "ports": [{"port": 5432}]}}})
}

async fn default_values(world: &World) -> Result<()> {
    let vm = world.vm().await?;
    let spec = &vm["spec"];
    for (field, value) in [
        ("qmp", json!(20183)),
        ("qmpManual", json!(20184)),
        ("runnerPort", json!(25183)),
        ("restartPolicy", json!("Always")),
        ("enableAcceleration", json!(true)),
        ("enableSSH", json!(true)),
        ("terminationGracePeriodSeconds", json!(5)),
        ("cpuScalingMode", json!("QmpScaling")),
    ] {
        ensure!(spec[field] == value, "{field} is {}", spec[field]);
    }
    let guest = &spec["guest"];
    ensure!(guest["memorySlotSize"] == "1Gi", "{guest}");
    ensure!(guest["ports"][0]["protocol"] == "TCP", "{guest}");
    let status = &vm["status"];
    ensure!(status["restartCount"] == 0, "{status}");
    let pod = status["podName"].as_str().context("it has a pod")?;
    let pod = world.get("pod", pod)?;
    ensure!(is_ready(&pod), "{}", pod["status"]);
    ensure!(status["podIP"] == pod["status"]["podIP"], "{status}");
    ensure!(status["node"] == pod["spec"]["nodeName"], "{status}");
    ensure!(
        pod["metadata"]["ownerReferences"][0]["name"] == "pg",
        "{pod}"
    );
    out_of_range_is_refused(world)?;
    world.guest_sees(&vm, 1, 1).await
}

/// The API server asks the controller, by the service and the certificate it made.
fn out_of_range_is_refused(world: &World) -> Result<()> {
    let patch = r#"{"spec": {"guest": {"cpus": {"use": 99}}}}"#;
    let mut kubectl = world.cluster.plane().kubectl();
    kubectl.args(["patch", "neonvm", "pg", "--type=merge", "--patch", patch]);
    let output = kubectl.output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(!output.status.success(), "99 CPUs of a few are taken");
    ensure!(said.contains(".spec.guest.cpus.use must not"), "{said}");
    Ok(())
}

async fn patch_is_seen(world: &World) -> Result<()> {
    let vm = world.vm().await?;
    let size = |cpus: &str, slots: u32| json!({"spec": {"guest": {"cpus": {"use": cpus}, "memorySlots": {"use": slots}}}});
    for (cpus, whole, slots, memory) in [("1250m", 2, 3, "3Gi"), ("250m", 1, 1, "1Gi")] {
        world.patch(&size(cpus, slots))?;
        world.vm_has(cpus, memory).await?;
        world.guest_sees(&vm, whole, slots.into()).await?;
        let pod = vm["status"]["podName"].as_str().context("it has a pod")?;
        let requests = json!({"cpu": cpus, "memory": memory});
        let holds = |pod: &Value| requested(pod).is_some_and(|held| held == &requests);
        world
            .that("pod", pod, &format!("requests {requests}"), holds)
            .await?;
        // While what the pod requests was written, the guest's kernel started its second CPU.
        let page = world.runner_says(&vm, "GET /metrics")?;
        let ahead = "\nrunner_vm_cpus_ahead_total ";
        let is_counted = page.contains(ahead) && !page.contains(&format!("{ahead}0\n"));
        ensure!(is_counted, "{page}");
        late_change_is_refused(world, pod)?;
        for object in [["neonvm", "pg"], ["pod", pod]] {
            nobody_is_kept(world, object)?;
        }
    }
    Ok(())
}

/// The API server keeps of nobody which fields of an object they set: it would take it nearly half
/// of each write.
fn nobody_is_kept(world: &World, object: [&str; 2]) -> Result<()> {
    let show = [
        "--show-managed-fields",
        "-o",
        "jsonpath={.metadata.managedFields}",
    ];
    let kept = world
        .cluster
        .plane()
        .ask(&[&["get"], &object[..], &show].concat())?;
    ensure!(kept.is_empty(), "{object:?}: {kept}");
    Ok(())
}

/// A change of what a pod requests that rests on an older state of it does nothing: the server
/// counts the changes, and refuses it with the very code by which the controller knows it.
fn late_change_is_refused(world: &World, pod: &str) -> Result<()> {
    let before = world.get("pod", pod)?;
    let generation = before["metadata"]["generation"].as_i64();
    let generation = generation.context("its changes are counted")?;
    let late = json!([
        {"op": "test", "path": "/metadata/generation", "value": generation - 1},
        {"op": "add", "path": "/spec/containers/0/resources/requests/cpu", "value": "1m"},
    ]);
    let late = late.to_string();
    let patch = ["patch", "pod", pod, "--subresource=resize", "--type=json"];
    let args = [&patch[..], &["-p", &late, "-v=6"]].concat();
    let said = world.cluster.plane().ask(&args);
    let said = said.err().context("it was carried out")?;
    let said = format!("{said:#}");
    ensure!(said.contains("422 Unprocessable"), "{said}");
    Ok(())
}

/// What the runner's container requests, as its node has it.
fn requested(pod: &Value) -> Option<&Value> {
    let statuses = pod["status"]["containerStatuses"].as_array()?;
    let runner = statuses.iter().find(|it| it["name"] == "neonvm-runner")?;
    runner["resources"].get("requests")
}

async fn revisions(world: &World) -> Result<()> {
    world.vm().await?;
    // Only equality matters: a smaller one is taken as well.
    for value in [7, 3] {
        let revision = json!({"value": value, "flags": 1});
        let target = json!({"revision": revision, "updatedAt": "2026-01-01T00:00:00Z"});
        world.patch(&json!({"spec": {"targetRevision": target}}))?;
        let holds = |vm: &Value| vm["status"]["currentRevision"]["revision"] == revision;
        world
            .vm_that(&format!("is at revision {value}"), holds)
            .await?;
    }
    Ok(())
}

async fn autoscaling(world: &World) -> Result<()> {
    let vm = world.vm().await?;
    // As they are deployed, the agents only observe.
    world.is_sized(true)?;
    let spin = "echo $$ >> /tmp/load; while :; do :; done";
    let mut loads = Vec::new();
    for _ in 0..2 {
        let (mut ssh, key) = world.ssh(&vm)?;
        loads.push((ssh.arg(spin).spawn()?, key));
    }
    world.is_held_by("observe_mode").await?;
    ensure!(world.get("neonvm", "pg")?["spec"]["guest"]["cpus"]["use"] == "250m");
    world.mode("grow")?;
    let grown = |vm: &Value| vm["status"]["cpus"] == "1250m" && vm["status"]["memorySize"] == "5Gi";
    let vm = world
        .vm_that("has grown to its largest size", grown)
        .await?;
    let approved = "internal.autoscaling.neon.tech/resources-approved";
    let permit = vm["metadata"]["annotations"][approved].as_str();
    let permit: Value = serde_json::from_str(permit.context("it has a permit")?)?;
    ensure!(
        permit == json!({"vCPUs": "1250m", "mem": "5Gi"}),
        "{permit}"
    );
    world.guest_sees(&vm, 2, 5).await?;
    world.guest(&vm, "kill $(cat /tmp/load)")?;
    for (mut load, _key) in loads {
        load.wait()?;
    }
    world.is_held_by("grow_mode").await?;
    ensure!(world.get("neonvm", "pg")?["spec"]["guest"]["cpus"]["use"] == "1250m");
    world.mode("full")?;
    let shrunk = |vm: &Value| {
        let (spec, status) = (&vm["spec"]["guest"], &vm["status"]);
        spec["cpus"]["use"] != "1250m" && status["cpus"] == spec["cpus"]["use"]
    };
    world.vm_that("is smaller again", shrunk).await?;
    world.is_sized(false)
}
