//! The node that a VM moves to, and its share there.

use protocol::core::Core as _;

use super::*;

#[test]
fn a_target_must_exist_and_stay_within_its_watermark() {
    // `a` may go where 3 fit below 0.8.
    for (nodes, expected) in [
        (&[("m", 10, 100)][..], true),
        (&[("m", 4, 100)][..], true),
        (&[("m", 3, 100)][..], false),
        (&[("m", 10, 1)][..], false),
    ] {
        let mut all = nodes.to_vec();
        all.push(("n", 10, 100));
        let mut rig = Rig::new(MigrationRule::default(), &all);
        for name in ["a", "b", "c"] {
            rig.put(0, name, whole(3, 1), Is::Free);
        }
        assert_eq!(!rig.picked(0).is_empty(), expected, "{nodes:?}");
    }
    // A node that takes nothing is no target, and one that comes up later is.
    let mut rig = Rig::new(MigrationRule::default(), &[("m", 10, 100), ("n", 10, 100)]);
    let mut closed = node("m", 10, 100);
    closed["spec"]["unschedulable"] = json!(true);
    rig.node(0, &closed);
    for name in ["a", "b", "c"] {
        rig.put(0, name, whole(3, 1), Is::Free);
    }
    assert!(rig.picked(0).is_empty());
    closed["spec"]["unschedulable"] = json!(false);
    closed["status"]["conditions"] = json!([{"type": "Ready", "status": "False"}]);
    rig.node(1, &closed);
    assert!((1..10).all(|at| rig.picked(at).is_empty()));
    rig.node(10, &node("m", 10, 100));
    assert!((10..=15).any(|at| rig.picked(at) == ["a"]));
}

#[test]
fn two_that_leave_do_not_count_on_the_same_room() {
    let mut rig = Rig::new(uncapped(), &[("m", 5, 100), ("n", 10, 100)]);
    for name in ["a", "b", "c"] {
        rig.put(0, name, whole(3, 1), Is::Free);
    }
    rig.put(0, "d", whole(1, 1), Is::Free);
    // Two would have to leave; below the watermark of 4 there is room for one of them, and for the
    // small one.
    assert_eq!(rig.picked(0), ["a"], "one relieves two above the watermark");
    rig.put(2, "e", whole(2, 1), Is::Plain);
    let picked = rig.picked(2);
    assert_eq!(picked, ["d"], "`b` and `c` have no room beside `a`");
    let note = rig.core.snapshot(S(2)).nodes["n"]["relief"].clone();
    assert_eq!(note["choice"]["passed"][0][1], "no_target");
}

#[test]
fn a_target_is_placed_apart_from_its_source() {
    let mut rig = Rig::new(MigrationRule::off(), &[("m", 10, 100), ("n", 10, 100)]);
    // Nearer to the peak of the score, so that it would be chosen.
    rig.put(0, "z", whole(3, 1), Is::Plain);
    rig.pod(0, &pod("a", whole(2, 1), Is::Source, "n"));
    let mut target = pod("a-2", whole(2, 1), Is::Target, "");
    let bound = |rig: &mut Rig| {
        let actions = rig.actions(0).into_iter();
        let nodes = actions.filter_map(|action| match action {
            Action::Bind { node, .. } => Some(node),
            _ => None,
        });
        nodes.collect::<Vec<_>>()
    };
    target["spec"]["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"] = json!([
        {"labelSelector": {"matchLabels": {"vm.neon.tech/name": "a"}}, "topologyKey": "kubernetes.io/hostname"}]);
    rig.pod(0, &target);
    assert_eq!(bound(&mut rig), ["m"]);
    // One that does not ask for it goes where it fits best.
    let mut rig = Rig::new(MigrationRule::off(), &[("m", 10, 100), ("n", 10, 100)]);
    rig.put(0, "z", whole(3, 1), Is::Plain);
    rig.pod(0, &pod("a", whole(2, 1), Is::Source, "n"));
    rig.pod(0, &pod("a-2", whole(2, 1), Is::Target, ""));
    assert_eq!(bound(&mut rig), ["n"]);
}

#[test]
fn first_by_name_is_the_target_among_equals() {
    let nodes = [("l", 10, 100), ("m", 10, 100), ("n", 10, 100)];
    let mut rig = Rig::new(MigrationRule::default(), &nodes);
    for name in ["a", "b", "c"] {
        rig.put(0, name, whole(3, 1), Is::Free);
    }
    let mut actions = std::iter::from_fn(|| rig.core.poll_action(S(0)));
    assert!(actions.any(|action| matches!(action, Action::CreateMigration { .. })));
    let note = rig.core.snapshot(S(0)).nodes["n"]["relief"].clone();
    assert_eq!(note["choice"]["picked"][0]["target"], "l", "{note}");
}
