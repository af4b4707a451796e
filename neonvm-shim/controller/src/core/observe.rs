//! What a pod and a runner say, reduced to what the phases ask.

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

/// A pod whose deletion was asked this long ago counts as failed, whatever its phase says: a node
/// that does not answer must not hold a VM for ever. Microseconds.
pub const DELETED_COUNTS_AS_FAILED_US: i64 = 5_000_000;

/// State of a runner by its pod (docs/compatibility/neonvm.md §2.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PodState {
    /// Not there yet, or not ready.
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
        // The guest of a migration target is not up before the end, so its readiness says nothing.
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

/// The very image of the guest's disk in a pod, as its kubelet resolved it; `None` where nobody
/// says it.
#[must_use]
pub fn disk_image(pod: &Pod) -> Option<&str> {
    let mut all = pod.status.init_container_statuses.iter();
    let init = all.find(|status| status.name == INIT_CONTAINER)?;
    Some(init.image_id.as_str()).filter(|id| !id.is_empty())
}

/// What a container that does not run yet says when it is on its way.
const ON_ITS_WAY: [&str; 3] = ["", "ContainerCreating", "PodInitializing"];

/// Why a pod that was made does not start: no node takes it, or an image is not to be had, or the
/// like. `None` while there is nothing unusual to be said.
#[must_use]
pub fn held_up(pod: &Pod) -> Option<String> {
    let mut conditions = pod.status.conditions.iter();
    let unplaced = conditions.find(|one| one.kind == "PodScheduled" && one.status == "False");
    let words = |reason: &str, message: &str| {
        let both = [reason, message]
            .into_iter()
            .filter(|text| !text.is_empty());
        both.collect::<Vec<_>>().join(": ")
    };
    if let Some(refusal) = unplaced {
        return Some(words("no node takes it", &refusal.message));
    }
    let status = &pod.status;
    let mut all = status
        .init_container_statuses
        .iter()
        .chain(&status.container_statuses);
    all.find_map(|container| {
        let waiting = container.state.waiting.as_ref()?;
        (!ON_ITS_WAY.contains(&waiting.reason.as_str()))
            .then(|| words(&waiting.reason, &waiting.message))
    })
}

/// How long ago the deletion of the pod was asked, microseconds.
#[must_use]
pub fn deletion_age_us(pod: &Pod, wall: WallTime) -> Option<i64> {
    pod.metadata
        .deletion_timestamp
        .map(|at| wall.0.saturating_sub(at.0))
}

/// A pod whose controller is a migration is the target of it.
#[must_use]
pub fn is_migration_target(pod: &Pod) -> bool {
    pod.metadata
        .owner_of_kind("VirtualMachineMigration")
        .is_some_and(|owner| owner.controller == Some(true))
}

/// Why a pod ended, in the words it carries; empty if it carries none.
#[must_use]
pub fn end_of(pod: &Pod) -> String {
    let container = pod
        .status
        .container_statuses
        .iter()
        .find(|status| status.name == CONTAINER)
        .and_then(|status| status.state.terminated.as_ref());
    let mut words: Vec<String> = Vec::new();
    if let Some(end) = container {
        words.push(format!("exit code {}", end.exit_code));
        words.extend([end.reason.clone(), end.message.clone()]);
    }
    words.extend([pod.status.reason.clone(), pod.status.message.clone()]);
    words.retain(|word| !word.is_empty());
    words.dedup();
    words.join(": ")
}

/// The size a guest has: what both QEMU's quota and the guest's own CPUs allow, and the memory QEMU
/// has plugged.
///
/// On its way down a guest keeps the quota of the order before for a while. That counts until it is
/// lowered, because the guest may use it. A guest that boots has the quota of its largest size,
/// which does not count.
///
/// Until the guest's daemon has answered, plugged CPUs stand for those online.
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

/// The size that the status of a VM says its guest has.
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
    /// It is the newest order, and not carried out yet.
    UnderWay,
    /// The runner was told something else, or nothing.
    Unordered,
}

/// Compares. Nothing is remembered: a controller that has just started reads the same answer.
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

/// Whether going to `wanted` takes more of anything than the runner was last told, or has.
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
mod tests {
    use super::*;
    use crate::core::testing::{ready_pod, runner_at, sample_vm};
    use protocol::object::OwnerReference;

    const NOW: WallTime = WallTime(1_700_000_000_000_000);

    #[test]
    fn the_table_of_runner_states() {
        let mut pod = ready_pod(&sample_vm(), "example-abcde");
        assert_eq!(pod_state(&pod, NOW), PodState::Running);
        pod.status.container_statuses[0].ready = false;
        assert_eq!(pod_state(&pod, NOW), PodState::Pending);
        pod.metadata.owner_references.push(OwnerReference {
            kind: "VirtualMachineMigration".into(),
            controller: Some(true),
            ..OwnerReference::default()
        });
        assert_eq!(
            pod_state(&pod, NOW),
            PodState::Running,
            "a target's readiness is ignored"
        );
        pod.metadata.owner_references.clear();
        pod.status.container_statuses.clear();
        assert_eq!(
            pod_state(&pod, NOW),
            PodState::Pending,
            "no container status yet"
        );
        for (phase, state) in [
            ("", PodState::Pending),
            ("Pending", PodState::Pending),
            ("Succeeded", PodState::Succeeded),
            ("Failed", PodState::Failed),
            ("Unknown", PodState::Pending),
        ] {
            pod.status.phase = phase.into();
            assert_eq!(pod_state(&pod, NOW), state, "{phase}");
        }
    }

    #[test]
    fn a_deletion_older_than_five_seconds_is_a_failure() {
        let mut pod = ready_pod(&sample_vm(), "example-abcde");
        pod.metadata.deletion_timestamp = Some(WallTime(NOW.0 - 5_000_000));
        assert_eq!(pod_state(&pod, NOW), PodState::Running);
        pod.metadata.deletion_timestamp = Some(WallTime(NOW.0 - 5_000_001));
        assert_eq!(pod_state(&pod, NOW), PodState::Failed);
        pod.status.phase = "Succeeded".into();
        assert_eq!(
            pod_state(&pod, NOW),
            PodState::Failed,
            "the age is asked first"
        );
    }

    #[test]
    fn another_containers_readiness_does_not_count() {
        let mut pod = ready_pod(&sample_vm(), "example-abcde");
        pod.status.container_statuses[0].name = "sidecar".into();
        assert_eq!(pod_state(&pod, NOW), PodState::Pending);
    }

    #[test]
    fn size_is_the_smaller_of_quota_and_cpus_online() {
        let mut state = runner_at(1500, 3);
        assert_eq!(size_of(&state), Resources::new(1500, 3 << 30));
        state.cpus.guest_online = Some(1);
        assert_eq!(size_of(&state).cpu, MilliCpu(1000));
        state.cpus.guest_online = None;
        state.cpus.plugged = 1;
        assert_eq!(size_of(&state).cpu, MilliCpu(1000));
    }

    #[test]
    fn quota_counts_until_it_is_lowered_and_not_while_guest_boots() {
        let mut state = runner_at(1000, 3);
        state.cpus.guest_online = Some(2);
        state.quota = QuotaState::Enforced { milli: 1500 };
        assert_eq!(size_of(&state).cpu, MilliCpu(1500));
        state.phase = RunnerPhase::Booting;
        assert_eq!(size_of(&state).cpu, MilliCpu(1000));
    }

    #[test]
    fn fit_is_read_from_the_runner_alone() {
        let wanted = Resources::new(250, 1 << 30);
        let mut state = runner_at(250, 1);
        assert_eq!(
            fit(wanted, &state),
            Fit::Reached,
            "right without ever having been told"
        );
        assert_eq!(fit(Resources::new(500, 1 << 30), &state), Fit::Unordered);
        assert_eq!(fit(Resources::new(250, 2 << 30), &state), Fit::Unordered);
        let order = |cpu: u32| SizeOrder {
            cpu: MilliCpu(cpu),
            memory: Bytes::gib(1),
            trace: protocol::trace::TraceId {
                vm: "default/example".into(),
                revision: 1,
            },
        };
        let report = |cpu: u32, done: bool| {
            Some(ResizeReport {
                order: order(cpu),
                done,
                stages: vec![],
                problem: None,
            })
        };
        state.resize = report(250, false);
        assert_eq!(
            fit(wanted, &state),
            Fit::UnderWay,
            "the runner says it is not done"
        );
        state.resize = report(250, true);
        assert_eq!(fit(wanted, &state), Fit::Reached);
        state.resize = report(500, true);
        assert_eq!(
            fit(wanted, &state),
            Fit::Unordered,
            "it heads for another size"
        );
    }

    #[test]
    fn growth_is_judged_against_what_the_runner_holds() {
        let state = runner_at(1000, 2);
        assert!(grows(Resources::new(1250, 2 << 30), &state));
        assert!(
            grows(Resources::new(250, 3 << 30), &state),
            "one field is enough"
        );
        assert!(!grows(Resources::new(250, 1 << 30), &state));
        assert!(!grows(Resources::new(1000, 2 << 30), &state));
    }
}
