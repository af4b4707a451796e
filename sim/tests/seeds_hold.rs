//! A share of the long run, small enough for every test run, and the seeds that once found
//! something.

use sim::{Level, Options, Outcome, PolicyKind};

/// Seeds that found a bug: `level seed steps [requests] [replicas] [hostile|batch]  # what`.
const FOUND: &str = include_str!("../seeds/found.txt");

fn holds(options: Options) -> Outcome {
    let outcome = sim::run(options, |_| {});
    if let Some(headline) = outcome.headline() {
        panic!("{headline}\n{}", outcome.last.join("\n"));
    }
    outcome
}

#[test]
fn n06_n16_everything_holds_under_heavy_faults() {
    let (mut calms, mut kinds) = (0, std::collections::BTreeSet::new());
    for seed in 1..=16 {
        let outcome = holds(Options::short(seed, Level::Heavy, 6_000));
        calms += outcome.calms;
        kinds.extend(outcome.tally.iter().map(|(kind, _)| kind));
    }
    // The run proves something only if all of this happened in it.
    for kind in [
        "agent crash",
        "scheduler crash",
        "controller crash",
        "api lost",
        "permit lost",
        "watch gap",
        "guest lies",
    ] {
        assert!(kinds.contains(kind), "{kind} did not happen: {kinds:?}");
    }
    assert!(calms > 0, "no calm was judged");
}

#[test]
fn n08_n16_n45_everything_holds_while_two_schedulers_hand_over_and_die() {
    let mut tally = sim::faults::Tally::default();
    let mut calms = 0;
    for seed in 1..=6 {
        let mut options = Options::short(seed, Level::Heavy, 8_000);
        options.replicas = 2;
        let outcome = holds(options);
        calms += outcome.calms;
        tally.add(&outcome.tally);
    }
    assert!(calms > 0, "no calm was judged");
    for kind in [
        "scheduler crash",
        "scheduler told to end",
        "lead taken over warm",
        "lead taken over with lists",
    ] {
        assert!(tally.get(kind) > 0, "{kind} did not happen");
    }
}

/// N41, N20: the same where pods request what their guests have, as on Kubernetes, and CPUs are
/// plugged ahead.
#[test]
fn n41_everything_holds_while_pods_request_what_their_guests_have() {
    let mut tally = sim::faults::Tally::default();
    let mut calms = 0;
    for seed in 1..=40 {
        let mut options = Options::short(seed, Level::Heavy, 5_000);
        options.requests = true;
        let outcome = holds(options);
        calms += outcome.calms;
        tally.add(&outcome.tally);
    }
    assert!(calms > 0, "no calm was judged");
    for kind in ["plugged ahead", "resize refused", "controller crash"] {
        assert!(tally.get(kind) > 0, "{kind} did not happen");
    }
}

/// Requirement: V33, V13
#[test]
fn v33_everything_holds_under_a_hostile_policy() {
    let mut tally = sim::faults::Tally::default();
    let mut calms = 0;
    for (level, seeds) in [(Level::Heavy, 1..=12), (Level::None, 101..=104)] {
        for seed in seeds {
            let mut options = Options::short(seed, level, 8_000);
            options.policy = PolicyKind::Hostile;
            let outcome = holds(options);
            calms += outcome.calms;
            tally.add(&outcome.tally);
        }
    }
    assert!(calms > 0, "no calm was judged");
    for kind in [
        "advice as built in",
        "advice at random",
        "advice that flaps",
        "advice to have all",
        "advice to have nothing",
        "advice to hold",
        "advice at fault",
        "advice late",
        "advice lost",
        "advice of another policy",
        "advice unbound",
    ] {
        assert!(tally.get(kind) > 0, "{kind} did not happen");
    }
}

/// The bounds of convergence are those of runs without a policy.
///
/// Requirement: V33
#[test]
fn v33_built_in_goal_as_a_policy_reaches_the_same_targets() {
    let mut calms = 0;
    for (level, seeds) in [(Level::Heavy, 1..=8), (Level::None, 101..=104)] {
        for seed in seeds {
            let mut options = Options::short(seed, level, 6_000);
            options.policy = PolicyKind::Builtin;
            calms += holds(options).calms;
        }
    }
    assert!(calms > 0, "no calm was judged");
}

/// A batch VM takes what its node has left, and no other VM lacks units that it could give back.
///
/// Requirement: V14
#[test]
fn v14_batch_vm_takes_the_rest_and_leaves_nobody_short() {
    let mut calms = 0;
    for (level, seeds) in [(Level::Heavy, 1..=8), (Level::None, 101..=112)] {
        for seed in seeds {
            let mut options = Options::short(seed, level, 8_000);
            options.policy = PolicyKind::Batch;
            calms += holds(options).calms;
        }
    }
    assert!(calms > 0, "no calm was judged");
}

#[test]
fn everything_holds_without_faults() {
    for seed in 101..=103 {
        let outcome = holds(Options::short(seed, Level::None, 6_000));
        assert!(outcome.calms > 0, "seed {seed}: no calm was judged");
        assert_eq!(outcome.tally.iter().count(), 0, "nothing went wrong");
    }
}

#[test]
fn the_same_seed_is_the_same_run() {
    let run = |seed| holds(Options::short(seed, Level::Heavy, 5_000)).hash;
    assert_eq!(run(7), run(7));
    assert_ne!(run(7), run(8));
}

#[test]
fn seeds_that_found_something_hold_now() {
    let mut replayed = 0;
    for line in FOUND
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
    {
        let mut words = line.split_whitespace();
        let level = match words.next() {
            Some("light") => Level::Light,
            Some("heavy") => Level::Heavy,
            other => panic!("{other:?} is no level: {line}"),
        };
        let mut number = || {
            words
                .next()
                .and_then(|word| word.parse::<u64>().ok())
                .expect("a number")
        };
        let (seed, steps) = (number(), number());
        let mut options = Options::short(seed, level, steps);
        for word in words.take_while(|word| *word != "#") {
            match word {
                "requests" => options.requests = true,
                "replicas" => options.replicas = 2,
                "hostile" => options.policy = PolicyKind::Hostile,
                "batch" => options.policy = PolicyKind::Batch,
                other => panic!("{other} is no option: {line}"),
            }
        }
        holds(options);
        replayed += 1;
    }
    assert!(replayed > 0, "no seed is recorded");
}
