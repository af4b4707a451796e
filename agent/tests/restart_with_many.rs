//! The agent's process ends and another begins, with 1,000 VMs. Nothing is handed over but what the
//! peers hold: the objects, the scheduler's books, what the monitors agreed to, and the billing
//! checkpoint on disk (docs/compatibility/agent.md §6).
//!
//! On the cores, on a virtual clock, where every VM can be caught at every point; the program with
//! as many VMs on real sockets is in `restart_over_sockets`.

use std::collections::BTreeSet;

use agent::core::revision::StampedRevision;
use agent::core::{
    Action, Core, CoreConfig, DownscaleResponse, Event, RequestId, ScalingConfig, SystemMetrics,
    Timers, VmInfo, VmUpdate,
};
use agent_events::core::billing::{Billed, BillingEvent, Checkpoint, Meter, Names};
use protocol::core::Core as _;
use protocol::permit::PluginResponse;
use protocol::revision::RevisionWithTime;
use protocol::time::{Span, Timestamp, WallTime};
use protocol::units::{MilliCpu, Resources};
use protocol::vm::VirtualMachine;
use serde_json::json;

const VMS: u32 = 1_000;
const MAX_UNITS: u32 = 8;
const SECOND: Span = Span::from_secs(1);
/// Longer than every wait of the state machine.
const SETTLES_IN: u64 = 30;

fn units(n: u32) -> Resources {
    Resources::new(250, 1 << 30).saturating_mul(n)
}

fn config() -> CoreConfig {
    CoreConfig {
        compute_unit: units(1),
        default_scaling: ScalingConfig::default(),
        timers: Timers::default(),
        system_max_age: Some(Span::from_secs(15)),
        lfc_max_age: None,
    }
}

fn object(name: &str) -> VirtualMachine {
    let vm = json!({
        "apiVersion": "vm.neon.tech/v1", "kind": "VirtualMachine",
        "metadata": {
            "name": name, "namespace": "default", "uid": format!("uid-{name}"), "resourceVersion": "1",
            "labels": {"autoscaling.neon.tech/enabled": "true"},
        },
        "spec": {"guest": {
            "cpus": {"min": "250m", "max": 2, "use": "250m"},
            "memorySlotSize": "1Gi",
            "memorySlots": {"min": 1, "max": MAX_UNITS, "use": 1},
            "rootDisk": {"image": "x"},
        }},
        "status": {"phase": "Running", "node": "node-1", "podName": format!("{name}-pod"), "podIP": "10.0.0.1"},
    });
    serde_json::from_value(vm).expect("is an object")
}

/// A request as a peer saw it.
#[derive(Debug, Clone, PartialEq)]
enum Asked {
    Permit(Option<Resources>, Resources),
    Patch(Resources, i64),
    Grow(Resources),
    Shrink(Resources),
}

/// One VM: what its peers truly hold, and the core of the process of now.
struct Vm {
    object: VirtualMachine,
    /// What the monitor counts on.
    agreed: Resources,
    /// What the scheduler has in its books.
    booked: Resources,
    core: Core,
    asked: Vec<Asked>,
}

impl Vm {
    fn new(n: u32) -> Self {
        let object = object(&format!("vm-{n}"));
        Self {
            agreed: units(1),
            booked: units(1),
            core: Self::core_of(&object),
            asked: Vec::new(),
            object,
        }
    }

    fn core_of(object: &VirtualMachine) -> Core {
        let scaling = ScalingConfig::default();
        Core::new(
            config(),
            VmInfo::from_object(object, &scaling).expect("is good"),
        )
    }

    /// The process ends with everything it knew, and the next one begins with the object.
    fn restart(&mut self) {
        self.core = Self::core_of(&self.object);
        self.asked.clear();
    }

    fn size(&self) -> Resources {
        self.object.spec.guest.in_use()
    }

    fn load(&mut self, now: Timestamp, wanted: u32) {
        let load = 0.225 * f64::from(wanted);
        let metrics = SystemMetrics {
            load1: load,
            load5: load,
            ..SystemMetrics::default()
        };
        self.core.handle(now, Event::SystemMetrics(metrics));
    }

    /// Carries out everything the core wants, but answers only so many requests: the others are
    /// under way when this returns.
    fn run(&mut self, now: Timestamp, answers: usize) {
        for n in 0.. {
            let Some((id, action)) = self.core.poll_action(now) else {
                break;
            };
            let answer = self.carry_out(id, action);
            let Self { agreed, booked, .. } = *self;
            let size = self.size();
            assert!(
                !agreed.has_field_above(size) && !size.has_field_above(booked),
                "agreed to {agreed}, has {size}, booked {booked}: {:?}",
                self.asked
            );
            if n < answers {
                self.core.handle(now, answer);
            }
            assert!(n < 100, "it never has enough: {:?}", self.asked);
        }
    }

    fn carry_out(&mut self, id: RequestId, action: Action) -> Event {
        match action {
            Action::Permit(request) => {
                let permit = request.target;
                self.asked.push(Asked::Permit(request.last_permit, permit));
                self.booked = permit;
                let response = PluginResponse {
                    permit,
                    migrate: None,
                };
                Event::PermitDone(id, Ok(response))
            }
            Action::VmPatch(request) => {
                let (target, revision) = (request.target, request.revision);
                self.asked.push(Asked::Patch(target, revision.value));
                let stamped = RevisionWithTime {
                    revision,
                    updated_at: WallTime(0),
                };
                let guest = &mut self.object.spec.guest;
                guest.cpus.r#use = target.cpu;
                guest.memory_slots.r#use = i32::try_from(target.mem.0 >> 30).expect("is small");
                self.object.spec.target_revision = Some(stamped);
                if let Some(status) = &mut self.object.status {
                    status.current_revision = Some(stamped);
                }
                let version = &mut self.object.metadata.resource_version;
                let next = version.parse::<u64>().expect("is a number") + 1;
                *version = next.to_string();
                Event::VmPatchDone(id, Ok(Some(next)))
            }
            Action::MonitorUpscale(request) => {
                self.asked.push(Asked::Grow(request.target));
                self.agreed = request.target;
                Event::MonitorUpscaleDone(id, Ok(()))
            }
            Action::MonitorDownscale(request) => {
                self.asked.push(Asked::Shrink(request.target));
                self.agreed = request.target;
                let answer = DownscaleResponse::Allowed;
                Event::MonitorDownscaleDone(id, Ok(answer))
            }
        }
    }

    /// The watch shows the object as it is.
    fn seen(&mut self, now: Timestamp) {
        let info = VmInfo::from_object(&self.object, &ScalingConfig::default()).expect("is good");
        let reached = self.object.status.as_ref().and_then(|s| s.current_revision);
        let update = VmUpdate {
            info,
            current_revision: reached.map(|reached| StampedRevision {
                revision: reached.revision,
                at: now,
            }),
            is_pre_migrating: false,
        };
        self.core.handle(now, Event::VmUpdated(Box::new(update)));
    }

    fn patches(&self) -> Vec<i64> {
        let of = |asked: &Asked| match asked {
            Asked::Patch(_, revision) => Some(*revision),
            _ => None,
        };
        self.asked.iter().filter_map(of).collect()
    }
}

/// What VM `n` needs, units.
fn need(n: u32) -> u32 {
    n % MAX_UNITS + 1
}

/// A VM that is in the middle of something when the process ends: how many of its answers still
/// come.
fn answers_before_the_end(n: u32) -> Option<usize> {
    (n % 5 == 4).then_some((n / 5 % 4) as usize)
}

/// What VM `n` needs at the end of the first process and in the second.
fn wanted(n: u32) -> u32 {
    match answers_before_the_end(n) {
        None => need(n),
        Some(_) => MAX_UNITS + 1 - need(n),
    }
}

/// A second at a time: all that is fed, and all that comes of it.
fn pass(
    vms: &mut [Vm],
    now: &mut Timestamp,
    seconds: u64,
    mut feed: impl FnMut(&mut Vm, u32, Timestamp),
) {
    for _ in 0..seconds {
        *now = *now + SECOND;
        for (vm, n) in vms.iter_mut().zip(0..) {
            feed(vm, n, *now);
            vm.run(*now, usize::MAX);
            vm.seen(*now);
            vm.run(*now, usize::MAX);
        }
    }
}

/// VMs that have what they need, some of them caught in the middle of growing or shrinking: what
/// they asked last was done, and nobody heard.
fn first_process(now: &mut Timestamp) -> Vec<Vm> {
    let mut vms: Vec<Vm> = (0..VMS).map(Vm::new).collect();
    for vm in &mut vms {
        vm.core.handle(*now, Event::MonitorActive);
    }
    pass(&mut vms, now, SETTLES_IN, |vm, n, now| {
        vm.load(now, need(n));
    });
    for (vm, n) in vms.iter().zip(0..) {
        assert_eq!(vm.size(), units(need(n)), "{n} has what it needs");
    }
    *now = *now + SECOND;
    for (vm, n) in vms.iter_mut().zip(0..) {
        if let Some(answers) = answers_before_the_end(n) {
            vm.load(*now, wanted(n));
            vm.run(*now, answers);
        }
    }
    let is_caught = |vm: &&Vm| vm.agreed != vm.size() || vm.size() != vm.booked;
    let caught = vms.iter().filter(is_caught).count();
    assert!(caught > VMS as usize / 20, "{caught} are half done");
    vms
}

/// The new process has the objects and not yet all that it needs: a third of the guests show that
/// nothing runs but have no monitor, a third have a monitor and no metrics, a third have neither.
fn hold(vms: &mut [Vm], now: &mut Timestamp) {
    let sizes: Vec<Resources> = vms.iter().map(Vm::size).collect();
    for (vm, _) in vms.iter_mut().zip(0..).filter(|(_, n)| has_monitor(*n)) {
        vm.core.handle(*now, Event::MonitorActive);
        vm.run(*now, usize::MAX);
    }
    pass(vms, now, 2 * SETTLES_IN, |vm, n, now| {
        if n % 3 == 0 {
            vm.load(now, 0);
        }
    });
    for ((vm, n), size) in vms.iter().zip(0..).zip(sizes) {
        let asked = &vm.asked;
        let is_permit = |asked: &&Asked| matches!(asked, Asked::Permit(..));
        let permits: Vec<&Asked> = asked.iter().filter(is_permit).collect();
        let report = Asked::Permit(None, size);
        assert_eq!(*permits[0], report, "{n} reports what it has");
        let heartbeat = Asked::Permit(Some(size), size);
        let is_beating = permits[1..].iter().all(|permit| **permit == heartbeat);
        assert!(permits.len() > 2 && is_beating, "{n}: {asked:?}");
        // A monitor that may count on less is told what there is.
        let is_told = |asked: &Asked| has_monitor(n) && *asked == Asked::Grow(size);
        let mut others = asked.iter().filter(|asked| !is_permit(asked));
        assert!(others.all(is_told), "{n}: {asked:?}");
        assert_eq!((vm.size(), vm.booked), (size, size), "{n}");
    }
}

fn has_monitor(n: u32) -> bool {
    n % 3 == 1
}

/// Requirement: N09
#[test]
fn restart_with_1000_vms_changes_no_size_and_shrinks_none_unapproved() {
    let mut now = Timestamp(1_000_000);
    let mut vms = first_process(&mut now);
    let newest = |vm: &Vm| {
        vm.object
            .spec
            .target_revision
            .map_or(0, |r| r.revision.value)
    };
    let revisions: Vec<i64> = vms.iter().map(newest).collect();
    vms.iter_mut().for_each(Vm::restart);
    hold(&mut vms, &mut now);

    // Everything is back, and the load is what it was: those that rested go on resting.
    now = now + SECOND;
    for (vm, n) in vms.iter_mut().zip(0..) {
        vm.load(now, wanted(n));
        if !has_monitor(n) {
            vm.core.handle(now, Event::MonitorActive);
        }
        vm.run(now, usize::MAX);
    }
    pass(&mut vms, &mut now, SETTLES_IN, |vm, n, now| {
        vm.load(now, wanted(n));
    });
    for ((vm, n), before) in vms.iter().zip(0..).zip(revisions) {
        let size = units(wanted(n));
        let all = (vm.agreed, vm.size(), vm.booked);
        assert_eq!(all, (size, size, size), "{n}: {:?}", vm.asked);
        if answers_before_the_end(n).is_none() {
            assert_eq!(vm.patches(), [0_i64; 0], "{n} was left alone");
            let is_shrink = |asked: &Asked| matches!(asked, Asked::Shrink(_));
            assert!(!vm.asked.iter().any(is_shrink), "{n}: {:?}", vm.asked);
        }
        let is_new = vm.patches().iter().all(|revision| *revision > before);
        assert!(is_new, "{n}: a number is used twice: {:?}", vm.asked);
        assert_eq!(vm.core.faults().total(), 0, "{n}");
    }

    // And none of them is held for ever: without load all shrink.
    pass(&mut vms, &mut now, SETTLES_IN, |vm, _, now| {
        vm.load(now, 0);
    });
    assert!(vms.iter().all(|vm| vm.size() == units(1)));
}

fn names() -> Names {
    Names {
        cpu_metric: "cpu".into(),
        active_metric: "active".into(),
        host: "node-1".into(),
    }
}

fn billed(n: u32) -> Billed {
    Billed {
        endpoint_id: format!("ep-{n}"),
        cpu: MilliCpu(250 * need(n)),
    }
}

fn see_all(meter: &mut Meter, now: Timestamp) {
    for n in 0..VMS {
        meter.observe(now, &format!("uid-{n}"), Some(&billed(n)));
    }
}

/// As the shell does it: events and the checkpoint go to disk together, then the process is gone.
///
/// Requirement: N40
#[test]
fn restart_with_1000_vms_bills_every_second_once() {
    let start = WallTime(1_700_000_000_000_000);
    let at = |seconds: u64| {
        let span = Span::from_secs(seconds);
        let wall = WallTime(start.0 + i64::try_from(span.0).expect("is small"));
        (Timestamp(1_000_000) + span, wall)
    };
    let mut told: Vec<BillingEvent> = Vec::new();
    let mut meter = Meter::new(start);
    see_all(&mut meter, at(0).0);
    let mut passed = 0;
    for (runs, away) in [(60, 3), (25, 0), (1, 1), (40, 0)] {
        for _ in 0..runs {
            passed += 1;
            // Seen again and again, as after each list.
            see_all(&mut meter, at(passed).0);
            if passed % 24 == 0 {
                let (now, wall) = at(passed);
                told.extend(meter.accumulate(now, wall, &names()));
            }
        }
        let (now, wall) = at(passed);
        let saved = serde_json::to_string(&meter.checkpoint(now, wall)).expect("writes");
        passed += away;
        // A new process counts from its own beginning.
        let saved: Checkpoint = serde_json::from_str(&saved).expect("reads");
        let (now, wall) = at(passed);
        meter = Meter::restore(&saved, now, wall);
        see_all(&mut meter, now);
        meter.certain(now);
        assert!(!meter.is_in_doubt());
    }
    let (now, wall) = at(passed);
    told.extend(meter.accumulate(now, wall, &names()));
    let keys: BTreeSet<&str> = told
        .iter()
        .map(|event| event.idempotency_key.as_str())
        .collect();
    assert_eq!(keys.len(), told.len(), "a key twice");
    for n in 0..VMS {
        let total = |metric: &str| -> u64 {
            let ours = told
                .iter()
                .filter(|event| event.endpoint_id == billed(n).endpoint_id);
            ours.filter(|event| event.metric == metric)
                .map(|event| event.value)
                .sum()
        };
        assert_eq!(total("active"), passed, "{n}");
        let milli = u64::from(250 * need(n)) * passed;
        assert!(
            total("cpu").abs_diff(milli / 1000) <= 1,
            "{n}: {} of {milli}",
            total("cpu")
        );
    }
}
