//! Upgrades, their halt and their way back.

use proptest::prelude::*;
use protocol::policy::Upgrade;
use protocol::time::Span;

use super::world::{BROKEN, Change, World, template};

/// Requirement: V16
#[test]
fn v16_new_template_changes_no_member_before_an_upgrade() {
    let mut world = World::up(3);
    let members = world.members();
    world.edit(|set| set.spec.template.spec = template("app:2"));
    world.settle();
    assert_eq!(world.members(), members);
    let status = world.status();
    assert_eq!((status.version, status.newest), (Some(1), Some(2)));
    world.scale(4);
    world.settle();
    assert_eq!(
        world.versions(),
        [1, 1, 1, 1],
        "nor does a new member get it"
    );
}

/// Requirement: V16
#[test]
fn v16_members_are_replaced_one_by_one_each_when_the_last_is_ready() {
    let mut world = World::up(3);
    assert_eq!(world.upgrade("app:2"), 2);
    let mut least = usize::MAX;
    for _ in 0..6_000 {
        world.run(Span::from_millis(20));
        least = least.min(world.up_count());
    }
    assert_eq!(least, 2, "one at a time");
    assert_eq!(world.versions(), [2, 2, 2]);
    let order: Vec<Change> = world.changes.iter().map(|(_, it)| it.clone()).collect();
    let expected = (0..3).flat_map(|ordinal| {
        let create = Change::Create {
            ordinal,
            version: 2,
        };
        [Change::Delete { ordinal }, create]
    });
    assert_eq!(order, expected.collect::<Vec<_>>());
    let deletions = world.changes.iter().step_by(2).map(|(at, _)| *at);
    let creations = world.changes.iter().skip(1).step_by(2).map(|(at, _)| *at);
    for (made, next) in creations.zip(deletions.skip(1)) {
        assert!(
            next.since(made) >= Span::from_secs(15),
            "boots, then stays up"
        );
    }
    let status = world.status();
    assert_eq!((status.version, status.previous), (Some(2), Some(1)));
    assert_eq!((status.updated_replicas, status.upgrade), (3, None));
}

/// Requirement: V16
#[test]
fn v16_upgrade_halts_at_a_member_that_does_not_come_up_and_is_undone() {
    let mut world = World::up(3);
    let before = world.members();
    let version = world.upgrade(BROKEN);
    world.run(Span::from_secs(800));
    assert_eq!(world.versions(), [version, 1, 1]);
    assert_eq!(
        world.members()[1..],
        before[1..],
        "the others are as they were"
    );
    let why = world.condition("UpgradeHalted").expect("a halt");
    assert!(why.contains("web-0 is not ready after 600 s"), "{why}");
    let status = world.status();
    assert_eq!((status.version, status.updated_replicas), (Some(1), 1));
    world.scale(4);
    world.settle();
    assert_eq!(
        world.versions(),
        [version, 1, 1, 1],
        "new members get what works"
    );

    world.edit(|set| set.spec.version = Some(1));
    world.settle();
    assert_eq!(world.versions(), [1, 1, 1, 1]);
    assert_eq!(world.members()[1..3], before[1..], "only one was replaced");
    assert_eq!(world.condition("UpgradeHalted"), None);
    assert_eq!(world.status().upgrade, None);
    assert_eq!(world.up_count(), 4);
}

/// Requirement: V16
#[test]
fn v16_upgrade_halts_at_once_at_a_member_that_ends_or_restarts() {
    type Fault = fn(&mut protocol::vm::VirtualMachine);
    let faults: [(&str, Fault); 2] = [
        ("has ended", |vm| {
            vm.status.get_or_insert_default().phase = protocol::vm::VmPhase::Failed;
        }),
        ("was restarted 2 times", |vm| {
            vm.status.get_or_insert_default().restart_count = 2;
        }),
    ];
    for (text, fault) in faults {
        let mut world = World::up(2);
        let version = world.upgrade("app:2");
        while world.versions() != [version, 1] {
            world.run(Span::from_millis(100));
        }
        world.edit_vm(0, fault);
        world.run(Span::from_secs(1));
        let why = world.condition("UpgradeHalted").expect(text);
        assert!(why.contains(text), "{why}");
        world.settle();
        assert_eq!(world.versions(), [version, 1], "it stays for a look at it");
    }
}

#[test]
fn undo_of_a_whole_upgrade_brings_the_version_before_back() {
    let mut world = World::up(2);
    world.upgrade("app:2");
    world.settle();
    assert_eq!(world.versions(), [2, 2]);
    let previous = world.status().previous;
    world.edit(|set| set.spec.version = previous);
    world.settle();
    assert_eq!(world.versions(), [1, 1]);
    let status = world.status();
    assert_eq!((status.version, status.previous), (Some(1), Some(2)));
}

#[test]
fn version_that_is_not_kept_changes_nothing() {
    let mut world = World::up(2);
    let members = world.members();
    world.edit(|set| set.spec.version = Some(9));
    world.settle();
    assert_eq!(world.members(), members);
    let why = world.condition("UpgradeHalted").expect("a refusal");
    assert!(why.contains("version 9 is not kept"), "{why}");
    world.edit(|set| set.spec.version = Some(1));
    world.settle();
    assert_eq!(world.condition("UpgradeHalted"), None);
}

#[test]
fn step_is_stored_before_its_member_goes() {
    let mut world = World::up(2);
    let to = world.upgrade("app:2");
    world.changes.clear();
    while world.changes.is_empty() {
        world.run(Span::from_millis(20));
    }
    let step = Upgrade {
        to,
        ordinal: Some(0),
        halted: None,
    };
    assert_eq!(world.status().upgrade, Some(step));
}

#[test]
fn member_that_is_replaced_may_be_scaled_away() {
    let mut world = World::up(3);
    world.upgrade("app:2");
    while world.status().upgrade.and_then(|it| it.ordinal) != Some(2) {
        world.run(Span::from_millis(100));
    }
    world.scale(1);
    world.settle();
    assert_eq!(world.versions(), [2]);
    assert_eq!(world.status().upgrade, None);
    assert_eq!(world.status().version, Some(2));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    /// Requirement: V16
    #[test]
    fn v16_upgrade_survives_controllers_that_end_at_any_moment(
        pauses in prop::collection::vec(100_u64..12_000, 1..12),
        counts in prop::collection::vec(1_u32..5, 0..3),
    ) {
        let mut world = World::up(3);
        let version = world.upgrade("app:2");
        let mut counts = counts.into_iter();
        for millis in pauses {
            world.run(Span::from_millis(millis));
            if let Some(count) = counts.next() {
                world.scale(count);
            }
            world.restart();
        }
        world.settle();
        world.settle();
        prop_assert_eq!(world.versions(), vec![version; world.members().len()]);
        prop_assert_eq!(world.ordinals(), (0..world.set.spec.replicas).collect::<Vec<_>>());
        prop_assert_eq!(world.status().upgrade, None);
    }
}
