use super::*;
use crate::config::Accel;
use crate::core::quota::BOOT_ALLOWANCE;
use crate::core::shape::{CpuControl, shape, tests::guest};
use proptest::prelude::*;
use protocol::runner::{GuestState, ResizeProblem, ResizeReport};
use protocol::trace::Stage;
use protocol::trace::TraceId;

mod plug_events;

/// A QEMU with a guest, as the sizer sees it.
struct World {
    sizer: Sizer,
    now: Timestamp,
    plugged: u32,
    boot: u32,
    sockets: u32,
    threads_made: u32,
    requested: u64,
    size: u64,
    base: u64,
    /// Bytes that the guest gives back per look at most; zero is a guest that gives nothing.
    gives: u64,
    /// Whether the guest sees hot-plugged CPUs.
    sighted: bool,
    /// Number of CPUs last requested of the guest.
    target: Option<u32>,
    /// CPUs that refuse to leave.
    clingy: bool,
    /// Its daemon reports only CPUs, as NeonVM's does.
    counts_cpus: bool,
    generation: u64,
    log: Vec<String>,
}

const GIB: u64 = 1 << 30;
const RESERVED: u64 = 100 << 20;

fn order(milli: u32, memory: u64, revision: i64) -> SizeOrder {
    SizeOrder {
        cpu: MilliCpu(milli),
        memory: Bytes(memory),
        trace: TraceId {
            vm: "default/pg".into(),
            revision,
        },
    }
}

impl World {
    fn new(control: CpuControl, accel: Accel) -> Self {
        Self::with(control, accel, [1000, 1000, 4000])
    }

    fn with(control: CpuControl, accel: Accel, cpus: [u32; 3]) -> Self {
        let shape = shape(&guest(cpus, [1, 1, 8], GIB), control, accel).expect("sound");
        let (boot, sockets, now) = (shape.boot_cpus, shape.sockets, Timestamp(1_000_000));
        let first = order(cpus[1], GIB, 0);
        let sizer = Sizer::new(shape.clone(), shape.budget, first, None, None, now);
        let mut world = Self {
            sizer,
            now,
            plugged: boot,
            boot,
            sockets,
            threads_made: boot,
            requested: 0,
            size: 0,
            base: GIB,
            gives: GIB,
            sighted: true,
            target: (control == CpuControl::Guest).then(|| cpus[1].div_ceil(1000)),
            clingy: false,
            counts_cpus: false,
            generation: 0,
            log: Vec::new(),
        };
        world.sizer.handle(now, Event::QmpUp);
        world.report();
        world
    }

    fn slots(&self) -> Vec<CpuSlot> {
        // Highest first, as QEMU lists them.
        (0..self.sockets)
            .rev()
            .map(|n| CpuSlot {
                props: BTreeMap::from([
                    ("socket-id".into(), i64::from(n)),
                    ("core-id".into(), 0),
                    ("thread-id".into(), 0),
                ]),
                driver: "max-x86_64-cpu".into(),
                qom_path: (n < self.plugged).then(|| {
                    let place = if n < self.boot {
                        "unattached/device"
                    } else {
                        "peripheral/cpu"
                    };
                    format!("/machine/{place}{n}")
                }),
            })
            .collect()
    }

    fn online(&self) -> u32 {
        let seen = if self.sighted {
            self.plugged
        } else {
            self.boot
        };
        self.target.unwrap_or(u32::MAX).min(seen)
    }

    fn report(&mut self) {
        self.generation += 1;
        if self.counts_cpus {
            let event = Event::GuestCpus(self.online());
            return self.sizer.handle(self.now, event);
        }
        let state = GuestState {
            generation: self.generation,
            cpus_online: self.online(),
            cpus_present: self.plugged,
            cpus_possible: if self.sighted {
                self.sockets
            } else {
                self.boot
            },
            mem_total: Bytes(self.base + self.size - RESERVED),
            mem_available: Bytes(1),
            boot_id: "b".into(),
            kernel: "6.1".into(),
            uptime_s: 1,
            programs: Vec::new(),
            parts: protocol::parts::PartStates::new(),
        };
        self.sizer.handle(self.now, Event::Guest(state));
    }

    /// Does one action at once; returns whether there was one.
    fn act(&mut self) -> bool {
        let Some(action) = self.sizer.poll_action(self.now) else {
            return false;
        };
        let event = match action {
            Action::QueryCpus => Event::Cpus(Ok(self.slots())),
            Action::QueryMemory => {
                self.size = if self.size > self.requested {
                    self.requested.max(self.size.saturating_sub(self.gives))
                } else {
                    self.requested
                };
                let view = DeviceView {
                    requested: Bytes(self.requested),
                    size: Bytes(self.size),
                };
                Event::Memory(Ok(view))
            }
            Action::Plug { slots, .. } => {
                let count = u32::try_from(slots.len()).expect("few");
                let lowest = slots[0].props["socket-id"];
                assert_eq!(
                    lowest,
                    i64::from(self.plugged),
                    "the lowest free slot comes first"
                );
                self.log.push(format!("plug {count}"));
                self.plugged += count;
                self.threads_made += count;
                Event::CpuCommand(Ok(()))
            }
            Action::Unplug { ids } => {
                self.log.push(format!("unplug {}", ids.join(" ")));
                if !self.clingy {
                    self.plugged -= u32::try_from(ids.len()).expect("few");
                }
                Event::CpuCommand(Ok(()))
            }
            Action::Request(bytes) => {
                self.log.push(format!("request {bytes}"));
                self.requested = bytes.0;
                // A guest takes memory at once, and gives it back piece by piece.
                self.size = self.size.max(self.requested);
                Event::Requested(Ok(()))
            }
            Action::SetGuestCpus(count) => {
                self.log.push(format!("cpus {count}"));
                self.target = Some(count);
                Event::GuestCpusSet
            }
            Action::SetQuota(milli) => {
                self.log.push(format!("quota {milli}"));
                return true;
            }
        };
        self.sizer.handle(self.now, event);
        self.report();
        true
    }

    fn settle(&mut self) {
        let mut actions = 0;
        while self.act() {
            actions += 1;
            assert!(actions < 500, "spins: {:?}", self.log);
        }
    }

    /// Advances time up to a limit or until the order is done.
    fn run(&mut self, limit: Span) {
        let end = self.now + limit;
        self.settle();
        while self.now < end && !self.done() {
            let next = self.sizer.poll_deadline().expect("it looks again");
            assert!(
                next > self.now,
                "the deadline must lie ahead once all is done"
            );
            self.now = next;
            self.settle();
        }
    }

    fn order(&mut self, milli: u32, memory: u64, revision: i64) {
        self.log.clear();
        self.sizer
            .handle(self.now, Event::Order(order(milli, memory, revision)));
    }

    /// Orders the most CPUs and the fewest in turn and runs each to its end; returns the milli-CPU
    /// ordered.
    fn swing(&mut self, revision: i64) -> u32 {
        let milli = if revision % 2 == 0 { 4000 } else { 1000 };
        self.order(milli, GIB, revision);
        self.run(Span::from_secs(10));
        milli
    }

    fn report_now(&self) -> Option<ResizeReport> {
        self.sizer
            .report(self.now, |at| i64::try_from(at.0).expect("small"))
    }

    fn done(&self) -> bool {
        self.report_now().is_some_and(|report| report.done)
    }

    fn problem(&self) -> Option<ResizeProblem> {
        self.sizer.problem(self.now)
    }
}

/// Requirement: N18
#[test]
fn cpus_and_memory_change_in_one_pass_both_ways() {
    let mut world = World::new(CpuControl::Plug, Accel::Tcg);
    world.settle();
    assert_eq!(world.report_now(), None, "no order yet");
    world.order(4000, 3 * GIB, 1);
    world.settle();
    assert_eq!(world.log, ["request 2Gi", "plug 3", "quota 4"]);
    let report = world.report_now().expect("ordered");
    assert!(report.done && report.problem.is_none(), "{report:?}");
    let stages: Vec<Stage> = report.stages.iter().map(|stamp| stamp.stage).collect();
    assert_eq!(stages, [Stage::Qmp, Stage::GuestVisible]);

    world.order(1000, GIB, 2);
    world.run(Span::from_secs(1));
    assert!(world.done(), "{:?}", world.log);
    assert_eq!(world.log[..2], ["request 0", "unplug cpu3 cpu2 cpu1"]);
    assert_eq!((world.plugged, world.size), (1, 0));
}

#[test]
fn guest_giving_cpus_back_is_not_queried_before_the_event() {
    let mut world = World::new(CpuControl::Plug, Accel::Tcg);
    world.order(2000, GIB, 1);
    world.settle();
    world.clingy = true;
    world.order(1000, GIB, 2);
    world.settle();
    world.now = world.now + Span::from_millis(50);
    assert_eq!(
        world.sizer.poll_action(world.now),
        None,
        "it has work to do"
    );
    world.sizer.handle(world.now, Event::CpuHint);
    let target = world.sizer.poll_action(world.now);
    assert_eq!(
        target,
        Some(Action::QueryCpus),
        "target that something happened"
    );
    world
        .sizer
        .handle(world.now, Event::Cpus(Ok(world.slots())));
    world.now = world.now + Span::from_millis(200);
    let untold = world.sizer.poll_action(world.now);
    assert_eq!(untold, Some(Action::QueryCpus), "an event may be lost");
}

#[test]
fn guest_taking_memory_is_not_queried_before_it_sees_it() {
    let mut world = World::new(CpuControl::Plug, Accel::Tcg);
    world.settle();
    world.order(1000, 2 * GIB, 1);
    assert_eq!(
        world.sizer.poll_action(world.now),
        Some(Action::Request(Bytes(GIB)))
    );
    world.requested = GIB;
    world.sizer.handle(world.now, Event::Requested(Ok(())));
    for (size, ms) in [(GIB / 4, 10), (GIB / 2, 20), (3 * GIB / 4, 30)] {
        world.now = world.now + Span::from_millis(ms);
        world.size = size;
        world.report();
        assert_eq!(world.sizer.poll_action(world.now), None, "it is at work");
    }
    world.size = GIB;
    world.report();
    let target = world.sizer.poll_action(world.now);
    assert_eq!(target, Some(Action::QueryMemory), "the guest has it");
    world.sizer.handle(
        world.now,
        Event::Memory(Ok(DeviceView {
            requested: Bytes(GIB),
            size: Bytes(GIB),
        })),
    );
    assert!(world.done());

    // A guest that reports no memory is looked at nevertheless.
    world.counts_cpus = true;
    world.order(1000, 3 * GIB, 2);
    world.settle();
    world.now = world.now + Span::from_millis(200);
    let untold = world.sizer.poll_action(world.now);
    assert_eq!(untold, Some(Action::QueryMemory));
}

/// A guest that has the memory of a growth, which is revoked before a look at it.
fn revoked() -> World {
    let mut world = World::new(CpuControl::Plug, Accel::Tcg);
    world.settle();
    world.order(1000, 2 * GIB, 1);
    world.act();
    assert_eq!((world.requested, world.size), (GIB, GIB), "{:?}", world.log);
    world.order(1000, GIB, 2);
    world
}

/// Before the fix, state from before the request counted as current: the guest kept memory beyond
/// its order.
#[test]
fn growth_revoked_before_its_look_is_revoked() {
    let mut world = revoked();
    assert!(!world.done());
    world.run(Span::from_secs(2));
    assert!(world.done());
    assert_eq!((world.requested, world.size), (0, 0), "{:?}", world.log);
}

/// Before the fix, the state was that of before the request: the controller lowered what the pod
/// requests, and then the guest took the memory (N41).
#[test]
fn growth_revoked_before_its_look_is_reported_until_the_look() {
    let mut world = revoked();
    let reported = |world: &World| world.sizer.memory().requested;
    assert_eq!(reported(&world), Bytes(GIB), "{:?}", world.log);
    world.sizer.handle(world.now, Event::QmpDown);
    assert_eq!(reported(&world), Bytes(GIB), "nobody looks");
    world.sizer.handle(world.now, Event::QmpUp);
    world.run(Span::from_secs(2));
    assert_eq!(reported(&world), Bytes(0));
}

#[test]
fn repeated_order_changes_nothing_and_a_new_revision_of_its_size_is_done_at_once() {
    let mut world = World::new(CpuControl::Plug, Accel::Tcg);
    world.order(2000, 2 * GIB, 1);
    world.settle();
    let before = world.report_now();
    world.now = world.now + Span::from_secs(1);
    world.order(2000, 2 * GIB, 1);
    world.settle();
    assert_eq!(world.report_now(), before);
    world.order(2000, 2 * GIB, 2);
    assert!(world.done());
    assert_eq!(world.report_now().expect("ordered").order.trace.revision, 2);
}

#[test]
fn newer_order_supersedes_one_in_progress() {
    let mut world = World::new(CpuControl::Plug, Accel::Tcg);
    world.settle();
    world.gives = 128 << 20;
    world.order(4000, 8 * GIB, 1);
    world.settle();
    world.order(1000, GIB, 2);
    for _ in 0..4 {
        world.act();
    }
    world.order(3000, 5 * GIB, 3);
    world.run(Span::from_secs(60));
    assert!(world.done(), "{:?}", world.problem());
    assert_eq!((world.plugged, world.size), (3, 4 * GIB));
}

#[test]
fn stuck_memory_does_not_delay_cpus() {
    let mut world = World::new(CpuControl::Plug, Accel::Tcg);
    world.order(1000, 4 * GIB, 1);
    world.settle();
    world.gives = 0;
    world.order(3000, GIB, 2);
    world.run(Span::from_secs(5));
    assert_eq!(world.plugged, 3, "CPUs went on");
    assert_eq!(world.problem(), None, "not stuck yet");
    world.run(MEMORY_STUCK);
    assert_eq!(
        world.problem(),
        Some(ResizeProblem::MemoryStuck {
            missing: Bytes(3 * GIB)
        })
    );
    world.gives = GIB;
    world.run(Span::from_secs(20));
    assert!(world.done() && world.problem().is_none());
}

#[test]
fn stuck_cpu_is_asked_again_and_reported() {
    let mut world = World::new(CpuControl::Plug, Accel::Tcg);
    world.order(2000, GIB, 1);
    world.settle();
    world.clingy = true;
    world.order(1000, GIB, 2);
    world.run(Span::from_millis(3500));
    assert_eq!(
        world.log.iter().filter(|l| l.starts_with("unplug")).count(),
        1
    );
    assert_eq!(world.problem(), None);
    world.run(Span::from_secs(3));
    assert_eq!(
        world.log.iter().filter(|l| l.starts_with("unplug")).count(),
        2
    );
    assert_eq!(
        world.problem(),
        Some(ResizeProblem::CpuStuck { missing: 1 })
    );
    world.clingy = false;
    world.run(Span::from_secs(10));
    assert!(world.done());
}

#[test]
fn blind_kernel_is_reported() {
    let mut world = World::new(CpuControl::Plug, Accel::Tcg);
    world.sighted = false;
    world.order(2000, GIB, 1);
    world.settle();
    assert!(!world.done());
    assert_eq!(
        world.problem(),
        Some(ResizeProblem::GuestBlind {
            expected: "2 possible CPUs".into(),
            seen: "1".into()
        })
    );
}

/// QEMU sends an event as soon as a device begins to change its size. The resulting look stalled
/// the guest that had just begun.
#[test]
fn guest_that_has_just_begun_to_take_memory_is_not_queried() {
    let mut world = World::new(CpuControl::Plug, Accel::Tcg);
    world.settle();
    world.order(1000, 3 * GIB, 1);
    let request = world.sizer.poll_action(world.now);
    assert_eq!(request, Some(Action::Request(Bytes(2 * GIB))));
    world.requested = 2 * GIB;
    world.sizer.handle(world.now, Event::Requested(Ok(())));
    world.settle();
    world.sizer.handle(world.now, Event::MemoryHint);
    assert_eq!(world.sizer.poll_action(world.now), None, "it has begun");
    // A guest that reports nothing is looked at nevertheless.
    let soon = world.now + Span::from_millis(100);
    assert!(world.sizer.poll_deadline().is_some_and(|at| at <= soon));
    world.now = soon;
    let look = world.sizer.poll_action(world.now);
    assert_eq!(look, Some(Action::QueryMemory));
    let view = DeviceView {
        requested: Bytes(2 * GIB),
        size: Bytes(GIB),
    };
    world.sizer.handle(world.now, Event::Memory(Ok(view)));
    world.sizer.handle(world.now, Event::MemoryHint);
    let look = world.sizer.poll_action(world.now);
    assert_eq!(look, Some(Action::QueryMemory), "it may have ended");
}

#[test]
fn memory_that_the_guest_does_not_online_is_reported() {
    let mut world = World::new(CpuControl::Plug, Accel::Tcg);
    world.settle();
    world.order(1000, 3 * GIB, 1);
    // The device is full, the guest's total is as before: its kernel left the blocks offline.
    for _ in 0..20 {
        if let Some(action) = world.sizer.poll_action(world.now) {
            let event = match action {
                Action::Request(bytes) => {
                    world.requested = bytes.0;
                    Event::Requested(Ok(()))
                }
                Action::QueryMemory => Event::Memory(Ok(DeviceView {
                    requested: Bytes(world.requested),
                    size: Bytes(world.requested),
                })),
                Action::QueryCpus => Event::Cpus(Ok(world.slots())),
                _ => continue,
            };
            world.sizer.handle(world.now, event);
        }
        world.now = world.now + Span::from_millis(20);
    }
    assert!(!world.done());
    world.now = world.now + GUEST_BLIND;
    assert!(
        matches!(world.problem(), Some(ResizeProblem::GuestBlind { .. })),
        "{:?}",
        world.problem()
    );
    assert!(!world.done());
}

#[test]
fn refused_command_is_the_problem_until_it_succeeds() {
    let mut world = World::new(CpuControl::Plug, Accel::Tcg);
    world.settle();
    world.order(2000, GIB, 1);
    assert!(matches!(
        world.sizer.poll_action(world.now),
        Some(Action::Plug { .. })
    ));
    let failure = QmpFailure {
        command: "device_add".into(),
        message: "no".into(),
    };
    world
        .sizer
        .handle(world.now, Event::CpuCommand(Err(failure)));
    world.settle();
    let expected = ResizeProblem::Qmp {
        command: "device_add".into(),
        message: "no".into(),
    };
    assert_eq!(world.problem(), Some(expected));
    world.run(Span::from_secs(2));
    assert!(world.done(), "{:?}", world.log);
}

#[test]
fn lost_monitor_forgets_commands_and_queries_again() {
    let mut world = World::new(CpuControl::Plug, Accel::Tcg);
    world.settle();
    world.order(2000, 2 * GIB, 1);
    assert!(world.sizer.poll_action(world.now).is_some());
    world.sizer.handle(world.now, Event::QmpDown);
    world.settle();
    assert!(!world.done());
    world.sizer.handle(world.now, Event::QmpUp);
    world.settle();
    assert!(world.done(), "{:?}", world.log);
    assert_eq!(world.plugged, 2);
}

#[test]
fn unreachable_monitor_is_the_problem() {
    let mut world = World::new(CpuControl::Plug, Accel::Tcg);
    world.settle();
    world.sizer.handle(world.now, Event::QmpDown);
    world.order(2000, 2 * GIB, 1);
    world.settle();
    assert_eq!(world.problem(), None, "for a moment that is nothing");
    let why = "another client is connected".to_owned();
    world
        .sizer
        .handle(world.now, Event::QmpUnreached(why.clone()));
    let expected = ResizeProblem::Qmp {
        command: "a connection".into(),
        message: why.clone(),
    };
    assert_eq!(world.problem(), Some(expected));
    world.sizer.handle(world.now, Event::QmpUp);
    // A late event: the monitor is connected again.
    world.sizer.handle(world.now, Event::QmpUnreached(why));
    world.settle();
    assert_eq!((world.problem(), world.done()), (None, true));
}

#[test]
fn orders_outside_the_machine_are_reported_and_change_nothing() {
    let mut world = World::new(CpuControl::Plug, Accel::Tcg);
    world.settle();
    world.order(9000, GIB, 1);
    world.settle();
    assert!(matches!(
        world.problem(),
        Some(ResizeProblem::OutOfRange { .. })
    ));
    assert!(
        !world
            .log
            .iter()
            .any(|line| line.starts_with("plug") || line.starts_with("request"))
    );
}

#[test]
fn sysfs_scaling_orders_the_guest_and_never_plugs() {
    let mut world = World::new(CpuControl::Guest, Accel::Tcg);
    world.settle();
    world.order(3000, 2 * GIB, 1);
    world.settle();
    assert!(world.done(), "{:?}", world.log);
    assert_eq!(world.log, ["request 1Gi", "quota 3", "cpus 3"]);
    world.order(250, GIB, 2);
    world.run(Span::from_secs(5));
    assert!(world.done());
    assert_eq!(world.online(), 1);
}

#[test]
fn daemon_that_does_not_online_cpus_gets_a_request() {
    let mut world = World::new(CpuControl::Plug, Accel::Kvm);
    world.target = Some(1);
    world.settle();
    world.order(2000, GIB, 1);
    world.settle();
    assert!(!world.done());
    world.run(Span::from_secs(5));
    assert!(world.done());
    assert!(world.log.contains(&"cpus 2".to_owned()), "{:?}", world.log);
}

#[test]
fn exhausted_budget_switches_cpus_off_in_the_guest() {
    let mut world = World::new(CpuControl::Plug, Accel::Tcg);
    world.settle();
    for revision in 0..200 {
        let milli = world.swing(revision);
        assert!(
            world.done(),
            "{revision}: {:?} {:?}",
            world.log,
            world.problem()
        );
        assert_eq!(world.online(), milli / 1000);
        assert!(
            world.threads_made <= world.sockets,
            "{} at {revision}",
            world.threads_made
        );
        // The budget matches the plugs that QEMU has seen.
        let left = world.sizer.budget().expect("TCG").left();
        assert_eq!(left, world.sockets - world.threads_made);
    }
    assert_eq!(world.plugged, 4, "kept plugged at the end");
}

/// Before the fix, the request came two seconds later, as for a daemon that onlines plugged CPUs
/// itself.
#[test]
fn guest_with_a_lower_target_gets_a_request_at_once() {
    let mut world = World::new(CpuControl::Plug, Accel::Tcg);
    world.settle();
    for revision in 0..200 {
        world.swing(revision);
    }
    assert_eq!((world.plugged, world.target), (4, Some(1)), "kept plugged");
    world.order(4000, GIB, 200);
    world.settle();
    assert!(world.done(), "{:?}", world.log);
}

/// Requirement: N20
#[test]
fn quota_follows_every_order() {
    let mut world = World::with(CpuControl::Plug, Accel::Tcg, [250, 250, 2000]);
    world.settle();
    assert_eq!(world.log.first().map(String::as_str), Some("quota 250m"));
    world.order(1750, GIB, 1);
    world.settle();
    assert!(
        world.log.contains(&"quota 1750m".to_owned()),
        "{:?}",
        world.log
    );
    world.order(1250, GIB, 2);
    world.settle();
    assert!(
        world.log.contains(&"quota 1250m".to_owned()),
        "{:?}",
        world.log
    );
}

/// Requirement: N20
#[test]
fn quota_falls_when_the_memory_has_left() {
    let mut world = World::with(CpuControl::Plug, Accel::Tcg, [250, 250, 2000]);
    world.settle();
    world.order(1750, 3 * GIB, 1);
    world.settle();
    world.gives = GIB / 4;
    world.order(250, GIB, 2);
    world.settle();
    let lowered = "quota 250m".to_owned();
    assert!(world.size > 0 && !world.log.contains(&lowered));
    world.run(Span::from_secs(60));
    assert!(world.done() && world.size == 0);
    assert!(world.log.contains(&lowered), "{:?}", world.log);
}

#[test]
fn tcg_delays_further_cpus_until_the_guest_answers_or_a_timeout() {
    let guest = guest([1000, 3000, 4000], [1, 1, 8], GIB);
    let shape = shape(&guest, CpuControl::Plug, Accel::Tcg).expect("sound");
    let now = Timestamp(1_000_000);
    let plugs = |answers: bool, later: Span| {
        let mut world = World::with(CpuControl::Plug, Accel::Tcg, [1000, 3000, 4000]);
        world.plugged = 1;
        world.sizer = Sizer::new(
            shape.clone(),
            shape.budget,
            order(3000, GIB, 0),
            None,
            Some(now),
            now,
        );
        world.sizer.handle(now, Event::QmpUp);
        let slots = world.slots();
        world.sizer.handle(now, Event::Cpus(Ok(slots)));
        if answers {
            world.report();
        }
        world.now = now + later;
        let mut actions = Vec::new();
        while let Some(action) = world.sizer.poll_action(world.now) {
            if action == Action::QueryCpus {
                let slots = world.slots();
                world.sizer.handle(world.now, Event::Cpus(Ok(slots)));
            }
            actions.push(action);
        }
        actions
            .iter()
            .any(|action| matches!(action, Action::Plug { slots, .. } if slots.len() == 2))
    };
    assert!(!plugs(false, Span::from_secs(8)));
    assert!(plugs(true, Span(0)));
    assert!(plugs(false, BOOT_ALLOWANCE));
}

proptest! {
    /// From any sequence of orders at any moment, the sizer reaches the last one.
    #[test]
    fn last_order_is_reached(
        orders in proptest::collection::vec((1..17_u32, 1..9_u64, 0..12_usize), 1..25),
        tcg in any::<bool>(),
        gives in 1..5_u64,
    ) {
        let accel = if tcg { Accel::Tcg } else { Accel::Kvm };
        let mut world = World::new(CpuControl::Plug, accel);
        world.gives = gives << 27;
        let mut last = (1, 1);
        for (revision, (quarters, gib, actions)) in orders.into_iter().enumerate() {
            world.order(quarters * 250, gib * GIB, i64::try_from(revision).expect("few"));
            last = (quarters, gib);
            for _ in 0..actions {
                world.act();
            }
        }
        world.run(Span::from_secs(120));
        prop_assert!(world.done(), "{:?}: {:?}", world.problem(), world.log);
        prop_assert_eq!(world.online(), (last.0 * 250).div_ceil(1000));
        prop_assert_eq!(world.size, (last.1 - 1) * GIB);
        if tcg {
            prop_assert!(world.threads_made <= world.sockets);
        }
    }
}

#[test]
fn report_from_before_the_last_block_is_provisional() {
    let mut world = World::new(CpuControl::Plug, Accel::Kvm);
    // A new runner finds memory being unplugged; QEMU reports the last block before the guest does.
    (world.requested, world.size) = (0, 2 * GIB);
    world.report();
    world
        .sizer
        .handle(world.now, Event::Order(order(1000, GIB, 1)));
    world.run(Span::from_secs(12));
    assert!(
        world.done(),
        "the guest has what was ordered: {:?}",
        world.log
    );
}

/// A suspended runner, during which memory was plugged and unplugged, first reads the guest's
/// report from that time.
#[test]
fn delayed_report_is_provisional() {
    for late in [128 << 20, GIB] {
        let mut world = World::new(CpuControl::Plug, Accel::Tcg);
        world.settle();
        world.now = world.now + Span::from_secs(60);
        let base = world.base;
        world.base += late;
        world.report();
        world.base = base;
        world.report();
        world.order(1000, 2 * GIB, 1);
        world.run(Span::from_secs(12));
        assert!(world.done(), "{late}: {:?}", world.problem());
    }
}
