//! What the fleet's objects do not have: VMs, and what their owners and nodes say.

use std::collections::BTreeMap;

use fleet_core::owner_windows;
use fleet_core::permit::Gate;
use protocol::fleet::{KEY_ENROLLED, KEY_WINDOWS};
use protocol::quantity::Quantity;
use protocol::vm::{VirtualMachine, VmPhase};
use serde_json::Value;

use crate::guest;
use crate::node::Node;
use crate::runners::{PodsByOwner, Runner};

/// What the fleet's objects do not have.
#[derive(Debug, Default)]
pub(crate) struct Surroundings {
    pub(crate) vms: Vec<VirtualMachine>,
    /// Labels and annotations that hold for all VMs of a namespace.
    pub(super) namespaces: BTreeMap<String, Namespace>,
    pub(crate) nodes: Vec<Node>,
    /// Memory of each node that no VM has, bytes.
    pub(super) free: BTreeMap<String, u64>,
    /// Pods of VMs, in a cluster.
    pub(super) pods: PodsByOwner,
}

#[derive(Debug, Clone, Default)]
pub(super) struct Namespace {
    is_out: bool,
    windows: Option<String>,
}

/// What a VM's owner says about changes of its guest.
pub(crate) struct OwnersWord {
    pub(crate) is_enrolled: bool,
    pub(crate) windows: Vec<protocol::fleet::Window>,
    pub(crate) gate: Option<Gate>,
}

impl Surroundings {
    /// The runner of a VM. Without a pod of that VM it has no address.
    pub(crate) fn runner(&self, vm: &VirtualMachine) -> Runner {
        let pod = self.pods.of(vm);
        let (at, started) = pod.map_or((None, None), |pod| pod.runner_at(vm));
        Runner {
            namespace: vm.metadata.namespace.clone(),
            vm: vm.metadata.name.clone(),
            uid: vm.metadata.uid.clone(),
            pod: vm.status.clone().unwrap_or_default().pod_name,
            at,
            started,
        }
    }

    /// The VM's annotation replaces that of its namespace. Either label keeps it out.
    pub(crate) fn owner(&self, vm: &VirtualMachine, trial_seconds: u64) -> OwnersWord {
        let of_namespace = self.namespaces.get(&vm.metadata.namespace);
        let is_out = of_namespace.is_some_and(|one| one.is_out);
        let label = vm.metadata.labels.get(KEY_ENROLLED);
        let annotation = vm.metadata.annotations.get(KEY_WINDOWS);
        let annotation = annotation.or(of_namespace.and_then(|one| one.windows.as_ref()));
        let (windows, gate) = owner_windows(annotation.map(String::as_str), trial_seconds);
        OwnersWord {
            is_enrolled: !is_out && label.is_none_or(|value| value != "false"),
            windows,
            gate,
        }
    }

    /// VMs of a node that run and whose monitors have an agent.
    pub(crate) fn monitors_of(&self, node: &str) -> u32 {
        let counts = |vm: &&VirtualMachine| {
            let status = vm.status.as_ref();
            let runs = status.is_some_and(|it| it.node == node && it.phase == VmPhase::Running);
            runs && guest::has_agent(vm) && vm.metadata.deletion_timestamp.is_none()
        };
        u32::try_from(self.vms.iter().filter(counts).count()).unwrap_or(u32::MAX)
    }

    /// Whether a VM could have one more slot of memory.
    pub(super) fn has_room(&self, vm: &VirtualMachine) -> bool {
        let guest = &vm.spec.guest;
        let node = vm.status.as_ref().map(|status| status.node.as_str());
        let free = node.and_then(|node| self.free.get(node)).copied();
        guest.memory_slots.r#use < guest.memory_slots.max
            && free.is_some_and(|free| free >= guest.slot_bytes())
    }
}

pub(super) fn namespace_of(object: &Value) -> Option<(String, Namespace)> {
    let metadata = &object["metadata"];
    let windows = metadata["annotations"][KEY_WINDOWS].as_str();
    let namespace = Namespace {
        is_out: metadata["labels"][KEY_ENROLLED] == "false",
        windows: windows.map(str::to_owned),
    };
    Some((metadata["name"].as_str()?.to_owned(), namespace))
}

pub(super) fn free_memory(nodes: &[Value], vms: &[VirtualMachine]) -> BTreeMap<String, u64> {
    let total = |object: &Value| {
        let name = object["metadata"]["name"].as_str()?.to_owned();
        let memory = Quantity::from_json(&object["status"]["allocatable"]["memory"]).ok()?;
        Some((name, memory.as_u64().unwrap_or(0)))
    };
    let mut free: BTreeMap<String, u64> = nodes.iter().filter_map(total).collect();
    for vm in vms {
        let node = vm.status.as_ref().map(|status| status.node.as_str());
        if let Some(free) = node.and_then(|node| free.get_mut(node)) {
            *free = free.saturating_sub(vm.spec.guest.in_use().mem.0);
        }
    }
    free
}
