//! Questions made up from a seed: VMs of all sizes, with and without a past, feeds, refusals and
//! wishes. The same seed makes the same questions.
//!
//! Numbers have three decimals: those of 17 digits may lose their last bit on the way to another
//! process.

use std::collections::BTreeMap;

use policy_contract::{
    Builtin, Failing, Feed, History, Input, NodeLoad, Old, PermitCut, Refused, Seconds, Series,
    ShrinkRefused, Time, Unit, Votes, WishSeen,
};
use rand::{Rng as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use crate::scope::AnyInput;
use crate::worker::single;

/// Seconds between two samples of a short past.
const PERIOD: Seconds = 5.0;
/// Most samples of a past.
const MAX_SAMPLES: f64 = 200.0;
const HOUR: Seconds = 3600.0;

const WISHES: [&str; 4] = ["threshold", "psi_some", "oom_event", "estimate"];

/// A question with its past.
#[derive(Debug, Clone)]
pub struct Question<I = Input> {
    /// What is asked.
    pub input: I,
    /// Samples, oldest first.
    pub samples: Vec<(Seconds, BTreeMap<String, f64>)>,
    /// Time of the question on the clock of the samples.
    pub now: Seconds,
}

/// What the questions of a policy have in common.
#[derive(Debug, Clone, Default)]
pub struct Subject {
    /// Numbers of the policy.
    pub params: BTreeMap<String, f64>,
    /// Series that it names.
    pub series: Vec<Series>,
    /// Names of its feeds.
    pub feeds: Vec<String>,
    /// Names of the sets of a policy of sets. Without any they have other names.
    pub sets: Vec<String>,
}

impl From<Question> for Question<AnyInput> {
    fn from(question: Question) -> Self {
        Self {
            input: AnyInput::Vm(Box::new(question.input)),
            samples: question.samples,
            now: question.now,
        }
    }
}

impl<I> Question<I> {
    /// The samples as a past.
    #[must_use]
    pub fn past(&self) -> History {
        let names = self.samples.iter().flat_map(|(_, values)| values.keys());
        let series: Vec<Series> = names.filter_map(|name| Series::of(name)).collect();
        let mut past = History::new(&series);
        for (at, values) in &self.samples {
            for (name, value) in values {
                past.record(name, *at, single(*value));
            }
        }
        past
    }
}

/// The question of this number.
#[must_use]
pub fn question(subject: &Subject, number: u64) -> Question {
    let mut rng = ChaCha8Rng::seed_from_u64(number);
    let mut input = Input::sample();
    input.params.clone_from(&subject.params);
    input.time = Time {
        minute: rng.random_range(0..1440),
        weekday: rng.random_range(1..=7),
    };
    let cpu_m = [250.0, 1000.0][rng.random_range(0..2)];
    input.unit = Unit {
        cpu_m,
        mem_bytes: cpu_m * 4.0 * f64::from(1 << 20),
    };
    size(&mut rng, &mut input);
    let load = rounded(input.vm.use_cu * cpu_m / 1000.0 * rng.random_range(0.0..1.3));
    let used = rounded(input.vm.mem_bytes * rng.random_range(0.05..0.99));
    votes(&mut rng, &mut input, load, used);
    events(&mut rng, &mut input);
    for name in &subject.feeds {
        if rng.random_bool(0.8) {
            let value = f64::from(rng.random_range(0..20));
            let age_s = rounded(rng.random_range(0.0..15.0));
            let feed = Feed { value, age_s };
            input.feeds.insert(name.clone(), feed);
        }
    }
    let now = rounded(HOUR + rng.random_range(0.0..60.0));
    let samples = past(&mut rng, subject, now, (load, used));
    Question {
        input,
        samples,
        now,
    }
}

fn size(rng: &mut ChaCha8Rng, input: &mut Input) {
    let vm = &mut input.vm;
    let largest = rng.random_range(1..=16_u32);
    let smallest = rng.random_range(1..=largest);
    let in_use = rng.random_range(smallest..=largest);
    (vm.min_cu, vm.max_cu) = (f64::from(smallest), f64::from(largest));
    vm.use_cu = f64::from(in_use);
    vm.cpu_m = vm.use_cu * input.unit.cpu_m;
    vm.mem_bytes = vm.use_cu * input.unit.mem_bytes;
    vm.permit_cu = rng.random_bool(0.8).then_some(vm.use_cu);
}

fn votes(rng: &mut ChaCha8Rng, input: &mut Input, load: f64, used: f64) {
    let votes = Votes {
        cpu: Some(rounded(load / 0.9 / (input.unit.cpu_m / 1000.0))),
        memory: Some(rounded(used / 0.75 / input.unit.mem_bytes)),
        working_set: sometimes(rng, 9.0),
        monitor_estimate: sometimes(rng, 9.0),
    };
    let all = [
        votes.cpu.map(f64::round),
        votes.memory,
        votes.working_set,
        votes.monitor_estimate,
    ];
    let highest = all.into_iter().flatten().fold(0.0, f64::max);
    input.builtin = Builtin {
        cu: whole(highest.ceil()),
        votes,
    };
}

fn events(rng: &mut ChaCha8Rng, input: &mut Input) {
    let mut age = || rounded(rng.random_range(0.0..HOUR));
    let ages = [age(), age(), age(), age()];
    let use_cu = input.vm.use_cu;
    let old = Old {
        cu: rng.random_bool(0.8).then(|| rng.random_range(0..=16)),
        reason: "memory".to_owned(),
        age_s: ages[0].min(60.0),
    };
    input.old = rng.random_bool(0.7).then_some(old);
    let permit = PermitCut {
        asked_cu: use_cu + 1.0,
        got_cu: use_cu,
        age_s: ages[1],
    };
    let shrink = ShrinkRefused {
        asked_cu: (use_cu - 1.0).max(0.0),
        smallest_cu: rng.random_bool(0.5).then_some(use_cu),
        age_s: ages[2],
    };
    input.refused = Refused {
        permit: rng.random_bool(0.2).then_some(permit),
        shrink: rng.random_bool(0.2).then_some(shrink),
    };
    let wish = WishSeen {
        reason: WISHES[rng.random_range(0..WISHES.len())].to_owned(),
        age_s: ages[3],
    };
    input.wish = rng.random_bool(0.2).then_some(wish);
    if rng.random_bool(0.1) {
        input.failing.push(Failing {
            kind: "monitor_absent".to_owned(),
            since_s: 30.0,
        });
    }
    let starved = [0.0, 0.0, 0.0, 1.0, 2.5][rng.random_range(0..5)];
    input.node = NodeLoad {
        vms: rng.random_range(1..=64),
        starved_cu: starved,
    };
}

/// Samples of up to an hour: none, a few, or all.
fn past(
    rng: &mut ChaCha8Rng,
    subject: &Subject,
    now: Seconds,
    (load, used): (f64, f64),
) -> Vec<(Seconds, BTreeMap<String, f64>)> {
    let length = [0.0, 12.0, 600.0, HOUR][rng.random_range(0..4)];
    let has_all = rng.random_bool(0.7);
    let drift = rng.random_range(-0.5..0.5);
    let mut samples = Vec::new();
    let mut at = now - length;
    while at < now && length > 0.0 {
        let factor = 1.0 + drift * (at - now) / HOUR + rng.random_range(-0.05..0.05);
        let mut values = BTreeMap::from([
            ("load1".to_owned(), load * factor),
            ("load5".to_owned(), load),
            ("used".to_owned(), used * factor),
            ("cached".to_owned(), used * 0.3),
        ]);
        if has_all {
            values.insert("pressure".to_owned(), rng.random_range(0.0..30.0));
            values.insert("estimate".to_owned(), used * 1.1);
            values.insert("lfc_hits".to_owned(), (at - now + HOUR) * 100.0 * factor);
            values.insert("lfc_misses".to_owned(), (at - now + HOUR) * 5.0);
        }
        let is_read = |name: &str| {
            let mut named = subject.series.iter();
            Series::ALWAYS.contains(&name) || named.any(|series| series.as_str() == name)
        };
        values.retain(|name, _| is_read(name));
        for feed in &subject.feeds {
            let name = format!("{}{feed}", Series::FEED);
            values.insert(name, f64::from(rng.random_range(0..20)));
        }
        values
            .values_mut()
            .for_each(|value| *value = rounded(*value));
        samples.push((rounded(at), values));
        at += PERIOD.max(length / MAX_SAMPLES);
    }
    samples
}

fn sometimes(rng: &mut ChaCha8Rng, most: f64) -> Option<f64> {
    rng.random_bool(0.3)
        .then(|| rounded(rng.random_range(0.0..most)))
}

fn rounded(number: f64) -> f64 {
    (number * 1000.0).round() / 1000.0
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the cast saturates"
)]
fn whole(number: f64) -> u32 {
    number as u32
}
