//! Vectors of docs/compatibility/scheduler.md §7.7, pressure of both kinds, pauses, targets, and
//! what becomes of migrations.

mod lifecycle;
mod pauses;
mod targets;

use serde_json::json;

use super::rig::{GIB, Is, Rig, S, deletions, key, migration, node, pod, uncapped, whole};
use super::*;
use crate::config::Config;
use crate::core::decision::Limit;
use crate::core::event::{Event, RemovalCause};
use crate::core::view::NodeView;

/// Pods by age with their size, and who is picked.
type Vector = (&'static [(&'static str, u32, Is)], &'static [&'static str]);

/// Vectors of docs/compatibility/scheduler.md §7.7 but for the one of migrations already requested,
/// which every one of these is when looked at again.
const VECTORS: [Vector; 7] = [
    (
        &[("a", 3, Is::Free), ("b", 3, Is::Free), ("c", 2, Is::Free)],
        &[],
    ),
    (
        &[("a", 3, Is::Free), ("b", 3, Is::Free), ("c", 3, Is::Free)],
        &["a"],
    ),
    (
        &[
            ("a", 1, Is::Free),
            ("b", 1, Is::Free),
            ("c", 4, Is::Free),
            ("d", 4, Is::Free),
        ],
        &["a", "b"],
    ),
    (
        &[
            ("a", 3, Is::Free),
            ("b", 3, Is::Free),
            ("c", 3, Is::Source),
            ("d", 1, Is::Free),
        ],
        &[],
    ),
    (&[("a", 9, Is::Free), ("b", 1, Is::Free)], &["b"]),
    (
        &[
            ("a", 3, Is::NotOptedIn),
            ("b", 3, Is::Free),
            ("c", 3, Is::Free),
        ],
        &["b"],
    ),
    (&[("a", 5, Is::Plain), ("b", 5, Is::Plain)], &[]),
];

#[test]
fn n21_vectors_of_migration_with_either_rule_and_resource() {
    for (pods, expected) in VECTORS {
        for rule in [MigrationRule::deployed(), uncapped()] {
            for by_cpu in [true, false] {
                let (cpu, gib) = if by_cpu { (10, 1000) } else { (1000, 10) };
                let mut rig = Rig::new(rule, &[("m", 100, 100), ("n", cpu, gib)]);
                for (name, amount, is) in pods {
                    let size = if by_cpu {
                        whole(*amount, 1)
                    } else {
                        whole(1, u64::from(*amount))
                    };
                    rig.put(0, name, size, *is);
                }
                assert_eq!(
                    rig.picked(0),
                    expected,
                    "{pods:?} {:?} cpu: {by_cpu}",
                    rule.mode
                );
                assert!(
                    rig.picked(0).is_empty(),
                    "{pods:?}: what was picked is accounted for"
                );
            }
        }
    }
}

#[test]
fn n21_one_is_chosen_as_soon_as_the_watermark_is_passed() {
    let mut rig = Rig::new(MigrationRule::default(), &[("m", 100, 100), ("n", 10, 100)]);
    for name in ["a", "b", "c", "d"] {
        rig.put(0, name, whole(2, 1), Is::Free);
    }
    assert!(rig.picked(0).is_empty(), "at the watermark, not above it");
    rig.put(1, "e", whole(1, 1), Is::Free);
    assert_eq!(rig.picked(1), ["a"]);
    for at in 2..20 {
        assert!(
            rig.picked(at).iter().all(|again| again == "a"),
            "nobody else"
        );
    }
}

#[test]
fn n21_only_so_many_leave_a_node_at_a_time() {
    let mut rig = Rig::new(MigrationRule::default(), &[("m", 100, 100), ("n", 10, 100)]);
    for name in ["a", "b", "c", "d", "e"] {
        rig.put(0, name, whole(2, 1), Is::Free);
    }
    rig.put(0, "f", whole(2, 1), Is::Free);
    // Four too many: two would have to leave.
    assert_eq!(rig.picked(0), ["a"]);
    rig.migration(1, "a", "Running");
    assert!(rig.picked(2).is_empty());
    rig.pod(2, &pod("a", whole(2, 1), Is::Source, "n"));
    rig.migration(10, "a", "Succeeded");
    rig.gone(11, "a");
    assert_eq!(rig.picked(11), ["b"], "the next");
}

#[test]
fn n22_logical_and_capacity_pressure_are_kept_apart() {
    let mut rig = Rig::new(MigrationRule::off(), &[("m", 100, 100), ("n", 10, 100)]);
    rig.put(0, "a", whole(5, 1), Is::Free);
    rig.put(0, "b", whole(4, 1), Is::Free);
    assert_eq!(rig.pressure(), [1_000, 0, 0]);
    // One of three is granted; two are denied.
    assert_eq!(rig.ask(1, "b", whole(4, 1), whole(7, 1)), whole(5, 1));
    assert_eq!(rig.pressure(), [2_000, 2_000, 0]);
    // A denied that no node of that size could ever meet counts as far as it could.
    rig.ask(2, "b", whole(5, 1), whole(60, 1));
    assert_eq!(rig.pressure(), [2_000, 5_000, 0]);
    // It asks for no more than it has.
    rig.ask(3, "b", whole(5, 1), whole(5, 1));
    assert_eq!(rig.pressure(), [2_000, 0, 0]);
    // Or it says nothing any more.
    rig.ask(4, "b", whole(5, 1), whole(6, 1));
    assert_eq!(rig.pressure(), [2_000, 1_000, 0]);
    rig.actions(23);
    assert_eq!(rig.pressure(), [2_000, 1_000, 0]);
    rig.core.take_touched();
    rig.actions(24);
    assert!(rig.core.take_touched().contains("n"), "it is shown anew");
    assert_eq!(rig.pressure(), [2_000, 0, 0]);
    let refused = rig
        .core
        .denied_increase(&key("b"))
        .expect("what limited it stays known");
    assert_eq!(refused.decision.limits().len(), 1);
    let dump = rig.core.snapshot(S(24));
    assert_eq!(dump.nodes["n"]["pressure"]["logical"]["cpu"], 2_000);
    assert_eq!(dump.refused["d/b"]["limits"], json!([["cpu", "no_room"]]));
    rig.tell(25, Event::VmDeleted(key("b"), "b".into()));
    assert!(rig.core.denied_increase(&key("b")).is_none());
    assert_eq!(rig.core.ledger().audit(), Ok(()));
}

#[test]
fn n22_what_is_denied_counts_unless_the_deployed_rule_is_wanted() {
    for (rule, expected) in [
        (uncapped(), &["a", "b"][..]),
        (MigrationRule::deployed(), &["a"][..]),
    ] {
        let mut rig = Rig::new(rule, &[("m", 100, 100), ("n", 10, 100)]);
        for name in ["a", "b", "c", "d", "e"] {
            rig.put(0, name, whole(2, 1), Is::Free);
        }
        // Two above the watermark: one leaves.
        assert_eq!(rig.picked(0), ["a"]);
        rig.ask(2, "e", whole(2, 1), whole(4, 1));
        let mut picked = vec!["a".to_owned()];
        picked.extend(rig.picked(3));
        picked.dedup();
        assert_eq!(picked, expected, "{:?}", rule.mode);
    }
}

#[test]
fn n23_migrations_stop_once_they_account_for_the_pressure() {
    for over in 1..=12_u32 {
        let mut rig = Rig::new(uncapped(), &[("m", 100, 100), ("n", 100, 100)]);
        let sizes = [1, 3, 2, 5, 1, 4, 2, 2];
        let names = ["a", "b", "c", "d", "e", "f", "g", "h"];
        rig.put(0, "z", whole(80 + over - 20, 1), Is::Plain);
        for (name, size) in names.iter().zip(sizes) {
            rig.put(0, name, whole(size, 1), Is::Free);
        }
        let picked = rig.picked(0);
        let freed = |count: usize| sizes.iter().take(count).sum::<u32>();
        assert!(freed(picked.len()) >= over, "{over}: {picked:?}");
        assert!(
            freed(picked.len() - 1) < over,
            "{over}: one too many in {picked:?}"
        );
        assert_eq!(picked, names[..picked.len()]);
        let [logical, capacity, accounted] = rig.pressure();
        assert!(accounted >= logical + capacity);
        for at in 1..10 {
            let again = rig.picked(at);
            assert!(
                again.iter().all(|pod| picked.contains(pod)),
                "{over}: {again:?}"
            );
        }
    }
}

#[test]
fn n23_what_a_leaving_vm_was_denied_is_accounted_for_too() {
    let mut rig = Rig::new(uncapped(), &[("m", 100, 100), ("n", 10, 100)]);
    for name in ["a", "b", "c", "d", "e"] {
        rig.put(0, name, whole(2, 1), Is::NotOptedIn);
    }
    rig.pod(0, &pod("a", whole(2, 1), Is::Free, "n"));
    rig.ask(0, "a", whole(2, 1), whole(5, 1));
    assert_eq!(rig.picked(2), ["a"]);
    assert_eq!(rig.pressure(), [2_000, 3_000, 5_000]);
    // While it moves it is granted nothing, and what it wants makes no pressure here.
    rig.migration(3, "a", "Running");
    rig.pod(3, &pod("a", whole(2, 1), Is::Source, "n"));
    assert_eq!(rig.pressure(), [2_000, 3_000, 5_000]);
    assert_eq!(rig.ask(4, "a", whole(2, 1), whole(5, 1)), whole(2, 1));
    assert_eq!(rig.pressure(), [2_000, 0, 2_000]);
}

#[test]
fn after_a_restart_the_objects_say_who_is_leaving() {
    let mut rig = Rig::new(MigrationRule::default(), &[("m", 100, 100), ("n", 10, 100)]);
    // Begun by the process before, or by somebody else, and not shown by its pod yet.
    let under_way = migration("a", "u1", true, json!({"phase": "Pending"}));
    rig.tell(0, Event::MigrationsListed(vec![under_way.clone()]));
    for name in ["a", "b", "c"] {
        rig.put(0, name, whole(3, 1), Is::Free);
    }
    assert!(rig.picked(0).is_empty());
    assert_eq!(rig.pressure(), [1_000, 0, 3_000]);
    // Its target pod is no candidate, and counts.
    rig.pod(1, &pod("a-2", whole(3, 1), Is::Target, "m"));
    rig.pod(1, &pod("a", whole(3, 1), Is::Source, "n"));
    assert_eq!(rig.pressure(), [1_000, 0, 3_000]);
    assert_eq!(rig.core.ledger().load("m").reserved.cpu, 3_000);
    // A list without it says that it is gone.
    rig.tell(2, Event::MigrationsListed(vec![]));
    rig.pod(2, &pod("a", whole(3, 1), Is::Free, "n"));
    rig.gone(2, "a-2");
    assert_eq!(rig.picked(3), ["b"], "`a` is left alone for a while");
}

#[test]
fn a_vm_that_moves_counts_on_both_nodes_and_grows_on_neither() {
    let mut rig = Rig::new(MigrationRule::off(), &[("m", 10, 100), ("n", 10, 100)]);
    rig.pod(0, &pod("a", whole(4, 2), Is::Source, "n"));
    rig.pod(0, &pod("a-2", whole(4, 2), Is::Target, "m"));
    let reserved = |rig: &Rig, node: &str| rig.core.ledger().load(node).reserved;
    let four = Both::new(4_000, u128::from(2 * GIB));
    assert_eq!((reserved(&rig, "n"), reserved(&rig, "m")), (four, four));
    assert_eq!(rig.core.ledger().load("n").migrating, four);
    assert_eq!(rig.core.ledger().load("m").migrating, Both::default());
    // There is room on both, and neither pod is granted any.
    for name in ["a", "a-2"] {
        assert_eq!(
            rig.ask(1, name, whole(4, 2), whole(6, 3)),
            whole(4, 2),
            "{name}"
        );
        let limits = rig
            .core
            .denied_increase(&key("a"))
            .expect("it was denied")
            .decision
            .limits();
        assert!(
            limits.iter().all(|(_, limit)| *limit == Limit::Migrating),
            "{limits:?}"
        );
        assert_eq!(limits.len(), 2);
    }
    // What is given back is taken at once, on both: the agent has patched the VM before it tells.
    rig.vm(2, "a", whole(3, 1));
    assert_eq!(rig.ask(2, "a", whole(4, 2), whole(3, 1)), whole(3, 1));
    let view = rig.core.ledger().vm(&key("a")).expect("is there");
    assert_eq!(
        view.view.approved_text.as_deref(),
        Some(r#"{"vCPUs":3,"mem":"1Gi"}"#)
    );
    // It has moved: counted there alone, and it grows again.
    rig.gone(3, "a");
    rig.tell(
        3,
        Event::PodApplied(PodView::read(&pod("a-2", whole(3, 1), Is::Free, "m")).expect("reads")),
    );
    assert_eq!(reserved(&rig, "n"), Both::default());
    assert_eq!(rig.ask(4, "a-2", whole(3, 1), whole(6, 2)), whole(6, 2));
    assert_eq!(reserved(&rig, "m").cpu, 6_000);
    assert_eq!(rig.core.ledger().audit(), Ok(()));
}

#[test]
fn one_node_alone_migrates_nothing_and_says_nothing() {
    for rule in [MigrationRule::default(), MigrationRule::deployed()] {
        let mut rig = Rig::new(rule, &[("n", 10, 100)]);
        for name in ["a", "b", "c"] {
            rig.put(0, name, whole(3, 1), Is::Free);
        }
        let mut said = rig.actions(0);
        // That they came by themselves is another matter.
        said.retain(|action| !matches!(action, Action::WarnOnPod { .. }));
        assert_eq!(said, [], "{said:?}");
        assert_eq!(rig.pressure(), [1_000, 0, 0], "it shows nevertheless");
    }
}

#[test]
fn a_node_over_its_budget_is_told_once_in_a_while() {
    let mut rig = Rig::new(MigrationRule::default(), &[("n", 10, 100)]);
    let told = |rig: &mut Rig, at: u64| {
        let actions = rig.actions(at).into_iter();
        let notes = actions.filter_map(|action| match action {
            Action::WarnOnNode { node, warning } => Some((node, warning)),
            _ => None,
        });
        notes.collect::<Vec<_>>()
    };
    rig.put(0, "a", whole(10, 100), Is::Plain);
    assert_eq!(told(&mut rig, 0), []);
    rig.put(1, "b", whole(1, 2), Is::Plain);
    let over = NodeWarning::OverBudget(Both::new(1_000, u128::from(2 * GIB)));
    assert_eq!(told(&mut rig, 1), [("n".to_owned(), over)]);
    rig.put(2, "c", whole(1, 1), Is::Plain);
    assert_eq!(told(&mut rig, 2), []);
    rig.put(601, "d", whole(1, 1), Is::Plain);
    assert_eq!(told(&mut rig, 601).len(), 1);
}

#[test]
fn nothing_is_migrated_before_migrations_were_listed() {
    let mut rig = Rig::new(MigrationRule::default(), &[("m", 100, 100), ("n", 10, 100)]);
    let settings = Config::default().settings(true, true);
    rig.core = crate::core::Core::new(settings);
    for event in [
        Event::NodesListed(
            ["m", "n"]
                .map(|name| NodeView::read(&node(name, 10, 100)).expect("reads"))
                .into(),
        ),
        Event::PodsListed(vec![]),
        Event::VmsListed(vec![]),
    ] {
        rig.tell(0, event);
    }
    rig.put(0, "a", whole(4, 1), Is::Free);
    rig.put(0, "b", whole(6, 1), Is::Free);
    assert!((0..100).all(|at| rig.picked(at).is_empty()));
    assert!(rig.core.is_ready(), "permits do not wait for it");
    rig.tell(100, Event::MigrationsListed(vec![]));
    assert_eq!(rig.picked(100), ["a"]);
}
