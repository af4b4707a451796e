//! Attacker: an intruder on one node, with the tokens of the agent and the runners of that node.
//! And an intruder in the scheduler or controller of a cluster, whose roles allow more than their
//! programs do.

use bellows_tests::attacks::Report;
use bellows_tests::cluster::{
    Caller, ControlPlane, Lifetime, Tier, apply_rights, cluster_or_skip, outcome, vms,
};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::tenant::{SPACE, settle, vm};

const APPROVED: &str = "internal.autoscaling.neon.tech/resources-approved";

/// An API server with our manifests, two nodes, and a VM on each.
struct World {
    plane: ControlPlane,
    _dir: TempDir,
}

impl World {
    async fn start(test: &str) -> Option<Self> {
        let programs = cluster_or_skip(test)?;
        let dir = tempfile::tempdir().expect("a directory");
        let plane = ControlPlane::start(programs, dir.path(), Tier::Api, Lifetime::WithUs).await;
        let plane = plane.expect("it starts");
        plane.install_kinds().expect("kinds");
        plane.namespace(SPACE).await.expect("a namespace");
        let world = Self { plane, _dir: dir };
        for node in ["a", "b"] {
            world.plane.node(node, 4, 16).await.expect("a node");
            world.vm_on(node);
        }
        Some(world)
    }

    /// Makes the VM `vm-NODE`, which runs on that node.
    fn vm_on(&self, node: &str) {
        let name = format!("vm-{node}");
        self.plane.apply(&vm(&name).to_string()).expect("a VM");
        let status = json!({"status": {"phase": "Running", "node": node}}).to_string();
        let words = ["patch", "neonvm", &name, "--namespace", SPACE, "--patch"];
        let rest = [&status, "--subresource=status", "--type=merge"];
        self.plane.ask(&[&words[..], &rest].concat()).expect("it");
    }

    /// The token of the agent's pod, as the kubelet of the node has it.
    async fn agent_of(&self, node: &str) -> Caller {
        let pod = format!("agent-{node}");
        let object = json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": pod, "namespace": "kube-system"},
            "spec": {"nodeName": node, "serviceAccountName": "autoscaler-agent",
                "containers": [{"name": "agent", "image": "agent"}]}});
        self.plane.apply(&object.to_string()).expect("a pod");
        let caller = Caller::of(&self.plane, "kube-system", "autoscaler-agent", Some(&pod));
        caller.await.expect("a token")
    }
}

fn vm_at(node: &str) -> String {
    format!("{}/vm-{node}", vms(SPACE))
}

/// The patch of an agent.
fn size(cpus: u32) -> Value {
    json!({"spec": {"guest": {"cpus": {"use": cpus}, "memorySlots": {"use": cpus}},
        "targetRevision": {"revision": {"value": 1, "flags": 0}, "updatedAt": "2026-01-01T00:00:00Z"}}})
}

/// Patches that an agent never sends.
fn beyond_a_size() -> Vec<(&'static str, Value)> {
    let container = json!([{"name": "x", "image": "x", "securityContext": {"privileged": true}}]);
    vec![
        (
            "spec.runnerImage",
            json!({"spec": {"runnerImage": "attacker/runner"}}),
        ),
        (
            "spec.extraInitContainers",
            json!({"spec": {"extraInitContainers": container}}),
        ),
        ("spec.initScript", json!({"spec": {"initScript": "id"}})),
        (
            "spec.guest.kernelImage",
            json!({"spec": {"guest": {"kernelImage": "attacker/kernel"}}}),
        ),
        (
            "spec.guest.cpus.max",
            json!({"spec": {"guest": {"cpus": {"max": 64}}}}),
        ),
        (
            "metadata.labels",
            json!({"metadata": {"labels": {"autoscaling.neon.tech/enabled": "false"}}}),
        ),
        (
            "metadata.annotations",
            json!({"metadata": {"annotations": {APPROVED: "{\"vCPUs\":64,\"mem\":\"512Gi\"}"}}}),
        ),
        (
            "metadata.finalizers",
            json!({"metadata": {"finalizers": ["attacker.example/held"]}}),
        ),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn agent_of_a_taken_node_sizes_vms_of_its_own_node_and_does_nothing_else() {
    let test = "agent_of_a_taken_node_sizes_vms_of_its_own_node_and_does_nothing_else";
    let Some(world) = World::start(test).await else {
        return;
    };
    apply_rights(&world.plane, "agent").expect("rights");
    let agent = world.agent_of("a").await;
    settle(&agent, &vm_at("b"), &size(2)).await;
    let mut report = Report::new("the agent of a taken-over node");
    let answer = agent.patch(&vm_at("b"), &size(3)).await;
    report.record(
        "W8",
        "a size",
        "VM of another node",
        outcome(answer).expect("an attempt"),
    );
    for (what, patch) in beyond_a_size() {
        for (node, how) in [("b", "VM of another node"), ("a", "VM of its own node")] {
            let answer = agent.patch(&vm_at(node), &patch).await;
            report.record("W8", what, how, outcome(answer).expect("an attempt"));
        }
    }
    let unbound = Caller::of(&world.plane, "kube-system", "autoscaler-agent", None).await;
    let answer = unbound.expect("a token").patch(&vm_at("a"), &size(3)).await;
    report.record(
        "W8",
        "a size",
        "token bound to no pod",
        outcome(answer).expect("an attempt"),
    );
    let status = json!({"status": {"node": "a"}});
    let answer = agent
        .patch(&format!("{}/status", vm_at("b")), &status)
        .await;
    report.record(
        "W8",
        "status.node",
        "make it its own",
        outcome(answer).expect("an attempt"),
    );
    report.finish();
    let own = agent.patch(&vm_at("a"), &size(3)).await.expect("its work");
    assert_eq!(own["spec"]["guest"]["cpus"]["use"], 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scheduler_that_is_taken_over_writes_its_grants_and_migrations_alone() {
    let test = "scheduler_that_is_taken_over_writes_its_grants_and_migrations_alone";
    let Some(world) = World::start(test).await else {
        return;
    };
    apply_rights(&world.plane, "scheduler").expect("rights");
    let caller = Caller::of(&world.plane, "kube-system", "autoscale-scheduler", None);
    let scheduler = caller.await.expect("a token");
    let at = vm_at("a");
    settle(&scheduler, &at, &size(2)).await;
    let mut report = Report::new("a scheduler that was taken over");
    let mut tried = beyond_a_size();
    // The scheduler writes its own grants.
    tried.retain(|(what, _)| *what != "metadata.annotations");
    tried.push(("spec.guest.cpus.use", size(3)));
    let bounds = json!({"metadata": {"annotations": {"autoscaling.neon.tech/bounds": "{}"}}});
    tried.push(("annotation of others", bounds));
    for (what, patch) in tried {
        let answer = scheduler.patch(&at, &patch).await;
        report.record("W8", what, "patch", outcome(answer).expect("an attempt"));
    }
    let migrations = format!("/apis/vm.neon.tech/v1/namespaces/{SPACE}/virtualmachinemigrations");
    let migration = |name: &str, labels: Value| {
        json!({"apiVersion": "vm.neon.tech/v1", "kind": "VirtualMachineMigration",
            "metadata": {"name": name, "namespace": SPACE, "labels": labels}, "spec": {"vmName": "vm-a"}})
    };
    let of_others = migration("of-others", json!({}));
    world.plane.apply(&of_others.to_string()).expect("it");
    let answer = scheduler.delete(&format!("{migrations}/of-others")).await;
    report.record(
        "W8",
        "a migration of others",
        "delete",
        outcome(answer).expect("an attempt"),
    );
    let answer = scheduler
        .create(&migrations, &migration("unmarked", json!({})))
        .await;
    report.record(
        "W8",
        "a migration",
        "without its label",
        outcome(answer).expect("an attempt"),
    );
    report.finish();
    let granted = json!({"metadata": {"annotations": {APPROVED: "{\"vCPUs\":2,\"mem\":\"2Gi\"}"}}});
    scheduler.patch(&at, &granted).await.expect("its work");
    let marked = json!({"autoscaling.neon.tech/created-by-scheduler": "true"});
    let own = scheduler
        .create(&migrations, &migration("own", marked))
        .await;
    own.expect("its work");
    let own = scheduler.delete(&format!("{migrations}/own")).await;
    own.expect("its work");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn controller_that_is_taken_over_writes_secrets_of_vms_alone() {
    let test = "controller_that_is_taken_over_writes_secrets_of_vms_alone";
    let Some(world) = World::start(test).await else {
        return;
    };
    apply_rights(&world.plane, "controller").expect("rights");
    let caller = Caller::of(&world.plane, "neonvm-system", "neonvm-controller", None);
    let controller = caller.await.expect("a token");
    let secrets = format!("/api/v1/namespaces/{SPACE}/secrets");
    let secret = |name: &str, owner: Option<&str>| {
        let owners = owner.map(|kind| json!([{"apiVersion": "vm.neon.tech/v1", "kind": kind, "name": "vm-a", "uid": "u"}]));
        json!({"apiVersion": "v1", "kind": "Secret", "stringData": {"key": "x"},
            "metadata": {"name": name, "namespace": SPACE, "ownerReferences": owners.unwrap_or_default()}})
    };
    for name in ["of-others", "ssh-neonvm-of-others"] {
        world
            .plane
            .apply(&secret(name, None).to_string())
            .expect("it");
    }
    let change = json!({"stringData": {"key": "y"}});
    settle(&controller, &format!("{secrets}/of-others"), &change).await;
    let mut report = Report::new("a controller that was taken over");
    for name in ["of-others", "ssh-neonvm-of-others"] {
        let at = format!("{secrets}/{name}");
        let answer = controller.patch(&at, &change).await;
        report.record("W8", name, "change", outcome(answer).expect("an attempt"));
        let answer = controller.delete(&at).await;
        report.record("W8", name, "delete", outcome(answer).expect("an attempt"));
    }
    for (name, owner) in [
        ("made-by-it", Some("VirtualMachine")),
        ("tls-neonvm-vm-a", None),
        ("webhook-server-cert", None),
    ] {
        let answer = controller.create(&secrets, &secret(name, owner)).await;
        report.record("W8", name, "create", outcome(answer).expect("an attempt"));
    }
    // The key of guests' monitors is created once. Running guests require a token derived from it.
    let of_agents = "/api/v1/namespaces/kube-system/secrets";
    let mut key = secret("autoscaler-agent-monitors", None);
    key["metadata"]["namespace"] = json!("kube-system");
    controller.create(of_agents, &key).await.expect("its work");
    let at = format!("{of_agents}/autoscaler-agent-monitors");
    let answer = controller.patch(&at, &change).await;
    report.record("W8", &at, "change", outcome(answer).expect("an attempt"));
    let answer = controller.delete(&at).await;
    report.record("W8", &at, "delete", outcome(answer).expect("an attempt"));
    report.finish();
    let own = secret("runner-neonvm-vm-a", Some("VirtualMachine"));
    controller.create(&secrets, &own).await.expect("its work");
    let at = format!("{secrets}/runner-neonvm-vm-a");
    controller.patch(&at, &change).await.expect("its work");
    controller.delete(&at).await.expect("its work");
    let of_webhook = "/api/v1/namespaces/neonvm-system/secrets";
    let mut own = secret("webhook-server-cert", None);
    own["metadata"]["namespace"] = json!("neonvm-system");
    controller.create(of_webhook, &own).await.expect("its work");
}
