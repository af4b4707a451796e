use policy_contract::divide::LEFTOVERS;
use proptest::prelude::*;

use super::*;
use crate::core::decision::{Outcome, ResourceVerdict};

const fn at(seconds: u64) -> Timestamp {
    Timestamp(seconds * 1_000_000)
}

const fn demand(held: u64, asked: u64, priority: i32) -> Demand {
    Demand {
        held,
        asked,
        unit: 250,
        overcommit_milli: 1000,
        priority,
    }
}

#[test]
fn what_is_left_goes_to_the_smallest_first() {
    for (free, demands, expected) in [
        (0, vec![demand(250, 1000, 0)], vec![0]),
        (
            500,
            vec![demand(250, 1000, 0), demand(250, 1000, 0)],
            vec![250, 250],
        ),
        // The small one catches up before the large one grows.
        (
            500,
            vec![demand(250, 2000, 0), demand(1000, 2000, 0)],
            vec![500, 0],
        ),
        (
            1250,
            vec![demand(250, 2000, 0), demand(1000, 2000, 0)],
            vec![1000, 250],
        ),
        // Who wants little leaves the rest to the others.
        (
            1500,
            vec![
                demand(250, 500, 0),
                demand(250, 4000, 0),
                demand(250, 4000, 0),
            ],
            vec![250, 750, 500],
        ),
        // One unit for three: not a third for each.
        (
            300,
            vec![
                demand(250, 1000, 0),
                demand(250, 1000, 0),
                demand(250, 1000, 0),
            ],
            vec![250, 0, 0],
        ),
        // A demand that is no whole unit is met whole or by units.
        (
            690,
            vec![demand(300, 690, 0), demand(300, 690, 0)],
            vec![390, 250],
        ),
        // A class waits for the one above it, and not for the one below.
        (
            500,
            vec![demand(250, 2000, 0), demand(2000, 2500, 7)],
            vec![0, 500],
        ),
        (
            1000,
            vec![demand(250, 2000, 0), demand(2000, 2500, 7)],
            vec![500, 500],
        ),
        (
            200,
            vec![demand(250, 2000, 0), demand(2000, 2500, 7)],
            vec![0, 0],
        ),
    ] {
        assert_eq!(divide(free, &demands), expected, "{free} of {demands:?}");
    }
    let half = Demand {
        overcommit_milli: 2000,
        ..demand(0, 4000, 0)
    };
    assert_eq!(divide(1000, &[half, half]), [1000, 1000], "discounted");
}

fn demands() -> impl Strategy<Value = Vec<Demand>> {
    let one = (
        0_u64..20_000,
        0_u64..20_000,
        1_u64..2_000,
        500_u32..3_000,
        0..3,
    );
    let one = one.prop_map(|(held, more, unit, overcommit_milli, priority)| Demand {
        held,
        asked: held + more,
        unit,
        overcommit_milli,
        priority,
    });
    proptest::collection::vec(one, 1..12)
}

proptest! {
    #[test]
    fn divide_is_max_min(free in 0_u128..60_000, demands in demands()) {
        let growth = divide(free, &demands);
        let costs = demands.iter().zip(&growth).map(|(demand, growth)| demand.cost(*growth));
        let taken: u128 = costs.sum();
        prop_assert!(taken <= free, "{taken} of {free}");
        let size = |n: usize| demands[n].held + growth[n];
        for (n, demand) in demands.iter().enumerate() {
            prop_assert!(size(n) <= demand.asked);
            prop_assert!(size(n) == demand.asked || growth[n].is_multiple_of(demand.unit));
            if size(n) == demand.asked {
                continue;
            }
            for (other, theirs) in demands.iter().enumerate() {
                // Nobody of a lower class grows while one of a higher class waits.
                prop_assert!(theirs.priority >= demand.priority || growth[other] == 0);
                // Nobody of the class grew beyond whoever waits and could have had a unit of it by
                // more than leftovers.
                let step = demand.unit.min(demand.asked - size(n));
                let costs = demand.cost(growth[n] + step) - demand.cost(growth[n]);
                let could = costs <= theirs.cost(growth[other]) + (free - taken);
                if theirs.priority == demand.priority && growth[other] > 0 && could {
                    let steps = (LEFTOVERS * demands.len() + 1) as u64 * (demand.unit + theirs.unit);
                    prop_assert!(size(other) <= size(n) + steps, "{other} over {n}");
                }
            }
        }
    }

    #[test]
    fn equal_units_leave_nobody_more_than_a_unit_behind(
        free in 0_u128..40_000, sizes in proptest::collection::vec((0_u64..40, 0_u64..40), 1..12),
    ) {
        let of = |(held, more): &(u64, u64)| demand(held * 250, (held + more) * 250, 0);
        let demands: Vec<Demand> = sizes.iter().map(of).collect();
        let growth = divide(free, &demands);
        let taken: u64 = growth.iter().sum();
        let waits = |n: &usize| demands[*n].held + growth[*n] < demands[*n].asked;
        for n in (0..demands.len()).filter(waits) {
            prop_assert!(free - u128::from(taken) < 250, "a unit is left over");
            for other in (0..demands.len()).filter(|other| growth[*other] > 0) {
                prop_assert!(demands[other].held + growth[other] <= demands[n].held + growth[n] + 250);
            }
        }
    }

    #[test]
    fn no_rate_is_exceeded_over_any_time(
        steps in proptest::collection::vec((0_u64..3_000_000, 0_u64..5_000), 1..60),
        rate in 100_u64..2_000, burst_seconds in 1_u32..10,
    ) {
        let rule = Fairness { burst_seconds, ..Fairness::default() };
        let resources = Resources::new(u32::try_from(rate).unwrap_or(1), 0);
        let (mut full, mut now) = (Full::default(), at(100));
        let mut grown: Vec<(Timestamp, u64)> = Vec::new();
        for (pause, demand) in steps {
            now = now + Span(pause);
            let growth = demand.min(allowed(rate, &rule, full.cpu, now));
            charge(&mut full, resources, Both::new(growth, 0), now);
            grown.push((now, growth));
            for (since, _) in &grown {
                let sum: u64 = grown.iter().filter(|(at, _)| at >= since).map(|(_, g)| g).sum();
                let seconds = u128::from(now.since(*since).0) + u128::from(burst_seconds) * 1_000_000;
                let most = u128::from(rate) * seconds / 1_000_000;
                // What is charged is rounded down to a microsecond each time.
                prop_assert!(u128::from(sum) <= most + grown.len() as u128, "{sum} in {seconds}");
            }
        }
    }
}

fn key(name: &str) -> NamespacedName {
    NamespacedName {
        namespace: "default".into(),
        name: name.into(),
    }
}

fn decision(vm: &str, asked: u64, held: u64, permit: u64, outcome: Outcome) -> PermitDecision {
    let verdict = ResourceVerdict {
        asked,
        held,
        permit,
        most: 100_000,
        room: 0,
        outcome,
    };
    let verdicts = Both::new(
        verdict,
        ResourceVerdict {
            asked: 1,
            held: 1,
            permit: 1,
            most: 1,
            room: 0,
            outcome: Outcome::Accepted,
        },
    );
    PermitDecision {
        pod: key(vm),
        vm: key(vm),
        node: "n".into(),
        permit: verdicts.map(|_, verdict| verdict.permit).to_resources(),
        approved: verdicts.map(|_, verdict| verdict.permit).to_resources(),
        verdicts,
        claim: None,
        overclaimed: false,
        approved_is_malformed: false,
        autoscaled: true,
    }
}

/// What `vm` may grow by from 1,000 to 2,000 on a node with 500 left, by what was decided before.
fn cap(fair: &Fair, rule: &Fairness, now: Timestamp, priority: i32) -> Option<(u64, Limit)> {
    let vm = key("b");
    let case = Case {
        now,
        rule,
        node: "n",
        vm: &vm,
        priority,
    };
    let input = GrantInput {
        total: 10_000,
        others: 8_500,
        held: 1_000,
        asked: 2_000,
        unit: 250,
        overcommit_milli: 1000,
    };
    fair.cap(case, Resource::Cpu, &input)
}

fn decided(
    fair: &mut Fair,
    rule: &Fairness,
    now: Timestamp,
    priority: i32,
    decision: &PermitDecision,
) {
    let vm = decision.vm.clone();
    let case = Case {
        now,
        rule,
        node: "n",
        vm: &vm,
        priority,
    };
    fair.decided(case, decision, Resources::new(250, 1), Both::same(1000));
}

#[test]
fn a_wish_that_was_not_met_counts_against_others_for_a_while() {
    let rule = Fairness {
        sharing: true,
        ..Fairness::default()
    };
    let (mut fair, off) = (Fair::default(), Fairness::default());
    assert_eq!(cap(&fair, &rule, at(1), 0), None, "nobody waits");
    let denied = decision("a", 1_000, 500, 500, Outcome::Denied(Limit::NoRoom));
    decided(&mut fair, &off, at(1), 0, &denied);
    assert_eq!(
        cap(&fair, &rule, at(1), 0),
        None,
        "nothing is kept while it is off"
    );
    decided(&mut fair, &rule, at(1), 0, &denied);
    assert_eq!(
        cap(&fair, &rule, at(2), 0),
        Some((0, Limit::FairShare)),
        "a is smaller"
    );
    assert_eq!(
        cap(&fair, &rule, at(2), 5),
        Some((500, Limit::FairShare)),
        "b comes first"
    );
    assert_eq!(cap(&fair, &rule, at(2), -5), Some((0, Limit::Priority)));
    assert_eq!(cap(&fair, &off, at(2), 0), None);
    assert_eq!(cap(&fair, &rule, at(6), 0), None, "it has not asked since");
    // Met, it waits no more.
    decided(&mut fair, &rule, at(2), 0, &denied);
    decided(
        &mut fair,
        &rule,
        at(3),
        0,
        &decision("a", 1_000, 500, 1_000, Outcome::Granted),
    );
    assert_eq!(cap(&fair, &rule, at(3), 0), None);
    // Room would not help a VM that is kept back for another reason.
    decided(
        &mut fair,
        &rule,
        at(3),
        0,
        &decision("a", 1_000, 500, 500, Outcome::Denied(Limit::GrowthRate)),
    );
    assert_eq!(cap(&fair, &rule, at(3), 0), None);
    decided(&mut fair, &rule, at(3), 0, &denied);
    fair.gone(&key("a"));
    assert_eq!(cap(&fair, &rule, at(3), 0), None);
}

/// Each VM's part is computed at its own request. Both must see the same division.
///
/// Requirement: V14
#[test]
fn v14_last_unit_of_two_equal_vms_is_given_to_one_of_them() {
    let rule = Fairness {
        sharing: true,
        ..Fairness::default()
    };
    let mut fair = Fair::default();
    for vm in ["a", "b"] {
        let denied = decision(vm, 2_000, 1_000, 1_000, Outcome::Denied(Limit::FairShare));
        decided(&mut fair, &rule, at(1), 0, &denied);
    }
    let part = |vm: &str| {
        let vm = key(vm);
        let case = Case {
            now: at(2),
            rule: &rule,
            node: "n",
            vm: &vm,
            priority: 0,
        };
        let input = GrantInput {
            total: 10_000,
            others: 8_750,
            held: 1_000,
            asked: 2_000,
            unit: 250,
            overcommit_milli: 1000,
        };
        fair.cap(case, Resource::Cpu, &input).map(|(part, _)| part)
    };
    assert_eq!([part("a"), part("b")], [Some(250), Some(0)]);
}

#[test]
fn a_vm_and_a_node_grow_no_faster_than_they_may() {
    let rate = Resources::new(100, 0);
    let vm = Fairness {
        vm_growth_per_second: rate,
        burst_seconds: 3,
        ..Fairness::default()
    };
    let node = Fairness {
        node_growth_per_second: rate,
        burst_seconds: 3,
        ..Fairness::default()
    };
    for (rule, grower) in [(vm, "b"), (node, "a")] {
        let mut fair = Fair::default();
        assert_eq!(
            cap(&fair, &rule, at(100), 0),
            Some((300, Limit::GrowthRate))
        );
        let grown = decision(grower, 1_200, 1_000, 1_200, Outcome::Granted);
        decided(&mut fair, &rule, at(100), 0, &grown);
        assert_eq!(
            cap(&fair, &rule, at(100), 0),
            Some((100, Limit::GrowthRate))
        );
        assert_eq!(
            cap(&fair, &rule, at(101), 0),
            Some((200, Limit::GrowthRate))
        );
        assert_eq!(
            cap(&fair, &rule, at(200), 0),
            Some((300, Limit::GrowthRate)),
            "no more than a burst"
        );
    }
    // Another VM's growth is not this one's.
    let mut fair = Fair::default();
    decided(
        &mut fair,
        &vm,
        at(100),
        0,
        &decision("a", 1_200, 1_000, 1_200, Outcome::Granted),
    );
    assert_eq!(cap(&fair, &vm, at(100), 0), Some((300, Limit::GrowthRate)));
}
