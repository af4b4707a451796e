//! The runner pod of a VM (docs/compatibility/neonvm.md §2.4), as the JSON that is posted. The same
//! input always gives the same bytes.

use std::io::Write;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use flate2::{Compression, GzBuilder};
use protocol::annotations::{ANNOTATION_MONITOR_OPEN, ANNOTATION_USE_DISK};
use protocol::claims::{POD_NAMESPACE, USE_DISK, VM_UID, claimed_disks};
use protocol::runner::{
    CPU_QUOTA_PERCENT, GUEST_NETWORK, MONITOR_OPEN, NO_PRIVILEGES, ORDERS_BY_TLS, RUNNER_MONITOR,
    RUNNER_ORDERS, RUNNER_PRIVILEGES,
};
use protocol::vm::{API_VERSION, CpuScalingMode, VirtualMachine, VmStatus};
use serde::Serialize;
use serde_json::{Map, Value, json};

pub use super::container::{CONTAINER, INIT_CONTAINER};
use super::metadata;
use super::requests;
use super::settings::{AffinityStyle, Settings};
use super::volumes;

mod privileges;

use privileges::{init_containers, runner_privileges};

/// Seconds a pod stays on a node that is not ready or not reachable.
const LOST_NODE_S: u32 = 30;
/// Second byte of "operating system: unknown" in a gzip header, so that the bytes depend on nothing
/// but the content.
const GZIP_OS_UNKNOWN: u8 = 255;

/// Builds the pod `status.podName` of `vm`.
#[must_use]
pub fn build(vm: &VirtualMachine, status: &VmStatus, settings: &Settings) -> Value {
    let expected = metadata::expected(vm, settings);
    let spec = &vm.spec;
    let mut pod_spec = json!({
        "restartPolicy": "Never",
        "automountServiceAccountToken": false,
        "terminationGracePeriodSeconds": spec.termination_grace_period_seconds,
        "tolerations": tolerations(vm),
        "affinity": affinity(vm, settings.affinity),
        "initContainers": init_containers(vm, settings),
        "containers": [runner(vm, status, settings)],
        "volumes": volumes::volumes(vm, status, settings),
    });
    let members = pod_spec.as_object_mut().expect("built as an object");
    let mut set = |name: &str, value: Value| {
        members.insert(name.to_owned(), value);
    };
    if !spec.node_selector.is_empty() {
        set("nodeSelector", json!(spec.node_selector));
    }
    if !spec.image_pull_secrets.is_empty() {
        set("imagePullSecrets", json!(spec.image_pull_secrets));
    }
    let named = Some(&spec.scheduler_name).filter(|name| !name.is_empty());
    if let Some(name) = named.or(settings.default_scheduler.as_ref()) {
        set("schedulerName", json!(name));
    }
    if !spec.service_account_name.is_empty() {
        set("serviceAccountName", json!(spec.service_account_name));
    }
    if let Some(links) = spec.service_links {
        set("enableServiceLinks", json!(links));
    }
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": status.pod_name,
            "namespace": vm.metadata.namespace,
            "labels": expected.labels,
            "annotations": expected.annotations,
            "ownerReferences": [owner(vm)],
        },
        "spec": pod_spec,
    })
}

/// The reference by which a VM controls its pod and secrets.
#[must_use]
pub fn owner(vm: &VirtualMachine) -> Value {
    json!({
        "apiVersion": API_VERSION,
        "kind": "VirtualMachine",
        "name": vm.metadata.name,
        "uid": vm.metadata.uid,
        "controller": true,
        "blockOwnerDeletion": true,
    })
}

/// base64(gzip(JSON)), the form in which a runner gets its spec and status.
#[must_use]
pub fn packed(value: &impl Serialize) -> String {
    let json = serde_json::to_vec(value).expect("VM types always encode");
    let mut gzip = GzBuilder::new()
        .mtime(0)
        .operating_system(GZIP_OS_UNKNOWN)
        .write(Vec::new(), Compression::default());
    gzip.write_all(&json)
        .expect("writing to memory cannot fail");
    STANDARD.encode(gzip.finish().expect("writing to memory cannot fail"))
}

fn tolerations(vm: &VirtualMachine) -> Vec<Value> {
    let lost = |key: &str| {
        // The operator is left out, because the deployed pods have Equal to the empty value.
        json!({"key": key, "effect": "NoExecute", "tolerationSeconds": LOST_NODE_S})
    };
    let mut all = vm.spec.tolerations.clone();
    all.push(lost("node.kubernetes.io/not-ready"));
    all.push(lost("node.kubernetes.io/unreachable"));
    all
}

fn affinity(vm: &VirtualMachine, style: AffinityStyle) -> Value {
    let mut ours = vec![json!({"key": "kubernetes.io/os", "operator": "In", "values": ["linux"]})];
    if let Some(arch) = &vm.spec.target_architecture {
        ours.push(json!({"key": "kubernetes.io/arch", "operator": "In", "values": [arch]}));
    }
    let mut affinity = match vm.spec.affinity.clone() {
        Some(Value::Object(members)) => members,
        _ => Map::new(),
    };
    let required = affinity
        .entry("nodeAffinity")
        .or_insert_with(|| json!({}))
        .as_object_mut()
        .map(|node| {
            node.entry("requiredDuringSchedulingIgnoredDuringExecution")
                .or_insert_with(|| json!({"nodeSelectorTerms": []}))
        });
    let terms = required
        .and_then(Value::as_object_mut)
        .map(|required| {
            required
                .entry("nodeSelectorTerms")
                .or_insert_with(|| json!([]))
        })
        .and_then(Value::as_array_mut);
    if let Some(terms) = terms {
        if terms.is_empty() || style == AffinityStyle::Appended {
            terms.push(json!({"matchExpressions": ours}));
        } else {
            for term in terms {
                join(term, &ours);
            }
        }
    }
    Value::Object(affinity)
}

/// Adds expressions to one term.
fn join(term: &mut Value, ours: &[Value]) {
    let Some(term) = term.as_object_mut() else {
        return;
    };
    let expressions = term.entry("matchExpressions").or_insert_with(|| json!([]));
    if let Some(list) = expressions.as_array_mut() {
        list.extend_from_slice(ours);
    }
}

fn runner(vm: &VirtualMachine, status: &VmStatus, settings: &Settings) -> Value {
    let image = vm
        .spec
        .runner_image
        .as_deref()
        .unwrap_or(&settings.runner_image);
    json!({
        "name": CONTAINER,
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        // With a command the image's own entry point is bypassed, so that the runner is process 1
        // and gets SIGTERM.
        "command": ["runner"],
        "args": arguments(vm, status, settings),
        "env": environment(vm, settings, image),
        "ports": ports(vm),
        "securityContext": runner_privileges(settings),
        "readinessProbe": {
            "httpGet": {"path": "/ready", "port": vm.spec.runner_port, "scheme": "HTTP"},
            "initialDelaySeconds": settings.readiness_initial_delay_s,
            "periodSeconds": 5,
            "failureThreshold": 3,
        },
        "resources": resources(vm, settings),
        "volumeMounts": volumes::mounts(vm, settings),
    })
}

fn environment(vm: &VirtualMachine, settings: &Settings, image: &str) -> Value {
    let name =
        json!({"name": "K8S_POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}});
    // Without privileges a runner can make no control group. The container's limit bounds it
    // instead (`requests::bound`).
    let unprivileged = settings.unprivileged_pods;
    let percent = settings.cpu_quota_percent.filter(|_| !unprivileged);
    let quota = percent.map(|it| json!({"name": CPU_QUOTA_PERCENT, "value": it.to_string()}));
    let network = settings.guest_network;
    let network = network.map(|it| json!({"name": GUEST_NETWORK, "value": it.as_str()}));
    let by_tls = settings.runners_at_pods && !is_plain(image, settings);
    let orders = by_tls.then(|| json!({"name": RUNNER_ORDERS, "value": ORDERS_BY_TLS}));
    let privileges =
        unprivileged.then(|| json!({"name": RUNNER_PRIVILEGES, "value": NO_PRIVILEGES}));
    let open = vm.metadata.annotations.get(ANNOTATION_MONITOR_OPEN);
    let open = open.is_some_and(|value| value == "true");
    let monitor = open.then(|| json!({"name": RUNNER_MONITOR, "value": MONITOR_OPEN}));
    let all = std::iter::once(name).chain(quota).chain(network);
    let all = all.chain(orders).chain(privileges).chain(monitor);
    all.chain(owner_of_disks(vm)).collect()
}

/// Whether a runner image is known to take orders in the clear. Each version of our own runner
/// speaks TLS, whichever registry it comes from. An image that is named exactly, or by its
/// repository, is the administrator's word that it does not.
fn is_plain(image: &str, settings: &Settings) -> bool {
    let is_ours = repository(image) == repository(&settings.runner_image);
    let mut known = settings.plain_runner_images.iter();
    !is_ours && known.any(|one| one == image || one == repository(image))
}

/// An image's name without its tag and digest.
fn repository(image: &str) -> &str {
    let name = image.split_once('@').map_or(image, |(name, _)| name);
    match name.rsplit_once(':') {
        // What follows the colon of a registry's port has a slash.
        Some((repository, tag)) if !tag.contains('/') => repository,
        _ => name,
    }
}

/// Environment by which the runner of a VM with disks on claims tells the VM's own disks from
/// others.
fn owner_of_disks(vm: &VirtualMachine) -> Vec<Value> {
    if claimed_disks(&vm.spec).is_empty() {
        return Vec::new();
    }
    let namespace = json!({"name": POD_NAMESPACE, "value": vm.metadata.namespace});
    let uid = json!({"name": VM_UID, "value": vm.metadata.uid});
    let used = vm.metadata.annotations.get(ANNOTATION_USE_DISK);
    let used = used.map(|of| json!({"name": USE_DISK, "value": of}));
    [namespace, uid].into_iter().chain(used).collect()
}

fn arguments(vm: &VirtualMachine, status: &VmStatus, settings: &Settings) -> Vec<String> {
    let mode = match vm
        .spec
        .cpu_scaling_mode
        .unwrap_or(settings.default_cpu_scaling_mode)
    {
        CpuScalingMode::QmpScaling => "QmpScaling",
        CpuScalingMode::SysfsScaling => "SysfsScaling",
    };
    let guest = &vm.spec.guest;
    let ratio = guest
        .memhp_auto_movable_ratio
        .as_deref()
        .unwrap_or(&settings.memhp_auto_movable_ratio);
    let mut args: Vec<String> = Vec::new();
    if settings.skip_cgroup_management {
        args.push("-skip-cgroup-management".into());
    }
    if settings.use_virtio_console {
        args.push("-use-virtio-console".into());
    }
    let cache = settings.qemu_disk_cache.to_string();
    for (flag, value) in [
        ("-qemu-disk-cache-settings", cache.as_str()),
        ("-memhp-auto-movable-ratio", ratio),
        ("-cpu-scaling-mode", mode),
    ] {
        args.extend([flag.to_owned(), value.to_owned()]);
    }
    if guest.kernel_image.is_some() {
        args.push("-kernelpath=/vm/images/vmlinuz".into());
    }
    if let Some(append) = &guest.append_kernel_cmdline {
        args.push(format!("-appendKernelCmdline={append}"));
    }
    // The long ones last, so that a person sees the others.
    args.extend([
        "-vmspec".into(),
        packed(&vm.spec),
        "-vmstatus".into(),
        packed(status),
    ]);
    args
}

fn ports(vm: &VirtualMachine) -> Vec<Value> {
    let mut all = vec![
        json!({"name": "qmp", "containerPort": vm.spec.qmp, "protocol": "TCP"}),
        json!({"name": "qmp-manual", "containerPort": vm.spec.qmp_manual, "protocol": "TCP"}),
        json!({"name": "runner", "containerPort": vm.spec.runner_port, "protocol": "TCP"}),
    ];
    for port in &vm.spec.guest.ports {
        let mut entry = json!({"containerPort": port.port, "protocol": port.protocol});
        if !port.name.is_empty() {
            entry["name"] = json!(port.name);
        }
        all.push(entry);
    }
    all
}

fn resources(vm: &VirtualMachine, settings: &Settings) -> Value {
    let mut resources = match vm.spec.pod_resources.clone() {
        Some(Value::Object(members)) => members,
        _ => Map::new(),
    };
    if settings.true_requests {
        requests::insert(&mut resources, vm);
        if settings.unprivileged_pods {
            requests::bound(&mut resources, vm, settings.cpu_quota_percent);
        }
    }
    if settings.device_limits {
        let limits = resources.entry("limits").or_insert_with(|| json!({}));
        if let Some(limits) = limits.as_object_mut() {
            limits.insert("neonvm/vhost-net".into(), json!("1"));
            if vm.spec.enable_acceleration {
                limits.insert("neonvm/kvm".into(), json!("1"));
            }
        }
    }
    Value::Object(resources)
}

#[cfg(test)]
mod tests;
