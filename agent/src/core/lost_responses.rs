//! Cases of lost responses, reconnects, stale metrics and migrations. The property tests found most
//! of them first.

use protocol::core::Core as _;
use protocol::permit::{MigrateResponse, PluginResponse};
use protocol::time::{Span, Timestamp};

use super::actions::{Action, RequestId};
use super::event::{Event, Failure, UpscaleRequest, VmUpdate};
use super::machine::Core;
use super::metrics::SystemMetrics;
use super::vm::VmInfo;
use super::world::{
    Fate, MONITOR, SCHEDULER, Step, UNIT, VM_OBJECT, World, config, ready, settle, vm,
};

/// Requirement: N15
#[test]
fn nothing_is_patched_after_a_migration_is_announced() {
    let mut world = ready(2, 45);
    world.step(&Step::load(180)).expect("runs");
    let (id, action) = world.flights[SCHEDULER]
        .take()
        .expect("a request is in flight");
    let Action::Permit(request) = action else {
        panic!("not a permit request: {action:?}")
    };
    let response = PluginResponse {
        permit: request.target,
        migrate: Some(MigrateResponse {}),
    };
    world
        .core
        .handle(world.now, Event::PermitDone(id, Ok(response)));
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
                    Action::Permit(request) => {
                        assert_eq!(
                            request.target,
                            UNIT.saturating_mul(2),
                            "only reports the size in use"
                        );
                        let response = PluginResponse {
                            permit: request.target,
                            migrate: Some(MigrateResponse {}),
                        };
                        world
                            .core
                            .handle(world.now, Event::PermitDone(id, Ok(response)));
                    }
                    other => panic!("unexpected request {other:?}"),
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
fn announced_migration_that_never_comes_is_dropped() {
    let mut world = ready(2, 45);
    world.core.scheduler.migrating_since = Some(world.now);
    world.step(&Step::load(180)).expect("runs");
    let mut seconds = 0;
    while world.core.scheduler.migrating_since.is_some() {
        world.step(&Step::wait_ms(1000)).expect("runs");
        world.step(&Step::load(180)).expect("runs");
        world.step(&Step::done(SCHEDULER)).expect("runs");
        seconds += 1;
        assert!(seconds < 100, "still frozen");
    }
    assert!(
        seconds >= 60,
        "an answer without the flag was believed after {seconds} s"
    );
}

#[test]
fn vm_with_stale_metrics_does_not_shrink() {
    let mut world = ready(4, 90);
    world.step(&Step::wait_ms(16_000)).expect("runs");
    let decision = world.core.last_evaluation().expect("decided").decision;
    assert_eq!(decision.target, UNIT.saturating_mul(4));
    assert_eq!(decision.reason, super::Reason::StaleMetrics);
    world.step(&Step::load(0)).expect("runs");
    let decision = world.core.last_evaluation().expect("decided").decision;
    assert_eq!(decision.target, UNIT);
}

#[test]
fn reconnect_during_a_shrink_keeps_approved_below_use() {
    let mut world = ready(3, 0);
    world
        .step(&Step::done(MONITOR))
        .expect("the monitor agrees to 2");
    assert!(
        world.flights[VM_OBJECT].is_some(),
        "the patch to 2 is in flight"
    );
    world
        .step(&Step::MonitorDown { arrived: false })
        .expect("runs");
    world
        .step(&Step::MonitorUp { rereads: true })
        .expect("runs");
    world
        .step(&Step::done(VM_OBJECT))
        .expect("the patch succeeds");
    assert_eq!(world.core.faults().approved_above_use, 0);
    settle(&mut world, 0, 0).expect("settles");
    assert_eq!(world.u, UNIT);
}

#[test]
fn upscale_request_before_the_link_is_up_is_harmless() {
    let mut core = Core::new(config(), vm(1, 8, 2));
    let now = Timestamp(1_000_000);
    core.handle(
        now,
        Event::MonitorUpscaleRequested(UpscaleRequest::default()),
    );
    core.next_actions(now);
    core.handle(now, Event::MonitorActive);
    core.next_actions(now);
    assert_eq!(core.faults().total(), 0);
}

/// Lets the monitor of `ready(from, …)` agree and the patch to `to` units start.
fn shrinking(from: u32) -> World {
    let mut world = ready(from, 0);
    world
        .step(&Step::done(MONITOR))
        .expect("the monitor agrees");
    assert!(world.flights[VM_OBJECT].is_some(), "the patch is in flight");
    world
}

#[test]
fn monitor_is_not_notified_while_a_shrink_is_patched() {
    let mut world = shrinking(2);
    world.step(&Step::load(45)).expect("runs");
    assert!(
        world.flights[MONITOR].is_none(),
        "notified of 2 units while the patch to 1 is in flight"
    );
    world.step(&Step::done(VM_OBJECT)).expect("runs");
    settle(&mut world, 45, 0).expect("settles");
    assert_eq!(world.u, UNIT.saturating_mul(2));
}

#[test]
fn shrink_waits_for_a_notification_in_flight() {
    let mut world = ready(1, 45);
    world
        .step(&Step::done(SCHEDULER))
        .expect("the increase is permitted");
    world.step(&Step::done(VM_OBJECT)).expect("and patched");
    assert!(matches!(
        world.flights[MONITOR],
        Some((_, Action::MonitorUpscale(_)))
    ));
    world.step(&Step::load(0)).expect("runs");
    assert!(
        world.flights[VM_OBJECT].is_none(),
        "patched down while the monitor may count on 2 units"
    );
    world.step(&Step::done(MONITOR)).expect("runs");
    settle(&mut world, 0, 0).expect("settles");
}

#[test]
fn new_monitor_gets_no_request_for_a_size_before_the_patch() {
    let mut world = World::new(1);
    world.step(&Step::load(225)).expect("runs");
    world.step(&Step::done(SCHEDULER)).expect("first contact");
    world
        .step(&Step::done(SCHEDULER))
        .expect("the increase is permitted");
    assert!(
        world.flights[VM_OBJECT].is_some(),
        "the patch to 8 units is in flight"
    );
    world.step(&Step::load(45)).expect("runs");
    world
        .step(&Step::MonitorUp { rereads: true })
        .expect("runs");
    assert!(
        world.flights[MONITOR].is_none(),
        "a shrink to 2 would promise 2"
    );
    settle(&mut world, 45, 0).expect("settles");
}

#[test]
fn growth_with_lost_response_is_repeated_without_a_monitor() {
    let mut world = World::new(1);
    world.step(&Step::load(90)).expect("runs");
    world.step(&Step::done(SCHEDULER)).expect("first contact");
    world
        .step(&Step::done(SCHEDULER))
        .expect("the increase is permitted");
    world
        .step(&Step::ended(VM_OBJECT, Fate::ResponseLost))
        .expect("runs");
    world
        .step(&Step::load(0))
        .expect("nothing is desired any more");
    world.step(&Step::wait_ms(5000)).expect("runs");
    let Some((_, Action::VmPatch(request))) = &world.flights[VM_OBJECT] else {
        panic!("nothing is repeated")
    };
    assert_eq!(
        request.target,
        UNIT.saturating_mul(4),
        "a monitor may have seen 4 units"
    );
}

#[test]
fn decrease_with_lost_response_is_not_undone_without_a_permit() {
    let mut world = shrinking(2);
    world
        .step(&Step::done(VM_OBJECT))
        .expect("the patch to 1 succeeds");
    world
        .step(&Step::ended(SCHEDULER, Fate::ResponseLost))
        .expect("the scheduler gave the rest away");
    world
        .step(&Step::load(45))
        .expect("2 units are desired again");
    assert!(
        world.flights[VM_OBJECT].is_none(),
        "patched up on the old permit"
    );
    world.step(&Step::wait_ms(3000)).expect("runs");
    let Some((_, Action::Permit(request))) = &world.flights[SCHEDULER] else {
        panic!("no permit request")
    };
    assert_eq!(request.last_permit, Some(UNIT));
    settle(&mut world, 45, 0).expect("settles");
    assert_eq!(world.u, UNIT.saturating_mul(2));
}

#[test]
fn monitor_started_before_the_guest_grew_is_notified() {
    let mut vm = vm(1, 8, 2);
    vm.actual = Some(UNIT);
    let mut core = Core::new(config(), vm);
    let now = Timestamp(1_000_000);
    core.handle(now, Event::MonitorActive);
    let notified = core
        .next_actions(now)
        .actions
        .monitor_up
        .expect("a notification");
    assert_eq!(
        (notified.current, notified.target),
        (UNIT, UNIT.saturating_mul(2))
    );
}

#[test]
fn approval_of_an_earlier_link_does_not_count() {
    let mut world = shrinking(3);
    let (id, _) = world.flights[VM_OBJECT]
        .take()
        .expect("the patch is in flight");
    let core = &mut world.core;
    core.handle(world.now, Event::MonitorReset);
    // The next monitor reads its guest, which still has three units. It has approved nothing.
    core.handle(world.now, Event::MonitorActive);
    core.handle(world.now, Event::VmPatchDone(id, Err(Failure::NotApplied)));
    world.now = world.now + Span::from_secs(6);
    core.handle(world.now, Event::SystemMetrics(SystemMetrics::default()));
    while let Some((_, action)) = core.poll_action(world.now) {
        assert!(!matches!(action, Action::VmPatch(_)), "{action:?}");
    }
}

#[test]
fn monitor_that_connects_after_a_resize_is_notified() {
    let mut world = shrinking(3);
    world
        .step(&Step::done(VM_OBJECT))
        .expect("the patch succeeds");
    let core = &mut world.core;
    core.handle(world.now, Event::MonitorReset);
    // Its size may be from before the patch, because memory is unplugged slowly.
    core.handle(world.now, Event::MonitorActive);
    let notified =
        std::iter::from_fn(|| core.poll_action(world.now)).find_map(|(_, action)| match action {
            Action::MonitorUpscale(request) => Some(request.target),
            _ => None,
        });
    assert_eq!(notified, Some(UNIT));
}

/// A state of the object by another writer.
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
fn size_set_by_another_writer_is_patched_again_and_reported() {
    let mut world = ready(2, 45);
    world.core.handle(world.now, seen(2, 10));
    assert_eq!(world.core.poll_action(world.now), None, "nothing is new");
    world.core.handle(world.now, seen(3, 11));
    let (mut asked, mut patched) = (None, None);
    while let Some((_, action)) = world.core.poll_action(world.now) {
        match action {
            Action::Permit(request) => asked = Some(request.target),
            Action::VmPatch(request) => patched = Some(request.target),
            _ => {}
        }
    }
    assert_eq!(patched, Some(UNIT.saturating_mul(2)));
    assert_eq!(
        asked,
        Some(UNIT.saturating_mul(3)),
        "the VM may have it already"
    );
}

#[test]
fn size_of_the_object_is_adopted_before_the_first_permit() {
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
fn monitor_is_notified_again_after_another_writer_shrank_the_vm() {
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
        let (id, notified) = std::iter::from_fn(|| core.poll_action(now))
            .find_map(telling)
            .expect("a notification");
        assert_eq!(notified, UNIT.saturating_mul(4));
        core.handle(now, seen(3, 8));
        core.handle(now, Event::MonitorUpscaleDone(id, answer));
        now = now + Span::from_secs(6);
        core.handle(now, Event::Tick);
        let again = std::iter::from_fn(|| core.poll_action(now)).find_map(telling);
        let again = again.map(|(_, notified)| notified);
        assert_eq!(again, Some(UNIT.saturating_mul(3)), "after {answer:?}");
        assert_eq!(core.faults().total(), 0, "after {answer:?}");
    }
}

/// Requirement: N14
#[test]
fn size_above_the_permit_is_permitted_before_a_patch() {
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
    core.handle(now, Event::PermitDone(id, Ok(response)));
    core.handle(now, seen(3, 11));
    let actions: Vec<Action> = std::iter::from_fn(|| core.poll_action(now))
        .map(|(_, action)| action)
        .collect();
    assert!(
        actions
            .iter()
            .any(|action| matches!(action, Action::Permit(_)))
    );
    assert!(
        !actions
            .iter()
            .any(|action| matches!(action, Action::VmPatch(_))),
        "{actions:?}"
    );
}

/// Found by a restart with 1,000 VMs: object and guest had the new size, and the last agent died
/// before the notification.
///
/// Requirement: N09
#[test]
fn monitor_is_notified_of_growth_missed_by_previous_agent() {
    let notification = |last_revision: i64| {
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
    assert_eq!(notification(0), None, "the size was never changed");
    let up = notification(7).expect("a notification");
    assert_eq!(up.target, UNIT.saturating_mul(3));
}
