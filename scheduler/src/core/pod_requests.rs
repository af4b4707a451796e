//! The amount that a pod takes of its node: a pure function of the Pod object.
//!
//! Source: docs/compatibility/scheduler.md §2.2, vectors §7.4. A plain pod takes its requests
//! ([`super::kubelet_requests`]). A VM's pod takes the approved size, or the size in use without
//! one. A member that does not parse is a [`PodProblem`]. Such a pod counts at the most that it may
//! be ([`PodView::fallback`]).

use protocol::annotations::{
    ANNOTATION_APPROVED, ANNOTATION_REQUESTED, ANNOTATION_SCALING_UNIT, ANNOTATION_VM_OVERCOMMIT,
    ANNOTATION_VM_RESOURCES, LABEL_ALWAYS_MIGRATE, LABEL_AUTO_MIGRATION, LABEL_ENABLED, Overcommit,
    VmResources,
};
use protocol::object::{ObjectMeta, PodStatus};
use protocol::permit::NamespacedName;
use protocol::quantity::Quantity;
use protocol::time::WallTime;
use protocol::units::{Bytes, MilliCpu, Resources};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::amount::{Both, NO_OVERCOMMIT_MILLI, Resource};
use super::kubelet_requests;
use super::object::{Unreadable, key_of, largest, metadata};
use super::pod_problem::PodProblem;

/// Group prefix of the objects that own VM pods.
const OWNER_GROUP: &str = "vm.neon.tech/";

/// The container of a VM's pod that runs its guest.
const RUNNER: &str = "neonvm-runner";

/// The part of a pod in a live migration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum PodRole {
    /// The pod is in no migration.
    Settled,
    /// The VM leaves this pod. Also after the migration, until the pod is deleted.
    Source,
    /// The VM moves to this pod.
    Target,
}

/// The sizes in a pod's object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
pub struct PodSize {
    /// The amount that the pod takes of its node.
    pub reserved: Resources,
    /// The size that its agent requested last.
    pub requested: Resources,
    /// The compute unit. Zero if there is none.
    pub unit: Resources,
    /// Over-commit factors in thousandths, at least 1.
    pub overcommit_milli: Both<u32>,
}

/// The members of a Pod that the ledger uses.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
pub struct PodView {
    /// The pod's name.
    pub key: NamespacedName,
    /// `metadata.uid`, by which the ledger knows the pod.
    pub uid: String,
    /// `spec.nodeName`. `None` while the pod is unbound.
    pub node: Option<String>,
    /// `spec.schedulerName`. Empty if the object has none.
    pub scheduler_name: String,
    /// Whether the phase is Succeeded or Failed. Such a pod takes no resources.
    pub terminal: bool,
    /// Whether it has a deletion timestamp. It takes resources until it is gone.
    pub deleting: bool,
    /// `metadata.creationTimestamp`. The start of the epoch if the object has none.
    pub created: WallTime,
    /// Name of the VirtualMachine that owns the pod, in the same namespace.
    pub vm: Option<String>,
    /// Uid of that VirtualMachine. Empty if there is none.
    pub vm_uid: String,
    /// Whether the label `autoscaling.neon.tech/enabled` is `"true"`.
    pub autoscaled: bool,
    /// `spec.priority`. With fairness on, a larger one is served first.
    pub priority: i32,
    /// The pod's part in a migration.
    pub role: PodRole,
    /// Whether the scheduler may migrate the VM.
    pub migratable: bool,
    /// Whether the pod must not share a node with another pod of its VM, as the target of a
    /// migration to another host.
    pub apart: bool,
    /// Whether a container may use more than it requests. False for a VM's pod, whose size is
    /// granted.
    pub may_burst: bool,
    /// Whether the status says that the pod fits on no node.
    pub unschedulable_noted: bool,
    /// The sizes in the object, or why they are unknown.
    pub size: Result<PodSize, PodProblem>,
    /// Size of a VM's guest before over-commit: the larger of the size in use by the annotation
    /// `vm.neon.tech/resources` and the runner's requests. The controller writes one of them before
    /// a guest grows, and after it has shrunk. Zero without both, or if the annotations do not
    /// parse.
    #[serde(rename = "told")]
    pub announced: Resources,
    /// Requests of a VM's pod as kubelet counts them. Zero for a plain pod, whose `size` they are.
    pub runner_requests: Resources,
    /// The amount that counts if `size` is unknown: the larger of the requests and the VM's
    /// maximum.
    pub fallback: Resources,
}

impl PodView {
    /// Reads a Pod.
    ///
    /// # Errors
    /// [`Unreadable`] if it has no name or no uid.
    pub fn read(object: &Value) -> Result<Self, Unreadable> {
        let meta = metadata(object)?;
        let text = |path| {
            object
                .pointer(path)
                .and_then(Value::as_str)
                .unwrap_or_default()
        };
        let owner_vm = owner(&meta, "VirtualMachine");
        let vm = owner_vm.map(|owner| owner.name.clone());
        let vm_uid = owner_vm.map_or_else(String::new, |owner| owner.uid.clone());
        let role = owner(&meta, "VirtualMachineMigration").map_or(PodRole::Settled, |owner| {
            if owner.controller == Some(true) {
                PodRole::Target
            } else {
                PodRole::Source
            }
        });
        let opted_in =
            meta.label_is_true(LABEL_AUTO_MIGRATION) || meta.label_is_true(LABEL_ALWAYS_MIGRATE);
        let requests = kubelet_requests::of_pod(object);
        let requested = requests.as_ref().ok().copied();
        let runner_requests = requested.filter(|_| vm.is_some()).unwrap_or_default();
        let node = text("/spec/nodeName");
        let (size, announced) = if vm.is_some() {
            let size = vm_size(&meta);
            let announced = announced(object, size.as_ref().ok());
            (size.map(|(size, _)| size), announced)
        } else {
            (requests.map(plain_size), Resources::default())
        };
        Ok(Self {
            key: key_of(&meta),
            node: (!node.is_empty()).then(|| node.to_owned()),
            scheduler_name: text("/spec/schedulerName").to_owned(),
            terminal: matches!(text("/status/phase"), "Succeeded" | "Failed"),
            deleting: meta.deletion_timestamp.is_some(),
            created: meta.creation_timestamp.unwrap_or_default(),
            autoscaled: meta.label_is_true(LABEL_ENABLED),
            priority: object
                .pointer("/spec/priority")
                .and_then(Value::as_i64)
                .and_then(|priority| i32::try_from(priority).ok())
                .unwrap_or(0),
            role,
            migratable: vm.is_some()
                && (role == PodRole::Source || (opted_in && role != PodRole::Target)),
            apart: role == PodRole::Target && is_apart(object),
            may_burst: vm.is_none() && may_burst(object),
            unschedulable_noted: unschedulable_noted(object),
            fallback: fallback(&meta, requested),
            announced,
            runner_requests,
            size,
            vm,
            vm_uid,
            uid: meta.uid,
        })
    }
}

fn owner<'a>(meta: &'a ObjectMeta, kind: &str) -> Option<&'a protocol::object::OwnerReference> {
    let mut owners = meta.owner_references.iter();
    owners.find(|owner| owner.kind == kind && owner.api_version.starts_with(OWNER_GROUP))
}

/// Whether the pod has an anti-affinity by host. For a migration's target it is against pods of the
/// VM.
fn is_apart(object: &Value) -> bool {
    let terms = object
        .pointer("/spec/affinity/podAntiAffinity/requiredDuringSchedulingIgnoredDuringExecution");
    let mut terms = terms.and_then(Value::as_array).into_iter().flatten();
    terms.any(|term| term["topologyKey"] == "kubernetes.io/hostname")
}

fn unschedulable_noted(object: &Value) -> bool {
    let status = object
        .get("status")
        .and_then(|raw| PodStatus::deserialize(raw).ok());
    status.is_some_and(|status| {
        status
            .conditions
            .iter()
            .any(|c| c.kind == "PodScheduled" && c.status == "False")
    })
}

fn plain_size(requests: Resources) -> PodSize {
    PodSize {
        reserved: requests,
        requested: requests,
        unit: Resources::default(),
        overcommit_milli: Both::same(NO_OVERCOMMIT_MILLI),
    }
}

/// Whether a container's limit is above its request. A container without a request requests its
/// limit.
fn may_burst(object: &Value) -> bool {
    let containers = object.pointer("/spec/containers").and_then(Value::as_array);
    containers.into_iter().flatten().any(|container| {
        let of = |what: &str, name: &str| {
            let raw = container.pointer(&format!("/resources/{what}/{name}"))?;
            Quantity::from_json(raw).ok()
        };
        ["cpu", "memory"].iter().any(|name| {
            of("limits", name)
                .zip(of("requests", name))
                .is_some_and(|(limit, request)| limit.milli_value() > request.milli_value())
        })
    })
}

fn fallback(meta: &ObjectMeta, requests: Option<Resources>) -> Resources {
    let requests = requests.unwrap_or_default();
    match annotation::<VmResources>(meta, ANNOTATION_VM_RESOURCES) {
        Ok(Some(vm)) => requests.field_max(largest(&vm)),
        _ => requests,
    }
}

/// The announced size of a VM's guest, with the over-commit of the runner's requests reversed.
fn announced(object: &Value, size: Option<&(PodSize, Resources)>) -> Resources {
    let (factors, in_use) = size.map_or(
        (Both::same(NO_OVERCOMMIT_MILLI), Resources::default()),
        |(size, in_use)| (size.overcommit_milli, *in_use),
    );
    let whole = |part: u64, milli: u32| part.saturating_mul(u64::from(milli)).div_ceil(1000);
    let requests = kubelet_requests::of_container(object, RUNNER).map(|requests| {
        let cpu = whole(u64::from(requests.cpu.0), factors.cpu);
        Resources {
            cpu: MilliCpu(u32::try_from(cpu).unwrap_or(u32::MAX)),
            mem: Bytes(whole(requests.mem.0, factors.mem)),
        }
    });
    requests.unwrap_or_default().field_max(in_use)
}

fn annotation<T: for<'de> Deserialize<'de>>(
    meta: &ObjectMeta,
    key: &'static str,
) -> Result<Option<T>, PodProblem> {
    let text = meta.annotations.get(key);
    let parsed = text.map(|text| serde_json::from_str(text)).transpose();
    parsed.map_err(|error| PodProblem::Annotation(key, error.to_string()))
}

/// The sizes of a VM's pod, and the size in use.
fn vm_size(meta: &ObjectMeta) -> Result<(PodSize, Resources), PodProblem> {
    let vm: VmResources =
        annotation(meta, ANNOTATION_VM_RESOURCES)?.ok_or(PodProblem::NoVmResources)?;
    let actual = vm.in_use();
    let overcommit: Overcommit = annotation(meta, ANNOTATION_VM_OVERCOMMIT)?.unwrap_or_default();
    let overcommit_milli = Both {
        cpu: factor(Resource::Cpu, overcommit.cpu)?,
        mem: factor(Resource::Mem, overcommit.memory)?,
    };
    if !meta.label_is_true(LABEL_ENABLED) {
        let size = PodSize {
            overcommit_milli,
            ..plain_size(actual)
        };
        return Ok((size, actual));
    }
    let unit = annotation(meta, ANNOTATION_SCALING_UNIT)?;
    let requested = annotation(meta, ANNOTATION_REQUESTED)?;
    if requested.is_some() && unit.is_none() {
        return Err(PodProblem::RequestedWithoutUnit);
    }
    let size = PodSize {
        reserved: annotation(meta, ANNOTATION_APPROVED)?.unwrap_or(actual),
        requested: requested.unwrap_or(actual),
        unit: unit.unwrap_or_default(),
        overcommit_milli,
    };
    Ok((size, actual))
}

fn factor(resource: Resource, quantity: Option<Quantity>) -> Result<u32, PodProblem> {
    quantity.map_or(Ok(NO_OVERCOMMIT_MILLI), |quantity| {
        let milli = u32::try_from(quantity.milli_value())
            .ok()
            .filter(|milli| *milli > 0);
        milli.ok_or(PodProblem::OvercommitRange(resource))
    })
}

#[cfg(test)]
mod tests;
