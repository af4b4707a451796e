//! Tests of CPUs that are plugged and unplugged: by events, and ahead of orders.

use super::*;
use protocol::runner::CpusAhead;

#[test]
fn cpu_events_need_no_query() {
    let mut world = World::new(CpuControl::Plug, Accel::Tcg);
    world.settle();
    world.order(3000, GIB, 1);
    world.settle();
    assert!(world.done(), "it said so: {:?}", world.log);
    let looks_at = world.sizer.poll_deadline().expect("it looks again");
    assert!(looks_at >= world.now + LOOK_SLOW, "nothing is to be seen");

    world.clingy = true;
    world.order(1000, GIB, 2);
    world.settle();
    world.plugged = 1;
    world.report();
    for id in ["cpu2", "cpu1"] {
        assert!(!world.done(), "before {id} is gone");
        let gone = Event::CpuGone(id.into());
        world.sizer.handle(world.now, gone);
    }
    assert!(world.done(), "by its word alone: {:?}", world.log);
}

#[test]
fn event_that_may_be_outdated_causes_a_query() {
    let mut world = World::new(CpuControl::Plug, Accel::Tcg);
    world.order(2000, GIB, 1);
    world.settle();
    let gone = |id: &str| Event::CpuGone(id.into());
    world.sizer.handle(world.now, gone("disk7"));
    let looked = world.sizer.poll_action(world.now);
    assert_eq!(looked, Some(Action::QueryCpus), "whatever that was");
    // The event arrives during a look, whose answer may be older or newer.
    world.sizer.handle(world.now, gone("cpu1"));
    assert_eq!(world.sizer.cpus().plugged, 2);
    world
        .sizer
        .handle(world.now, Event::Cpus(Ok(world.slots())));
    let failed = Err(QmpFailure {
        command: "device_add".into(),
        message: "no".into(),
    });
    world.sizer.handle(world.now, Event::CpuCommand(failed));
    world.sizer.handle(world.now, gone("cpu1"));
    assert_eq!(world.sizer.cpus().plugged, 2, "more may have changed");
    let looked = world.sizer.poll_action(world.now);
    assert_eq!(looked, Some(Action::QueryCpus));
}

#[test]
fn qemu_decides_about_memory_of_a_guest_that_reports_only_cpus() {
    let mut world = World::new(CpuControl::Plug, Accel::Tcg);
    world.counts_cpus = true;
    world.report();
    assert_eq!(world.sizer.memory().guest_total, None);
    world.order(3000, 4 * GIB, 1);
    world.run(Span::from_secs(1));
    assert!(world.done(), "{:?}", world.problem());
    assert_eq!(world.sizer.cpus().guest_online, Some(3));
    // A guest that does not online CPUs by itself gets the request in the same way.
    world.sighted = false;
    world.order(4000, 4 * GIB, 2);
    world.settle();
    assert!(!world.done(), "by its own count");
}

fn go_ahead(world: &mut World, milli: u32) {
    let cpu = MilliCpu(milli);
    world
        .sizer
        .handle(world.now, Event::Ahead(CpusAhead { cpu }));
    world.settle();
}

#[test]
fn cpus_plugged_ahead_use_nothing_before_their_order() {
    let mut world = World::new(CpuControl::Plug, Accel::Tcg);
    world.settle();
    world.order(500, GIB, 1);
    world.settle();
    world.log.clear();
    go_ahead(&mut world, 2500);
    assert_eq!(world.log, ["plug 2"], "and no quota");
    let cpus = world.sizer.cpus();
    assert_eq!(
        (cpus.limit, cpus.ahead),
        (MilliCpu(500), Some(MilliCpu(2500)))
    );
    assert!(!world.done(), "it is not as ordered");
    world.run(Span::from_secs(5));
    assert_eq!(
        world.log,
        ["plug 2"],
        "the guest is not ordered to online them"
    );
    world.order(2500, GIB, 2);
    assert!(world.done(), "{:?}", world.problem());
    world.settle();
    assert_eq!(world.log, ["quota 2500m"]);
    assert_eq!(world.sizer.cpus().ahead, Some(MilliCpu(0)));
}

#[test]
fn cpus_plugged_ahead_leave_on_release_or_timeout() {
    for is_taken_back in [true, false] {
        let mut world = World::new(CpuControl::Plug, Accel::Tcg);
        world.order(1000, GIB, 1);
        world.settle();
        go_ahead(&mut world, 3000);
        assert_eq!(world.plugged, 3);
        if is_taken_back {
            go_ahead(&mut world, 0);
        }
        world.run(Span::from_secs(35));
        assert_eq!(world.plugged, 1);
        assert!(world.done() && world.sizer.cpus().ahead == Some(MilliCpu(0)));
    }
}

#[test]
fn nothing_is_plugged_ahead_with_guest_control_or_during_a_migration() {
    let mut world = World::new(CpuControl::Guest, Accel::Tcg);
    world.settle();
    assert_eq!(world.sizer.cpus().ahead, None, "it says so");
    world.log.clear();
    go_ahead(&mut world, 3000);
    assert!(world.log.is_empty(), "{:?}", world.log);

    let mut world = World::new(CpuControl::Plug, Accel::Tcg);
    world.settle();
    world.log.clear();
    let moves = Event::Hold(Some("away".into()));
    world.sizer.handle(world.now, moves);
    go_ahead(&mut world, 3000);
    assert!(world.log.is_empty(), "{:?}", world.log);
}
