//! Reports of runners, which may be older than the guest's last change.

use super::*;

/// A VM of so many slots whose runner reported so much, with the revisions wanted and reached.
fn resized(version: u64, gib: u64, reported_gib: u64, revisions: (i64, i64)) -> VmView {
    let revision = |value: i64| json!({"revision": {"value": value, "flags": 1}, "updatedAt": "2026-01-01T00:00:00Z"});
    let object = json!({
        "metadata": {"name": "pg", "namespace": "d", "uid": "v", "resourceVersion": version.to_string(),
            "labels": {"autoscaling.neon.tech/enabled": "true"},
            "annotations": {"internal.autoscaling.neon.tech/resources-approved": size_text(1_000, gib)}},
        "spec": {"guest": {"cpus": {"min": 1, "max": 8, "use": 1},
                "memorySlots": {"min": 1, "max": 8, "use": gib}, "memorySlotSize": "1Gi"},
            "targetRevision": revision(revisions.0)},
        "status": {"podName": "pg-1", "cpus": 1, "memorySize": format!("{reported_gib}Gi"),
            "currentRevision": revision(revisions.1)}});
    VmView::read(&object).expect("has a name")
}

#[test]
fn a_late_report_frees_nothing_a_guest_may_still_have() {
    let mut ledger = ledger(10, 40);
    ledger.pod_applied(vm_pod(None));
    let steps = [
        (resized(1, 2, 2, (1, 1)), 2, "at rest"),
        (resized(2, 4, 2, (2, 1)), 4, "it grows"),
        (
            resized(3, 3, 2, (3, 1)),
            4,
            "it shrinks, and the report is from before it grew",
        ),
        (
            resized(4, 3, 4, (3, 1)),
            4,
            "the report has caught up with the growth",
        ),
        (resized(5, 3, 3, (3, 3)), 3, "and with the shrink"),
    ];
    for (view, gib, why) in steps {
        ledger.vm_observed(view);
        assert_eq!(reserved(&ledger).1, gib, "{why}");
    }
}

#[test]
fn a_guest_gives_back_as_much_as_is_reported_less() {
    let mut ledger = ledger(10, 40);
    ledger.pod_applied(vm_pod(None));
    for (view, gib) in [
        (resized(1, 5, 5, (1, 1)), 5),
        (resized(2, 2, 5, (2, 1)), 5),
        (resized(3, 2, 4, (2, 1)), 4),
        (resized(4, 2, 3, (2, 1)), 3),
    ] {
        ledger.vm_observed(view);
        assert_eq!(reserved(&ledger).1, gib);
    }
}

#[test]
fn n16_a_new_scheduler_takes_a_late_report_for_the_most_there_can_be() {
    let mut ledger = ledger(10, 40);
    ledger.pod_applied(vm_pod(None));
    ledger.vm_observed(resized(3, 3, 2, (3, 1)));
    assert_eq!(reserved(&ledger).1, 8, "nobody knows what it had before");
    ledger.vm_observed(resized(4, 3, 3, (3, 3)));
    assert_eq!(reserved(&ledger).1, 3);
}

#[test]
fn a_guest_nobody_reported_of_yet_keeps_what_it_booted_with() {
    let mut ledger = ledger(10, 40);
    ledger.pod_applied(vm_pod(None));
    ledger.vm_observed(resized(1, 5, 0, (1, 1)));
    ledger.vm_observed(resized(2, 4, 0, (2, 1)));
    assert_eq!(reserved(&ledger).1, 5);
    ledger.vm_observed(resized(3, 4, 4, (2, 2)));
    assert_eq!(reserved(&ledger).1, 4);
}

/// The pod of a VM whose runner requests so much, under these over-commit factors.
fn requesting_pod(cpu: &str, memory: &str, overcommit: &str) -> PodView {
    PodView::read(&json!({
        "metadata": {"name": "pg-1", "namespace": "d", "uid": "uid-pg-1", "annotations": {
                "vm.neon.tech/resources":
                    r#"{"cpus":{"min":1,"max":8,"use":1},"memorySlots":{"min":1,"max":8,"use":1},"memorySlotSize":"1Gi"}"#,
                "vm.neon.tech/overcommit": overcommit},
            "ownerReferences": [{"apiVersion": "vm.neon.tech/v1", "kind": "VirtualMachine", "name": "pg", "uid": "v"}]},
        "spec": {"nodeName": "n", "schedulerName": "autoscale-scheduler", "containers": [
            {"name": "sidecar", "resources": {"requests": {"cpu": 9, "memory": "9Gi"}}},
            {"name": "neonvm-runner", "resources": {"requests": {"cpu": cpu, "memory": memory}}}]}}))
    .expect("has a name")
}

/// A scheduler began while a VM was to shrink whose guest was still on its way to the size before,
/// and its report was older.
#[test]
fn n16_a_new_scheduler_counts_what_a_pod_requests_for_its_guest() {
    let counted = |ledger: &Ledger| {
        let pod = ledger.pod("uid-pg-1").expect("is known");
        ledger.counted(&pod.view).mem.0 / GIB
    };
    let mut ledger = ledger(10, 40);
    ledger.pod_applied(requesting_pod("1", "5Gi", "{}"));
    ledger.vm_observed(resized(1, 2, 3, (2, 1)));
    assert_eq!(counted(&ledger), 5, "neither the report nor the spec");
    ledger.pod_applied(requesting_pod("1", "2Gi", "{}"));
    ledger.vm_observed(resized(2, 2, 2, (2, 2)));
    assert_eq!(counted(&ledger), 2, "it has shrunk");
    assert_eq!(reserved(&ledger).1, 11, "with what its sidecar requests");
    assert_eq!(ledger.audit(), Ok(()));
}

#[test]
fn what_over_commit_took_off_a_request_is_counted() {
    let told = |pod: PodView| (pod.announced.cpu.0, pod.announced.mem.0);
    let halved = requesting_pod("500m", "2Gi", r#"{"cpu":"2","memory":"1500m"}"#);
    assert_eq!(told(halved), (1000, 3 * GIB));
    let unreadable = requesting_pod("much", "2Gi", "{}");
    assert_eq!(told(unreadable), (1000, GIB), "as its annotation says");
}

/// The same where pods request nothing: approved, wanted and reported was less, and what the pod
/// says is in use, which is written before a guest grows, told of it.
#[test]
fn n16_a_new_scheduler_counts_what_a_pod_says_is_in_use() {
    let pod = |slots: u64| {
        let mut pod = vm_pod(Some(size_text(1_000, 2)));
        pod.announced = told_in_use(slots);
        pod
    };
    let mut ledger = ledger(10, 40);
    ledger.pod_applied(pod(3));
    ledger.vm_observed(resized(1, 2, 2, (2, 1)));
    assert_eq!(reserved(&ledger).1, 3);
    ledger.pod_applied(pod(2));
    ledger.vm_observed(resized(2, 2, 2, (2, 2)));
    assert_eq!(reserved(&ledger).1, 2);
    assert_eq!(ledger.audit(), Ok(()));
}

/// The watch of VMs is behind: the report of 4 GiB that the controller wrote first is to come.
///
/// Requirement: N06, N16
#[test]
fn pod_that_says_less_before_a_new_scheduler_saw_the_report_counts_as_before() {
    let pod = |slots: u64| {
        let mut pod = vm_pod(Some(size_text(1_000, 2)));
        pod.announced = told_in_use(slots);
        pod
    };
    let mut ledger = ledger(10, 40);
    ledger.pod_applied(pod(5));
    ledger.vm_observed(resized(1, 2, 3, (2, 1)));
    ledger.pod_applied(pod(2));
    assert_eq!(reserved(&ledger).1, 5);
    ledger.vm_observed(resized(2, 2, 4, (2, 1)));
    assert_eq!(reserved(&ledger).1, 5, "it may be of a guest that grows");
    for (version, gib) in [(3, 3), (4, 2)] {
        ledger.vm_observed(resized(version, 2, gib, (2, 1)));
        assert_eq!(reserved(&ledger).1, u128::from(gib), "it shrinks");
    }
    assert_eq!(ledger.audit(), Ok(()));
}

/// What is counted of a pod whose annotation says that so many slots are in use, whatever is
/// approved.
fn told_in_use(slots: u64) -> Resources {
    let resources = format!(
        r#"{{"cpus":{{"min":1,"max":8,"use":1}},"memorySlots":{{"min":1,"max":8,"use":{slots}}},"memorySlotSize":"1Gi"}}"#
    );
    let pod = json!({"metadata": {"name": "pg-1", "namespace": "d", "uid": "uid-pg-1",
            "labels": {"autoscaling.neon.tech/enabled": "true"}, "annotations": {"vm.neon.tech/resources": resources,
                "internal.autoscaling.neon.tech/resources-approved": size_text(1_000, 1)},
            "ownerReferences": [{"apiVersion": "vm.neon.tech/v1", "kind": "VirtualMachine", "name": "pg", "uid": "v"}]},
        "spec": {"nodeName": "n", "schedulerName": "autoscale-scheduler"}});
    PodView::read(&pod).expect("has a name").announced
}
