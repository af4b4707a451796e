//! Whole moves, with a crash between any two steps.

use fleet_core::permit::Gate;
use fleet_core::runners::{Migration, Order};
use protocol::fleet::MoveResult;

use super::played::{Cluster, Ending, NEW, guest};

/// Longer than the limit of a move.
const HOURS: u64 = 3 * 3600;

fn one(ending: Ending, named: Option<&str>, crashes: &[usize]) -> Cluster {
    let mut pg = guest("pg");
    pg.named = named.map(str::to_owned);
    let key = pg.key.clone();
    let mut cluster = Cluster::ordered(vec![pg]);
    cluster.endings.insert(key, ending);
    cluster.crashes = crashes.to_vec();
    cluster.run(HOURS);
    cluster
}

/// What is left at the end of a move.
fn check_end(cluster: &Cluster, ending: Ending, named: Option<&str>) {
    let guest = &cluster.world.guests[0];
    let told = || format!("{ending:?} {:?}", cluster.done);
    assert_eq!(guest.open(), None, "{}", told());
    assert_eq!(guest.migration, Migration::Absent, "{}", told());
    let (result, now_named) = match ending {
        Ending::Moves => (MoveResult::Good, Some(NEW)),
        Ending::Silent => (MoveResult::Bad, Some(NEW)),
        Ending::Fails | Ending::Hangs => (MoveResult::Bad, named),
        Ending::Cancelled => (MoveResult::Skip, named),
    };
    let end = guest.end.as_ref().expect("an end");
    assert_eq!(end.result, result, "{}", told());
    assert_eq!(guest.named.as_deref(), now_named, "{}", told());
}

/// Requirement: R39
#[test]
fn new_runner_is_stable_before_the_move_counts_else_the_field_goes_back() {
    for named in [None, Some(super::played::OLD)] {
        for ending in [Ending::Moves, Ending::Silent, Ending::Fails, Ending::Hangs] {
            let cluster = one(ending, named, &[]);
            check_end(&cluster, ending, named);
            let orders: Vec<&Order> = cluster.done.iter().map(|(_, order)| order).collect();
            assert!(matches!(orders[0], Order::Begin(_)), "{orders:?}");
            assert!(matches!(orders[1], Order::Name { .. }), "{orders:?}");
            assert!(matches!(orders[2], Order::Migrate { .. }), "{orders:?}");
            let count = |is: fn(&Order) -> bool| orders.iter().filter(|one| is(one)).count();
            assert_eq!(count(|one| matches!(one, Order::Migrate { .. })), 1);
            let is_back = matches!(ending, Ending::Fails | Ending::Hangs);
            let back = count(|one| matches!(one, Order::PutBack { .. }));
            assert_eq!(back, usize::from(is_back), "{orders:?}");
        }
    }
}

/// The migration is deleted after the end is written, except one whose time is over.
///
/// Requirement: R39
#[test]
fn migration_that_runs_is_not_deleted_before_its_time_is_over() {
    for ending in [Ending::Moves, Ending::Silent, Ending::Fails] {
        let cluster = one(ending, None, &[]);
        let place = |is: fn(&Order) -> bool| {
            let mut orders = cluster.done.iter().map(|(_, order)| order);
            orders.position(is).expect("an order")
        };
        let end = place(|one| matches!(one, Order::End(_)));
        let delete = place(|one| matches!(one, Order::Delete { .. }));
        assert!(end < delete, "{ending:?}: {:?}", cluster.done);
    }
}

/// A crash after any order, and after any two, comes to the same end. A migration that a person
/// deletes may be made once more by a run that has not seen it.
///
/// Requirement: R39
#[test]
fn crash_between_any_two_steps_comes_to_the_same_end() {
    for named in [None, Some(super::played::OLD)] {
        for ending in [Ending::Moves, Ending::Silent, Ending::Fails] {
            let steps = one(ending, named, &[]).done.len();
            for first in 1..=steps {
                for second in first..=steps + 1 {
                    let cluster = one(ending, named, &[first, second]);
                    check_end(&cluster, ending, named);
                    let most = cluster.created.values().max();
                    assert_eq!(most, Some(&1), "{first} {second} {:?}", cluster.done);
                }
            }
        }
    }
}

/// Requirement: R39
#[test]
fn move_that_outlasts_crashes_and_its_time_goes_back() {
    for ending in [Ending::Hangs, Ending::Cancelled] {
        for crash in 1..=6 {
            let cluster = one(ending, None, &[crash]);
            let guest = &cluster.world.guests[0];
            assert_eq!(guest.open(), None, "{ending:?} {crash} {:?}", cluster.done);
            assert_eq!(guest.named, None, "{ending:?} {crash}");
            assert_eq!(guest.migration, Migration::Absent, "{ending:?} {crash}");
            let result = guest.end.as_ref().expect("an end").result;
            assert_ne!(result, MoveResult::Good, "{ending:?} {crash}");
        }
    }
}

#[test]
fn runner_that_is_bad_in_one_guest_comes_to_no_other() {
    let guests = ["a", "b", "c"].map(guest).to_vec();
    let mut cluster = Cluster::ordered(guests);
    cluster
        .endings
        .insert(cluster.world.guests[0].key.clone(), Ending::Silent);
    cluster.run(HOURS);
    let moved: Vec<&str> = cluster
        .created
        .keys()
        .map(|(key, _)| key.1.as_str())
        .collect();
    assert_eq!(moved, ["a"]);
    assert!(cluster.core.is_at_rest());
    let waiting: Vec<_> = cluster.core.waiting().values().collect();
    assert_eq!(waiting, [&Gate::Halted; 2]);
}

/// Requirement: R36
#[test]
fn guests_of_a_node_move_one_after_the_other() {
    let guests = ["a", "b", "c"].map(guest).to_vec();
    let mut cluster = Cluster::ordered(guests);
    cluster.settings.max_in_flight = 3;
    cluster.core = fleet_core::runners::Movers::new(Some(cluster.settings.clone()));
    for _ in 0..600 {
        cluster.run(3);
        let open = cluster
            .world
            .guests
            .iter()
            .filter(|one| one.open().is_some());
        assert!(open.count() <= 1);
    }
    let end = |name: usize| {
        cluster.world.guests[name]
            .end
            .as_ref()
            .map(|end| end.result)
    };
    assert_eq!([0, 1, 2].map(end), [Some(MoveResult::Good); 3]);
}

/// Somebody else's value is left as it is.
///
/// Requirement: R38
#[test]
fn value_that_somebody_else_sets_stays() {
    for order in 1..4 {
        let mut cluster = Cluster::ordered(vec![guest("pg")]);
        let key = cluster.world.guests[0].key.clone();
        cluster.endings.insert(key.clone(), Ending::Fails);
        while cluster.done.len() < order {
            cluster.run(3);
        }
        cluster.guest(&key).named = Some("mine".to_owned());
        cluster.run(HOURS);
        let guest = &cluster.world.guests[0];
        assert_eq!(guest.named.as_deref(), Some("mine"), "{:?}", cluster.done);
        assert_eq!(guest.open(), None);
        let end = guest.end.as_ref().expect("an end");
        assert!(end.reason.contains("somebody else set"), "{end:?}");
    }
}

/// A forged record names no image that the VM's pod does not have.
///
/// Requirement: R37
#[test]
fn field_does_not_go_back_to_an_image_that_only_a_record_names() {
    let mut cluster = Cluster::ordered(vec![guest("pg")]);
    let key = cluster.world.guests[0].key.clone();
    cluster.endings.insert(key.clone(), Ending::Fails);
    while cluster.done.len() < 3 {
        cluster.run(3);
    }
    let turn = cluster.guest(&key).turn.as_mut().expect("a move");
    turn.from = Some("attacker/runner:1".to_owned());
    cluster.run(HOURS);
    let guest = &cluster.world.guests[0];
    assert_eq!(guest.named.as_deref(), Some(NEW), "{:?}", cluster.done);
    let end = guest.end.as_ref().expect("an end");
    assert!(end.reason.contains("spec.runnerImage stays"), "{end:?}");
}

/// The source's QEMU ends in the move. The guest starts by the new image, since the VM names it.
#[test]
fn guest_that_starts_again_by_the_new_runner_in_its_move_has_it() {
    for named in [None, Some(super::played::OLD)] {
        let mut pg = guest("pg");
        pg.named = named.map(str::to_owned);
        let key = pg.key.clone();
        let mut cluster = Cluster::ordered(vec![pg]);
        cluster.endings.insert(key.clone(), Ending::Hangs);
        while cluster.done.len() < 3 {
            cluster.run(3);
        }
        let guest = cluster.guest(&key);
        guest.migration = Migration::Failed("the source ended".to_owned());
        guest.runs = Some(NEW.to_owned());
        cluster.run(HOURS);
        check_end(&cluster, Ending::Moves, named);
    }
}
