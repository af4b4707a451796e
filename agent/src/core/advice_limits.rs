//! Limits of a policy: its largest size, and the rate of its shrinks.

use proptest::prelude::*;
use protocol::core::Core as _;
use protocol::policy::Fault;
use protocol::time::Span;

use super::advice::{Advice, Said, Terms};
use super::advice_tests::{DIGEST, ENDLESS, advise, answer, bound, bounds, take, tell, units};
use super::decision::{Bound, Reason};
use super::event::Event;
use super::world::{PEERS, Step, World};

/// Load average, times 100, that the built-in goal answers with eight units.
const EIGHT: u32 = 180;

/// Lets all requests succeed, at once.
fn finish_all(world: &mut World) {
    while world.flights.iter().any(Option::is_some) {
        for peer in PEERS {
            take(world, &Step::done(peer));
        }
    }
}

/// Requirement: V33
#[test]
fn v33_advice_above_its_limit_is_cut() {
    let terms = Terms {
        max_units: Some(5),
        ..ENDLESS
    };
    let mut world = bound(4, EIGHT, terms);
    advise(&mut world, Said::Want(7));
    assert_eq!(answer(&world), (5, Reason::Policy, Some(7.0)));
    assert!(bounds(&world).contains(&Bound::PolicyLimit));
    advise(&mut world, Said::Want(5));
    assert!(!bounds(&world).contains(&Bound::PolicyLimit));
    // The monitor's request and the built-in goal are not the policy's.
    take(&mut world, &Step::UpscaleRequest(Some(7)));
    assert_eq!(
        (answer(&world).0, answer(&world).1),
        (7, Reason::RequestedUpscale)
    );
    advise(&mut world, Said::Fault(Fault::Output));
    assert_eq!(answer(&world).0, 8);
}

/// Requirement: V13
#[test]
fn v13_growth_is_not_slowed_and_bursts_hold_a_minute() {
    let terms = Terms {
        shrink_units_per_minute: Some(3),
        ..ENDLESS
    };
    let mut world = bound(8, 0, terms);
    advise(&mut world, Said::Want(1));
    assert_eq!(
        (answer(&world).0, bounds(&world)),
        (8, vec![Bound::DeclineRate])
    );
    let wake = world.core.poll_deadline().expect("a deadline");
    assert!(wake <= world.now + Span::from_secs(15));
    // Ten quiet minutes allow no more than one of them.
    for _ in 0..60 {
        take(&mut world, &Step::wait_ms(10_000));
        take(&mut world, &Step::load(0));
        advise(&mut world, Said::Hold);
        finish_all(&mut world);
    }
    advise(&mut world, Said::Want(1));
    finish_all(&mut world);
    assert_eq!(world.u, units(5));
    take(&mut world, &Step::UpscaleRequest(Some(7)));
    finish_all(&mut world);
    assert_eq!(world.u, units(7), "the monitor's request is met at once");
    advise(&mut world, Said::Want(8));
    finish_all(&mut world);
    assert_eq!(world.u, units(8), "and so is the policy's growth");
}

/// Binding a policy again gives it no new credit.
///
/// Requirement: V13
#[test]
fn v13_another_binding_gives_no_credit() {
    let mut world = bound(8, 0, ENDLESS);
    for round in 0..20_u32 {
        for shrink_units_per_minute in [Some(60), None, Some(4)] {
            let terms = Terms {
                digest: DIGEST + round % 2,
                shrink_units_per_minute,
                ..ENDLESS
            };
            tell(&mut world, Event::Bound(Some(terms)));
        }
        let (digest, said) = (DIGEST + round % 2, Said::Want(1));
        tell(&mut world, Event::Advised(Advice { digest, said }));
        finish_all(&mut world);
    }
    assert_eq!(world.u, units(8));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Requirement: V13
    #[test]
    fn v13_shrink_follows_the_rate_exactly_under_any_jitter(
        rate in 1_u32..400,
        waits in prop::collection::vec(1_u64..5_000_000, 1..200),
    ) {
        let terms = Terms { shrink_units_per_minute: Some(rate), ..ENDLESS };
        let mut world = bound(8, 0, terms);
        let began = world.now;
        for wait in waits {
            world.now = world.now + Span(wait);
            take(&mut world, &Step::load(0));
            advise(&mut world, Said::Want(1));
            finish_all(&mut world);
            let passed = world.now.since(began).0;
            let allowed = passed * u64::from(rate) / 60_000_000;
            let left = u32::try_from(8_u64.saturating_sub(allowed)).unwrap_or(0).max(1);
            prop_assert_eq!(world.u, units(left), "after {} us", passed);
        }
    }
}

/// Only whole microseconds and whole units: a bucket that is read a million times is the same.
///
/// Requirement: V13
#[test]
fn v13_core_wakes_exactly_when_the_next_unit_is_allowed() {
    for rate in [1, 7, 60, 399] {
        let terms = Terms {
            shrink_units_per_minute: Some(rate),
            ..ENDLESS
        };
        let mut world = bound(8, 0, terms);
        let began = world.now;
        for taken in 1..7_u32 {
            let due = began + Span((60_000_000 * u64::from(taken)).div_ceil(u64::from(rate)));
            while world.now < due {
                take(&mut world, &Step::load(0));
                advise(&mut world, Said::Want(1));
                finish_all(&mut world);
                assert_eq!(world.u, units(9 - taken), "rate {rate}");
                let deadline = world.core.poll_deadline().expect("a deadline");
                world.now = deadline.min(due).max(world.now + Span(1));
            }
            assert_eq!(world.now, due, "rate {rate}");
            take(&mut world, &Step::load(0));
            advise(&mut world, Said::Want(1));
            finish_all(&mut world);
            assert_eq!(world.u, units(8 - taken), "rate {rate}");
        }
    }
}
