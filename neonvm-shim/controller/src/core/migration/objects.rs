//! The target pod, and the owners of source and target at each step (docs/compatibility/neonvm.md
//! §1.10).

use protocol::annotations::FINALIZER;
use protocol::migration::RECEIVE_MIGRATION;
use protocol::object::{ObjectMeta, OwnerReference, Pod};
use protocol::vm::{API_VERSION, VirtualMachine, VirtualMachineMigration, VmStatus};
use serde_json::{Map, Value, json};

use crate::core::metadata::PatchOp;
use crate::core::observe::runner_address;
use crate::core::pod;
use crate::core::settings::Settings;

/// The kind of migrations in references.
pub(super) const KIND: &str = "VirtualMachineMigration";

/// A reference to a migration.
fn to_migration(meta: &ObjectMeta, controller: bool) -> OwnerReference {
    OwnerReference {
        api_version: API_VERSION.into(),
        kind: KIND.into(),
        name: meta.name.clone(),
        uid: meta.uid.clone(),
        controller: Some(controller),
        block_owner_deletion: controller.then_some(true),
    }
}

/// A reference to a VM.
pub(super) fn to_vm(vm: &VirtualMachine, controller: bool) -> OwnerReference {
    OwnerReference {
        api_version: API_VERSION.into(),
        kind: "VirtualMachine".into(),
        name: vm.metadata.name.clone(),
        uid: vm.metadata.uid.clone(),
        controller: Some(controller),
        block_owner_deletion: controller.then_some(true),
    }
}

/// Which part of a migration a pod has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    /// Pod that the guest leaves.
    Source,
    /// The guest goes to it.
    Target,
    /// The guest has left it.
    Left,
    /// It is the VM's, and no migration's.
    Settled,
}

/// Owners of a pod with this part.
pub(super) fn owners(
    part: Part,
    vm: &VirtualMachine,
    migration: &ObjectMeta,
) -> Vec<OwnerReference> {
    match part {
        Part::Source => vec![to_vm(vm, true), to_migration(migration, false)],
        Part::Target => vec![to_migration(migration, true), to_vm(vm, false)],
        Part::Left => vec![to_migration(migration, false), to_vm(vm, false)],
        Part::Settled => vec![to_vm(vm, true)],
    }
}

/// The operations that give a pod its owners; empty if it has them. Owners of other kinds stay.
pub(super) fn own(
    pod: &Pod,
    part: Part,
    vm: &VirtualMachine,
    migration: &ObjectMeta,
) -> Vec<PatchOp> {
    let held = &pod.metadata.owner_references;
    let same = |a: &OwnerReference, b: &OwnerReference| {
        a.uid == b.uid && a.controller.unwrap_or(false) == b.controller.unwrap_or(false)
    };
    let wanted = owners(part, vm, migration);
    let ours = |owner: &OwnerReference| {
        owner.uid == vm.metadata.uid || owner.uid == migration.uid || owner.kind == KIND
    };
    let is_so = held.iter().filter(|owner| ours(owner)).count() == wanted.len()
        && wanted
            .iter()
            .all(|owner| held.iter().any(|has| same(has, owner)));
    if is_so {
        return Vec::new();
    }
    let mut all = wanted;
    all.extend(held.iter().filter(|owner| !ours(owner)).cloned());
    vec![
        PatchOp::Test {
            path: "/metadata/uid".into(),
            value: json!(pod.metadata.uid),
        },
        PatchOp::Add {
            path: "/metadata/ownerReferences".into(),
            value: json!(all),
        },
    ]
}

/// Whether a link to the runner of a pod can be held here.
pub(super) fn is_reachable(pod: &Pod, vm: Option<&VirtualMachine>, settings: &Settings) -> bool {
    let node = pod.spec.node_name.as_str();
    let local = settings.local_node.as_deref();
    let has_address = || vm.is_some_and(|vm| runner_address(vm, pod).is_some());
    !node.is_empty()
        && !pod.is_terminal()
        && local.is_none_or(|local| local == node)
        && (!settings.runners_at_pods || has_address())
}

/// Whether a pod is owned by the migration.
pub(super) fn is_of(pod: &Pod, migration: &ObjectMeta) -> bool {
    let owners = &pod.metadata.owner_references;
    owners.iter().any(|owner| owner.uid == migration.uid)
}

/// The target pod: the VM's pod under another name, that waits for a guest.
pub(super) fn target_pod(
    vm: &VirtualMachine,
    migration: &VirtualMachineMigration,
    settings: &Settings,
) -> Value {
    let name = &migration.status.as_ref().map(|s| s.target_pod_name.clone());
    let status = VmStatus {
        pod_name: name.clone().unwrap_or_default(),
        ..vm.status.clone().unwrap_or_default()
    };
    let mut pod = pod::build(vm, &status, settings);
    pod["metadata"]["ownerReferences"] = json!(owners(Part::Target, vm, &migration.metadata));
    if let Some(env) = pod["spec"]["containers"][0]["env"].as_array_mut() {
        env.push(json!({"name": RECEIVE_MIGRATION, "value": "true"}));
    }
    if !migration.spec.node_selector.is_empty() {
        let mut all = vm.spec.node_selector.clone();
        all.extend(migration.spec.node_selector.clone());
        pod["spec"]["nodeSelector"] = json!(all);
    }
    if let Some(wanted) = &migration.spec.node_affinity {
        join_affinity(&mut pod["spec"]["affinity"], wanted);
    }
    if migration.spec.prevent_migration_to_same_host {
        keep_apart(&mut pod["spec"]["affinity"], &vm.metadata.name);
    }
    pod
}

/// No host that has a pod of the VM.
fn keep_apart(affinity: &mut Value, vm: &str) {
    let term = json!({
        "labelSelector": {"matchLabels": {protocol::annotations::LABEL_VM_NAME: vm}},
        "topologyKey": "kubernetes.io/hostname",
    });
    list_at(
        affinity,
        &[
            "podAntiAffinity",
            "requiredDuringSchedulingIgnoredDuringExecution",
        ],
    )
    .push(term);
}

/// Terms of one node affinity are alternatives; those of the VM and those of the migration must
/// both hold, so each of the one is joined with each of the other.
fn join_affinity(affinity: &mut Value, wanted: &Value) {
    const REQUIRED: [&str; 2] = [
        "requiredDuringSchedulingIgnoredDuringExecution",
        "nodeSelectorTerms",
    ];
    let theirs = wanted[REQUIRED[0]][REQUIRED[1]].as_array();
    let Some(theirs) = theirs.filter(|terms| !terms.is_empty()) else {
        return;
    };
    let ours = list_at(affinity, &["nodeAffinity", REQUIRED[0], REQUIRED[1]]);
    let mut joined = Vec::new();
    for own in ours.iter() {
        for their in theirs {
            let mut term = own.clone();
            for member in ["matchExpressions", "matchFields"] {
                let more = their[member].as_array().cloned().unwrap_or_default();
                if !more.is_empty() {
                    list_at(&mut term, &[member]).extend(more);
                }
            }
            joined.push(term);
        }
    }
    *ours = joined;
}

/// The list at a path, made if it is not there.
fn list_at<'a>(value: &'a mut Value, path: &[&str]) -> &'a mut Vec<Value> {
    let mut at = value;
    for name in path {
        if !at.is_object() {
            *at = Value::Object(Map::new());
        }
        at = &mut at[*name];
    }
    if !at.is_array() {
        *at = Value::Array(Vec::new());
    }
    at.as_array_mut().expect("just made")
}

/// The merge patch of finalizers and owner that brings a migration under its VM; `None` if it is.
pub(super) fn adopt(
    migration: &VirtualMachineMigration,
    vm: Option<&VirtualMachine>,
) -> Option<Value> {
    let meta = &migration.metadata;
    let mut change = json!({"resourceVersion": meta.resource_version});
    if !meta.finalizers.iter().any(|name| name == FINALIZER) {
        let mut list = meta.finalizers.clone();
        list.push(FINALIZER.into());
        change["finalizers"] = json!(list);
        return Some(json!({"metadata": change}));
    }
    let owner = vm.map(|vm| to_vm(vm, true))?;
    let held = meta.owner_references.iter().any(|has| has.uid == owner.uid);
    if held {
        return None;
    }
    let mut list = meta.owner_references.clone();
    list.retain(|has| has.kind != owner.kind);
    list.push(owner);
    change["ownerReferences"] = json!(list);
    Some(json!({"metadata": change}))
}

/// The merge patch that lets a deleted migration go.
pub(super) fn release(meta: &ObjectMeta) -> Option<Value> {
    let mut list = meta.finalizers.clone();
    list.retain(|name| name != FINALIZER);
    (list.len() < meta.finalizers.len()).then(
        || json!({"metadata": {"resourceVersion": meta.resource_version, "finalizers": list}}),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::testing::sample_vm;

    #[test]
    fn adopted_migration_keeps_its_owners_of_other_kinds() {
        let owner = |kind: &str, uid: &str| json!({"apiVersion": "v1", "kind": kind, "name": "x", "uid": uid});
        let migration = |owners: Value| -> VirtualMachineMigration {
            serde_json::from_value(json!({
                "apiVersion": API_VERSION, "kind": KIND,
                "metadata": {"name": "move", "namespace": "default", "uid": "m",
                    "resourceVersion": "7", "finalizers": [FINALIZER], "ownerReferences": owners},
                "spec": {"vmName": "example"},
            }))
            .expect("a migration")
        };
        let vm = sample_vm();
        let before = json!([owner("Team", "t"), owner("VirtualMachine", "old")]);
        let patch = adopt(&migration(before), Some(&vm)).expect("another VM owns it");
        let after = patch["metadata"]["ownerReferences"].clone();
        assert_eq!(
            (&after[0]["uid"], &after[1]["uid"]),
            (&json!("t"), &json!("uid-1"))
        );
        assert_eq!(after.as_array().map(Vec::len), Some(2));
        assert_eq!(adopt(&migration(after), Some(&vm)), None);
    }
}
