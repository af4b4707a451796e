//! Holds of grants and bindings, and the ends of pods.

use super::*;

#[test]
fn a_grant_hold_ends_only_when_a_later_version_is_seen() {
    let mut ledger = ledger(10, 40);
    ledger.pod_applied(vm_pod(None));
    ledger.vm_observed(vm(5, Some(size_text(1_000, 1))));
    let hold = GrantHold {
        base: 5,
        target: Resources::new(3_000, 3 * GIB),
    };
    ledger.add_hold(&vm_name(), hold);
    assert_eq!(reserved(&ledger), (3_000, 3));
    // Stale and repeated states prove nothing.
    assert!(!ledger.vm_observed(vm(4, Some(size_text(1_000, 1)))));
    assert!(!ledger.vm_observed(vm(5, Some(size_text(1_000, 1)))));
    ledger.pod_applied(vm_pod(Some(size_text(1_000, 1))));
    assert_eq!(reserved(&ledger), (3_000, 3));
    // A later one does, whatever it says.
    assert!(ledger.vm_observed(vm(6, Some(size_text(2_000, 2)))));
    assert_eq!(reserved(&ledger), (2_000, 2));
}

#[test]
fn bind_holds_count_until_the_pod_is_seen_bound_or_gone() {
    let mut ledger = ledger(10, 40);
    ledger.pod_applied(plain("d", "a", 2, 2, None));
    assert_eq!(reserved(&ledger), (0, 0));
    ledger.set_bind_hold("uid-a", Some("n".into()));
    assert_eq!(reserved(&ledger), (2_000, 2));
    ledger.pod_applied(plain("d", "a", 2, 2, None));
    assert_eq!(
        reserved(&ledger),
        (2_000, 2),
        "an event from before the binding changes nothing"
    );
    ledger.pod_applied(on_n("a", 2, 2));
    assert_eq!(
        ledger.pod("uid-a").and_then(|pod| pod.bind_hold.clone()),
        None
    );
    assert_eq!(reserved(&ledger), (2_000, 2));

    ledger.pod_applied(plain("d", "b", 3, 3, None));
    ledger.set_bind_hold("uid-b", Some("n".into()));
    ledger.set_bind_hold("uid-b", None);
    ledger.set_bind_hold("uid-b", None);
    assert_eq!(
        reserved(&ledger),
        (2_000, 2),
        "given up, twice without effect"
    );
    ledger.set_bind_hold("uid-b", Some("n".into()));
    ledger.pod_deleted("uid-b");
    assert_eq!(reserved(&ledger), (2_000, 2));
    assert_eq!(ledger.audit(), Ok(()));
}

#[test]
fn ended_pods_take_nothing_and_leaving_ones_take_room_until_gone() {
    let mut ledger = ledger(10, 40);
    let pod = on_n("a", 2, 2);
    ledger.pod_applied(PodView {
        deleting: true,
        ..pod.clone()
    });
    assert_eq!(reserved(&ledger), (2_000, 2));
    ledger.pod_applied(PodView {
        terminal: true,
        ..pod
    });
    assert_eq!(reserved(&ledger), (0, 0));
    let migrating = PodView {
        role: PodRole::Source,
        ..vm_pod(None)
    };
    ledger.pod_applied(migrating);
    assert_eq!(ledger.load("n").migrating.cpu, 1_000);
}
