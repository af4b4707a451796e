use proptest::prelude::*;
use protocol::core::Core as _;
use protocol::time::Timestamp;

use super::*;
use crate::core::event::Action;
use crate::core::fixtures::{node, pod};
use crate::core::lease::{LeaseRule, LeaseSeen};
use crate::core::{Core, Settings};

const fn at(seconds: u64) -> Timestamp {
    Timestamp(seconds * 1_000_000)
}

/// A replica in waiting that was asked to list.
fn standby() -> Core {
    let settings = crate::config::Config::default().settings(false, true);
    let mut core = Core::new(Settings {
        lease: Some(LeaseRule::of_host("a")),
        caches_on_standby: true,
        ..settings
    });
    assert_eq!(core.poll_action(at(0)), Some(Action::List));
    core
}

fn progress(core: &mut Core, now: Timestamp, kind: ObjectKind, version: u64) {
    let progress = Some(WatchProgress {
        observed: version,
        newest: version,
    });
    core.handle(now, Event::WatchProgress(kind, progress));
}

/// One node with one pod, and no VMs; everything is told up to version 5.
fn listed(core: &mut Core, now: Timestamp) {
    core.handle(now, Event::NodesListed(vec![node("n", 4)]));
    core.handle(now, Event::PodsListed(vec![pod("one", 1, "n")]));
    core.handle(now, Event::VmsListed(vec![]));
    for kind in [
        ObjectKind::Nodes,
        ObjectKind::Pods,
        ObjectKind::VirtualMachines,
    ] {
        progress(core, now, kind, 5);
    }
}

/// The Lease is this replica's from now on.
fn taken(core: &mut Core, now: Timestamp, handover: Option<&str>) {
    let seen = LeaseSeen {
        holder: "a".into(),
        renewed: now,
        settled: now,
        handover: handover.map(str::to_owned),
    };
    core.handle(now, Event::Lease(seen));
}

fn marks(pods: u64) -> String {
    format!("nodes=5 pods={pods} virtualmachines=0 migrations=0")
}

fn reserved(core: &Core) -> u128 {
    core.ledger().load("n").reserved.cpu
}

#[test]
fn who_knows_all_up_to_the_marks_needs_no_lists() {
    let mut core = standby();
    listed(&mut core, at(1));
    core.handle(at(2), Event::PodApplied(pod("two", 1, "n")));
    progress(&mut core, at(2), ObjectKind::Pods, 7);
    assert!(
        !core.is_ready() && core.ledger().pods().len() == 0,
        "it waits"
    );
    taken(&mut core, at(3), Some(&marks(7)));
    assert_eq!(core.poll_action(at(3)), None);
    assert!(core.may_permit(at(3)));
    assert_eq!(reserved(&core), 2000);
    // From now on it is a leader like any other, and tells the next one at least what it was told.
    core.handle(at(4), Event::PodApplied(pod("three", 1, "n")));
    progress(&mut core, at(4), ObjectKind::Pods, 9);
    assert_eq!(reserved(&core), 3000);
    let next = "nodes=5 pods=9 virtualmachines=5 migrations=0";
    assert_eq!(
        core.version_marks()
            .map(|marks| marks.to_string())
            .as_deref(),
        Some(next)
    );
}

#[test]
fn a_late_watch_is_waited_for_and_a_later_one_makes_it_list() {
    for comes_at in [Some(Timestamp(3_400_000)), None] {
        let mut core = standby();
        listed(&mut core, at(1));
        taken(&mut core, at(3), Some(&marks(7)));
        assert_eq!(core.poll_action(at(3)), None);
        assert!(!core.may_permit(at(3)));
        assert_eq!(core.poll_deadline(), Some(at(3) + CATCH_UP));
        if let Some(now) = comes_at {
            core.handle(now, Event::PodApplied(pod("two", 1, "n")));
            progress(&mut core, now, ObjectKind::Pods, 7);
            assert_eq!(core.poll_action(now), None);
            assert!(core.may_permit(now));
            assert_eq!(reserved(&core), 2000);
            continue;
        }
        assert_eq!(core.poll_action(at(4)), Some(Action::List));
        assert!(!core.may_permit(at(4)), "it waits for the lists");
        listed(&mut core, at(4));
        assert!(core.may_permit(at(4)));
    }
}

#[test]
fn without_marks_that_read_everything_is_listed() {
    let texts = [
        None,
        Some(""),
        Some("nodes=5"),
        Some("nodes=5 pods=x virtualmachines=0 migrations=0"),
    ];
    for text in texts {
        let mut core = standby();
        listed(&mut core, at(1));
        taken(&mut core, at(3), text);
        assert_eq!(core.poll_action(at(3)), Some(Action::List), "{text:?}");
        assert!(!core.may_permit(at(3)));
    }
}

#[test]
fn who_cannot_say_how_far_a_watch_has_come_neither_takes_nor_gives_marks() {
    let mut core = standby();
    listed(&mut core, at(1));
    core.handle(at(2), Event::WatchProgress(ObjectKind::Pods, None));
    taken(&mut core, at(3), Some(&marks(5)));
    assert_eq!(core.poll_action(at(3)), None);
    assert_eq!(core.poll_action(at(4)), Some(Action::List));
    listed(&mut core, at(4));
    assert!(core.version_marks().is_some(), "the lists are new");
    core.handle(at(5), Event::WatchProgress(ObjectKind::Nodes, None));
    assert_eq!(core.version_marks(), None);
}

#[test]
fn after_a_lapse_it_waits_with_new_lists_and_goes_by_no_note() {
    let mut core = standby();
    listed(&mut core, at(1));
    taken(&mut core, at(3), Some(&marks(5)));
    assert_eq!(core.poll_action(at(3)), None);
    assert!(core.may_permit(at(3)));
    assert_eq!(
        core.poll_action(at(13)),
        Some(Action::List),
        "for the next time"
    );
    assert_eq!(
        (core.version_marks(), core.ledger().pods().len()),
        (None, 0)
    );
    listed(&mut core, at(14));
    taken(&mut core, at(15), Some(&marks(5)));
    assert_eq!(
        core.poll_action(at(17)),
        Some(Action::List),
        "others may have led"
    );
}

#[test]
fn there_are_no_marks_before_a_binding_is_seen() {
    let mut core = standby();
    listed(&mut core, at(1));
    taken(&mut core, at(3), Some(&marks(5)));
    assert_eq!(core.poll_action(at(3)), None);
    assert!(core.version_marks().is_some());
    core.ledger.set_bind_hold("uid-one", Some("n".into()));
    assert_eq!(core.version_marks(), None);
    core.handle(at(4), Event::PodApplied(pod("one", 1, "n")));
    assert!(core.version_marks().is_some());
}

/// A bookmark says that a watch has come further than the newest object that it showed.
#[test]
fn new_leader_leaves_no_lower_marks_than_it_was_left() {
    let mut core = standby();
    listed(&mut core, at(1));
    let bookmark = WatchProgress {
        observed: 7,
        newest: 5,
    };
    core.handle(
        at(2),
        Event::WatchProgress(ObjectKind::Pods, Some(bookmark)),
    );
    taken(&mut core, at(3), Some(&marks(7)));
    assert_eq!(core.poll_action(at(3)), None, "it needs no lists");
    let left = core.version_marks().expect("everything is seen");
    assert_eq!(
        left.to_string(),
        "nodes=5 pods=7 virtualmachines=5 migrations=0"
    );
}

#[test]
fn marks_are_what_their_text_says() {
    let text = "nodes=7 pods=31 virtualmachines=40 migrations=0";
    let marks: VersionMarks = text.parse().expect("reads");
    assert_eq!(
        (marks, marks.to_string().as_str()),
        (VersionMarks([7, 31, 40, 0]), text)
    );
    for odd in [
        "",
        "nodes=7 pods=31 virtualmachines=40",
        "nodes=7 pods=31 virtualmachines=40 migrations=0 more=1",
        "pods=31 nodes=7 virtualmachines=40 migrations=0",
        "nodes=-7 pods=31 virtualmachines=40 migrations=0",
    ] {
        assert_eq!(
            odd.parse::<VersionMarks>(),
            Err(InvalidVersionMarks),
            "{odd}"
        );
    }
}

/// What a watch of pods tells, as the test draws it: a list of some, or one that comes, changes or
/// goes.
#[derive(Debug, Clone)]
enum Tale {
    List(Vec<u8>),
    Apply(u8, u64),
    Delete(u8),
}

fn tales() -> impl Strategy<Value = Vec<Tale>> {
    let one = prop_oneof![
        1 => proptest::collection::vec(0_u8..6, 0..6).prop_map(Tale::List),
        4 => (0_u8..6, 1_u64..4).prop_map(|(n, cpu)| Tale::Apply(n, cpu)),
        2 => (0_u8..6).prop_map(Tale::Delete),
    ];
    proptest::collection::vec(one, 0..40)
}

fn told(tale: &Tale) -> Event {
    let name = |n: &u8| format!("p{n}");
    match tale {
        Tale::List(names) => {
            let names: std::collections::BTreeSet<&u8> = names.iter().collect();
            Event::PodsListed(names.into_iter().map(|n| pod(&name(n), 1, "n")).collect())
        }
        Tale::Apply(n, cpu) => Event::PodApplied(pod(&name(n), *cpu, "n")),
        Tale::Delete(n) => Event::PodDeleted(format!("uid-{}", name(n))),
    }
}

proptest! {
    /// Whoever waited and took over counts what a leader counts that was told the same all along.
    #[test]
    fn what_was_kept_is_what_a_leader_would_know(tales in tales(), taken_after in 0_usize..40) {
        let mut leader = standby();
        taken(&mut leader, at(1), None);
        prop_assert_eq!(leader.poll_action(at(1)), Some(Action::List));
        let mut waits = standby();
        for core in [&mut leader, &mut waits] {
            listed(core, at(1));
        }
        for (number, tale) in tales.iter().enumerate() {
            if number == taken_after {
                taken(&mut waits, at(2), Some(&marks(5)));
                prop_assert_ne!(waits.poll_action(at(2)), Some(Action::List));
            }
            for core in [&mut leader, &mut waits] {
                core.handle(at(2), told(tale));
            }
        }
        if taken_after >= tales.len() {
            taken(&mut waits, at(2), Some(&marks(5)));
            prop_assert_ne!(waits.poll_action(at(2)), Some(Action::List));
        }
        prop_assert!(waits.may_permit(at(2)));
        prop_assert_eq!(reserved(&waits), reserved(&leader));
        prop_assert_eq!(waits.ledger().audit(), Ok(()));
    }
}
