//! Many moves with random ends, crashes, restarts and people.

use std::collections::BTreeMap;

use fleet_core::runners::{Guest, Migration, Settings, Wanted, migration_name};
use protocol::fleet::{Day, MoveResult, Window};

use super::played::{Cluster, Ending, NEW, OLD, guest, wanted};

/// Seeds, each a run of some days.
const SEEDS: u64 = 60;
/// Steps of a run, an eighth of an hour each.
const STEPS: usize = 400;
const THIRD: &str = "r@sha256:0c";
const NODES: [&str; 2] = ["n1", "n2"];

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

fn settings() -> Settings {
    let always = Window {
        days: Day::ALL.to_vec(),
        start: "00:00".to_owned(),
        minutes: 1440,
        time_zone: "UTC".to_owned(),
    };
    Settings {
        windows: vec![always],
        max_in_flight: 3,
        ..Settings::default()
    }
}

fn guests(random: &mut Random) -> Vec<Guest> {
    let one = |number: u64| {
        let mut one = guest(&format!("vm{number}"));
        let node = usize::try_from(number).unwrap_or(0) % NODES.len();
        one.node = NODES[node].to_owned();
        one.named = (random.below(2) == 0).then(|| OLD.to_owned());
        one
    };
    (0..4).map(one).collect()
}

fn disturb(cluster: &mut Cluster, random: &mut Random) {
    let number = usize::try_from(random.below(4)).unwrap_or(0);
    let key = cluster.world.guests[number].key.clone();
    let endings = [
        Ending::Moves,
        Ending::Moves,
        Ending::Fails,
        Ending::Hangs,
        Ending::Cancelled,
    ];
    if random.below(40) == 0 {
        let to = if random.below(2) == 0 { NEW } else { THIRD };
        cluster.world.wanted = Some(Wanted {
            to: to.to_owned(),
            ..wanted()
        });
    }
    match random.below(8) {
        0 => cluster.crashes.push(cluster.done.len() + 1),
        1 => {
            // Its pod is made again, by the image that the VM names then.
            let guest = cluster.guest(&key);
            if guest.migration == Migration::Live {
                guest.migration = Migration::Failed("the source ended".to_owned());
            }
            if let Some(named) = guest.named.clone() {
                guest.runs = Some(named);
            }
        }
        2 => cluster.guest(&key).migration = Migration::Absent,
        _ => {
            let at = usize::try_from(random.below(5)).unwrap_or(0);
            cluster.endings.insert(key, endings[at]);
        }
    }
}

fn check(cluster: &Cluster, seed: u64) {
    let mut of_node: BTreeMap<&str, u32> = BTreeMap::new();
    for guest in &cluster.world.guests {
        if guest.open().is_some() {
            *of_node.entry(&guest.node).or_default() += 1;
        }
        let named = guest.named.as_deref();
        assert!(
            matches!(named, None | Some(OLD | NEW | THIRD)),
            "{seed}: {named:?} is nobody's image"
        );
        if let Some(end) = &guest.end {
            let is_there = guest.runs.as_ref() == Some(&end.to);
            let is_good = end.result == MoveResult::Good;
            assert!(
                is_there || !is_good || guest.open().is_some(),
                "{seed}: {guest:?}"
            );
        }
    }
    assert!(
        of_node.values().all(|open| *open == 1),
        "{seed}: {of_node:?}"
    );
}

/// One guest of a node moves at a time, no image but the former and the wanted is named, and a good
/// end is one of a guest that has the new runner. Once all ends well, all moves are over.
///
/// Requirement: R39
#[test]
fn random_moves_keep_their_rules_and_end() {
    let (mut good, mut bad) = (0, 0);
    for seed in 0..SEEDS {
        let mut random = Random(seed);
        let guests = guests(&mut random);
        let mut cluster = Cluster::new(settings(), guests);
        for _ in 0..STEPS {
            disturb(&mut cluster, &mut random);
            cluster.run(450);
            check(&cluster, seed);
        }
        let keys: Vec<_> = cluster
            .world
            .guests
            .iter()
            .map(|one| one.key.clone())
            .collect();
        cluster
            .endings
            .extend(keys.into_iter().map(|key| (key, Ending::Moves)));
        cluster.run(6 * 3600);
        for guest in &cluster.world.guests {
            assert_eq!(guest.open(), None, "{seed}: {guest:?}");
            assert_eq!(guest.migration, Migration::Absent, "{seed}: {guest:?}");
        }
        let count = |result| {
            cluster
                .ends
                .iter()
                .filter(|(_, end)| end.result == result)
                .count()
        };
        good += count(MoveResult::Good);
        bad += count(MoveResult::Bad);
    }
    assert!(
        good > 50 && bad > 10,
        "{good} good and {bad} bad ends say little"
    );
}

#[test]
fn migrations_of_many_guests_have_different_names() {
    let names = (0..1000).map(|number| migration_name(&format!("uid-{number}"), NEW, 1));
    let names: std::collections::BTreeSet<String> = names.collect();
    assert_eq!(names.len(), 1000);
}
