//! Members that end, and requests that are refused.

use protocol::time::Span;
use protocol::vm::VmPhase;

use super::world::{Change, World};
use crate::core::Refusal;
use crate::core::set::{Event, Kind};

/// Requirement: V15
#[test]
fn v15_member_that_ended_is_replaced_and_the_others_stay() {
    let mut world = World::up(3);
    let before = world.members();
    world.edit_vm(1, |vm| {
        vm.status.get_or_insert_default().phase = VmPhase::Failed;
    });
    world.settle();
    let now = world.members();
    assert_eq!((&now[0], &now[2]), (&before[0], &before[2]));
    assert_eq!(now[1].0, 1);
    assert_ne!(now[1].1, before[1].1, "another VM has the name");
    assert_eq!(world.up_count(), 3);
}

#[test]
fn member_that_ends_again_and_again_is_replaced_ever_more_slowly() {
    let mut world = World::up(1);
    for _ in 0..6_000 {
        let is_there = !world.members().is_empty();
        if is_there {
            world.edit_vm(0, |vm| {
                vm.status.get_or_insert_default().phase = VmPhase::Failed;
            });
        }
        world.run(Span::from_millis(100));
    }
    let made = world.changes.iter();
    let times: Vec<u64> = made
        .filter(|(_, change)| matches!(change, Change::Create { .. }))
        .map(|(at, _)| at.0 / 1_000_000)
        .collect();
    let gaps: Vec<u64> = times.windows(2).map(|two| two[1] - two[0]).collect();
    assert!(gaps.len() >= 5 && gaps.is_sorted(), "{gaps:?}");
    assert!(gaps.iter().any(|gap| *gap > 100), "{gaps:?}");
}

#[test]
fn status_that_somebody_changed_is_written_again() {
    let mut world = World::new(2);
    world.conflicts = 3;
    world.settle();
    assert_eq!(world.ordinals(), [0, 1]);
    assert_eq!(world.status().ready_replicas, 2);
}

/// Refuses actions of a kind until it has refused `times`.
fn refuse(world: &mut World, kind: Kind, times: u32, permanent: bool) {
    let mut refused = 0;
    while refused < times {
        let at = world.moment();
        let Some(action) = world.core.poll_action(at) else {
            world.now = world.now + Span::from_millis(20);
            continue;
        };
        let is_refused = action.kind() == kind;
        refused += u32::from(is_refused);
        let kind = action.kind();
        let result = if is_refused {
            Err(Refusal::Failed {
                message: "spec.guest is missing".to_owned(),
                permanent,
            })
        } else {
            world.carry_out(action)
        };
        world.give(Event::Done { kind, result });
    }
}

#[test]
fn member_that_is_refused_is_tried_again_and_reported() {
    let mut world = World::up(1);
    world.scale(2);
    refuse(&mut world, Kind::Create, 3, true);
    world.actions();
    let problem = world.condition("Degraded").expect("a problem");
    assert!(problem.contains("spec.guest is missing"), "{problem}");
    world.settle();
    assert_eq!(world.ordinals(), [0, 1]);
    assert_eq!(world.condition("Degraded"), None);
}

#[test]
fn refused_deletion_is_tried_again() {
    let mut world = World::up(2);
    world.scale(1);
    refuse(&mut world, Kind::Delete, 1, false);
    assert_eq!(world.ordinals(), [0, 1]);
    world.settle();
    assert_eq!(world.ordinals(), [0]);
}

#[test]
fn no_member_comes_before_its_file_can_be_written() {
    let mut world = World::new(1);
    refuse(&mut world, Kind::Members, 4, false);
    assert!(world.members().is_empty());
    world.settle();
    assert_eq!(world.ordinals(), [0]);
}

#[test]
fn set_that_is_being_deleted_rests() {
    let mut world = World::up(2);
    world.edit(|set| {
        set.metadata.deletion_timestamp = Some(protocol::time::WallTime(0));
        set.spec.replicas = 5;
    });
    world.settle();
    assert_eq!(world.ordinals(), [0, 1]);
    world.give(Event::SetGone);
    world.settle();
    assert!(world.changes.is_empty(), "{:?}", world.changes);
}

/// Requirement: V34
#[test]
fn v34_controller_makes_no_member_that_acts_outside_its_guest() {
    let mut world = World::up(1);
    let before = world.members();
    world.edit(|set| {
        set.spec.template.spec["runnerImage"] = "mine".into();
        set.spec.version = Some(2);
    });
    world.settle();
    let why = world.condition("UpgradeHalted").expect("a halt");
    assert!(why.contains("spec.template.spec.runnerImage"), "{why}");
    assert_eq!(world.members(), before);

    let mut world = World::new(1);
    world.edit(|set| set.spec.template.spec["initScript"] = "mine".into());
    world.settle();
    assert!(world.members().is_empty());
    let problem = world.condition("Degraded").expect("a problem");
    assert!(
        problem.contains("spec.template.spec.initScript"),
        "{problem}"
    );
    let version = world.upgrade("app:2");
    world.settle();
    assert_eq!(world.versions(), [version]);
    assert_eq!(world.condition("Degraded"), None);
}
