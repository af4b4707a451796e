use super::*;

fn options(seed: u64, machines: usize) -> Options {
    Options {
        seed,
        machines,
        loss: 0,
        sabotage: None,
    }
}

fn with(sabotage: Sabotage) -> Options {
    Options {
        sabotage: Some(sabotage),
        ..options(1, 5)
    }
}

const LOSS_5_PERCENT: u32 = 50_000;

/// Requirement: V21
#[test]
fn v21_two_of_five_hold_three_plan_and_healing_gives_one_order() {
    for seed in 0..20 {
        for apart in [20, 50, 200] {
            let apart = Span::from_secs(apart);
            split(options(seed, 5), &[3, 2], apart)
                .unwrap_or_else(|error| panic!("seed {seed}: {error}"));
            split(options(seed, 4), &[2, 2], apart)
                .unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        }
    }
}

/// Requirement: V19, V20
#[test]
fn v19_v20_next_leader_plans_within_30_s_and_moves_no_member() {
    for seed in 0..100 {
        death(options(seed, 5)).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    }
}

/// Requirement: V23
#[test]
fn v23_sixteen_machines_at_5_percent_loss_know_joins_and_deaths_in_time() {
    let mut planned = Vec::new();
    for seed in 0..5 {
        let lossy = Options {
            loss: LOSS_5_PERCENT,
            ..options(seed, 16)
        };
        join(lossy).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        let measured = death(lossy).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        planned.push(measured.planned);
    }
    planned.sort();
    assert!(planned.last() < Some(&Span::from_secs(30)), "{planned:?}");
}

/// Requirement: V21. Also where more members are planned than fit, no unit is promised twice.
#[test]
fn v21_no_unit_is_promised_twice_on_either_side_of_a_cut() {
    for seed in 0..20 {
        let mut world = World::new(options(seed, 5));
        world.run_for(Span::from_secs(60));
        world.groups = vec![0, 0, 0, 1, 1];
        for machine in &mut world.machines {
            // A plan of before the cut, when the machine's own VM was small.
            machine.count = 12;
        }
        world.run_for(Span::from_secs(60));
        assert_eq!(world.overcommitted, None, "seed {seed}");
        let waits = |machine: &Machine| machine.ledger.members < machine.count;
        assert!(
            world.machines.iter().any(waits),
            "seed {seed}: all had room"
        );
    }
}

/// Requirement: V21
#[test]
fn v21_checks_notice_planted_faults() {
    let apart = Span::from_secs(50);
    let noticed = |result: Result<Measured, String>, what: &str| {
        let error = result.expect_err(what);
        assert!(error.contains(what), "{error}");
    };
    noticed(
        split(with(Sabotage::NoQuorum), &[3, 2], apart),
        "while apart",
    );
    noticed(death(with(Sabotage::NoGather)), "members");
    noticed(death(with(Sabotage::DeafToClaims)), "leaders");
    noticed(death(with(Sabotage::Asleep)), "no plan 30 s after");
    let mut world = World::new(with(Sabotage::NoLedger));
    world.run_for(Span::from_secs(30));
    world.machines[0].count = 12;
    world.run_for(Span::from_secs(5));
    let promised = world.overcommitted.expect("it is noticed");
    assert!(promised.contains("of 12 units are promised"), "{promised}");
}
