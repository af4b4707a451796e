//! Vectors of docs/compatibility/scheduler.md §7.1 and §7.6, and the rules of counting and
//! holding.

mod holds;
mod reports;

use serde_json::{Value, json};

use super::*;
use crate::core::score::Curve;
use crate::core::view::{PodProblem, PodRole, VmView};

const GIB: u64 = 1 << 30;

fn rules() -> Rules {
    Rules {
        scheduler_name: "autoscale-scheduler".into(),
        ignored_namespaces: BTreeSet::from(["placeholders".to_owned()]),
        watermark_ppm: 800_000,
        curve: Curve {
            min_usage_score: 0.5,
            max_usage_score: 0.0,
            score_peak: 0.8,
        },
        count_plugged: true,
        fairness: crate::core::rules::Fairness::default(),
        overcommit: crate::core::overcommit::OvercommitPolicy::default(),
    }
}

fn node(cpu: u64, gib: u64) -> NodeView {
    NodeView {
        name: "n".into(),
        total: Both::new(cpu * 1000, gib * GIB),
        labels: BTreeMap::new(),
        cordoned: false,
        unready: false,
        max_overcommit_milli: Both::same(u32::MAX),
        problem: None,
    }
}

fn ledger(cpu: u64, gib: u64) -> Ledger {
    let mut ledger = Ledger::new(rules());
    ledger.node_applied(node(cpu, gib));
    ledger
}

fn plain(namespace: &str, name: &str, cpu: u64, gib: u64, node: Option<&str>) -> PodView {
    PodView::read(&json!({
        "metadata": {"name": name, "namespace": namespace, "uid": format!("uid-{name}")},
        "spec": {"nodeName": node.unwrap_or(""), "schedulerName": "autoscale-scheduler",
            "containers": [{"resources": {"requests": {"cpu": cpu, "memory": gib * GIB}}}]}}))
    .expect("has a name")
}

fn on_n(name: &str, cpu: u64, gib: u64) -> PodView {
    plain("d", name, cpu, gib, Some("n"))
}

fn size_text(milli: u32, gib: u64) -> String {
    serde_json::to_string(&Resources::new(milli, gib * GIB)).expect("encodes")
}

fn vm_pod(approved: Option<String>) -> PodView {
    let mut annotations = json!({"vm.neon.tech/resources":
        r#"{"cpus":{"min":1,"max":8,"use":1},"memorySlots":{"min":1,"max":8,"use":1},"memorySlotSize":"1Gi"}"#});
    if let Some(approved) = approved {
        annotations["internal.autoscaling.neon.tech/resources-approved"] = json!(approved);
    }
    PodView::read(&json!({
        "metadata": {"name": "pg-1", "namespace": "d", "uid": "uid-pg-1", "annotations": annotations,
            "labels": {"autoscaling.neon.tech/enabled": "true"},
            "ownerReferences": [{"apiVersion": "vm.neon.tech/v1", "kind": "VirtualMachine", "name": "pg", "uid": "v"}]},
        "spec": {"nodeName": "n", "schedulerName": "autoscale-scheduler"}}))
    .expect("has a name")
}

fn vm(version: u64, approved: Option<String>) -> VmView {
    let mut object: Value = json!({
        "metadata": {"name": "pg", "namespace": "d", "uid": "v", "resourceVersion": version.to_string(),
            "labels": {"autoscaling.neon.tech/enabled": "true"}, "annotations": {}},
        "spec": {"guest": {"cpus": {"min": 1, "max": 8, "use": 1},
            "memorySlots": {"min": 1, "max": 8, "use": 1}, "memorySlotSize": "1Gi"}}});
    if let Some(approved) = approved {
        object["metadata"]["annotations"]["internal.autoscaling.neon.tech/resources-approved"] =
            json!(approved);
    }
    VmView::read(&object).expect("has a name")
}

fn vm_name() -> NamespacedName {
    NamespacedName {
        namespace: "d".into(),
        name: "pg".into(),
    }
}

fn reserved(ledger: &Ledger) -> (u128, u128) {
    let load = ledger.load("n");
    (load.reserved.cpu, load.reserved.mem / u128::from(GIB))
}

#[test]
fn vectors_of_basic_sums() {
    let mut ledger = ledger(10, 40);
    ledger.pod_applied(on_n("a", 2, 8));
    ledger.pod_applied(on_n("b", 1, 4));
    assert_eq!(reserved(&ledger), (3_000, 12));
    let watermark = ledger.watermark(ledger.node("n").expect("is there"));
    assert_eq!(watermark, Both::new(8_000, 32 * GIB));
    ledger.pod_deleted("uid-b");
    assert_eq!(reserved(&ledger), (2_000, 8));
    assert_eq!(
        ledger.load("n").committed,
        Both::new(2_000, u128::from(8 * GIB))
    );

    let swap = |ledger: &mut Ledger| {
        ledger.pod_deleted("uid-a");
        ledger.pod_applied(on_n("c", 3, 12));
    };
    let mut copy = ledger.clone();
    swap(&mut copy);
    assert_eq!(
        (reserved(&copy), reserved(&ledger)),
        ((3_000, 12), (2_000, 8))
    );
    swap(&mut ledger);
    assert_eq!(reserved(&ledger), (3_000, 12));
    assert_eq!(ledger.audit(), Ok(()));
}

#[test]
fn vectors_of_the_filter() {
    let p = |cpu| plain("d", "p", cpu, 1, None);
    let a = on_n("a", 6, 1);
    let full = |cpu: u128| Fit::NoRoom(Both::new(cpu, 0));

    let mut one = ledger(10, 40);
    one.pod_applied(a.clone());
    assert_eq!(one.filter(&p(4), "n", [&a]), Fit::Fits);
    assert_eq!(one.filter(&p(5), "n", [&a]), full(1_000));

    let b = on_n("b", 3, 1);
    let mut two = one.clone();
    two.pod_applied(b.clone());
    assert_eq!(
        two.filter(&p(4), "n", [&a]),
        Fit::Fits,
        "b is a victim of a dry run"
    );
    assert_eq!(two.filter(&p(4), "n", [&a, &b]), full(3_000));

    let x = plain("placeholders", "x", 3, 1, Some("n"));
    assert_eq!(
        one.filter(&p(2), "n", [&a, &x]),
        full(1_000),
        "not known, counted by its object"
    );
    let mut known = one.clone();
    known.pod_applied(x.clone());
    assert_eq!(
        reserved(&known),
        (6_000, 1),
        "an ignored namespace is not in the sums"
    );
    assert_eq!(known.filter(&p(2), "n", [&a, &x]), full(1_000));
    assert_eq!(known.fits(&p(2), "n"), full(1_000));

    // Known to us with 8 approved by now; the object offered says 6.
    let mut newer = ledger(10, 40);
    newer.pod_applied(vm_pod(Some(size_text(8_000, 1))));
    let stale = vm_pod(Some(size_text(6_000, 1)));
    assert_eq!(newer.filter(&p(3), "n", [&stale]), full(1_000));

    let foreign = PodView {
        scheduler_name: "default-scheduler".into(),
        ..p(1)
    };
    assert_eq!(one.filter(&foreign, "n", [&a]), Fit::ForeignScheduler);
    assert_eq!(one.filter(&p(1), "elsewhere", []), Fit::UnknownNode);
    let unreadable = PodView {
        size: Err(PodProblem::NoVmResources),
        ..p(1)
    };
    assert!(matches!(
        one.filter(&unreadable, "n", []),
        Fit::Unreadable(_)
    ));
    // An unreadable pod that we do not know is skipped, one that we know counts at its most.
    assert_eq!(
        one.filter(
            &p(4),
            "n",
            [
                &a,
                &PodView {
                    uid: "z".into(),
                    ..unreadable
                }
            ]
        ),
        Fit::Fits
    );
}

#[test]
fn a_pod_counts_at_the_largest_of_what_may_be_true() {
    let mut ledger = ledger(10, 40);
    ledger.pod_applied(vm_pod(None));
    assert_eq!(reserved(&ledger), (1_000, 1), "its use");
    ledger.vm_observed(vm(5, Some(size_text(2_000, 3))));
    assert_eq!(
        reserved(&ledger),
        (2_000, 3),
        "approved on the VM, not yet copied to the pod"
    );
    ledger.pod_applied(vm_pod(Some(size_text(4_000, 2))));
    assert_eq!(reserved(&ledger), (4_000, 3), "field by field");
    ledger.set_claim(&vm_name(), Some(Resources::new(1_000, 5 * GIB)));
    assert_eq!(reserved(&ledger), (4_000, 5), "what the agent says");
    ledger.add_hold(
        &vm_name(),
        GrantHold {
            base: 5,
            target: Resources::new(6_000, GIB),
        },
    );
    assert_eq!(reserved(&ledger), (6_000, 5), "what is being written");
    assert_eq!(ledger.audit(), Ok(()));
    ledger.vm_deleted(&vm_name(), "v");
    assert_eq!(
        reserved(&ledger),
        (6_000, 5),
        "the guest may run on until its pod is gone"
    );
    ledger.pod_deleted("uid-pg-1");
    assert_eq!(reserved(&ledger), (0, 0));
}

#[test]
fn what_is_plugged_counts_for_the_pod_it_was_reported_of() {
    for (pod, expected) in [("pg-1", (4_000, 6)), ("pg-0", (2_000, 3))] {
        let mut ledger = ledger(10, 40);
        ledger.pod_applied(vm_pod(None));
        let mut view = vm(5, Some(size_text(2_000, 3)));
        view.plugged = (pod.to_owned(), Resources::new(4_000, 6 * GIB));
        ledger.vm_observed(view);
        assert_eq!(reserved(&ledger), expected, "{pod}");
    }
}

#[test]
fn an_older_vm_state_is_ignored() {
    let mut ledger = ledger(10, 40);
    ledger.pod_applied(vm_pod(None));
    ledger.vm_observed(vm(9, Some(size_text(4_000, 4))));
    assert!(!ledger.vm_observed(vm(7, Some(size_text(1_000, 1)))));
    assert_eq!(reserved(&ledger), (4_000, 4));
}

#[test]
fn n16_no_order_of_the_same_states_gives_other_sums() {
    let states = [
        vm(5, Some(size_text(2_000, 2))),
        vm(6, Some(size_text(4_000, 3))),
    ];
    for order in [[0, 1], [1, 0]] {
        for pod_first in [true, false] {
            let mut ledger = ledger(10, 40);
            if pod_first {
                ledger.pod_applied(vm_pod(None));
            }
            for at in order {
                ledger.vm_observed(states[at].clone());
            }
            if !pod_first {
                ledger.pod_applied(vm_pod(None));
            }
            assert_eq!(reserved(&ledger), (4_000, 3));
        }
    }
}

#[test]
fn pods_of_missing_nodes_are_parked_and_count_when_the_node_appears() {
    let mut ledger = Ledger::new(rules());
    ledger.pod_applied(on_n("a", 2, 2));
    assert_eq!(
        ledger.fits(&plain("d", "p", 1, 1, None), "n"),
        Fit::UnknownNode
    );
    ledger.node_applied(node(2, 40));
    assert_eq!(
        ledger.fits(&plain("d", "p", 1, 1, None), "n"),
        Fit::NoRoom(Both::new(1_000, 0))
    );
    ledger.node_deleted("n");
    assert_eq!(reserved(&ledger), (2_000, 2));
}

#[test]
fn a_name_given_to_a_new_pod_ends_the_old_one() {
    let mut ledger = ledger(10, 40);
    ledger.pod_applied(on_n("a", 2, 2));
    ledger.pod_applied(PodView {
        uid: "other".into(),
        ..on_n("a", 3, 3)
    });
    assert_eq!(reserved(&ledger), (3_000, 3));
    ledger.pod_deleted("uid-a");
    assert_eq!(
        reserved(&ledger),
        (3_000, 3),
        "a late event about the old one changes nothing"
    );
}

#[test]
fn room_epochs_grow_when_room_may_have_appeared_and_not_otherwise() {
    let mut ledger = ledger(10, 40);
    let start = ledger.room_epoch();
    ledger.pod_applied(on_n("a", 2, 2));
    ledger.pod_applied(on_n("a", 3, 3));
    assert_eq!(ledger.room_epoch(), start, "it only grew");
    ledger.pod_applied(on_n("a", 3, 2));
    let shrunk = ledger.room_epoch();
    assert!(shrunk > start);
    ledger.pod_deleted("uid-a");
    assert!(ledger.room_epoch() > shrunk);
}

#[test]
fn the_larger_node_wins_between_equally_full_ones() {
    let mut ledger = ledger(10, 10);
    ledger.node_applied(NodeView {
        name: "big".into(),
        ..node(20, 20)
    });
    ledger.pod_applied(on_n("a", 3, 3));
    ledger.pod_applied(PodView {
        node: Some("big".into()),
        ..on_n("b", 7, 7)
    });
    let pod = plain("d", "p", 1, 1, None);
    assert_eq!(
        (ledger.score(&pod, "n"), ledger.score(&pod, "big")),
        (37, 75)
    );
    assert_eq!(ledger.score(&pod, "elsewhere"), 0);
}

/// The deployed plugin never forgets the largest node it saw, so that all scores stay low once it
/// has left.
#[test]
fn scores_do_not_remember_a_larger_node_that_has_left() {
    let pod = plain("default", "p", 1, 2, None);
    let small = ledger(4, 16);
    let mut ledger = small.clone();
    let large = NodeView {
        name: "large".into(),
        ..node(64, 256)
    };
    ledger.node_applied(large);
    assert!(ledger.score(&pod, "n") < small.score(&pod, "n"));
    ledger.node_deleted("large");
    assert_eq!(ledger.score(&pod, "n"), small.score(&pod, "n"));
}

#[test]
fn nothing_is_kept_of_a_vm_whose_pods_are_gone() {
    let mut ledger = ledger(10, 10);
    ledger.pod_applied(vm_pod(None));
    assert_eq!(ledger.vm_pods.values().count(), 1);
    ledger.pod_deleted("uid-pg-1");
    assert!(ledger.vm_pods.values().next().is_none());
}
