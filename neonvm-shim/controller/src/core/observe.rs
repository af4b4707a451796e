//! State of a pod and of its runner, reduced to the facts that the phases need.

use std::net::SocketAddr;

use protocol::object::Pod;
use protocol::quantity::Quantity;
use protocol::runner::{
    NO_PRIVILEGES, ORDERS_BY_TLS, QuotaState, RUNNER_ORDERS, RUNNER_PRIVILEGES, ResizeReport,
    RunnerPhase, RunnerState, SizeOrder,
};
use protocol::time::WallTime;
use protocol::units::{Bytes, MilliCpu, Resources};
use protocol::vm::{VirtualMachine, VmStatus};
use serde::Serialize;

use super::container::{CONTAINER, INIT_CONTAINER};

/// A pod whose deletion was requested this many microseconds ago counts as failed in any phase. A
/// node that does not respond must not hold a VM for ever.
pub const DELETED_COUNTS_AS_FAILED_US: i64 = 5_000_000;

/// State of a runner by its pod (docs/compatibility/neonvm.md §2.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PodState {
    /// The pod is not bound, or its runner is not ready.
    Pending,
    /// The runner's container is ready.
    Running,
    /// The pod ended with success.
    Succeeded,
    /// It ended badly, or its deletion hangs.
    Failed,
}

/// Reads the table from top to bottom; the first line that fits wins.
#[must_use]
pub fn pod_state(pod: &Pod, wall: WallTime) -> PodState {
    if deletion_age_us(pod, wall).is_some_and(|age| age > DELETED_COUNTS_AS_FAILED_US) {
        return PodState::Failed;
    }
    match pod.status.phase.as_str() {
        "Succeeded" => PodState::Succeeded,
        "Failed" => PodState::Failed,
        "Running" if pod.status.container_statuses.is_empty() => PodState::Pending,
        // The guest of a migration target comes up last, so the pod's readiness is of no use.
        "Running" if is_migration_target(pod) => PodState::Running,
        "Running" if runner_is_ready(pod) => PodState::Running,
        _ => PodState::Pending,
    }
}

fn runner_is_ready(pod: &Pod) -> bool {
    pod.status
        .container_statuses
        .iter()
        .any(|status| status.name == CONTAINER && status.ready)
}

/// Where a runner listens at its pod's address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PodRunner {
    /// Address and port of the runner's HTTP server.
    pub at: SocketAddr,
    /// Whether it is known to speak TLS: then it is never spoken to in the clear.
    pub by_tls: bool,
}

impl std::fmt::Display for PodRunner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.at.fmt(f)
    }
}

/// Where the runner of a pod listens, once that is known.
#[must_use]
pub fn runner_address(vm: &VirtualMachine, pod: &Pod) -> Option<PodRunner> {
    let port = u16::try_from(vm.spec.runner_port).ok()?;
    Some(PodRunner {
        at: SocketAddr::new(pod.status.pod_ip.parse().ok()?, port),
        by_tls: says(pod, RUNNER_ORDERS, ORDERS_BY_TLS),
    })
}

/// Whether a pod was made without privileges.
#[must_use]
pub fn is_unprivileged(pod: &Pod) -> bool {
    says(pod, RUNNER_PRIVILEGES, NO_PRIVILEGES)
}

/// Whether the environment of a pod's runner has this.
fn says(pod: &Pod, name: &str, value: &str) -> bool {
    let mut containers = pod.spec.containers.iter();
    let runner = containers.find(|container| container.name == CONTAINER);
    let mut variables = runner.into_iter().flat_map(|runner| &runner.env);
    variables.any(|it| it.name == name && it.value == value)
}

/// Image of the guest's disk, as the kubelet resolved it; `None` if the pod does not report it.
#[must_use]
pub fn disk_image(pod: &Pod) -> Option<&str> {
    let mut all = pod.status.init_container_statuses.iter();
    let init = all.find(|status| status.name == INIT_CONTAINER)?;
    Some(init.image_id.as_str()).filter(|id| !id.is_empty())
}

/// Reasons of a waiting container that starts normally.
const ON_ITS_WAY: [&str; 3] = ["", "ContainerCreating", "PodInitializing"];

/// Why a pod does not start: no node fits, an image cannot be pulled, or similar. `None` while it
/// starts normally.
#[must_use]
pub fn held_up(pod: &Pod) -> Option<String> {
    let mut conditions = pod.status.conditions.iter();
    let unplaced = conditions.find(|one| one.kind == "PodScheduled" && one.status == "False");
    let joined = |reason: &str, message: &str| {
        let both = [reason, message]
            .into_iter()
            .filter(|text| !text.is_empty());
        both.collect::<Vec<_>>().join(": ")
    };
    if let Some(refusal) = unplaced {
        return Some(joined("no node takes it", &refusal.message));
    }
    let status = &pod.status;
    let mut all = status
        .init_container_statuses
        .iter()
        .chain(&status.container_statuses);
    all.find_map(|container| {
        let waiting = container.state.waiting.as_ref()?;
        (!ON_ITS_WAY.contains(&waiting.reason.as_str()))
            .then(|| joined(&waiting.reason, &waiting.message))
    })
}

/// Microseconds since the deletion of the pod was requested.
#[must_use]
pub fn deletion_age_us(pod: &Pod, wall: WallTime) -> Option<i64> {
    pod.metadata
        .deletion_timestamp
        .map(|at| wall.0.saturating_sub(at.0))
}

/// Whether the pod is the target of a migration: its controller is one.
#[must_use]
pub fn is_migration_target(pod: &Pod) -> bool {
    pod.metadata
        .owner_of_kind("VirtualMachineMigration")
        .is_some_and(|owner| owner.controller == Some(true))
}

/// Exit code, reasons and messages of a pod that ended; empty if it has none.
#[must_use]
pub fn end_of(pod: &Pod) -> String {
    let container = pod
        .status
        .container_statuses
        .iter()
        .find(|status| status.name == CONTAINER)
        .and_then(|status| status.state.terminated.as_ref());
    let mut texts: Vec<String> = Vec::new();
    if let Some(end) = container {
        texts.push(format!("exit code {}", end.exit_code));
        texts.extend([end.reason.clone(), end.message.clone()]);
    }
    texts.extend([pod.status.reason.clone(), pod.status.message.clone()]);
    texts.retain(|text| !text.is_empty());
    texts.dedup();
    texts.join(": ")
}

/// Size of the guest: the CPU that both QEMU's quota and the guest's own CPUs allow, and the memory
/// that QEMU has plugged.
///
/// A guest that shrinks keeps the quota of the order before for a while. That counts until it is
/// lowered, because the guest may use it. A guest that boots has the quota of its largest size,
/// which does not count.
///
/// Until the guest's daemon responds, plugged CPUs stand for those online.
#[must_use]
pub fn size_of(state: &RunnerState) -> Resources {
    let online = state.cpus.guest_online.unwrap_or(state.cpus.plugged);
    let whole = MilliCpu(online.saturating_mul(1000));
    let memory = state.memory.base.0.saturating_add(state.memory.plugged.0);
    let limit = match state.quota {
        QuotaState::Enforced { milli } if state.phase == RunnerPhase::Running => {
            state.cpus.limit.max(MilliCpu(milli))
        }
        _ => state.cpus.limit,
    };
    Resources {
        cpu: limit.min(whole),
        mem: Bytes(memory),
    }
}

/// Size of the guest in the status of its VM.
#[must_use]
pub fn status_size(status: &VmStatus) -> Resources {
    let memory = status.memory_size.as_ref();
    Resources {
        cpu: status.cpus.unwrap_or_default(),
        mem: Bytes(memory.and_then(Quantity::as_u64).unwrap_or(0)),
    }
}

/// Where a runner stands with respect to a wanted size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Fit {
    /// QEMU and guest have it.
    Reached,
    /// The size is the newest order, and the runner is carrying it out.
    UnderWay,
    /// The newest order is another size, or there is none.
    Unordered,
}

/// Compares the wanted size with the runner's report. No earlier state is used, so a controller
/// that has just started gets the same result.
#[must_use]
pub fn fit(wanted: Resources, state: &RunnerState) -> Fit {
    match &state.resize {
        Some(report) if ordered(&report.order) == wanted => {
            if report.done {
                Fit::Reached
            } else {
                Fit::UnderWay
            }
        }
        Some(_) => Fit::Unordered,
        None if is_exactly(wanted, state) => Fit::Reached,
        None => Fit::Unordered,
    }
}

fn is_exactly(wanted: Resources, state: &RunnerState) -> bool {
    let online = state.cpus.guest_online.unwrap_or(state.cpus.plugged);
    state.cpus.limit == wanted.cpu
        && online == wanted.cpu.rounded_up_cores()
        && size_of(state).mem == wanted.mem
        && state.memory.requested == state.memory.plugged
}

/// The size of an order.
#[must_use]
pub fn ordered(order: &SizeOrder) -> Resources {
    Resources {
        cpu: order.cpu,
        mem: order.memory,
    }
}

/// Whether `wanted` has more CPU or memory than the newest order, or than the guest has.
#[must_use]
pub fn grows(wanted: Resources, state: &RunnerState) -> bool {
    let held = match &state.resize {
        Some(ResizeReport {
            order, done: true, ..
        }) => ordered(order),
        Some(ResizeReport { order, .. }) => ordered(order).field_min(size_of(state)),
        None => size_of(state),
    };
    wanted.has_field_above(held)
}

#[cfg(test)]
mod tests;
