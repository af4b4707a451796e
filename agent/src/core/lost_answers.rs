//! Named cases of lost answers, reconnects, stale metrics and migrations; most were first found by
//! the properties.

use protocol::permit::{MigrateResponse, PluginResponse};
use protocol::time::{Span, Timestamp};

use super::actions::{Action, RequestId};
use super::machine::{Core, Event, Failure, VmUpdate};
use super::metrics::SystemMetrics;
use super::monitor::Wish;
use super::vm::VmInfo;
use super::world::{Fate, Step, UNIT, World, config, ready, settle, vm};

#[test]
fn n15_after_the_migration_flag_nothing_is_patched() {
    let mut world = ready(2, 45);
    world.step(&Step::Metrics(180, 0)).expect("runs");
    let (id, action) = world.flights[0].take().expect("a request is under way");
    let Action::Plugin(request) = action else {
        panic!("not a permit request: {action:?}")
    };
    let response = PluginResponse {
        permit: request.target,
        migrate: Some(MigrateResponse {}),
    };
    world
        .core
        .handle(world.now, Event::PluginDone(id, Ok(response)));
    for load in [0, 300, 0, 300] {
        for _ in 0..40 {
            let metrics = SystemMetrics {
                load1: f64::from(load) / 100.0,
                load5: f64::from(load) / 100.0,
                ..SystemMetrics::default()
            };
            world.core.handle(world.now, Event::SystemMetrics(metrics));
            while let Some((id, action)) = world.core.poll_action(world.now) {
                match action {
                    Action::Plugin(request) => {
                        assert_eq!(
                            request.target,
                            UNIT.saturating_mul(2),
                            "only reports what is in use"
                        );
                        let response = PluginResponse {
                            permit: request.target,
                            migrate: Some(MigrateResponse {}),
                        };
                        world
                            .core
                            .handle(world.now, Event::PluginDone(id, Ok(response)));
                    }
                    other => panic!("nothing else may be done: {other:?}"),
                }
            }
            world.now = world.now + Span::from_secs(1);
        }
    }
    let decision = world.core.last_evaluation().expect("decided").decision;
    assert_eq!(decision.reason, super::Reason::Migrating);
    assert!(decision.bounded_by.contains(super::Bound::Migration));
}

#[test]
fn a_migration_that_never_comes_is_forgotten() {
    let mut world = ready(2, 45);
    world.core.plugin.migrating_since = Some(world.now);
    world.step(&Step::Metrics(180, 0)).expect("runs");
    let mut seconds = 0;
    while world.core.plugin.migrating_since.is_some() {
        world.step(&Step::Wait(1000)).expect("runs");
        world.step(&Step::Metrics(180, 0)).expect("runs");
        world.step(&Step::Finish(0, Fate::Done, 9)).expect("runs");
        seconds += 1;
        assert!(seconds < 100, "still frozen");
    }
    assert!(
        seconds >= 60,
        "an answer without the flag was believed after {seconds} s"
    );
}

#[test]
fn stale_metrics_hold_and_never_shrink() {
    let mut world = ready(4, 90);
    world.step(&Step::Wait(16_000)).expect("runs");
    let decision = world.core.last_evaluation().expect("decided").decision;
    assert_eq!(decision.target, UNIT.saturating_mul(4));
    assert_eq!(decision.reason, super::Reason::StaleMetrics);
    world.step(&Step::Metrics(0, 0)).expect("runs");
    let decision = world.core.last_evaluation().expect("decided").decision;
    assert_eq!(decision.target, UNIT);
}

#[test]
fn reconnect_while_shrinking_does_not_promise_the_monitor_too_much() {
    let mut world = ready(3, 0);
    world
        .step(&Step::Finish(2, Fate::Done, 9))
        .expect("the monitor agrees to 2");
    assert!(world.flights[1].is_some(), "the patch to 2 is under way");
    world.step(&Step::Connect(false, false)).expect("runs");
    world.step(&Step::Connect(true, true)).expect("runs");
    world
        .step(&Step::Finish(1, Fate::Done, 9))
        .expect("the patch succeeds");
    assert_eq!(world.core.faults().approved_above_use, 0);
    settle(&mut world, 0, 0).expect("settles");
    assert_eq!(world.u, UNIT);
}

#[test]
fn a_wish_before_the_connection_is_active_is_harmless() {
    let mut core = Core::new(config(), vm(1, 8, 2));
    let now = Timestamp(1_000_000);
    core.handle(now, Event::MonitorUpscaleRequested(Wish::default()));
    core.next_actions(now);
    core.handle(now, Event::MonitorActive);
    core.next_actions(now);
    assert_eq!(core.faults().total(), 0);
}

/// Lets the monitor of `ready(from, …)` agree and the patch to `to` units start.
fn shrinking(from: u32) -> World {
    let mut world = ready(from, 0);
    world
        .step(&Step::Finish(2, Fate::Done, 9))
        .expect("the monitor agrees");
    assert!(world.flights[1].is_some(), "the patch is under way");
    world
}

#[test]
fn the_monitor_is_not_told_of_a_growth_while_a_shrink_is_patched() {
    let mut world = shrinking(2);
    world.step(&Step::Metrics(45, 0)).expect("runs");
    assert!(
        world.flights[2].is_none(),
        "told of 2 units while the patch to 1 is under way"
    );
    world.step(&Step::Finish(1, Fate::Done, 9)).expect("runs");
    settle(&mut world, 45, 0).expect("settles");
    assert_eq!(world.u, UNIT.saturating_mul(2));
}

#[test]
fn a_shrink_waits_while_the_monitor_is_told_of_a_growth() {
    let mut world = ready(1, 45);
    world
        .step(&Step::Finish(0, Fate::Done, 9))
        .expect("the increase is permitted");
    world
        .step(&Step::Finish(1, Fate::Done, 9))
        .expect("and patched");
    assert!(matches!(
        world.flights[2],
        Some((_, Action::MonitorUpscale(_)))
    ));
    world.step(&Step::Metrics(0, 0)).expect("runs");
    assert!(
        world.flights[1].is_none(),
        "patched down while the monitor may count on 2 units"
    );
    world.step(&Step::Finish(2, Fate::Done, 9)).expect("runs");
    settle(&mut world, 0, 0).expect("settles");
}

#[test]
fn a_new_monitor_is_not_asked_for_a_size_that_is_not_there_yet() {
    let mut world = World::new(1);
    world.step(&Step::Metrics(225, 0)).expect("runs");
    world
        .step(&Step::Finish(0, Fate::Done, 9))
        .expect("first contact");
    world
        .step(&Step::Finish(0, Fate::Done, 9))
        .expect("the increase is permitted");
    assert!(
        world.flights[1].is_some(),
        "the patch to 8 units is under way"
    );
    world.step(&Step::Metrics(45, 0)).expect("runs");
    world.step(&Step::Connect(true, true)).expect("runs");
    assert!(world.flights[2].is_none(), "a shrink to 2 would promise 2");
    settle(&mut world, 45, 0).expect("settles");
}

#[test]
fn a_growth_whose_answer_is_lost_is_made_true_when_no_monitor_can_be_asked() {
    let mut world = World::new(1);
    world.step(&Step::Metrics(90, 0)).expect("runs");
    world
        .step(&Step::Finish(0, Fate::Done, 9))
        .expect("first contact");
    world
        .step(&Step::Finish(0, Fate::Done, 9))
        .expect("the increase is permitted");
    world
        .step(&Step::Finish(1, Fate::AnswerLost, 9))
        .expect("runs");
    world
        .step(&Step::Metrics(0, 0))
        .expect("nothing is wanted any more");
    world.step(&Step::Wait(5000)).expect("runs");
    let Some((_, Action::NeonVm(request))) = &world.flights[1] else {
        panic!("nothing is repeated")
    };
    assert_eq!(
        request.target,
        UNIT.saturating_mul(4),
        "a monitor may have seen 4 units"
    );
}

#[test]
fn a_decrease_whose_report_is_lost_is_not_grown_back_without_asking() {
    let mut world = shrinking(2);
    world
        .step(&Step::Finish(1, Fate::Done, 9))
        .expect("the patch to 1 succeeds");
    world
        .step(&Step::Finish(0, Fate::AnswerLost, 9))
        .expect("the scheduler gave the rest away");
    world
        .step(&Step::Metrics(45, 0))
        .expect("2 units are wanted again");
    assert!(world.flights[1].is_none(), "patched up on the old permit");
    world.step(&Step::Wait(3000)).expect("runs");
    let Some((_, Action::Plugin(request))) = &world.flights[0] else {
        panic!("not asked")
    };
    assert_eq!(request.last_permit, Some(UNIT));
    settle(&mut world, 45, 0).expect("settles");
    assert_eq!(world.u, UNIT.saturating_mul(2));
}

#[test]
fn a_monitor_that_starts_before_the_guest_has_grown_is_told() {
    let mut vm = vm(1, 8, 2);
    vm.actual = Some(UNIT);
    let mut core = Core::new(config(), vm);
    let now = Timestamp(1_000_000);
    core.handle(now, Event::MonitorActive);
    let told = core
        .next_actions(now)
        .actions
        .monitor_up
        .expect("it is told");
    assert_eq!((told.current, told.target), (UNIT, UNIT.saturating_mul(2)));
}

#[test]
fn an_approval_given_over_another_connection_allows_nothing() {
    let mut world = shrinking(3);
    let (id, _) = world.flights[1].take().expect("the patch is under way");
    let core = &mut world.core;
    core.handle(world.now, Event::MonitorReset);
    // The monitor that comes reads its machine, which still has all three units, and agreed to
    // nothing.
    core.handle(world.now, Event::MonitorActive);
    core.handle(world.now, Event::NeonVmDone(id, Err(Failure::NotApplied)));
    world.now = world.now + Span::from_secs(6);
    core.handle(world.now, Event::SystemMetrics(SystemMetrics::default()));
    while let Some((_, action)) = core.poll_action(world.now) {
        assert!(!matches!(action, Action::NeonVm(_)), "{action:?}");
    }
}

#[test]
fn a_monitor_that_connects_after_a_resize_is_told_the_size() {
    let mut world = shrinking(3);
    world
        .step(&Step::Finish(1, Fate::Done, 9))
        .expect("the patch succeeds");
    let core = &mut world.core;
    core.handle(world.now, Event::MonitorReset);
    // What it read of its machine may be of before: memory leaves slowly.
    core.handle(world.now, Event::MonitorActive);
    let told =
        std::iter::from_fn(|| core.poll_action(world.now)).find_map(|(_, action)| match action {
            Action::MonitorUpscale(request) => Some(request.target),
            _ => None,
        });
    assert_eq!(told, Some(UNIT));
}

/// A state of the object that somebody else made.
fn seen(units: u32, version: u64) -> Event {
    let info = VmInfo {
        version: Some(version),
        ..vm(1, 8, units)
    };
    Event::VmUpdated(Box::new(VmUpdate {
        info,
        current_revision: None,
        is_pre_migrating: false,
    }))
}

#[test]
fn a_size_nobody_here_set_is_made_true_again_and_told() {
    let mut world = ready(2, 45);
    world.core.handle(world.now, seen(2, 10));
    assert_eq!(world.core.poll_action(world.now), None, "nothing is new");
    world.core.handle(world.now, seen(3, 11));
    let (mut asked, mut patched) = (None, None);
    while let Some((_, action)) = world.core.poll_action(world.now) {
        match action {
            Action::Plugin(request) => asked = Some(request.target),
            Action::NeonVm(request) => patched = Some(request.target),
            _ => {}
        }
    }
    assert_eq!(patched, Some(UNIT.saturating_mul(2)));
    assert_eq!(
        asked,
        Some(UNIT.saturating_mul(3)),
        "it may be used already"
    );
}

#[test]
fn before_the_first_permit_the_object_is_right() {
    let mut info = vm(1, 8, 2);
    info.version = Some(7);
    let mut core = Core::new(config(), info);
    let now = Timestamp(1_000_000);
    core.handle(now, seen(4, 6));
    assert_eq!(
        core.using(),
        UNIT.saturating_mul(2),
        "an older state says nothing"
    );
    core.handle(now, seen(4, 8));
    assert_eq!(core.using(), UNIT.saturating_mul(4));
    assert_eq!(core.faults().total(), 0);
}

#[test]
fn what_the_monitor_was_told_before_somebody_else_shrank_the_vm_is_told_again() {
    for answer in [Ok(()), Err(Failure::Unknown), Err(Failure::NotApplied)] {
        let mut info = vm(1, 8, 4);
        (info.version, info.last_revision) = (Some(7), 3);
        let mut core = Core::new(config(), info);
        let mut now = Timestamp(1_000_000);
        core.handle(now, Event::MonitorActive);
        let telling = |(id, action): (RequestId, Action)| match action {
            Action::MonitorUpscale(request) => Some((id, request.target)),
            _ => None,
        };
        let (id, told) = std::iter::from_fn(|| core.poll_action(now))
            .find_map(telling)
            .expect("it is told");
        assert_eq!(told, UNIT.saturating_mul(4));
        core.handle(now, seen(3, 8));
        core.handle(now, Event::MonitorUpscaleDone(id, answer));
        now = now + Span::from_secs(6);
        core.handle(now, Event::Tick);
        let again = std::iter::from_fn(|| core.poll_action(now)).find_map(telling);
        let again = again.map(|(_, told)| told);
        assert_eq!(again, Some(UNIT.saturating_mul(3)), "after {answer:?}");
        assert_eq!(core.faults().total(), 0, "after {answer:?}");
    }
}

#[test]
fn n14_a_size_above_the_permit_is_permitted_before_it_is_made_true() {
    let mut core = Core::new(config(), vm(1, 8, 2));
    let now = Timestamp(1_000_000);
    // No monitor is there, so nothing may be taken back.
    core.handle(now, Event::SystemMetrics(SystemMetrics::default()));
    let (id, _) = core.poll_action(now).expect("the first contact");
    let permit = UNIT.saturating_mul(2);
    let response = PluginResponse {
        permit,
        migrate: None,
    };
    core.handle(now, Event::PluginDone(id, Ok(response)));
    core.handle(now, seen(3, 11));
    let actions: Vec<Action> = std::iter::from_fn(|| core.poll_action(now))
        .map(|(_, action)| action)
        .collect();
    assert!(
        actions
            .iter()
            .any(|action| matches!(action, Action::Plugin(_)))
    );
    assert!(
        !actions
            .iter()
            .any(|action| matches!(action, Action::NeonVm(_))),
        "{actions:?}"
    );
}

/// Found by a restart of 1,000 VMs: the object has the size, the guest has it, and the agent before
/// died before it said so.
#[test]
fn n09_a_growth_that_no_earlier_agent_told_the_monitor_is_told() {
    let told = |last_revision: i64| {
        let mut info = vm(1, 8, 3);
        (info.last_revision, info.actual) = (last_revision, Some(UNIT.saturating_mul(3)));
        info.current_revision = Some(protocol::revision::RevisionWithTime {
            revision: protocol::revision::Revision {
                value: last_revision,
                flags: 0,
            },
            updated_at: protocol::time::WallTime(0),
        });
        let mut core = Core::new(config(), info);
        let now = Timestamp(1_000_000);
        core.handle(now, Event::MonitorActive);
        core.next_actions(now).actions.monitor_up
    };
    assert_eq!(told(0), None, "nobody ever changed it");
    let up = told(7).expect("it is told");
    assert_eq!(up.target, UNIT.saturating_mul(3));
}
