//! The table of [`super::advice`], row by row.

use policy_contract::{Answer, Digest};
use protocol::core::Core as _;
use protocol::policy::{Fault, Limits};
use protocol::time::Span;
use protocol::units::Resources;
use serde_json::json;

use super::advice::{Advice, Said, Terms, advice, terms};
use super::decision::{Bound, Decision, Reason};
use super::event::Event;
use super::observation::Observation;
use super::warnings::{Warning, Warnings};
use super::world::{SCHEDULER, Step, UNIT, World, ready};

pub(super) const DIGEST: u32 = 0x5be1_a7c0;
/// Limits that never apply.
pub(super) const ENDLESS: Terms = Terms {
    digest: DIGEST,
    fallback_after: None,
    max_units: None,
    shrink_units_per_minute: None,
};
/// Load average, times 100, that the built-in goal answers with eight units.
const EIGHT: u32 = 180;

pub(super) fn units(n: u32) -> Resources {
    UNIT.saturating_mul(n)
}

pub(super) fn take(world: &mut World, one: &Step) {
    world.step(one).expect("the order holds");
}

pub(super) fn tell(world: &mut World, event: Event) {
    world.core.handle(world.now, event);
    world.take_actions().expect("the order holds");
}

pub(super) fn advise(world: &mut World, said: Said) {
    let digest = DIGEST;
    tell(world, Event::Advised(Advice { digest, said }));
}

/// A world at `using` units with this load, whose policy has these limits and has not answered.
pub(super) fn bound(using: u32, load: u32, terms: Terms) -> World {
    let mut world = ready(using, load);
    tell(&mut world, Event::Bound(Some(terms)));
    world
}

fn decision(world: &World) -> Decision {
    world.core.last_evaluation().expect("decided").decision
}

/// Target in units, reason and vote of the policy.
pub(super) fn answer(world: &World) -> (u32, Reason, Option<f64>) {
    let decision = decision(world);
    let target = decision.target.exact_multiple_of(UNIT);
    (
        target.expect("units"),
        decision.reason,
        decision.votes.policy,
    )
}

/// Whether the policy has no fault at the last decision.
fn is_sound(world: &World) -> bool {
    [Warning::PolicyLate, Warning::PolicyFault]
        .into_iter()
        .all(|warning| !warnings(world).contains(warning))
}

fn warnings(world: &World) -> Warnings {
    world.core.last_evaluation().expect("decided").warnings
}

pub(super) fn bounds(world: &World) -> Vec<Bound> {
    decision(world).bounded_by.iter().collect()
}

/// Lets `seconds` pass with metrics every second and without an answer of the policy.
fn pass(world: &mut World, seconds: u64, load: u32) {
    for _ in 0..seconds {
        take(world, &Step::wait_ms(1_000));
        take(world, &Step::load(load));
        take(world, &Step::done(SCHEDULER));
    }
}

/// Requirement: V33
#[test]
fn v33_answers_and_limits_become_advice_and_terms() {
    let digest = Digest::of(&format!("5be1a7c0{}", "0".repeat(56))).expect("a digest");
    assert_eq!(digest.short(), protocol::journal::hash_text(DIGEST));
    let deciding = terms(&digest, Limits::default());
    for (value, said) in [
        (json!({"cu": 5, "reason": "memory"}), Said::Want(5)),
        (json!({"hold": true, "reason": "no_data"}), Said::Hold),
    ] {
        let answer = Answer::read(&value).expect("an answer");
        let given = advice(&deciding, Ok(&answer));
        assert_eq!((given.digest, given.said), (DIGEST, said));
    }
    let fault = advice(&deciding, Err(Fault::Steps));
    assert_eq!(fault.said, Said::Fault(Fault::Steps));
    for (seconds, wait) in [
        (None, Some(Span::from_secs(600))),
        (Some(-1), None),
        (Some(30), Some(Span::from_secs(30))),
    ] {
        let limits = Limits {
            max_units: Some(16),
            shrink_units_per_minute: Some(4),
            vms_shrunk_at_once_percent: Some(20),
            fallback_after_seconds: seconds,
            ..Limits::default()
        };
        let expected = Terms {
            digest: DIGEST,
            fallback_after: wait,
            max_units: Some(16),
            shrink_units_per_minute: Some(4),
        };
        assert_eq!(terms(&digest, limits), expected);
    }
}

/// Requirement: V33
#[test]
fn v33_advice_stands_where_the_goal_stands() {
    let mut world = bound(4, EIGHT, ENDLESS);
    advise(&mut world, Said::Want(6));
    assert_eq!(answer(&world), (6, Reason::Policy, Some(6.0)));
    let decided = decision(&world);
    assert_eq!(decided.goal_units, 8, "the built-in goal is still there");
    assert_eq!(decided.votes.cpu, Some(8.0));
    advise(&mut world, Said::Want(2));
    assert_eq!(answer(&world), (2, Reason::Policy, Some(2.0)));
    advise(&mut world, Said::Hold);
    assert_eq!(answer(&world), (4, Reason::Policy, Some(4.0)));
    assert!(is_sound(&world));
    // The VM's bounds come after the advice.
    advise(&mut world, Said::Want(0));
    assert_eq!(
        (answer(&world).0, bounds(&world)),
        (1, vec![Bound::Min, Bound::MonitorApproval])
    );
    advise(&mut world, Said::Want(u32::MAX));
    assert_eq!(
        answer(&world),
        (8, Reason::Policy, Some(f64::from(u32::MAX)))
    );
    tell(&mut world, Event::Bound(None));
    assert_eq!(answer(&world), (8, Reason::Cpu, None));
}

/// Requirement: V33
#[test]
fn v33_unanswered_policy_lets_the_vm_grow_and_not_shrink() {
    let world = bound(4, 0, ENDLESS);
    assert_eq!(answer(&world), (4, Reason::Policy, None));
    assert!(is_sound(&world), "it was just asked");
    let mut world = bound(4, EIGHT, ENDLESS);
    assert_eq!(answer(&world), (8, Reason::Cpu, None));
    pass(&mut world, 16, EIGHT);
    assert!(warnings(&world).contains(Warning::PolicyLate));
}

/// Requirement: V33
#[test]
fn v33_fault_lets_the_vm_grow_and_not_shrink() {
    for (kind, warning) in [
        (Fault::Steps, Warning::PolicyFault),
        (Fault::WorkerDied, Warning::PolicyFault),
        (Fault::Late, Warning::PolicyLate),
    ] {
        // The size in use, the last advice and the built-in goal: the largest counts.
        for (load, advice, want) in [
            (0, None, (4, Reason::Policy, None)),
            (0, Some(Said::Want(2)), (4, Reason::Policy, Some(2.0))),
            (0, Some(Said::Hold), (4, Reason::Policy, Some(4.0))),
            (0, Some(Said::Want(6)), (6, Reason::Policy, Some(6.0))),
            (EIGHT, Some(Said::Want(6)), (8, Reason::Cpu, Some(6.0))),
        ] {
            let mut world = bound(4, load, ENDLESS);
            if let Some(said) = advice {
                advise(&mut world, said);
            }
            advise(&mut world, Said::Fault(kind));
            assert_eq!(answer(&world), want, "{kind:?} {load} {advice:?}");
            assert!(warnings(&world).contains(warning), "{kind:?}");
            advise(&mut world, Said::Want(3));
            assert_eq!(answer(&world), (3, Reason::Policy, Some(3.0)));
            assert!(is_sound(&world));
        }
    }
}

/// Advice is as old as metrics may be, to the microsecond, and the core wakes when it ends.
///
/// Requirement: V08
#[test]
fn v08_old_advice_shrinks_nothing() {
    let mut world = bound(4, 0, ENDLESS);
    advise(&mut world, Said::Want(2));
    let advised_at = world.now;
    world.now = advised_at + Span::from_secs(15);
    take(&mut world, &Step::load(0));
    assert_eq!(answer(&world), (2, Reason::Policy, Some(2.0)));
    assert_eq!(world.core.poll_deadline(), Some(world.now + Span(1)));
    world.now = world.now + Span(1);
    tell(&mut world, Event::Tick);
    assert_eq!(answer(&world), (4, Reason::Policy, Some(2.0)));
    assert!(warnings(&world).contains(Warning::PolicyLate));
}

/// Takes the digests of all policies that fell back.
fn fallbacks(world: &mut World) -> Vec<u32> {
    std::iter::from_fn(|| world.core.poll_observation())
        .filter_map(|observation| match observation {
            Observation::PolicyFellBack { digest } => Some(digest),
            _ => None,
        })
        .collect()
}

/// Requirement: V33
#[test]
fn v33_built_in_goal_takes_over_and_says_so_once() {
    let terms = Terms {
        fallback_after: Some(Span::from_secs(30)),
        ..ENDLESS
    };
    let mut world = bound(4, 0, terms);
    advise(&mut world, Said::Want(6));
    advise(&mut world, Said::Fault(Fault::Memory));
    pass(&mut world, 29, 0);
    assert_eq!(answer(&world), (6, Reason::Policy, Some(6.0)));
    assert!(fallbacks(&mut world).is_empty());
    advise(&mut world, Said::Fault(Fault::Steps));
    pass(&mut world, 1, 0);
    assert_eq!(
        answer(&world),
        (1, Reason::Idle, None),
        "since the first fault"
    );
    assert!(warnings(&world).contains(Warning::PolicyFault));
    pass(&mut world, 60, 0);
    assert_eq!(fallbacks(&mut world), [DIGEST], "once");
    advise(&mut world, Said::Want(5));
    assert_eq!(answer(&world), (5, Reason::Policy, Some(5.0)));
    // Silence counts from the end of the last advice.
    pass(&mut world, 45, 0);
    assert_eq!(
        (answer(&world).1, fallbacks(&mut world)),
        (Reason::Policy, vec![])
    );
    pass(&mut world, 1, 0);
    assert_eq!(
        (answer(&world).1, fallbacks(&mut world)),
        (Reason::Idle, vec![DIGEST])
    );
}

/// Requirement: V33
#[test]
fn v33_policy_without_a_fallback_holds_for_ever() {
    let mut world = bound(4, 0, ENDLESS);
    for _ in 0..50 {
        pass(&mut world, 1, 0);
        world.now = world.now + Span::from_secs(3_600);
    }
    pass(&mut world, 20, 0);
    assert_eq!(answer(&world), (4, Reason::Policy, None));
    assert!(fallbacks(&mut world).is_empty());
}

/// A policy is not asked without metrics, so their absence is no fault of it.
///
/// Requirement: V26
#[test]
fn v26_old_metrics_hold_the_size_whatever_the_advice() {
    let terms = Terms {
        fallback_after: Some(Span::from_secs(30)),
        ..ENDLESS
    };
    let mut world = bound(4, 0, terms);
    advise(&mut world, Said::Want(2));
    advise(&mut world, Said::Fault(Fault::Steps));
    world.now = world.now + Span::from_secs(600);
    tell(&mut world, Event::Tick);
    advise(&mut world, Said::Want(1));
    assert_eq!(answer(&world), (4, Reason::StaleMetrics, None));
    world.now = world.now + Span::from_secs(600);
    take(&mut world, &Step::load(0));
    assert_eq!(answer(&world), (4, Reason::Policy, Some(1.0)));
    assert!(is_sound(&world), "it has time to answer");
    pass(&mut world, 40, 0);
    assert!(fallbacks(&mut world).is_empty());
    pass(&mut world, 6, 0);
    assert_eq!(fallbacks(&mut world), [DIGEST]);
}

/// Requirement: V33
#[test]
fn v33_advice_of_another_policy_is_ignored() {
    let mut world = bound(4, 0, ENDLESS);
    let said = Said::Want(2);
    tell(&mut world, Event::Advised(Advice { digest: 1, said }));
    assert_eq!(answer(&world), (4, Reason::Policy, None));
    advise(&mut world, said);
    // Other limits of the same policy leave its advice in force.
    let terms = Terms {
        max_units: Some(8),
        ..ENDLESS
    };
    tell(&mut world, Event::Bound(Some(terms)));
    assert_eq!(answer(&world), (2, Reason::Policy, Some(2.0)));
    let other = Terms {
        digest: 1,
        ..ENDLESS
    };
    tell(&mut world, Event::Bound(Some(other)));
    assert_eq!(answer(&world), (4, Reason::Policy, None));
}
