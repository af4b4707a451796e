//! Made-up questions about sets: of all sizes, with and without feeds and a past.

use std::collections::BTreeMap;

use policy_contract::{ClusterSeen, FeedSum, NodeSeen, SetInput, SetSeen, Time};
use rand::{Rng as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use crate::made_up::{Question, Subject};
use crate::scope::AnyInput;

/// Time of every question on the clock of the samples.
const NOW: f64 = 3_600.0;
/// Seconds between two samples.
const PERIOD: f64 = 10.0;
/// Names of the sets of a policy that names none.
const NAMES: [&str; 3] = ["web", "api", "batch"];

/// The question of this number.
pub(crate) fn question_about_sets(subject: &Subject, number: u64) -> Question<AnyInput> {
    let mut rng = ChaCha8Rng::seed_from_u64(number);
    let mut input = SetInput::sample();
    input.params.clone_from(&subject.params);
    input.time = Time {
        minute: rng.random_range(0..1440),
        weekday: rng.random_range(1..=7),
    };
    let mut names = subject.sets.clone();
    if names.is_empty() {
        names = NAMES.map(str::to_owned).into();
    }
    let sets = names.into_iter();
    input.sets = sets.map(|name| (name, set(&mut rng, subject))).collect();
    for (name, sum) in input.sets.values().flat_map(|set| &set.feeds) {
        let all = input.feeds.entry(name.clone()).or_default();
        all.sum += sum.sum;
        all.max = all.max.max(sum.max);
        all.members += sum.members;
    }
    capacity(&mut rng, &mut input);
    let samples = past(&mut rng, &input.feeds);
    Question {
        input: AnyInput::Set(Box::new(input)),
        samples,
        now: NOW,
    }
}

fn set(rng: &mut ChaCha8Rng, subject: &Subject) -> SetSeen {
    let count = rng.random_range(0..20);
    let members = rng.random_range(0..=count);
    let up = rng.random_range(0..=members);
    let mut feeds = BTreeMap::new();
    for name in &subject.feeds {
        if up > 0 && rng.random_bool(0.8) {
            let mut sum = FeedSum::default();
            for _ in 0..up {
                sum.add(f64::from(rng.random_range(0..20)));
            }
            feeds.insert(name.clone(), sum);
        }
    }
    SetSeen {
        count,
        members,
        up,
        member_cu: rng.random_range(1..=4),
        priority: rng.random_range(-1..=1),
        version: Some(1),
        feeds,
        ..SetSeen::default()
    }
}

fn capacity(rng: &mut ChaCha8Rng, input: &mut SetInput) {
    let used: u32 = input
        .sets
        .values()
        .map(|set| set.count * set.member_cu)
        .sum();
    let free: u32 = rng.random_range(0..64);
    let node = NodeSeen {
        cu: used + free,
        free_cu: free,
        vms: input.sets.values().map(|set| set.members).sum(),
    };
    input.nodes = [("node".to_owned(), node)].into();
    input.cluster = ClusterSeen {
        nodes: 1,
        cu: node.cu.into(),
        free_cu: free.into(),
        sets_cu: node.cu.into(),
    };
}

/// Samples of the sums, none or up to ten minutes.
fn past(
    rng: &mut ChaCha8Rng,
    feeds: &BTreeMap<String, FeedSum>,
) -> Vec<(f64, BTreeMap<String, f64>)> {
    let count = [0, 6, 60][rng.random_range(0..3)];
    let ages = (0..count).rev();
    ages.map(|age| {
        let values = feeds.iter().map(|(name, sum)| {
            let change = f64::from(rng.random_range(0..5));
            (format!("feed:{name}"), sum.sum + change)
        });
        (NOW - f64::from(age) * PERIOD, values.collect())
    })
    .collect()
}
