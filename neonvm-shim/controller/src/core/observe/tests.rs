use super::*;
use crate::core::testing::{ready_pod, runner_at, sample_vm};
use protocol::object::OwnerReference;

const NOW: WallTime = WallTime(1_700_000_000_000_000);

#[test]
fn pod_state_follows_table() {
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
    pod.status.container_statuses.clear();
    assert_eq!(
        pod_state(&pod, NOW),
        PodState::Pending,
        "no container status yet, not even of a target"
    );
    pod.metadata.owner_references.clear();
    assert_eq!(pod_state(&pod, NOW), PodState::Pending);
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
fn deletion_older_than_five_seconds_is_failure() {
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
fn readiness_of_other_container_does_not_count() {
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
fn fit_depends_on_runner_alone() {
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
fn growth_is_compared_with_order_of_runner() {
    let state = runner_at(1000, 2);
    assert!(grows(Resources::new(1250, 2 << 30), &state));
    assert!(
        grows(Resources::new(250, 3 << 30), &state),
        "one field is enough"
    );
    assert!(!grows(Resources::new(250, 1 << 30), &state));
    assert!(!grows(Resources::new(1000, 2 << 30), &state));
}
