//! Objects for tests: the common VM of the conformance list (docs/compatibility/neonvm.md §5) and
//! what goes with it.

use protocol::object::{ContainerStatus, Pod};
use protocol::runner::{CpuState, MemoryState, RunnerPhase, RunnerState};
use protocol::time::WallTime;
use protocol::units::{Bytes, MilliCpu};
use protocol::vm::VirtualMachine;
use serde_json::json;

use super::container::CONTAINER;

/// VM `default/example`: a quarter CPU of 0.25 to 2, one slot of 1 to 4.
pub(crate) fn sample_vm() -> VirtualMachine {
    serde_json::from_value(json!({
        "apiVersion": "vm.neon.tech/v1",
        "kind": "VirtualMachine",
        "metadata": {
            "name": "example", "namespace": "default", "uid": "uid-1", "resourceVersion": "10",
            "generation": 1, "creationTimestamp": "2026-11-21T10:00:00Z",
            "finalizers": ["vm.neon.tech/finalizer"],
        },
        "spec": {
            "cpuScalingMode": "QmpScaling",
            "schedulerName": "autoscale-scheduler",
            "guest": {
                "cpus": {"min": 0.25, "use": 0.25, "max": 2},
                "memorySlotSize": "1Gi",
                "memorySlots": {"min": 1, "use": 1, "max": 4},
                "rootDisk": {"image": "vm-postgres:15-bullseye", "size": "1Gi"},
            },
        },
    }))
    .expect("a VM")
}

/// A pod of `vm` that runs on node `here` and is ready.
pub(crate) fn ready_pod(vm: &VirtualMachine, name: &str) -> Pod {
    let mut pod: Pod = serde_json::from_value(json!({
        "metadata": {
            "name": name, "namespace": vm.metadata.namespace, "uid": format!("uid-{name}"),
            "resourceVersion": "11", "creationTimestamp": "2026-11-21T10:00:01Z",
            "ownerReferences": [super::pod::owner(vm)],
        },
        "spec": {"nodeName": "here"},
        "status": {"phase": "Running", "podIP": "127.9.1.1"},
    }))
    .expect("a pod");
    let expected = super::metadata::expected(vm, &super::Settings::one_machine());
    pod.metadata.labels = expected.labels;
    pod.metadata.annotations = expected.annotations;
    pod.status.container_statuses = vec![ContainerStatus {
        name: CONTAINER.into(),
        ready: true,
        ..ContainerStatus::default()
    }];
    pod
}

/// A runner whose guest has this size, without any order.
pub(crate) fn runner_at(milli_cpu: u32, gib: u64) -> RunnerState {
    let cpu = MilliCpu(milli_cpu);
    RunnerState {
        generation: 1,
        phase: RunnerPhase::Running,
        qemu_pid: Some(100),
        qemu_version: Some("10.0.2".into()),
        accel: "tcg".into(),
        boot_id: Some("boot-1".into()),
        guest_kernel: Some("6.1.0".into()),
        boot_ms: Some(9000),
        cpus: CpuState {
            limit: cpu,
            plugged: cpu.rounded_up_cores(),
            guest_online: Some(cpu.rounded_up_cores()),
            ahead: None,
        },
        memory: MemoryState {
            base: Bytes::gib(1),
            plugged: Bytes::gib(gib - 1),
            requested: Bytes::gib(gib - 1),
            guest_total: Some(Bytes::gib(gib)),
        },
        resize: None,
        orders: Some(0),
        exit: None,
        quota: protocol::runner::QuotaState::default(),
        outgoing: None,
        incoming: None,
        guest_silent: None,
        programs: Vec::new(),
        guest_parts: std::collections::BTreeMap::new(),
        disk_full: None,
    }
}

pub(crate) fn wall() -> WallTime {
    WallTime::parse("2026-11-21T10:00:10Z").expect("a time")
}
