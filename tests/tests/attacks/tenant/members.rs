//! Every member of a VirtualMachine's spec, and what it can reach. A member that no list names
//! fails the test: the author of a new member classifies it here.

use std::collections::BTreeSet;

use bellows_tests::cluster::ControlPlane;
use serde_json::{Value, json};

/// These act on the guest and its QEMU alone: size, programs, settings.
const IN_THE_GUEST: &[&str] = &[
    "cpuScalingMode",
    "enableAcceleration",
    "enableNetworkMonitoring",
    "enableSSH",
    "guest.appendKernelCmdline",
    "guest.args",
    "guest.command",
    "guest.cpus.max",
    "guest.cpus.min",
    "guest.env",
    "guest.memhpAutoMovableRatio",
    "guest.memorySlotSize",
    "guest.memorySlots.max",
    "guest.memorySlots.min",
    "guest.ports",
    "guest.rootDisk.execute",
    "guest.rootDisk.persistent",
    "guest.rootDisk.size",
    "guest.settings",
    "restartPolicy",
    "targetRevision",
    "terminationGracePeriodSeconds",
];
/// Members that act on the pod. `edit` allows them for any pod, and a VM adds nothing: nodes, ports
/// of the pod's address, secrets, config maps and claims of the namespace, and images, which run
/// without privileges (the other test of `tenant.rs`).
const OF_THE_POD: &[&str] = &[
    "affinity",
    "disks[].configMap",
    "disks[].emptyDisk",
    "disks[].name",
    "disks[].persistentVolumeClaim",
    "disks[].readOnly",
    "disks[].secret",
    "disks[].tmpfs",
    "disks[].watch",
    "extraNetwork.enable",
    "guest.kernelImage",
    "guest.rootDisk.image",
    "guest.rootDisk.imagePullPolicy",
    "guest.rootDisk.persistentVolumeClaim",
    "imagePullSecrets",
    "nodeSelector",
    "podResources",
    "qmp",
    "qmpManual",
    "runnerPort",
    "schedulerName",
    "serviceAccountName",
    "service_links",
    "targetArchitecture",
    "tls.certificateIssuer",
    "tls.expireAfter",
    "tls.renewBefore",
    "tls.serverName",
    "tolerations",
];
/// The scheduler bounds these by the policy of node and namespace (W6).
const OF_THE_SCHEDULER: &[&str] = &["overcommit"];
/// These are attacked below.
const ATTACKED: &[&str] = &[
    "disks[].mountPath",
    "extraInitContainers",
    "extraNetwork.interface",
    "extraNetwork.multusNetwork",
    "guest.cpus.use",
    "guest.memorySlots.use",
    "initScript",
    "runnerImage",
    "tls.mountPath",
];

/// Changes that run a program of the tenant's beside its guest, or name something of another
/// namespace.
pub(super) fn privileged() -> Vec<(&'static str, Value)> {
    let container =
        json!([{"name": "x", "image": "tenant/x:1", "securityContext": {"privileged": true}}]);
    let disk =
        |path: &str| json!([{"name": "d", "mountPath": path, "secret": {"secretName": "s"}}]);
    let spec = |member: &str, value: Value| json!({"spec": {member: value}});
    let note = |name: &str, value: &str| json!({"metadata": {"annotations": {name: value}}});
    vec![
        ("runnerImage", spec("runnerImage", json!("tenant/runner:1"))),
        (
            "extraInitContainers",
            spec("extraInitContainers", container),
        ),
        (
            "initScript",
            spec("initScript", json!("mount -o remount,rw /sys/fs/cgroup")),
        ),
        ("disks[].mountPath", spec("disks", disk("/../../usr/bin"))),
        (
            "tls.mountPath",
            spec("tls", json!({"mountPath": "/a/../../../usr/bin"})),
        ),
        (
            "extraNetwork.multusNetwork",
            spec(
                "extraNetwork",
                json!({"enable": true, "multusNetwork": "kube-system/nodes"}),
            ),
        ),
        (
            "extraNetwork.interface",
            spec(
                "extraNetwork",
                json!({"enable": true, "interface": "net1,kube-system/nodes@net2"}),
            ),
        ),
        ("vsock number", note("autoscaling.neon.tech/vsock-cid", "3")),
        (
            "pod's networks",
            note("k8s.v1.cni.cncf.io/networks", "kube-system/nodes"),
        ),
    ]
}

/// The grant of all that a node has.
pub(super) fn approved() -> Value {
    let approved = "internal.autoscaling.neon.tech/resources-approved";
    json!({"metadata": {"annotations": {approved: r#"{"vCPUs":1000,"mem":"4000Gi"}"#}}})
}

/// Changes that agent and scheduler alone may make.
pub(super) fn of_parts() -> Vec<(&'static str, Value)> {
    let note = |name: &str, value: &str| json!({"metadata": {"annotations": {name: value}}});
    let guest = |member: &str, size: u32| json!({"spec": {"guest": {member: {"use": size}}}});
    vec![
        ("resources-approved", approved()),
        (
            "resources-requested",
            note("internal.autoscaling.neon.tech/resources-requested", "{}"),
        ),
        (
            "scaling-unit",
            note("autoscaling.neon.tech/scaling-unit", "{}"),
        ),
        ("guest.cpus.use", guest("cpus", 4)),
        ("guest.memorySlots.use", guest("memorySlots", 8)),
    ]
}

/// Checks that the lists name every member of the spec that the API serves, and none that it does
/// not.
pub(super) fn all_are_listed(plane: &ControlPlane) {
    let kind = ["get", "crd", "virtualmachines.vm.neon.tech", "-o", "json"];
    let kind: Value = serde_json::from_str(&plane.ask(&kind).expect("it")).expect("JSON");
    let schema = "/spec/versions/0/schema/openAPIV3Schema/properties/spec";
    let mut served = BTreeSet::new();
    walk(kind.pointer(schema).expect("a schema"), "", &mut served);
    let lists = [IN_THE_GUEST, OF_THE_POD, OF_THE_SCHEDULER, ATTACKED];
    let listed: Vec<&str> = lists.into_iter().flatten().copied().collect();
    let is_below = |path: &str, entry: &str| {
        path.strip_prefix(entry)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
    };
    for path in &served {
        let entries = listed.iter().filter(|entry| is_below(path, entry));
        let count = entries.count();
        assert_eq!(
            count, 1,
            "spec.{path} is in {count} lists of what a member can reach"
        );
    }
    for entry in listed {
        let is_there = served.iter().any(|path| is_below(path, entry));
        assert!(
            is_there,
            "spec.{entry} is listed, and the API serves no such member"
        );
    }
}

/// The paths of all members without members of their own.
fn walk(schema: &Value, path: &str, found: &mut BTreeSet<String>) {
    if let Some(members) = schema["properties"].as_object() {
        for (name, member) in members {
            let dot = if path.is_empty() { "" } else { "." };
            walk(member, &format!("{path}{dot}{name}"), found);
        }
    } else if schema["items"].is_object() {
        walk(&schema["items"], &format!("{path}[]"), found);
    } else {
        found.insert(path.to_owned());
    }
}
