//! Privileges of the containers of a runner pod (`docs/threat-model.md`, W7). Images of the VM's
//! author run without any. The runner has none where its namespace admits none.

use protocol::vm::VirtualMachine;
use serde_json::{Value, json};

use crate::core::container::{INIT_CONTAINER, QEMU_GID, QEMU_UID};
use crate::core::settings::{GuestNetwork, Settings};

/// Name of the init container that prepares the pod's network. Of all containers it alone is
/// privileged.
const NETWORK_CONTAINER: &str = "init-network";

/// The containers that run before the runner. The one that prepares the network is privileged and
/// runs the operator's image; images of the VM's author have no privileges.
pub(super) fn init_containers(vm: &VirtualMachine, settings: &Settings) -> Vec<Value> {
    let images = json!([{"name": "virtualmachineimages", "mountPath": "/vm/images"}]);
    let disk = "/vm/images/rootdisk.qcow2";
    let mut all = vec![json!({
        "name": INIT_CONTAINER,
        "image": vm.spec.guest.root_disk.image,
        "imagePullPolicy": vm.spec.guest.root_disk.image_pull_policy,
        "securityContext": {
            "privileged": false,
            "allowPrivilegeEscalation": false,
            // To move the disk out of the image and give it to QEMU's user.
            "capabilities": {"drop": ["ALL"], "add": ["CHOWN", "DAC_OVERRIDE", "FOWNER"]},
        },
        "command": ["sh", "-c", format!(
            "mv /disk.qcow2 {disk} && chown {QEMU_UID}:{QEMU_GID} {disk}"
        )],
        "volumeMounts": images,
    })];
    if let Some(kernel) = &vm.spec.guest.kernel_image {
        all.push(json!({
            "name": "init-kernel",
            "image": kernel,
            "securityContext": {
                "runAsUser": QEMU_UID,
                "runAsGroup": QEMU_GID,
                "allowPrivilegeEscalation": false,
                "capabilities": {"drop": ["ALL"]},
            },
            "command": ["cp", "/vmlinuz", "/vm/images/vmlinuz"],
            "volumeMounts": images,
        }));
    }
    all.extend(network_container(settings));
    all.extend(vm.spec.extra_init_containers.iter().cloned());
    all
}

/// Sets sysctls of the pod's network namespace. `None` where the pod routes nothing.
fn network_container(settings: &Settings) -> Option<Value> {
    if settings.unprivileged_pods || !settings.runners_at_pods {
        return None;
    }
    let mut kernel = "net.ipv4.ip_forward=1".to_owned();
    if settings.guest_network == Some(GuestNetwork::Bridge) {
        // For the bridge, which is made later. Packets from the pod's loopback address may leave by
        // it, and packets on it are not translated before they reach the pod. A kernel without the
        // bridge setting does not translate them.
        kernel.push_str(
            " net.ipv4.conf.default.route_localnet=1 && sysctl -e -w net.bridge.bridge-nf-call-iptables=0",
        );
    }
    Some(json!({
        "name": NETWORK_CONTAINER,
        // Not the image of `spec.runnerImage`.
        "image": settings.runner_image,
        "imagePullPolicy": "IfNotPresent",
        "securityContext": {"privileged": true},
        "command": ["sh", "-c", format!("sysctl -w {kernel}")],
    }))
}

/// Security context of the runner's container.
pub(super) fn runner_privileges(settings: &Settings) -> Value {
    if settings.unprivileged_pods {
        // The default capabilities, less those that the runner does not use.
        let drop = ["AUDIT_WRITE", "MKNOD", "NET_RAW", "SETFCAP"];
        return json!({
            "privileged": false,
            "allowPrivilegeEscalation": false,
            "capabilities": {"drop": drop},
        });
    }
    json!({
        "privileged": false,
        "capabilities": {"add": ["NET_ADMIN", "SYS_ADMIN", "SYS_RESOURCE"]},
    })
}

#[cfg(test)]
mod tests {
    use protocol::vm::VmStatus;

    use super::*;
    use crate::core::container::CONTAINER;
    use crate::core::pod::build;
    use crate::core::testing::sample_vm;

    /// A VM with images of its author's wherever there may be one.
    fn vm() -> VirtualMachine {
        let mut vm = sample_vm();
        vm.spec.guest.root_disk.image = "author/disk".into();
        vm.spec.guest.kernel_image = Some("author/kernel".into());
        vm.spec.runner_image = Some("author/runner".into());
        vm
    }

    fn containers(vm: &VirtualMachine, settings: &Settings) -> Vec<Value> {
        let pod = build(vm, &VmStatus::default(), settings);
        let lists = ["initContainers", "containers"];
        let lists = lists.map(|list| pod["spec"][list].as_array().cloned());
        lists.into_iter().flatten().flatten().collect()
    }

    fn named<'a>(all: &'a [Value], name: &str) -> Option<&'a Value> {
        all.iter().find(|one| one["name"] == name)
    }

    #[test]
    fn image_of_author_is_not_privileged() {
        let all = containers(&vm(), &Settings::cluster("operator/runner"));
        let privileged = |one: &&Value| one["securityContext"]["privileged"] == true;
        let privileged: Vec<&Value> = all.iter().filter(privileged).collect();
        let [network] = privileged[..] else {
            panic!("{privileged:?}");
        };
        assert_eq!(network["name"], NETWORK_CONTAINER);
        assert_eq!(network["image"], "operator/runner");
        assert!(network.get("volumeMounts").is_none(), "nothing of the VM's");
        for name in [INIT_CONTAINER, "init-kernel"] {
            let context = &named(&all, name).expect("it is there")["securityContext"];
            assert_eq!(context["allowPrivilegeEscalation"], false, "{name}");
            assert_eq!(context["capabilities"]["drop"], json!(["ALL"]), "{name}");
        }
    }

    #[test]
    fn pod_without_privileges_has_the_form_that_baseline_admits() {
        let settings = Settings::cluster("operator/runner").unprivileged();
        let pod = build(&vm(), &VmStatus::default(), &settings);
        let all = containers(&vm(), &settings);
        assert!(named(&all, NETWORK_CONTAINER).is_none());
        let baseline = ["CHOWN", "DAC_OVERRIDE", "FOWNER"];
        for one in &all {
            let context = &one["securityContext"];
            assert_ne!(context["privileged"], true, "{one}");
            let added = context["capabilities"]["add"].as_array();
            let mut added = added.into_iter().flatten();
            assert!(
                added.all(|it| baseline.iter().any(|name| it == name)),
                "{one}"
            );
        }
        let volumes = pod["spec"]["volumes"].as_array().expect("volumes");
        assert!(volumes.iter().all(|one| one.get("hostPath").is_none()));
        for member in ["hostNetwork", "hostPID", "hostIPC", "securityContext"] {
            assert!(pod["spec"].get(member).is_none(), "{member}");
        }
        let runner = named(&all, CONTAINER).expect("the runner");
        let env = runner["env"].as_array().expect("an environment");
        for variable in [
            json!({"name": "GUEST_NETWORK", "value": "user"}),
            json!({"name": "RUNNER_PRIVILEGES", "value": "none"}),
        ] {
            assert!(env.contains(&variable), "{variable}");
        }
        assert!(
            named(env, "CPU_QUOTA_PERCENT").is_none(),
            "it can hold none"
        );
    }

    #[test]
    fn container_limit_replaces_quota() {
        let mut settings = Settings::cluster("r").unprivileged();
        settings.true_requests = true;
        let limit = |vm: &VirtualMachine, settings: &Settings| {
            let all = containers(vm, settings);
            named(&all, CONTAINER).expect("it")["resources"]["limits"]["cpu"].clone()
        };
        let mut vm = vm();
        vm.spec.guest.cpus.max = protocol::units::MilliCpu(2500);
        assert_eq!(limit(&vm, &settings), "2500m");
        vm.spec.guest.cpus.max = protocol::units::MilliCpu(250);
        assert_eq!(limit(&vm, &settings), "1", "it has to boot in time");
        settings.cpu_quota_percent = None;
        assert_eq!(limit(&vm, &settings), Value::Null);
        vm.spec.pod_resources = Some(json!({"limits": {"cpu": 3}}));
        settings.cpu_quota_percent = Some(100);
        assert_eq!(limit(&vm, &settings), 3, "the author's stays");
        let mut with = Settings::cluster("r");
        with.true_requests = true;
        vm.spec.pod_resources = None;
        assert_eq!(limit(&vm, &with), Value::Null, "the runner holds a quota");
    }
}
