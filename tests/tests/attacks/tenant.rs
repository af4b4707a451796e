//! Attacker: a tenant with the stock role `edit` in one namespace. It has the VM objects of that
//! namespace.

#[path = "tenant/members.rs"]
mod members;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use bellows_tests::attacks::{Outcome, Report};
use bellows_tests::cluster::{
    Caller, ControlPlane, Lifetime, Tier, apply_rights, cluster_or_skip, outcome, vms,
};
use bellows_tests::patience::wait_for;
use bellows_tests::process::Process;
use bellows_tests::program;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::ListParams;
use serde_json::{Value, json};

/// The tenant's namespace.
pub(super) const SPACE: &str = "team";
const TENANT: &str = "tenant";
/// Longest time on a busy machine until Kubernetes aggregates roles and our controller makes a pod.
const PATIENCE: Duration = Duration::from_secs(90);
/// Longest time until a policy is in effect. Without a policy the attack begins after it.
const SETTLE: Duration = Duration::from_secs(15);

/// An autoscaled VM with usual values.
pub(super) fn vm(name: &str) -> Value {
    json!({"apiVersion": "vm.neon.tech/v1", "kind": "VirtualMachine",
        "metadata": {"name": name, "namespace": SPACE, "labels": {"autoscaling.neon.tech/enabled": "true"}},
        "spec": {"guest": {"cpus": {"min": 1, "use": 1, "max": 4}, "memorySlots": {"min": 1, "use": 1, "max": 8},
            "rootDisk": {"image": "tenant/disk:1"}}}})
}

/// Waits until the API refuses this change, which is tried without effect.
pub(super) async fn settle(caller: &Caller, path: &str, patch: &Value) {
    let path = format!("{path}?dryRun=All");
    let refused = wait_for("a policy in effect", SETTLE, || async {
        match caller.patch(&path, patch).await {
            Err(kube::Error::Api(_)) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    });
    // A VM that is not refused is attacked as well.
    let _settled = refused.await;
}

/// Makes the tenant, and waits until `edit` covers VMs.
async fn tenant_of(plane: &ControlPlane) -> Caller {
    let within = ["--namespace", SPACE];
    let make = |words: &[&str]| drop(plane.ask(&[words, &within].concat()).expect("it"));
    let account = format!("--serviceaccount={SPACE}:{TENANT}");
    make(&["create", "serviceaccount", TENANT]);
    make(&[
        "create",
        "rolebinding",
        TENANT,
        "--clusterrole=edit",
        &account,
    ]);
    let tenant = Caller::of(plane, SPACE, TENANT, None).await;
    let tenant = tenant.expect("a token");
    let covered = wait_for("role edit with VMs", PATIENCE, || async {
        let made = tenant.create(&vms(SPACE), &vm("own")).await;
        made.map_err(|error| error.to_string())
    });
    covered.await.expect("what a tenant may do goes on");
    tenant
}

/// Tries a change of the tenant's VM, and a new VM that has it from the start.
async fn try_both(tenant: &Caller, change: &Value) -> [Outcome; 2] {
    let own = format!("{}/own?dryRun=All", vms(SPACE));
    let changed = tenant.patch(&own, change).await;
    let mut new = vm("new");
    merge(&mut new, change);
    let path = format!("{}?dryRun=All", vms(SPACE));
    let made = tenant.create(&path, &new).await;
    [changed, made].map(|answer| outcome(answer).expect("an attempt"))
}

fn merge(into: &mut Value, change: &Value) {
    match (into, change) {
        (Value::Object(into), Value::Object(change)) => {
            for (name, value) in change {
                merge(into.entry(name).or_insert(Value::Null), value);
            }
        }
        (into, change) => *into = change.clone(),
    }
}

/// Requirements: W6, W7.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tenant_with_edit_sets_nothing_of_a_vm_that_acts_outside_its_guest() {
    let test = "tenant_with_edit_sets_nothing_of_a_vm_that_acts_outside_its_guest";
    let Some(programs) = cluster_or_skip(test) else {
        return;
    };
    let dir = tempfile::tempdir().expect("a directory");
    let plane = ControlPlane::start(programs, dir.path(), Tier::Full, Lifetime::WithUs).await;
    let plane = plane.expect("it starts");
    plane.install_kinds().expect("kinds");
    plane.namespace(SPACE).await.expect("a namespace");
    let tenant = tenant_of(&plane).await;
    let own = format!("{}/own", vms(SPACE));
    for change in [
        members::privileged()[0].1.clone(),
        members::of_parts()[0].1.clone(),
    ] {
        settle(&tenant, &own, &change).await;
    }
    members::all_are_listed(&plane);
    let mut report = Report::new("a tenant with edit in one namespace");
    for (what, change) in members::privileged() {
        let [changed, made] = try_both(&tenant, &change).await;
        report.record("W7", what, "change of a VM", changed);
        report.record("W7", what, "new VM", made);
    }
    for (what, change) in members::of_parts() {
        let changed = tenant.patch(&format!("{own}?dryRun=All"), &change).await;
        report.record(
            "W6",
            what,
            "change of a VM",
            outcome(changed).expect("an attempt"),
        );
    }
    let approved = members::approved();
    let [_, made] = try_both(&tenant, &approved).await;
    report.record("W6", "resources-approved", "new VM", made);
    let status = json!({"status": {"node": "other", "podName": "other"}});
    let written = tenant.patch(&format!("{own}/status"), &status).await;
    report.record(
        "W6",
        "status",
        "patch",
        outcome(written).expect("an attempt"),
    );
    report.finish();
    the_verb_is_enough(&plane, &tenant, &own).await;
}

/// With `use-privileged` the tenant sets such members. Without it, the tenant may still change the
/// others.
async fn the_verb_is_enough(plane: &ControlPlane, tenant: &Caller, own: &str) {
    let account = format!("--serviceaccount={SPACE}:{TENANT}");
    let role = "--clusterrole=neonvm-virtualmachine-privileged-role";
    let bind = [
        "create",
        "rolebinding",
        "given",
        role,
        &account,
        "--namespace",
        SPACE,
    ];
    plane.ask(&bind).expect("a binding");
    let image = json!({"spec": {"runnerImage": "given/runner:1"}});
    let given = wait_for("the verb in effect", PATIENCE, || async {
        let set = tenant.patch(own, &image).await;
        set.map_err(|error| error.to_string())
    });
    given.await.expect("the verb is enough");
    let unbind = ["delete", "rolebinding", "given", "--namespace", SPACE];
    plane.ask(&unbind).expect("it");
    settle(
        tenant,
        own,
        &json!({"spec": {"runnerImage": "given/runner:2"}}),
    )
    .await;
    let label =
        json!({"metadata": {"labels": {"team": "a"}}, "spec": {"nodeSelector": {"disk": "ssd"}}});
    tenant
        .patch(own, &label)
        .await
        .expect("the rest is the tenant's");
    let unset = json!({"spec": {"runnerImage": null}});
    tenant.patch(own, &unset).await.expect("to take it out");
}

/// The controller, with the rights of the deployed one.
async fn start_controller(plane: &ControlPlane, dir: &Path) -> (Process, PathBuf) {
    apply_rights(plane, "controller").expect("rights");
    let account = Caller::of(plane, "neonvm-system", "neonvm-controller", None).await;
    let account = account.expect("a token");
    let log = dir.join("controller.log");
    let mut command = Command::new(program("neonvm-controller"));
    command
        .args([
            "--runner-image",
            "operator/runner:1",
            "--listen",
            "127.0.0.1:0",
        ])
        .args(["--leader-elect", "--lease-namespace", "neonvm-system"])
        .arg("--state-dir")
        .arg(dir.join("runners"))
        .env("KUBECONFIG", account.kubeconfig);
    let file = std::fs::File::create(&log).expect("a log");
    let process = Process::start(&mut command, file).expect("it starts");
    (process, log)
}

/// Name and security context of each container that runs an image of the tenant.
fn tenants_containers(pod: &Pod) -> Vec<(String, Value)> {
    let spec = pod.spec.as_ref().expect("a spec");
    let init = spec.init_containers.iter().flatten();
    let all = init.chain(&spec.containers);
    let of_tenant = all.filter(|one| {
        one.image
            .as_deref()
            .is_some_and(|it| it.starts_with("tenant/"))
    });
    let shown = of_tenant.map(|one| {
        let context = serde_json::to_value(&one.security_context).expect("JSON");
        (one.name.clone(), context)
    });
    shown.collect()
}

/// Requirement: W7. The same VM in a namespace that admits everything, and in one of level
/// `baseline`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn images_of_a_tenant_run_without_privileges_and_vm_pods_are_admitted_by_baseline() {
    let test = "images_of_a_tenant_run_without_privileges_and_vm_pods_are_admitted_by_baseline";
    let Some(programs) = cluster_or_skip(test) else {
        return;
    };
    let dir = tempfile::tempdir().expect("a directory");
    let plane = ControlPlane::start(programs, dir.path(), Tier::Api, Lifetime::WithUs).await;
    let plane = plane.expect("it starts");
    plane.install_kinds().expect("kinds");
    let (_controller, log) = start_controller(&plane, dir.path()).await;
    let mut report = Report::new("a tenant with images of its own");
    for (space, level) in [("open", "privileged"), ("team", "baseline")] {
        plane.namespace(space).await.expect("a namespace");
        let level = format!("pod-security.kubernetes.io/enforce={level}");
        plane
            .ask(&["label", "namespace", space, &level])
            .expect("a label");
        let mut vm = vm("own");
        vm["metadata"]["namespace"] = json!(space);
        vm["spec"]["guest"]["kernelImage"] = json!("tenant/kernel:1");
        plane.apply(&vm.to_string()).expect("a VM");
        let pods: Api<Pod> = Api::namespaced(plane.client().await.expect("a client"), space);
        let made = wait_for("a pod of the VM", PATIENCE, || async {
            let found = pods.list(&ListParams::default()).await;
            let found = found.map_err(|error| error.to_string())?;
            found
                .items
                .into_iter()
                .next()
                .ok_or_else(|| "none".to_owned())
        });
        let text = || std::fs::read_to_string(&log).unwrap_or_default();
        let pod = made
            .await
            .unwrap_or_else(|error| panic!("{error:#}\n{}", text()));
        let containers = tenants_containers(&pod);
        assert_eq!(containers.len(), 2, "disk and kernel: {containers:?}");
        for (name, context) in containers {
            let outcome = if is_confined(&context) {
                Outcome::Refused(format!("{context}"))
            } else {
                Outcome::Succeeded(format!("{context}"))
            };
            report.record("W7", name, format!("in namespace {space}"), outcome);
        }
    }
    report.finish();
}

/// Whether a container can get no privilege: none at the start, none by a program with more.
fn is_confined(context: &Value) -> bool {
    let allowed = ["CHOWN", "DAC_OVERRIDE", "FOWNER"];
    let added = context["capabilities"]["add"]
        .as_array()
        .into_iter()
        .flatten();
    context["privileged"] != true
        && context["allowPrivilegeEscalation"] == false
        && context["capabilities"]["drop"] == json!(["ALL"])
        && added
            .into_iter()
            .all(|one| allowed.iter().any(|it| one == it))
}
