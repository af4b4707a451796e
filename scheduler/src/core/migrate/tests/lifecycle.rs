//! Migrations from their creation to their end, and whose they are.

use super::*;

#[test]
fn a_migration_that_gets_nowhere_is_cancelled_and_one_that_gets_on_is_not() {
    let mut rig = Rig::new(MigrationRule::default(), &[("m", 100, 100), ("n", 10, 100)]);
    rig.put(0, "a", whole(9, 1), Is::NotOptedIn);
    rig.migration(0, "a", "Pending");
    assert!(deletions(&rig.actions(59)).is_empty());
    let stuck = deletions(&rig.actions(60));
    assert_eq!(stuck[0].1, RemovalCause::Stuck);
    // The API did not answer: again.
    rig.tell(
        61,
        Event::MigrationDone(stuck[0].2, MigrationOutcome::Unclear("lost".into())),
    );
    assert!(deletions(&rig.actions(65)).is_empty());
    assert_eq!(deletions(&rig.actions(66)).len(), 1);

    let mut rig = Rig::new(MigrationRule::default(), &[("m", 100, 100), ("n", 10, 100)]);
    let sending = |bytes: u64| json!({"phase": "Running", "info": {"ram": {"transferred": bytes}}});
    for at in (0..600).step_by(30) {
        rig.migration_with(at, "a", sending(at));
        assert!(deletions(&rig.actions(at)).is_empty());
    }
    assert!(deletions(&rig.actions(629)).is_empty());
    assert_eq!(
        deletions(&rig.actions(630)).len(),
        1,
        "nothing sent for a minute"
    );

    // Who does not say what is sent has the whole time that the object gives.
    for (rule, cancelled) in [
        (MigrationRule::default(), true),
        (MigrationRule::deployed(), false),
    ] {
        let mut rig = Rig::new(rule, &[("m", 100, 100), ("n", 10, 100)]);
        rig.migration(0, "a", "Running");
        assert!(deletions(&rig.actions(3_599)).is_empty());
        assert_eq!(!deletions(&rig.actions(3_600)).is_empty(), cancelled);
    }
}

#[test]
fn what_is_over_is_cleaned_up_once_and_a_foreign_migration_never() {
    let mut rig = Rig::new(MigrationRule::off(), &[("n", 10, 100)]);
    for (pod, phase, cause) in [
        ("a", "Succeeded", RemovalCause::Succeeded),
        ("b", "Failed", RemovalCause::Failed),
    ] {
        rig.migration(0, pod, phase);
        let found = deletions(&rig.actions(0));
        assert_eq!(
            (found[0].0.as_str(), found[0].1),
            (&*format!("schedplugin-{pod}"), cause)
        );
        rig.tell(0, Event::MigrationDone(found[0].2, MigrationOutcome::Done));
        rig.migration(1, pod, phase);
        assert!(deletions(&rig.actions(100)).is_empty(), "once");
    }
    for phase in ["Pending", "Running", "Succeeded", "Failed"] {
        let foreign = migration("c", "u9", false, json!({"phase": phase}));
        rig.tell(200, Event::MigrationApplied(foreign));
        assert!(deletions(&rig.actions(9_000)).is_empty(), "{phase}");
    }
    let mut leaving = migration("d", "u8", true, json!({"phase": "Failed"}));
    leaving.deleting = true;
    rig.tell(9_000, Event::MigrationApplied(leaving));
    assert!(
        deletions(&rig.actions(9_000)).is_empty(),
        "its deletion was asked"
    );
}

#[test]
fn a_creation_is_tried_again_until_it_shows() {
    let mut rig = Rig::new(MigrationRule::default(), &[("m", 100, 100), ("n", 10, 100)]);
    rig.put(0, "a", whole(5, 1), Is::Free);
    rig.put(0, "b", whole(4, 1), Is::Free);
    assert_eq!(rig.picked(0), ["a"]);
    assert!(rig.picked(4).is_empty());
    assert_eq!(rig.picked(5), ["a"]);
    rig.pod(6, &pod("a", whole(5, 1), Is::Source, "n"));
    assert!(
        (6..30).all(|at| rig.picked(at).is_empty()),
        "the pod shows it"
    );

    // Refused for good: another, and this one later.
    let mut rig = Rig::new(MigrationRule::default(), &[("m", 100, 100), ("n", 10, 100)]);
    rig.put(0, "a", whole(5, 1), Is::Free);
    rig.put(0, "b", whole(4, 1), Is::Free);
    let id = rig.actions(0).into_iter().find_map(|action| match action {
        Action::CreateMigration { id, .. } => Some(id),
        _ => None,
    });
    let refused = MigrationOutcome::Refused("forbidden".into());
    rig.tell(0, Event::MigrationDone(id.expect("is asked for"), refused));
    assert_eq!(rig.picked(1), ["b"]);

    // One that never shows is given up.
    assert_eq!(rig.picked(6), ["b"]);
    assert!((7..61).all(|at| rig.picked(at).iter().all(|pod| pod == "b")));
    assert!((61..70).any(|at| rig.picked(at) == ["a"]));
}

/// Found by `tests/migrations.rs`: the pod showed the migration and its end before the watch of
/// migrations had told of it, and another VM was sent away for the same pressure.
#[test]
fn a_migration_that_failed_before_it_was_seen_is_still_accounted_for() {
    let rule = MigrationRule::default();
    let mut rig = Rig::new(rule, &[("m", 100, 100), ("n", 10, 100)]);
    for name in ["a", "b", "c"] {
        rig.put(0, name, whole(3, 1), Is::Free);
    }
    assert_eq!(rig.picked(0), ["a"]);
    rig.pod(1, &pod("a", whole(3, 1), Is::Source, "n"));
    rig.pod(2, &pod("a", whole(3, 1), Is::Free, "n"));
    assert!(rig.picked(2).is_empty());
    rig.migration(3, "a", "Failed");
    assert_eq!(rig.picked(3), ["b"], "now that it is known");
    // Where it is never told of, time tells.
    let mut rig = Rig::new(rule, &[("m", 100, 100), ("n", 10, 100)]);
    for name in ["a", "b", "c"] {
        rig.put(0, name, whole(3, 1), Is::Free);
    }
    assert_eq!(rig.picked(0), ["a"]);
    rig.pod(1, &pod("a", whole(3, 1), Is::Source, "n"));
    assert!((1..30).all(|at| rig.picked(at).is_empty()));
    rig.pod(30, &pod("a", whole(3, 1), Is::Free, "n"));
    assert!((30..60).all(|at| rig.picked(at).is_empty()));
    assert!((60..=65).any(|at| rig.picked(at) == ["b"]));
}
