use super::*;
use crate::settings::Alone;

fn at(secs: u64) -> Timestamp {
    Timestamp(0) + Span::from_secs(secs)
}

fn inventory(units_free: u32, web: u32) -> Inventory {
    Inventory {
        units_free,
        counts: [("web".to_owned(), web)].into(),
    }
}

fn peer(web: u32, claim: Option<Claim>) -> Peer {
    Peer {
        priority: 0,
        claim,
        inventory: inventory(8, web),
    }
}

fn members<const N: usize>(peers: [(&str, Peer); N]) -> Event {
    Event::Members(peers.map(|(id, peer)| (id.into(), peer)).into())
}

fn claim(majority: bool, epoch: u64, holder: &str) -> Claim {
    Claim {
        majority,
        epoch,
        holder: holder.into(),
    }
}

fn actions(core: &mut Leader, now: Timestamp) -> Vec<Action> {
    std::iter::from_fn(|| core.poll_action(now)).collect()
}

/// Machine `id`, to which `wanted` members of `web` are known.
fn leader(id: &str, settings: Settings, wanted: u32) -> Leader {
    let mut core = Leader::new(at(0), id.into(), 0, settings, 0);
    core.handle(at(0), Event::Wanted([("web".to_owned(), wanted)].into()));
    core.handle(at(0), Event::Here(inventory(8, 1)));
    core
}

fn planned(actions: &[Action]) -> Vec<&Plan> {
    let plans = actions.iter().filter_map(|action| match action {
        Action::Plan(plan) => Some(plan),
        _ => None,
    });
    plans.collect()
}

fn of_three() -> Settings {
    Settings {
        expected: Some(3),
        ..Settings::default()
    }
}

/// Requirement: V20
#[test]
fn v20_leader_gathers_before_its_first_plan_and_leaves_a_silent_machine_alone() {
    let mut core = leader("a", of_three(), 9);
    core.handle(at(1), members([("b", peer(2, None)), ("c", peer(4, None))]));
    let first = actions(&mut core, at(1));
    assert_eq!(
        first,
        [
            Action::Publish(Some(claim(true, 1, "a"))),
            Action::Gather("b".into()),
            Action::Gather("c".into()),
        ]
    );
    assert_eq!(core.role(at(1)), Role::Gathers);
    let from_b = Event::Gathered {
        from: "b".into(),
        inventory: inventory(8, 2),
    };
    core.handle(at(2), from_b);
    assert_eq!(actions(&mut core, at(2)), []);
    assert_eq!(core.poll_deadline(), Some(at(6)));
    let later = actions(&mut core, at(6));
    let counts = &planned(&later)[0].counts;
    assert_eq!(
        counts.keys().map(AsRef::as_ref).collect::<Vec<&str>>(),
        ["a", "b"]
    );
    let sum: u32 = counts.values().map(|counts| counts["web"]).sum();
    assert_eq!(sum + 4, 9, "the four members of c stay and count");
    assert_eq!(core.role(at(6)), Role::Leads);
}

/// Requirement: V20
#[test]
fn v20_members_of_a_lost_machine_count_for_60_s() {
    let mut core = leader("a", of_three(), 3);
    core.handle(at(0), members([("b", peer(1, None)), ("c", peer(1, None))]));
    actions(&mut core, at(0));
    for from in ["b", "c"] {
        let gathered = Event::Gathered {
            from: from.into(),
            inventory: inventory(8, 1),
        };
        core.handle(at(0), gathered);
    }
    let ones = |actions: &[Action]| {
        let plans = planned(actions);
        plans[0]
            .counts
            .values()
            .map(|counts| counts["web"])
            .collect::<Vec<_>>()
    };
    assert_eq!(ones(&actions(&mut core, at(0))), [1, 1, 1]);
    core.handle(at(20), members([("b", peer(1, None))]));
    assert_eq!(ones(&actions(&mut core, at(20))), [1, 1]);
    assert_eq!(ones(&actions(&mut core, at(79))), [1, 1]);
    assert_eq!(ones(&actions(&mut core, at(89))), [2, 1]);
}

/// Requirement: V19
#[test]
fn v19_next_machine_in_the_order_claims_with_a_greater_epoch() {
    let mut core = leader("b", of_three(), 3);
    let leads = peer(1, Some(claim(true, 7, "a")));
    core.handle(at(1), members([("a", leads), ("c", peer(1, None))]));
    assert_eq!(actions(&mut core, at(1)), []);
    assert_eq!(core.role(at(1)), Role::Follows("a".into()));
    core.handle(at(9), members([("c", peer(1, None))]));
    let first = actions(&mut core, at(9));
    assert_eq!(first[0], Action::Publish(Some(claim(true, 8, "b"))));
}

/// Requirement: V19
#[test]
fn v19_machine_waits_for_each_that_is_before_it() {
    let mut core = leader("c", of_three(), 3);
    let mut last = peer(1, None);
    last.priority = 5;
    core.handle(at(1), members([("a", last), ("b", peer(1, None))]));
    assert_eq!(actions(&mut core, at(1)), []);
    assert_eq!(core.role(at(1)), Role::Waits);
    assert_eq!(core.poll_deadline(), Some(at(6)), "b alone is before c");
    assert!(matches!(
        actions(&mut core, at(6))[0],
        Action::Publish(Some(_))
    ));
}

/// Requirement: V21
#[test]
fn v21_leader_resigns_before_a_greater_claim_and_plans_no_more() {
    let mut core = leader("a", of_three(), 3);
    core.handle(at(0), members([("b", peer(1, None)), ("c", peer(1, None))]));
    actions(&mut core, at(0));
    let greater = peer(1, Some(claim(true, 2, "c")));
    core.handle(at(1), members([("b", peer(1, None)), ("c", greater)]));
    assert_eq!(actions(&mut core, at(1)), [Action::Publish(None)]);
    assert_eq!(core.role(at(1)), Role::Follows("c".into()));
    assert_eq!(core.in_force(), Some(claim(true, 2, "c")));
    assert_eq!(actions(&mut core, at(60)), []);
}

/// Requirement: V21
#[test]
fn v21_minority_publishes_no_claim_and_carries_out_no_plan() {
    let mut core = leader("a", Settings::default(), 9);
    let five = ["b", "c", "d", "e"].map(|id| (id, peer(1, None)));
    core.handle(at(0), members(five));
    assert!(matches!(
        actions(&mut core, at(0))[0],
        Action::Publish(Some(_))
    ));
    core.handle(at(10), members([("b", peer(1, None))]));
    assert_eq!(actions(&mut core, at(10)), [Action::Publish(None)]);
    assert_eq!(core.role(at(10)), Role::Holds(HoldReason::Minority));
    assert_eq!(core.in_force(), None);
    assert_eq!(actions(&mut core, at(500)), []);
    assert_eq!(core.poll_deadline(), None);
}

/// Requirement: V22
#[test]
fn v22_one_of_two_plans_for_itself_only_where_told_to() {
    for (rule, plans) in [(Alone::Local, true), (Alone::Hold, false)] {
        let settings = Settings {
            expected: Some(2),
            on_pair_alone: rule,
            ..Settings::default()
        };
        let mut core = leader("a", settings, 4);
        let done = actions(&mut core, at(0));
        assert_eq!(!planned(&done).is_empty(), plans, "{rule:?}");
        if plans {
            assert_eq!(planned(&done)[0].claim, claim(false, 1, "a"));
        }
    }
}

#[test]
fn claim_of_a_machine_that_another_publishes_is_ignored() {
    let mut core = leader("a", of_three(), 3);
    let forged = peer(1, Some(claim(true, 9, "z")));
    core.handle(at(0), members([("b", forged), ("c", peer(1, None))]));
    assert_eq!(
        actions(&mut core, at(0))[0],
        Action::Publish(Some(claim(true, 10, "a")))
    );
}
