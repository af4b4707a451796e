//! Limits of the modes observe and grow, and the order approved ≤ in use ≤ permitted in all modes.

use proptest::prelude::*;
use protocol::core::Core as _;
use protocol::mode::Mode;
use protocol::units::{Bytes, Resources};

use super::actions::Action;
use super::config::ScalingConfig;
use super::decision::{Bound, Decision, Reason};
use super::event::{Event, VmUpdate};
use super::world::{Fate, Grant, MONITOR, SCHEDULER, Step, UNIT, VM_OBJECT, World, step};

fn units(n: u32) -> Resources {
    UNIT.saturating_mul(n)
}

fn scaling(mode: Mode) -> ScalingConfig {
    ScalingConfig {
        mode,
        ..ScalingConfig::default()
    }
}

/// A world at `using` units with a permit, a connected monitor and a load average of `load` / 100.
fn ready(mode: Mode, using: u32, load: u32) -> World {
    let mut world = World::with(using, scaling(mode));
    world.connect_monitor();
    take(&mut world, &Step::load(load));
    take(&mut world, &Step::done(SCHEDULER));
    world
}

fn take(world: &mut World, one: &Step) {
    world.step(one).expect("the order holds");
}

fn decision(world: &World) -> Decision {
    world.core.last_evaluation().expect("decided").decision
}

/// Shows the core the object at `version` with a size in units and a mode.
fn see(world: &mut World, version: u64, size: u32, mode: Mode) {
    let mut info = world.core.vm().clone();
    info.version = Some(version);
    info.config.scaling.mode = mode;
    info.set_using(units(size));
    let update = VmUpdate {
        info,
        current_revision: None,
        is_pre_migrating: false,
    };
    let event = Event::VmUpdated(Box::new(update));
    world.core.handle(world.now, event);
    world.take_actions().expect("the order holds");
}

#[test]
fn observe_mode_decides_and_changes_nothing() {
    let mut world = ready(Mode::Observe, 2, 90);
    for _ in 0..40 {
        take(&mut world, &Step::load(90));
        take(&mut world, &Step::wait_ms(1000));
        take(&mut world, &Step::done(SCHEDULER));
        assert!(world.flights[VM_OBJECT].is_none() && world.flights[MONITOR].is_none());
    }
    let decided = decision(&world);
    assert_eq!((decided.current, decided.target), (units(2), units(4)));
    assert_eq!(decided.reason, Reason::Cpu);
    assert_eq!(
        decided.bounded_by.iter().collect::<Vec<_>>(),
        [Bound::ObserveMode]
    );
    assert_eq!(world.p, Some(units(2)), "the permit equals the size in use");
    assert!(
        world.requests_to_scheduler > 2,
        "the scheduler gets heartbeats"
    );
    take(&mut world, &Step::load(0));
    assert_eq!(decision(&world).target, units(1));
    assert!(
        world.flights[MONITOR].is_none(),
        "the monitor gets no request"
    );
}

#[test]
fn grow_mode_requests_no_shrink() {
    let mut world = ready(Mode::Grow, 2, 90);
    for peer in [SCHEDULER, VM_OBJECT, MONITOR, SCHEDULER, VM_OBJECT, MONITOR] {
        take(&mut world, &Step::done(peer));
    }
    assert_eq!((world.u, world.a), (units(4), units(4)));
    assert!(decision(&world).bounded_by.iter().next().is_none());
    take(&mut world, &Step::load(0));
    let decided = decision(&world);
    assert_eq!((decided.current, decided.target), (units(4), units(1)));
    assert_eq!(
        decided.bounded_by.iter().collect::<Vec<_>>(),
        [Bound::Min, Bound::GrowMode]
    );
    assert!(
        world.flights[MONITOR].is_none(),
        "the monitor gets no request"
    );
}

#[test]
fn mode_takes_effect_at_once() {
    let mut world = ready(Mode::Observe, 2, 90);
    assert!(world.flights[SCHEDULER].is_none(), "no permit is requested");
    see(&mut world, 1, 2, Mode::Grow);
    let requested = |world: &World| match &world.flights[SCHEDULER] {
        Some((_, Action::Permit(request))) => Some(request.target),
        _ => None,
    };
    assert_eq!(requested(&world), Some(units(4)));
    take(&mut world, &Step::done(SCHEDULER));
    assert!(world.flights[VM_OBJECT].is_some(), "the patch is under way");
    // Observe mode during the patch: the patch ends, and the growth is reported.
    see(&mut world, 1, 2, Mode::Observe);
    for peer in [VM_OBJECT, MONITOR, SCHEDULER] {
        take(&mut world, &Step::done(peer));
    }
    assert_eq!((world.u, world.a), (units(4), units(4)));
    take(&mut world, &Step::load(0));
    see(&mut world, 9, 4, Mode::Full);
    assert!(
        world.flights[MONITOR].is_some(),
        "the monitor gets a request"
    );
}

#[test]
fn unused_permit_is_given_back() {
    let mut world = ready(Mode::Full, 2, 90);
    take(&mut world, &Step::done(SCHEDULER));
    take(&mut world, &Step::ended(VM_OBJECT, Fate::Refused));
    assert_eq!(world.p, Some(units(4)));
    see(&mut world, 1, 2, Mode::Observe);
    take(&mut world, &Step::done(SCHEDULER));
    assert_eq!(world.p, Some(units(2)));
}

#[test]
fn size_set_by_hand_is_not_reverted() {
    for mode in [Mode::Observe, Mode::Grow] {
        let mut world = ready(mode, 2, 45);
        for size in [4, 3] {
            world.u = units(size);
            see(&mut world, u64::from(10 - size), size, mode);
            assert!(
                world.flights[VM_OBJECT].is_none(),
                "{mode:?}: nothing is patched"
            );
            let notified = match &world.flights[MONITOR] {
                Some((_, Action::MonitorUpscale(request))) => Some(request.target),
                _ => None,
            };
            assert_eq!(
                notified,
                Some(units(size)),
                "{mode:?}: the monitor is notified"
            );
            take_unordered(&mut world);
            assert_eq!(world.p, Some(units(size)), "{mode:?}: and the scheduler");
            assert_eq!((world.a, world.core.using()), (units(size), units(size)));
        }
    }
}

/// Ends the requests to monitor and scheduler without a check of the order, which a person may
/// violate.
fn take_unordered(world: &mut World) {
    for peer in [MONITOR, SCHEDULER] {
        world.finish(peer, Fate::Done, Grant::Full);
        world.take_actions().expect("the order holds");
    }
}

#[test]
fn observe_mode_adopts_the_size_of_an_earlier_patch() {
    let mut world = ready(Mode::Full, 2, 90);
    take(&mut world, &Step::done(SCHEDULER));
    take(&mut world, &Step::ended(VM_OBJECT, Fate::ResponseLost));
    see(&mut world, 5, 4, Mode::Observe);
    assert_eq!(world.core.using(), units(4));
    assert!(world.flights[VM_OBJECT].is_none());
    for peer in [MONITOR, SCHEDULER] {
        take(&mut world, &Step::done(peer));
    }
    assert_eq!(world.a, units(4));
}

#[test]
fn grow_mode_keeps_a_growth_with_lost_response() {
    let mut world = ready(Mode::Grow, 2, 90);
    take(&mut world, &Step::done(SCHEDULER));
    take(&mut world, &Step::ended(VM_OBJECT, Fate::ResponseLost));
    take(&mut world, &Step::load(0));
    take(&mut world, &Step::wait_ms(6000));
    let patched = match &world.flights[VM_OBJECT] {
        Some((_, Action::VmPatch(request))) => Some(request.target),
        _ => None,
    };
    assert_eq!(patched, Some(units(4)), "the patch is repeated");
}

fn mode() -> impl Strategy<Value = Mode> {
    prop_oneof![Just(Mode::Observe), Just(Mode::Grow), Just(Mode::Full)]
}

proptest! {
    #[test]
    fn every_mode_keeps_the_order_and_its_limits(
        using in 1_u32..8,
        first in mode(),
        steps in prop::collection::vec((step(), prop::option::weighted(0.1, mode())), 1..120),
    ) {
        let mut world = World::with(using, scaling(first));
        for (one, change) in &steps {
            if let Some(mode) = change {
                let mut info = world.core.vm().clone();
                info.config.scaling.mode = *mode;
                let update = VmUpdate { info, current_revision: None, is_pre_migrating: false };
                world.core.handle(world.now, Event::VmUpdated(Box::new(update)));
            }
            // A restart begins with the settings of the node.
            let mode = match one {
                Step::Restart { .. } => Mode::Full,
                _ => world.core.vm().config.scaling.mode,
            };
            let before = world.flights.clone();
            world.step(one)?;
            for (old, new) in before.iter().zip(&world.flights) {
                let Some((id, action)) = new else { continue };
                if old.as_ref().is_some_and(|(old, _)| old == id) {
                    continue;
                }
                let is_allowed = match (mode, action) {
                    (_, Action::Permit(_) | Action::MonitorUpscale(_)) | (Mode::Full, _) => true,
                    (Mode::Observe, _) | (Mode::Grow, Action::MonitorDownscale(_)) => false,
                    (Mode::Grow, Action::VmPatch(request)) => !request.target.has_field_below(world.u),
                };
                prop_assert!(is_allowed, "{mode:?}: {action:?} at {:?}", world.u);
                if let (Mode::Observe, Action::Permit(request)) = (mode, action) {
                    prop_assert!(request.target.mem <= Bytes(world.u.mem.0.max(request.last_permit.map_or(0, |p| p.mem.0))));
                }
            }
        }
    }
}
