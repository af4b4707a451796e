//! Changes of the count.

use proptest::prelude::*;
use protocol::time::Span;
use serde_json::{Value, json};

use super::world::{Change, World};

/// Requirement: V15
#[test]
fn v15_members_take_the_lowest_ordinals_and_the_highest_go_first() {
    let mut world = World::up(3);
    assert_eq!(world.ordinals(), [0, 1, 2]);
    world.scale(5);
    world.settle();
    world.scale(2);
    world.settle();
    assert_eq!(world.ordinals(), [0, 1]);
    let changes: Vec<Change> = world.changes.iter().map(|(_, it)| it.clone()).collect();
    let create = |ordinal| Change::Create {
        ordinal,
        version: 1,
    };
    let delete = |ordinal| Change::Delete { ordinal };
    assert_eq!(
        changes,
        [create(3), create(4), delete(4), delete(3), delete(2)]
    );
    let status = world.status();
    assert_eq!((status.replicas, status.ready_replicas), (2, 2));
    assert_eq!(status.selector, "policy.bellows.dev/set=web");
    let available = world.condition("Available");
    assert_eq!(available.as_deref(), Some("2 of 2 members are up"));
}

/// Requirement: V13
#[test]
fn v13_members_come_and_go_at_the_rates_of_the_set() {
    let mut world = World::new(50);
    let begin = world.now;
    world.run(Span::from_millis(8_000));
    let made = |world: &World, from, to| {
        let seconds = |at: protocol::time::Timestamp| at.since(begin).as_millis() / 1_000;
        let of = world.changes.iter();
        of.filter(|(at, _)| (from..to).contains(&seconds(*at)))
            .count()
    };
    for second in 1..8 {
        assert_eq!(made(&world, second, second + 1), 5, "second {second}");
    }
    world.settle();
    world.changes.clear();
    let begin = world.now;
    world.scale(10);
    world.run(Span::from_millis(10_500));
    let times: Vec<u64> = world
        .changes
        .iter()
        .map(|(at, _)| at.since(begin).as_millis())
        .collect();
    assert_eq!(times.len(), 11, "{times:?}");
    assert!(
        times.windows(2).all(|two| two[1] - two[0] == 1_000),
        "{times:?}"
    );
}

#[test]
fn name_of_a_member_that_goes_waits_for_its_successor() {
    let mut world = World::up(3);
    world.scale(2);
    world.run(Span::from_millis(100));
    world.scale(4);
    world.run(Span::from_secs(1));
    assert_eq!(world.ordinals(), [0, 1, 3], "2 is still going");
    world.settle();
    assert_eq!(world.ordinals(), [0, 1, 2, 3]);
}

#[test]
fn ordinal_of_a_name_that_another_vm_has_is_left_out() {
    let mut world = World::new(2);
    world.create_foreign("web-1");
    world.run(Span::from_secs(20));
    assert_eq!(world.ordinals(), [0, 2]);
    let problem = world.condition("Degraded").expect("a problem");
    assert!(problem.contains("member 1"), "{problem}");
}

#[test]
fn ordinal_that_was_left_out_stays_so_after_a_restart() {
    let mut world = World::new(2);
    world.create_foreign("web-1");
    world.settle();
    assert_eq!(world.status().left_out, [1]);
    world.changes.clear();
    world.restart();
    world.delete_foreign("web-1");
    world.settle();
    assert_eq!(world.ordinals(), [0, 2], "no member moves for a free name");
    assert!(world.changes.is_empty(), "{:?}", world.changes);
    world.scale(3);
    world.settle();
    assert_eq!(world.ordinals(), [0, 1, 2]);
    assert!(world.status().left_out.is_empty());
}

/// Requirement: V15
#[test]
fn v15_last_member_goes_though_one_below_is_missing() {
    let mut world = World::up(4);
    world.scale(3);
    world.run(Span::from_millis(100));
    world.scale(5);
    world.run(Span::from_millis(100));
    assert_eq!(world.ordinals(), [0, 1, 2, 4], "3 is still going");
    world.scale(4);
    world.settle();
    assert_eq!(world.ordinals(), [0, 1, 2, 3]);
}

/// Requirement: V17
#[test]
fn v17_file_of_the_members_follows_them() {
    let mut world = World::new(2);
    world.run(Span::from_millis(500));
    assert_eq!(world.files["members"], "web-0 - 1 down\nweb-1 - 1 down\n");
    world.settle();
    let lines = &world.files["members"];
    assert!(lines.lines().all(|line| line.ends_with(" 1 up")), "{lines}");
    world.edit(|set| {
        set.spec.kv.insert("mode".into(), "careful".into());
        set.spec.replicas = 1;
    });
    world.settle();
    let file: Value = serde_json::from_str(&world.files["members.json"]).expect("JSON");
    assert_eq!(file["set"], "web");
    assert_eq!(file["kv"], json!({"mode": "careful"}));
    let members = file["members"].as_array().expect("a list");
    assert_eq!(members.len(), 1);
    assert_eq!(members[0]["name"], "web-0");
    assert_eq!(members[0]["image"], "app:1");
    assert_eq!(members[0]["up"], true);
}

#[test]
fn file_of_the_members_is_there_before_the_first_member() {
    let mut world = World::new(1);
    while world.changes.is_empty() {
        assert!(world.members().is_empty());
        world.run(Span::from_millis(20));
    }
    assert!(world.files.contains_key("members"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Requirement: V09, V15
    #[test]
    fn v15_no_member_moves_for_any_change_of_the_count(
        steps in prop::collection::vec((0_u32..12, 0_u64..20_000, any::<bool>()), 1..8),
    ) {
        let mut world = World::up(4);
        for (replicas, millis, restarts) in steps {
            let before = world.members();
            world.changes.clear();
            world.scale(replicas);
            if restarts {
                world.restart();
            }
            world.run(Span::from_millis(millis));
            for (_, change) in &world.changes {
                match change {
                    Change::Create { ordinal, .. } => prop_assert!(*ordinal < replicas),
                    Change::Delete { ordinal } => prop_assert!(*ordinal >= replicas),
                }
            }
            let now = world.members();
            for member in before.iter().filter(|member| member.0 < replicas) {
                prop_assert!(now.contains(member), "{:?} of {:?}", member, now);
            }
        }
        world.settle();
        prop_assert_eq!(world.ordinals(), (0..world.set.spec.replicas).collect::<Vec<_>>());
        let count = world.changes.len();
        world.settle();
        prop_assert_eq!(world.changes.len(), count, "a settled set rests");
    }
}
