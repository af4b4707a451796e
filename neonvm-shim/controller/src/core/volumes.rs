//! Volumes of a runner pod and where the runner mounts them (docs/compatibility/neonvm.md §2.4).

use protocol::claims::{CLAIMS_DIR, claimed_disks};
use protocol::vm::{Disk, VirtualMachine, VmStatus};
use serde_json::{Value, json};

use super::settings::Settings;

/// Volume that holds the SSH public key; the runner offers it to the guest.
pub const SSH_PUBLIC: &str = "ssh-publickey";
/// Volume that holds the SSH private key, for logins from the runner's container.
pub const SSH_PRIVATE: &str = "ssh-privatekey";
/// Volume with the runner's credentials: the token of its controller, its certificate, and the key
/// that encrypts a migration. A disk with this name takes precedence ([`token_volume`]).
pub const RUNNER_TOKEN: &str = "runner-token";
/// Key of the token in its secret, and name of its file.
pub const TOKEN: &str = "token";
const TOKEN_PATH: &str = "/vm/control";
/// Where guest mounts appear in the runner's container.
const MOUNTS: &str = "/vm/mounts";
/// Where TLS files appear in a guest unless `spec.tls.mountPath` says otherwise.
const TLS_PATH: &str = "/var/tls";

/// Name of the secret with the credentials of a VM's runners.
#[must_use]
pub fn runner_secret(vm: &str) -> String {
    format!("runner-neonvm-{vm}")
}

pub(super) fn volumes(vm: &VirtualMachine, status: &VmStatus, settings: &Settings) -> Vec<Value> {
    let mut all = vec![json!({"name": "virtualmachineimages", "emptyDir": {}})];
    if !settings.skip_cgroup_management {
        all.push(json!({
            "name": "sysfscgroup",
            "hostPath": {"path": "/sys/fs/cgroup", "type": "Directory"},
        }));
    }
    if vm.spec.enable_ssh {
        let secret = |key: &str, path: &str, mode: u32| {
            json!({
                "secretName": status.ssh_secret_name,
                "items": [{"key": key, "path": path, "mode": mode}],
            })
        };
        all.push(json!({
            "name": SSH_PRIVATE,
            "secret": secret("ssh-privatekey", "id_ed25519", 0o600),
        }));
        all.push(json!({
            "name": SSH_PUBLIC,
            "secret": secret("ssh-publickey", "authorized_keys", 0o644),
        }));
    }
    if settings.runners_at_pods {
        all.push(json!({"name": token_volume(vm), "secret": {
            "secretName": runner_secret(&vm.metadata.name),
            // The items are not named: a pod would wait for a key that an older secret does not
            // have.
            "defaultMode": 0o400,
        }}));
    }
    if let Some(swap) = vm
        .spec
        .guest
        .settings
        .as_ref()
        .and_then(|settings| settings.swap)
    {
        all.push(json!({"name": "swapdisk", "emptyDir": {"sizeLimit": swap}}));
    }
    for disk in &vm.spec.disks {
        if let Some(source) = disk_source(disk) {
            let mut volume = json!({"name": disk.name});
            volume[source.0] = source.1;
            all.push(volume);
        }
    }
    all.extend(claimed_disks(&vm.spec).iter().map(
        |disk| json!({"name": disk.volume, "persistentVolumeClaim": {"claimName": disk.claim}}),
    ));
    if vm.spec.tls.is_some() {
        all.push(json!({"name": "tls", "secret": {
            "secretName": status.tls_secret_name,
            "items": [{"key": "tls.crt", "path": "tls.crt"}, {"key": "tls.key", "path": "tls.key"}],
        }}));
    }
    all
}

pub(super) fn mounts(vm: &VirtualMachine, settings: &Settings) -> Vec<Value> {
    let mut all = vec![json!({"name": "virtualmachineimages", "mountPath": "/vm/images"})];
    if !settings.skip_cgroup_management {
        all.push(json!({
            "name": "sysfscgroup", "mountPath": "/sys/fs/cgroup", "mountPropagation": "None",
        }));
    }
    if vm.spec.enable_ssh {
        all.push(json!({"name": SSH_PRIVATE, "mountPath": "/mnt/ssh"}));
        all.push(json!({"name": SSH_PUBLIC, "mountPath": "/vm/ssh"}));
    }
    if settings.runners_at_pods {
        let name = token_volume(vm);
        all.push(json!({"name": name, "mountPath": TOKEN_PATH, "readOnly": true}));
    }
    if vm
        .spec
        .guest
        .settings
        .as_ref()
        .is_some_and(|settings| settings.swap.is_some())
    {
        all.push(json!({"name": "swapdisk", "mountPath": format!("{MOUNTS}/swapdisk")}));
    }
    for disk in vm
        .spec
        .disks
        .iter()
        .filter(|disk| disk_source(disk).is_some())
    {
        let mut mount =
            json!({"name": disk.name, "mountPath": format!("{MOUNTS}{}", disk.mount_path)});
        if disk.read_only {
            mount["readOnly"] = json!(true);
        }
        all.push(mount);
    }
    all.extend(claimed_disks(&vm.spec).iter().map(
        |disk| json!({"name": disk.volume, "mountPath": format!("{CLAIMS_DIR}/{}", disk.drive)}),
    ));
    if let Some(tls) = &vm.spec.tls {
        let path = tls
            .get("mountPath")
            .and_then(Value::as_str)
            .unwrap_or(TLS_PATH);
        all.push(json!({"name": "tls", "mountPath": format!("{MOUNTS}{path}")}));
    }
    all
}

/// Name of the volume with the token. Admission reserves our other volume names, but not this one,
/// because the deployed system accepts such a disk.
fn token_volume(vm: &VirtualMachine) -> String {
    let is_free = |name: &String| vm.spec.disks.iter().all(|disk| disk.name != *name);
    let others = (2_usize..).map(|count| format!("{RUNNER_TOKEN}-{count}"));
    let mut names = std::iter::once(RUNNER_TOKEN.to_owned()).chain(others);
    names
        .find(is_free)
        .expect("there are more names than disks")
}

/// The pod volume of a disk; tmpfs has none, and claims are mounted elsewhere. An empty disk wins
/// over the others, as in the deployed order.
fn disk_source(disk: &Disk) -> Option<(&'static str, Value)> {
    let carried = |source: &Value, name: &str| {
        let mut out = json!({});
        for member in [name, "items"] {
            if let Some(value) = source.get(member) {
                out[member] = value.clone();
            }
        }
        out
    };
    if let Some(empty) = &disk.empty_disk {
        let mut out = json!({});
        if let Some(size) = empty.get("size") {
            out["sizeLimit"] = size.clone();
        }
        return Some(("emptyDir", out));
    }
    if let Some(map) = &disk.config_map {
        return Some(("configMap", carried(map, "name")));
    }
    disk.secret
        .as_ref()
        .map(|secret| ("secret", carried(secret, "secretName")))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use protocol::admission::RESERVED_DISK_NAMES;
    use protocol::vm::ClaimRef;

    use super::*;
    use crate::core::testing::sample_vm;

    /// A VM that has everything there is, with disks of these names.
    fn full_vm(disks: &[&str]) -> VirtualMachine {
        let mut vm = sample_vm();
        vm.spec.guest.settings = serde_json::from_value(json!({"swap": "1Gi"})).ok();
        vm.spec.tls = Some(json!({}));
        let disk =
            |name: &&str| json!({"name": name, "mountPath": "/d", "secret": {"secretName": "s"}});
        let disks = disks.iter().map(disk).collect();
        vm.spec.disks = serde_json::from_value(disks).expect("disks");
        vm
    }

    fn names(of: &[Value]) -> Vec<&str> {
        of.iter().filter_map(|one| one["name"].as_str()).collect()
    }

    #[test]
    fn each_claim_is_mounted_in_own_directory_outside_guest_mounts() {
        let mut vm = sample_vm();
        vm.spec.guest.root_disk.persistent_volume_claim = Some(ClaimRef {
            claim_name: "root".into(),
        });
        let disk = json!([{"name": "data", "mountPath": "/d",
            "persistentVolumeClaim": {"claimName": "pg-data", "size": "1Gi"}}]);
        vm.spec.disks = serde_json::from_value(disk).expect("disks");
        let settings = Settings::cluster("r:1");
        let volumes = volumes(&vm, &VmStatus::default(), &settings);
        let mounts = mounts(&vm, &settings);
        for (volume, claim, path) in [
            ("rootdisk", "root", "/vm/claims/root"),
            ("data", "pg-data", "/vm/claims/disk-data"),
        ] {
            let named = |all: &[Value]| -> Vec<Value> {
                let found = all.iter().filter(|one| one["name"] == volume);
                found.cloned().collect()
            };
            let held = json!({"name": volume, "persistentVolumeClaim": {"claimName": claim}});
            assert_eq!(named(&volumes), [held]);
            let mounted = json!({"name": volume, "mountPath": path});
            assert_eq!(named(&mounts), [mounted]);
        }
    }

    #[test]
    fn disk_may_have_any_name_that_is_not_reserved() {
        let settings = Settings::cluster("r:1");
        let own = volumes(&full_vm(&[]), &VmStatus::default(), &settings);
        let mut free = names(&own);
        free.retain(|name| !RESERVED_DISK_NAMES.contains(name));
        assert_eq!(free, [RUNNER_TOKEN]);
        let also = [&free[..], &["runner-token-2"]].concat();
        for disks in [&free, &also] {
            let vm = full_vm(disks);
            let all = volumes(&vm, &VmStatus::default(), &settings);
            let different: BTreeSet<&str> = names(&all).into_iter().collect();
            assert_eq!(different.len(), own.len() + disks.len(), "{all:?}");
            let mounts = mounts(&vm, &settings);
            assert_eq!(names(&mounts), names(&all));
            let token = |one: &&Value| one["secret"]["secretName"] == "runner-neonvm-example";
            let token = all.iter().find(token).expect("the token's");
            let mount = mounts.iter().find(|one| one["name"] == token["name"]);
            assert_eq!(mount.expect("is mounted")["mountPath"], TOKEN_PATH);
            assert!(!disks.iter().any(|name| token["name"] == *name));
        }
    }
}
