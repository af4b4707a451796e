//! How a shrink is asked of the monitor: whole, in halves after a refusal, from the last refusal
//! on, or one unit at a time.

use protocol::time::Span;
use protocol::units::Resources;

use super::actions::Action;
use super::config::{ScalingConfig, ShrinkStep};
use super::event::{DownscaleResponse, Event, Refusal};
use super::world::{MONITOR, SCHEDULER, Step, UNIT, VM_OBJECT, World};

fn units(n: u32) -> Resources {
    UNIT.saturating_mul(n)
}

/// An idle VM of `using` units, permitted and connected.
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

/// What the monitor is asked to agree to now, in units.
fn asked(world: &World) -> Option<u32> {
    match &world.flights[MONITOR] {
        Some((_, Action::MonitorDownscale(request))) => {
            Some(request.target.exact_multiple_of(UNIT).expect("whole units"))
        }
        _ => None,
    }
}

/// The monitor answers, and the VM and the scheduler follow.
fn answer(world: &mut World, answer: DownscaleResponse) {
    let (id, action) = world.flights[MONITOR].take().expect("it was asked");
    if let (DownscaleResponse::Allowed, Action::MonitorDownscale(request)) = (answer, &action) {
        world.a = request.target;
    }
    let event = Event::MonitorDownscaleDone(id, Ok(answer));
    world.core.handle(world.now, event);
    for peer in [VM_OBJECT, SCHEDULER, VM_OBJECT, SCHEDULER] {
        step(world, &Step::done(peer));
        step(world, &Step::load(0));
    }
}

/// Metrics stay fresh while the refusal runs out.
fn cool_down(world: &mut World) {
    for _ in 0..6 {
        step(world, &Step::load(0));
        step(world, &Step::wait_ms(900));
        step(world, &Step::done(SCHEDULER));
    }
}

/// Lets a monitor that agrees to no less than `least` units answer until nothing is asked for a
/// whole cooldown; returns the sizes asked of it, by cooldown.
fn descend(world: &mut World, least: u32, says_so: bool) -> Vec<Vec<u32>> {
    let mut rounds = Vec::new();
    for _ in 0..6 {
        let mut round = Vec::new();
        while let Some(target) = asked(world) {
            round.push(target);
            let refusal = if says_so {
                DownscaleResponse::denied_below(units(least))
            } else {
                DownscaleResponse::DENIED
            };
            let is_allowed = target >= least;
            answer(
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
    assert_eq!(asked(&world), Some(1));
    answer(&mut world, DownscaleResponse::Allowed);
    assert_eq!(
        (world.u, asked(&world)),
        (units(1), None),
        "one question, one patch"
    );
}

#[test]
fn refused_shrink_is_halved_and_resumes_at_the_last_refusal() {
    let mut world = idle(8, ShrinkStep::Whole);
    let rounds = descend(&mut world, 4, false);
    assert_eq!(
        rounds,
        [
            // 7 units less, refused; 3 less, agreed to.
            vec![1, 5],
            // What was refused first; half of that step, refused; half of that, agreed to.
            vec![1, 3, 4],
            // The last refusal first, once per cooldown.
            vec![3],
            vec![3],
            vec![3],
            vec![3],
        ]
    );
    assert_eq!(world.u, units(4));
    // Now it agrees to everything: first to what it refused, then to the rest.
    assert_eq!(asked(&world), Some(3));
    answer(&mut world, DownscaleResponse::Allowed);
    assert_eq!(asked(&world), Some(1));
    answer(&mut world, DownscaleResponse::Allowed);
    assert_eq!((world.u, asked(&world)), (units(1), None));
}

/// Requirement: N27
#[test]
fn smallest_size_of_a_refusal_is_requested_next() {
    let mut world = idle(8, ShrinkStep::Whole);
    let rounds = descend(&mut world, 4, true);
    assert_eq!(rounds[0], [1, 4]);
    assert!(
        rounds[1..].iter().all(|round| round == &[1]),
        "one refusal per cooldown: {rounds:?}"
    );
    assert_eq!(world.u, units(4));
}

/// Milliseconds from a refusal that says to ask again in so many until the same is asked again.
fn asked_again_after(again: Option<u64>) -> u64 {
    let mut world = idle(8, ShrinkStep::Whole);
    let refusal = Refusal {
        smallest: Some(units(8)),
        again: again.map(Span::from_millis),
    };
    answer(&mut world, DownscaleResponse::Denied(refusal));
    let mut waited = 0;
    while asked(&world).is_none() {
        assert!(waited < 10_000, "it is never asked again");
        step(&mut world, &Step::load(0));
        step(&mut world, &Step::wait_ms(50));
        step(&mut world, &Step::done(SCHEDULER));
        waited += 50;
    }
    assert_eq!(asked(&world), Some(1));
    waited
}

#[test]
fn refused_shrink_is_repeated_at_the_time_the_monitor_named() {
    let cooldown = asked_again_after(None);
    assert_eq!(cooldown, 5_000);
    assert_eq!(asked_again_after(Some(1_980)), 2_000);
    // A monitor neither hurries its agent without bound nor holds it off.
    assert_eq!(asked_again_after(Some(0)), 100);
    assert_eq!(asked_again_after(Some(1 << 40)), cooldown);
}

/// A monitor may name any size: the next question is always for more than was refused and no more
/// than there is.
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
        assert_eq!(asked(&world), Some(1));
        answer(&mut world, DownscaleResponse::denied_below(least));
        assert_eq!(asked(&world), then, "{least:?}");
        assert_eq!(world.core.faults().total(), 0);
    }
}

#[test]
fn shrink_by_unit_requests_one_unit_at_a_time() {
    let mut world = idle(4, ShrinkStep::Unit);
    let rounds = descend(&mut world, 2, true);
    assert_eq!(rounds[0], [3, 2, 1]);
    assert!(rounds[1..].iter().all(|round| round == &[1]), "{rounds:?}");
    assert_eq!(world.u, units(2));
}
