//! Pauses between two migrations of a VM.

use super::*;

/// Fails a VM's migration as soon as it is there; the seconds at which it was begun.
fn failing(rig: &mut Rig, until: u64) -> Vec<(u64, String)> {
    let mut begun = Vec::new();
    let mut serial = 0;
    for at in 0..until {
        for pod in rig.picked(at) {
            serial += 1;
            let uid = format!("u{serial}");
            let failed = migration(&pod, &uid, true, json!({"phase": "Failed"}));
            rig.tell(
                at,
                Event::MigrationApplied(migration(&pod, &uid, true, json!({}))),
            );
            rig.tell(at, Event::MigrationApplied(failed.clone()));
            let cleaned = deletions(&rig.actions(at));
            assert_eq!(cleaned.len(), 1, "a failed one is cleaned up");
            rig.tell(
                at,
                Event::MigrationDone(cleaned[0].2, MigrationOutcome::Done),
            );
            rig.tell(at, Event::MigrationDeleted(failed.key, uid));
            begun.push((at, pod));
        }
    }
    begun
}

#[test]
fn n25_pauses_double_with_each_migration_of_a_vm() {
    let rule = MigrationRule {
        backoff_seconds: 10,
        backoff_max_seconds: 100,
        ..MigrationRule::default()
    };
    let mut rig = Rig::new(rule, &[("m", 100, 100), ("n", 10, 100)]);
    rig.put(0, "a", whole(5, 1), Is::Free);
    rig.put(0, "b", whole(5, 1), Is::NotOptedIn);
    let begun = failing(&mut rig, 600);
    let pauses: Vec<u64> = begun.windows(2).map(|pair| pair[1].0 - pair[0].0).collect();
    // Looked at again every five seconds.
    for (pause, least) in pauses.iter().zip([10, 20, 40, 80, 100, 100]) {
        assert!((least..=least + 5).contains(pause), "{pauses:?}");
    }
    assert!(pauses.len() >= 5);
    // Left in peace for as long as its last pause once more, it is forgiven.
    rig.gone(600, "b");
    rig.actions(900);
    rig.put(900, "b", whole(5, 1), Is::NotOptedIn);
    let again: Vec<u64> = (900..915)
        .filter(|at| !rig.picked(*at).is_empty())
        .collect();
    assert!(!again.is_empty(), "{again:?}");
}

#[test]
fn n25_a_vm_just_moved_is_left_alone_and_another_goes() {
    let mut rig = Rig::new(MigrationRule::default(), &[("m", 100, 100), ("n", 10, 100)]);
    for name in ["a", "b", "c"] {
        rig.put(0, name, whole(3, 1), Is::Free);
    }
    let begun = failing(&mut rig, 30);
    let pods: Vec<&str> = begun.iter().map(|(_, pod)| pod.as_str()).collect();
    assert_eq!(
        pods,
        ["a", "b", "c"],
        "each in its turn, none again within its pause"
    );
    // The deployed rule has no memory.
    let mut rig = Rig::new(
        MigrationRule::deployed(),
        &[("m", 100, 100), ("n", 10, 100)],
    );
    for name in ["a", "b", "c"] {
        rig.put(0, name, whole(3, 1), Is::Free);
    }
    let begun = failing(&mut rig, 30);
    assert!(
        begun.len() > 10 && begun.iter().all(|(_, pod)| pod == "a"),
        "{begun:?}"
    );
}

#[test]
fn n25_a_vm_that_could_not_be_moved_grows_where_it_is() {
    let mut rig = Rig::new(MigrationRule::default(), &[("m", 100, 100), ("n", 10, 100)]);
    rig.put(0, "a", whole(2, 1), Is::Free);
    rig.put(0, "z", whole(7, 1), Is::Plain);
    assert_eq!(rig.picked(0), ["a"]);
    rig.migration(1, "a", "Failed");
    rig.actions(1);
    assert_eq!(rig.ask(2, "a", whole(2, 1), whole(3, 1)), whole(3, 1));
    assert!(
        rig.picked(3).is_empty(),
        "and is not moved for having grown"
    );
}

/// Found by `tests/migrations.rs`: the VM had arrived before the watch of migrations had told of
/// its migration, and was sent on at once from where it arrived.
#[test]
fn n25_a_vm_that_arrived_before_its_migration_was_seen_is_left_alone() {
    let rule = MigrationRule::default();
    let mut rig = Rig::new(rule, &[("m", 10, 100), ("n", 10, 100)]);
    for name in ["a", "b", "c"] {
        rig.put(0, name, whole(3, 1), Is::Free);
    }
    assert_eq!(rig.picked(0), ["a"]);
    rig.pod(1, &pod("a", whole(3, 1), Is::Source, "n"));
    rig.pod(1, &pod("a-2", whole(3, 1), Is::Free, "m"));
    rig.gone(1, "a");
    rig.gone(1, "b");
    rig.pod(1, &pod("z", whole(6, 1), Is::Plain, "m"));
    assert!((1..20).all(|at| rig.picked(at).is_empty()));
    rig.migration(20, "a", "Pending");
    rig.migration(20, "a", "Succeeded");
    assert!((20..80).all(|at| rig.picked(at).is_empty()), "its pause");
    assert!((80..=85).any(|at| rig.picked(at) == ["a-2"]));
}
