//! Requests of a runner pod for its VM (N41). Cluster-autoscaler, other schedulers, quotas and the
//! weights of cgroups go by requests, and the deployed runner pods carry none.
//!
//! A pod is made with the size in use, divided by the over-commit factors as `vm.neon.tech/usage`
//! is for the patched cluster-autoscaler (docs/compatibility/scheduler.md §5.5). It is resized in
//! place after that: up before the guest grows, down once it has shrunk. Resources that the VM's
//! author requests or limits in `spec.podResources` stay as they are. A pod that was made without
//! requests keeps none, because its quality-of-service class may not change.

use protocol::annotations::Overcommit;
use protocol::object::Pod;
use protocol::quantity::Quantity;
use protocol::units::{Bytes, MilliCpu, Resources};
use protocol::vm::VirtualMachine;
use serde_json::{Value, json};

use super::container::CONTAINER;
use super::metadata::PatchOp;

/// The subresource by which a pod is resized (Kubernetes 1.33 and later).
pub const SUBRESOURCE: &str = "resize";
/// Type of the condition by which a kubelet reports that it has not allocated a pod's requests.
const PENDING: &str = "PodResizePending";

/// One resource a pod may request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Resource {
    Cpu,
    Memory,
}

impl Resource {
    const ALL: [Self; 2] = [Self::Cpu, Self::Memory];

    fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Memory => "memory",
        }
    }

    /// Whether the VM's author sets the pod's request or limit of this resource.
    fn is_authors(self, vm: &VirtualMachine) -> bool {
        let is_listed = |list: &str| {
            let resources = vm.spec.pod_resources.as_ref();
            let list = resources.and_then(|resources| resources.get(list));
            list.and_then(|list| list.get(self.name())).is_some()
        };
        is_listed("requests") || is_listed("limits")
    }

    fn of(self, size: Resources) -> Quantity {
        match self {
            Self::Cpu => Quantity::from_milli(u64::from(size.cpu.0)),
            Self::Memory => Quantity::from_bytes(size.mem.0),
        }
    }
}

/// Adds the VM's requests to the resources of a new container.
pub(super) fn insert(resources: &mut serde_json::Map<String, Value>, vm: &VirtualMachine) {
    let size = shared(vm, vm.spec.guest.in_use());
    for resource in Resource::ALL {
        if resource.is_authors(vm) {
            continue;
        }
        let requests = resources.entry("requests").or_insert_with(|| json!({}));
        if let Some(requests) = requests.as_object_mut() {
            requests.insert(resource.name().into(), json!(resource.of(size)));
        }
    }
}

/// Limits the CPU time of a new container whose runner cannot hold QEMU to a quota. The limit is
/// `percent` of the VM's largest size and at least one CPU, so that a small guest boots in time. A
/// limit by the largest size never has to follow a resize.
pub(super) fn bound(
    resources: &mut serde_json::Map<String, Value>,
    vm: &VirtualMachine,
    percent: Option<u32>,
) {
    let Some(percent) = percent.filter(|_| !Resource::Cpu.is_authors(vm)) else {
        return;
    };
    let milli = u64::from(vm.spec.guest.cpus.max.0) * u64::from(percent) / 100;
    let limits = resources.entry("limits").or_insert_with(|| json!({}));
    if let Some(limits) = limits.as_object_mut() {
        let most = Quantity::from_milli(milli.max(1000));
        limits.insert(Resource::Cpu.name().into(), json!(most));
    }
}

/// The part of a size that a node is to set aside for it: less by the VM's over-commit factors,
/// never nothing. It is rounded up, as the scheduler takes the request times the factor for the
/// size.
fn shared(vm: &VirtualMachine, size: Resources) -> Resources {
    let overcommit: Overcommit = vm.spec.overcommit.unwrap_or_default();
    let part = |whole: u64, factor: Option<Quantity>| {
        let milli = factor.map_or(1000, |factor| factor.milli_value());
        let milli = u128::try_from(milli).unwrap_or(0).max(1);
        let part = (u128::from(whole) * 1000).div_ceil(milli);
        u64::try_from(part).unwrap_or(whole).max(1)
    };
    let cpu = part(u64::from(size.cpu.0), overcommit.cpu);
    Resources {
        cpu: MilliCpu(u32::try_from(cpu).unwrap_or(u32::MAX)),
        mem: Bytes(part(size.mem.0, overcommit.memory)),
    }
}

/// Where the count of a pod's changes is (Kubernetes 1.33 and later keep it).
const GENERATION: &str = "/metadata/generation";

/// How the requests of a pod are to change.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Change {
    /// The operations on the pod.
    pub(super) ops: Vec<PatchOp>,
    /// Whether one of them becomes more.
    pub(super) grows: bool,
}

/// Change of the pod's requests to the size in use of `vm`, or to what the guest still `has` if
/// that is more. Without `has` the requests only grow. `None` if nothing changes.
///
/// The change tests the state of the pod that it rests on. Otherwise one that arrives late, or
/// twice, would undo a newer one.
pub(super) fn change(vm: &VirtualMachine, pod: &Pod, has: Option<Resources>) -> Option<Change> {
    let mut containers = pod.spec.containers.iter();
    let at = containers.position(|container| container.name == CONTAINER)?;
    let held = &pod.spec.containers.get(at)?.resources.requests;
    let wanted = vm.spec.guest.in_use();
    let size = shared(vm, has.map_or(wanted, |has| wanted.field_max(has)));
    let base = format!("/spec/containers/{at}");
    let mut change = Change {
        ops: vec![PatchOp::Test {
            path: format!("{base}/name"),
            value: json!(CONTAINER),
        }],
        grows: false,
    };
    change
        .ops
        .extend(pod.metadata.generation.map(|generation| PatchOp::Test {
            path: GENERATION.into(),
            value: json!(generation),
        }));
    let tests = change.ops.len();
    for resource in Resource::ALL {
        // Made without, it stays without.
        let Some(before) = held.get(resource.name()) else {
            continue;
        };
        let after = resource.of(size);
        let more = after.nanos() > before.nanos();
        let less = after.nanos() < before.nanos() && has.is_some();
        if resource.is_authors(vm) || !(more || less) {
            continue;
        }
        change.grows |= more;
        change.ops.push(PatchOp::Add {
            path: format!("{base}/resources/requests/{}", resource.name()),
            value: json!(after),
        });
    }
    (change.ops.len() > tests).then_some(change)
}

/// Whether the operations set less than the VM is to have: carried out late, they would undercut a
/// guest that has grown.
pub(super) fn undercuts(vm: &VirtualMachine, ops: &[PatchOp]) -> bool {
    let wanted = shared(vm, vm.spec.guest.in_use());
    let sets_less = |resource: Resource| {
        let end = format!("/resources/requests/{}", resource.name());
        let set = ops.iter().find_map(|op| match op {
            PatchOp::Add { path, value } if path.ends_with(&end) => Some(value),
            _ => None,
        });
        let set = set.and_then(|value| serde_json::from_value::<Quantity>(value.clone()).ok());
        set.is_some_and(|set| set.nanos() < resource.of(wanted).nanos())
    };
    Resource::ALL.into_iter().any(sets_less)
}

/// Whether the operations test another state of the pod. An API server refuses such a patch with
/// the same code as one that it would never accept, so the pod must be read to tell the two apart.
#[must_use]
pub fn rest_on_another(ops: &[PatchOp], pod: &Pod) -> bool {
    let seen = ops.iter().find_map(|op| match op {
        PatchOp::Test { path, value } if path == GENERATION => value.as_i64(),
        _ => None,
    });
    seen.is_some() && seen != pod.metadata.generation
}

/// Whether the pod requests both resources for its VM. Its requests then give the size of the
/// guest.
pub(super) fn cover_vm(vm: &VirtualMachine, pod: &Pod) -> bool {
    let mut containers = pod.spec.containers.iter();
    let runner = containers.find(|container| container.name == CONTAINER);
    runner.is_some_and(|runner| {
        let held = &runner.resources.requests;
        let mut all = Resource::ALL.iter();
        all.all(|it| !it.is_authors(vm) && held.contains_key(it.name()))
    })
}

/// Why the node has not allocated the pod's requests; `None` if it has.
pub(super) fn pending(pod: &Pod) -> Option<&str> {
    let conditions = pod.status.conditions.iter();
    let mut pending = conditions.filter(|it| it.kind == PENDING && it.status == "True");
    pending.next().map(|it| it.message.as_str())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::core::testing::sample_vm;

    fn vm() -> VirtualMachine {
        let mut vm = sample_vm();
        vm.spec.guest.cpus.r#use = MilliCpu(500);
        vm.spec.guest.memory_slots.r#use = 2;
        vm
    }

    fn pod(requests: &Value) -> Pod {
        let pod = json!({"spec": {"containers": [{"name": "sidecar"},
            {"name": CONTAINER, "resources": {"requests": requests}}]}});
        serde_json::from_value(pod).expect("a pod")
    }

    fn paths(change: Option<Change>) -> Vec<(String, Value)> {
        let ops = change.map(|change| change.ops).unwrap_or_default();
        let added = ops.into_iter().filter_map(|op| match op {
            PatchOp::Add { path, value } => Some((path, value)),
            _ => None,
        });
        added.collect()
    }

    fn inserted(vm: &VirtualMachine) -> Value {
        let mut resources = serde_json::Map::new();
        insert(&mut resources, vm);
        Value::Object(resources)
    }

    #[test]
    fn n41_a_new_pod_requests_what_its_vm_is_to_have_less_by_over_commit() {
        let mut vm = vm();
        let whole = json!({"requests": {"cpu": "500m", "memory": "2Gi"}});
        assert_eq!(inserted(&vm), whole);
        let factors = json!({"cpu": "2.5", "memory": "1.5"});
        vm.spec.overcommit = Some(serde_json::from_value(factors).expect("factors"));
        let less = json!({"requests": {"cpu": "200m", "memory": "1431655766"}});
        assert_eq!(inserted(&vm), less);
        vm.spec.overcommit = Some(serde_json::from_value(json!({"cpu": "0"})).expect("a factor"));
        assert_eq!(
            inserted(&vm)["requests"]["memory"],
            "2Gi",
            "no division by it"
        );
    }

    proptest! {
        /// The scheduler takes a request times the factor, rounded up, for what the guest has.
        #[test]
        fn request_times_factor_covers_size(
            milli in 1..200_000_u32, mem in 1..1_u64 << 45, factor in 1..100_000_u64,
        ) {
            let mut vm = vm();
            let factors = json!({"cpu": format!("{factor}m"), "memory": format!("{factor}m")});
            vm.spec.overcommit = Some(serde_json::from_value(factors).expect("factors"));
            let part = shared(&vm, Resources::new(milli, mem));
            let whole = |part: u64| u128::from(part) * u128::from(factor);
            for (part, size) in [(u64::from(part.cpu.0), u64::from(milli)), (part.mem.0, mem)] {
                let size = u128::from(size) * 1000;
                prop_assert!(whole(part) >= size, "{part} times {factor}m is less");
                prop_assert!(whole(part - 1) < size, "{part} is more than it takes");
            }
        }
    }

    #[test]
    fn resource_of_author_stays() {
        let mut vm = vm();
        vm.spec.pod_resources = Some(json!({"limits": {"cpu": 2}}));
        assert_eq!(inserted(&vm), json!({"requests": {"memory": "2Gi"}}));
        let small = pod(&json!({"cpu": "1m", "memory": "1Gi"}));
        let changed = paths(change(&vm, &small, None));
        let memory = "/spec/containers/1/resources/requests/memory".to_owned();
        assert_eq!(changed, [(memory, json!("2Gi"))]);
    }

    #[test]
    fn requests_grow_at_once_and_shrink_after_guest() {
        let vm = vm();
        let larger = pod(&json!({"cpu": "1", "memory": "1Gi"}));
        let more = change(&vm, &larger, None).expect("memory is missing");
        assert!(more.grows);
        assert_eq!(paths(Some(more)).len(), 1, "cpu is not taken unseen");
        let has = Resources::new(500, 3 << 30);
        let both = change(&vm, &larger, Some(has)).expect("both differ");
        assert_eq!(
            paths(Some(both)),
            [
                (
                    "/spec/containers/1/resources/requests/cpu".into(),
                    json!("500m")
                ),
                (
                    "/spec/containers/1/resources/requests/memory".into(),
                    json!("3Gi")
                ),
            ]
        );
        let equal = pod(&json!({"cpu": "0.5", "memory": "2048Mi"}));
        let has = Resources::new(250, 1 << 30);
        assert_eq!(change(&vm, &equal, Some(has)), None);
    }

    /// A request that a proxy sent on a second time took away what a newer one had given.
    #[test]
    fn a_change_rests_on_the_pod_it_was_decided_for() {
        let mut pod = pod(&json!({"cpu": "1m", "memory": "1Gi"}));
        pod.metadata.generation = Some(3);
        let ops = change(&vm(), &pod, None).expect("both are too little").ops;
        let test = json!({"op": "test", "path": GENERATION, "value": 3});
        assert!(json!(ops).as_array().expect("operations").contains(&test));
        assert!(!rest_on_another(&ops, &pod));
        pod.metadata.generation = Some(4);
        assert!(rest_on_another(&ops, &pod));
        // A server that does not count has it as before.
        pod.metadata.generation = None;
        let ops = change(&vm(), &pod, None).expect("both are too little").ops;
        assert!(!rest_on_another(&ops, &pod));
    }

    #[test]
    fn change_below_wanted_size_undercuts() {
        let mut vm = vm();
        let large = pod(&json!({"cpu": "2", "memory": "8Gi"}));
        let less = change(&vm, &large, Some(Resources::new(500, 2 << 30)));
        let ops = less.expect("it has shrunk").ops;
        assert!(!undercuts(&vm, &ops), "that is what it is to have");
        vm.spec.guest.memory_slots.r#use = 3;
        assert!(undercuts(&vm, &ops));
    }

    #[test]
    fn requests_cover_vm_only_with_both_resources() {
        let mut vm = vm();
        let both = pod(&json!({"cpu": "1m", "memory": "1Gi"}));
        assert!(cover_vm(&vm, &both));
        assert!(!cover_vm(&vm, &pod(&json!({"memory": "1Gi"}))));
        vm.spec.pod_resources = Some(json!({"limits": {"cpu": 2}}));
        assert!(!cover_vm(&vm, &both));
    }

    #[test]
    fn pod_made_without_requests_keeps_none() {
        assert_eq!(change(&vm(), &pod(&json!({})), None), None);
        assert_eq!(change(&vm(), &Pod::default(), None), None);
    }

    #[test]
    fn pending_allocation_of_kubelet_is_reported() {
        let mut pod = pod(&json!({}));
        assert_eq!(pending(&pod), None);
        let condition =
            json!([{"type": PENDING, "status": "True", "message": "Node didn't have enough"}]);
        pod.status.conditions = serde_json::from_value(condition).expect("conditions");
        assert_eq!(pending(&pod), Some("Node didn't have enough"));
    }
}
