use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore as _, SeedableRng as _};

use super::*;

fn sound() -> Readings {
    Readings {
        seconds: 1200,
        resident_bytes: 1 << 20,
        resize_millis: vec![500; 10],
        ..Readings::default()
    }
}

struct Case {
    changed: Vec<Readings>,
    control: Vec<Readings>,
    matches: u32,
    baked: u64,
}

impl Case {
    fn new() -> Self {
        Self {
            changed: vec![sound(); 4],
            control: vec![sound(); 16],
            matches: 20,
            baked: 600,
        }
    }

    fn judge(&self) -> Judgement {
        let changed: Vec<&Readings> = self.changed.iter().collect();
        let control: Vec<&Readings> = self.control.iter().collect();
        let bake = Bake {
            changed: &changed,
            control: &control,
            matches: self.matches,
            baked: self.baked,
            bake_seconds: 600,
            is_look: true,
            bakes: 2,
        };
        judge(&bake, &Judge::default())
    }

    fn halts(&self, word: &str) -> bool {
        matches!(self.judge(), Judgement::Halt(text) if text.contains(word))
    }
}

/// Requirement: B35
#[test]
fn harm_to_changed_guests_halts() {
    let with = |change: fn(&mut Case)| {
        let mut case = Case::new();
        change(&mut case);
        case
    };
    let kill = |case: &mut Case| {
        case.changed[0].oom_kills = 1;
        case.changed[0].kills_with_room = 1;
    };
    assert!(with(kill).halts("OOM"));
    let lost = |case: &mut Case| {
        for one in &mut case.changed[..2] {
            one.longest_loss = 61;
        }
    };
    assert!(with(lost).halts("link"));
    let large = |case: &mut Case| {
        for one in &mut case.changed[..2] {
            one.resident_bytes = (16 << 20) + 1;
        }
    };
    assert!(with(large).halts("memory"));
    let refuses = |case: &mut Case| {
        for one in &mut case.changed {
            one.refusals = 10;
        }
    };
    assert!(with(refuses).halts("refusals"));
    let slow = |case: &mut Case| {
        for one in &mut case.changed {
            one.resize_millis = vec![1001; 10];
        }
    };
    assert!(with(slow).halts("resize"));
}

#[test]
fn sound_release_passes_after_its_bake() {
    assert_eq!(Case::new().judge(), Judgement::Pass);
    let early = Case {
        baked: 599,
        ..Case::new()
    };
    assert!(matches!(early.judge(), Judgement::Wait(_)));
}

#[test]
fn figures_at_their_limits_do_not_halt() {
    let mut case = Case::new();
    case.changed[0].longest_loss = 1000;
    case.changed[1].longest_loss = 60;
    case.changed[0].resident_bytes = 17 << 20;
    for one in &mut case.changed {
        one.resize_millis = vec![1000; 10];
    }
    // The node had no memory left.
    case.changed[0].oom_kills = 1;
    assert_eq!(case.judge(), Judgement::Pass);
}

#[test]
fn no_data_is_neither_good_nor_bad() {
    let mut case = Case::new();
    case.changed = vec![Readings::default(); 4];
    assert!(matches!(case.judge(), Judgement::Wait(_)));
    case.baked = 1800;
    assert!(matches!(case.judge(), Judgement::Inconclusive(_)));
    case.changed = vec![sound(); 4];
    for one in &mut case.changed {
        one.resize_millis.clear();
    }
    assert!(matches!(case.judge(), Judgement::Inconclusive(_)));
}

#[test]
fn unwell_control_group_lets_nothing_advance() {
    let mut case = Case::new();
    for one in &mut case.control {
        one.longest_loss = 100;
    }
    assert!(matches!(case.judge(), Judgement::Wait(text) if text.contains("unwell")));
    case.baked = 1800;
    assert!(matches!(case.judge(), Judgement::Inconclusive(text) if text.contains("unwell")));
}

#[test]
fn small_fleet_has_no_statistics() {
    let mut case = Case::new();
    for one in &mut case.changed {
        one.refusals = 10;
    }
    case.matches = LEAST_MATCHES - 1;
    assert_eq!(case.judge(), Judgement::Pass);
}

#[test]
fn lying_guest_does_not_halt_a_release() {
    let mut case = Case::new();
    case.changed[0].refusals = 1_000_000;
    assert_eq!(case.judge(), Judgement::Pass);
}

#[test]
fn counter_that_falls_begins_a_new_window() {
    let sample = |at: u64, kills: u64| Sample {
        at,
        oom_kills: kills,
        node_has_room: true,
        agent_connected: true,
        ..Sample::default()
    };
    let mut readings = Readings::default();
    for one in [sample(0, 5), sample(10, 6), sample(20, 0), sample(30, 1)] {
        readings.add(one);
    }
    assert_eq!((readings.oom_kills, readings.seconds), (2, 20));
    assert_eq!(readings.kills_with_room, 2);
}

#[test]
fn loss_of_the_link_is_timed_from_its_first_look() {
    let mut readings = Readings::default();
    for at in 0..10 {
        readings.add(Sample {
            at: at * 10,
            agent_connected: at == 0,
            ..Sample::default()
        });
    }
    assert_eq!((readings.lost_links, readings.longest_loss), (1, 90));
}

/// Events of a time at a rate in a million seconds, by Poisson's distribution.
fn events(rng: &mut ChaCha8Rng, seconds: u32, ppm: u32) -> u64 {
    let end = (-f64::from(seconds) * f64::from(ppm) / 1e6).exp();
    let mut events = 0;
    let mut product = f64::from(rng.next_u32()) / f64::from(u32::MAX);
    while product > end {
        events += 1;
        product *= f64::from(rng.next_u32()) / f64::from(u32::MAX);
    }
    events
}

/// A rollout of four bakes with 12 looks each. Whether it halts.
fn rollout(seed: u64, ppm: u32, factor: u32) -> bool {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    (0..4).any(|_| {
        let mut changed = vec![Readings::default(); 3];
        let mut control = vec![Readings::default(); 12];
        (0..LOOKS).any(|_| {
            for (guests, factor) in [(&mut changed, factor), (&mut control, 1)] {
                for one in guests.iter_mut() {
                    one.seconds += 150;
                    one.refusals += events(&mut rng, 150, ppm * factor);
                    one.full_looks += events(&mut rng, 100, ppm * factor);
                    one.lost_links += events(&mut rng, 20, ppm * factor);
                    one.oom_kills += events(&mut rng, 5, ppm * factor);
                }
            }
            let changed: Vec<&Readings> = changed.iter().collect();
            let control: Vec<&Readings> = control.iter().collect();
            let bake = Bake {
                changed: &changed,
                control: &control,
                matches: 40,
                baked: 300,
                bake_seconds: 600,
                is_look: true,
                bakes: 4,
            };
            matches!(judge(&bake, &Judge::default()), Judgement::Halt(_))
        })
    })
}

/// Fewer than 1 % of 10,000 rollouts of an equal release halt.
#[test]
fn equal_release_is_rarely_halted() {
    let halts = (0..10_000).filter(|seed| rollout(*seed, 2000, 1)).count();
    assert!(halts < 100, "{halts} of 10,000");
}

#[test]
fn release_with_eight_times_the_refusals_is_halted() {
    let halts = (0..100).filter(|seed| rollout(*seed, 2000, 8)).count();
    assert!(halts > 95, "{halts} of 100");
}
