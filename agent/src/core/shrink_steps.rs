//! Steps of downscale requests: whole, half after a refusal, from the last refusal on, or one unit.

use protocol::core::Core as _;
use protocol::time::Span;
use protocol::units::Resources;

use super::actions::Action;
use super::config::{ScalingConfig, ShrinkStep};
use super::event::{DownscaleResponse, Event, Refusal};
use super::warnings::Warning;
use super::world::{MONITOR, SCHEDULER, Step, UNIT, VM_OBJECT, World};

fn units(n: u32) -> Resources {
    UNIT.saturating_mul(n)
}

/// An idle VM of `using` units with a permit and a connected monitor.
fn idle(using: u32, shrink_step: ShrinkStep) -> World {
    let scaling = ScalingConfig {
        shrink_step,
        ..ScalingConfig::default()
    };
    let mut world = World::with(using, scaling);
    world.connect_monitor();
    step(&mut world, &Step::load(0));
    step(&mut world, &Step::done(SCHEDULER));
    world
}

fn step(world: &mut World, one: &Step) {
    world.step(one).expect("the order holds");
}

/// Size of the downscale request in flight, in units.
fn requested(world: &World) -> Option<u32> {
    match &world.flights[MONITOR] {
        Some((_, Action::MonitorDownscale(request))) => {
            Some(request.target.exact_multiple_of(UNIT).expect("whole units"))
        }
        _ => None,
    }
}

/// Ends the downscale request, and then all patches and permit requests that follow.
fn respond(world: &mut World, response: DownscaleResponse) {
    let (id, action) = world.flights[MONITOR].take().expect("a request in flight");
    if let (DownscaleResponse::Allowed, Action::MonitorDownscale(request)) = (response, &action) {
        world.a = request.target;
    }
    let event = Event::MonitorDownscaleDone(id, Ok(response));
    world.core.handle(world.now, event);
    for peer in [VM_OBJECT, SCHEDULER, VM_OBJECT, SCHEDULER] {
        step(world, &Step::done(peer));
        step(world, &Step::load(0));
    }
}

/// Lets a refusal end, with fresh metrics.
fn cool_down(world: &mut World) {
    for _ in 0..6 {
        step(world, &Step::load(0));
        step(world, &Step::wait_ms(900));
        step(world, &Step::done(SCHEDULER));
    }
}

/// Details in a refusal.
#[derive(Clone, Copy, PartialEq)]
enum Details {
    None,
    SmallestSize,
}

/// Lets a monitor that approves `least` units or more respond for six cooldowns. Returns the
/// requested sizes of each.
fn descend(world: &mut World, least: u32, details: Details) -> Vec<Vec<u32>> {
    let mut rounds = Vec::new();
    for _ in 0..6 {
        let mut round = Vec::new();
        while let Some(target) = requested(world) {
            round.push(target);
            let refusal = match details {
                Details::SmallestSize => DownscaleResponse::denied_below(units(least)),
                Details::None => DownscaleResponse::DENIED,
            };
            let is_allowed = target >= least;
            respond(
                world,
                if is_allowed {
                    DownscaleResponse::Allowed
                } else {
                    refusal
                },
            );
        }
        rounds.push(round);
        cool_down(world);
    }
    rounds
}

#[test]
fn whole_shrink_is_one_request() {
    let mut world = idle(8, ShrinkStep::Whole);
    assert_eq!(requested(&world), Some(1));
    respond(&mut world, DownscaleResponse::Allowed);
    assert_eq!(
        (world.u, requested(&world)),
        (units(1), None),
        "one request, one patch"
    );
}

#[test]
fn refused_shrink_is_halved_and_resumes_at_the_last_refusal() {
    let mut world = idle(8, ShrinkStep::Whole);
    let rounds = descend(&mut world, 4, Details::None);
    assert_eq!(
        rounds,
        [
            // 7 units less are refused, 3 less are approved.
            vec![1, 5],
            // The refused size first; half of that step is refused, half of that is approved.
            vec![1, 3, 4],
            // The last refused size, once per cooldown.
            vec![3],
            vec![3],
            vec![3],
            vec![3],
        ]
    );
    assert_eq!(world.u, units(4));
    // A monitor that approves everything gets the refused size first, then the rest.
    assert_eq!(requested(&world), Some(3));
    respond(&mut world, DownscaleResponse::Allowed);
    assert_eq!(requested(&world), Some(1));
    respond(&mut world, DownscaleResponse::Allowed);
    assert_eq!((world.u, requested(&world)), (units(1), None));
}

/// Requirement: N27
#[test]
fn smallest_size_of_a_refusal_is_requested_next() {
    let mut world = idle(8, ShrinkStep::Whole);
    let rounds = descend(&mut world, 4, Details::SmallestSize);
    assert_eq!(rounds[0], [1, 4]);
    assert!(
        rounds[1..].iter().all(|round| round == &[1]),
        "one refusal per cooldown: {rounds:?}"
    );
    assert_eq!(world.u, units(4));
}

/// Delay in ms between a refusal with a retry time and the repeated request.
fn retry_delay(again: Option<u64>) -> u64 {
    let mut world = idle(8, ShrinkStep::Whole);
    let refusal = Refusal {
        smallest: Some(units(8)),
        again: again.map(Span::from_millis),
    };
    respond(&mut world, DownscaleResponse::Denied(refusal));
    let mut waited = 0;
    while requested(&world).is_none() {
        assert!(waited < 10_000, "the request is never repeated");
        step(&mut world, &Step::load(0));
        step(&mut world, &Step::wait_ms(50));
        step(&mut world, &Step::done(SCHEDULER));
        waited += 50;
    }
    assert_eq!(requested(&world), Some(1));
    waited
}

#[test]
fn refused_shrink_is_repeated_at_the_time_the_monitor_named() {
    let cooldown = retry_delay(None);
    assert_eq!(cooldown, 5_000);
    assert_eq!(retry_delay(Some(1_980)), 2_000);
    // The retry time is bounded on both sides.
    assert_eq!(retry_delay(Some(0)), 100);
    assert_eq!(retry_delay(Some(1 << 40)), cooldown);
}

/// A monitor may name any size. The next request is for more than the refused size and for no more
/// than the approved one.
#[test]
fn senseless_smallest_size_does_not_stop_the_shrink() {
    for (least, then) in [
        (Resources::default(), Some(2)),
        (units(1), Some(2)),
        (Resources::new(1, 5 << 29), Some(3)),
        (units(8), None),
        (Resources::new(u32::MAX, u64::MAX), None),
    ] {
        let mut world = idle(8, ShrinkStep::Whole);
        assert_eq!(requested(&world), Some(1));
        respond(&mut world, DownscaleResponse::denied_below(least));
        assert_eq!(requested(&world), then, "{least:?}");
        assert_eq!(world.core.faults().total(), 0);
    }
}

#[test]
fn shrink_by_unit_requests_one_unit_at_a_time() {
    let mut world = idle(4, ShrinkStep::Unit);
    let rounds = descend(&mut world, 2, Details::SmallestSize);
    assert_eq!(rounds[0], [3, 2, 1]);
    assert!(rounds[1..].iter().all(|round| round == &[1]), "{rounds:?}");
    assert_eq!(world.u, units(2));
}

#[test]
fn another_target_waits_for_the_request_in_flight() {
    let mut world = idle(8, ShrinkStep::Whole);
    let is_busy = |world: &mut World| {
        let warnings = world.core.next_actions(world.now).warnings;
        warnings.contains(Warning::MonitorDownscaleBusy)
    };
    assert!(!is_busy(&mut world), "the target is the requested size");
    step(&mut world, &Step::load(50));
    assert_eq!(requested(&world), Some(1));
    assert!(is_busy(&mut world));
}
