//! A QEMU with its guest, and the runner that owns it: the shipped sizer over a machine made up
//! here.
//!
//! The machine does what its lab notes say of the real one: CPUs come at once and go when the guest
//! lets them, memory moves in blocks towards what is requested, and never below what the guest has
//! in use.

mod memory;

use std::collections::{BTreeMap, VecDeque};

use neonvm_runner::core::budget::PlugBudget;
use neonvm_runner::core::shape::Shape;
use neonvm_runner::core::sizer::{
    Action, CpuSlot, DeviceView, Event as SizerEvent, QmpFailure, Sizer,
};
use protocol::core::Core as _;
use protocol::overtaken::{self, Overtaken};
use protocol::runner::{
    CpuState, CpusAhead, ExitReport, GuestState, MemoryState, QuotaState, RunnerPhase, RunnerState,
    SizeOrder,
};
use protocol::time::{Span, Timestamp};
use protocol::trace::TraceId;
use protocol::units::{Bytes, MilliCpu};

use crate::drive::Turn;
use crate::event::{Event, PodId, Sleeper};
use crate::journal::Note;
use crate::monitor::GuestMonitor;
use crate::options::Sabotage;
use crate::quota_bound::QuotaBound;
use crate::world::World;

/// What the guest's kernel keeps of its memory.
const KERNEL_BYTES: u64 = 100 << 20;
/// Actions a sizer may start at one instant, as in its shell.
const ACTIONS_AT_ONCE: usize = 64;

/// A monitor's process in the guest.
pub struct MonitorProcess {
    /// Number of this process; wake-ups meant for an earlier one are dropped.
    pub id: u64,
    /// The shipped core.
    pub core: GuestMonitor,
    /// When to wake up.
    pub alarm: Option<Timestamp>,
    /// The connection it serves.
    pub connection: Option<u64>,
    /// Frames that came while it hung, in order.
    pub inbox: VecDeque<(u64, String)>,
}

/// A runner's process.
pub struct RunnerProcess {
    /// Number of this process; replies meant for an earlier one are dropped.
    pub id: u64,
    /// The shipped core.
    pub sizer: Sizer,
    /// When to wake up.
    pub alarm: Option<Timestamp>,
}

/// See the module.
pub struct Machine {
    /// Number of this QEMU; events of an earlier one of the VM are dropped.
    pub id: u64,
    /// The pod it is for.
    pub pod: PodId,
    /// How it was built.
    pub shape: Shape,
    /// Whether the guest is up.
    pub is_up: bool,
    /// How it ended.
    pub ended: Option<ExitReport>,
    /// What the virtio-mem device is asked for.
    pub requested: u64,
    /// What it has plugged.
    pub size: u64,
    /// What the runner shows.
    pub state: RunnerState,
    /// Process that sizes the guest; `None` while it is crashed. The guest runs on without it.
    pub runner: Option<RunnerProcess>,
    /// Process in the guest; `None` until the guest is up, and while it is crashed.
    pub monitor: Option<MonitorProcess>,
    /// What its quota may be.
    pub(crate) quota_bound: QuotaBound,
    /// What a runner writes down for the next one.
    pub(crate) budget: Option<PlugBudget>,
    order: Option<SizeOrder>,
    orders: u64,
    plugged: Vec<bool>,
    leaving: Vec<usize>,
    online: u32,
    told: Option<u32>,
    is_moving: bool,
    reports: u64,
    /// The quota that the runner shows.
    quota_shown: QuotaState,
}

impl Machine {
    /// A machine that begins to boot.
    #[must_use]
    pub fn new(id: u64, pod: PodId, shape: Shape) -> Self {
        let count = |n: u32| usize::try_from(n).unwrap_or(0);
        let (sockets, first) = (count(shape.sockets), shape.boot_cpus + shape.early_cpus);
        let state = RunnerState {
            generation: 0,
            phase: RunnerPhase::Booting,
            qemu_pid: None,
            qemu_version: None,
            accel: "kvm".into(),
            boot_id: None,
            guest_kernel: None,
            boot_ms: None,
            cpus: CpuState::default(),
            memory: MemoryState::default(),
            resize: None,
            orders: Some(0),
            exit: None,
            quota: QuotaState::Unset,
            outgoing: None,
            incoming: None,
            guest_silent: None,
            programs: Vec::new(),
            disk_full: None,
        };
        Self {
            id,
            pod,
            is_up: false,
            ended: None,
            requested: shape.early_memory.0,
            size: shape.early_memory.0,
            state,
            runner: None,
            monitor: None,
            quota_bound: QuotaBound::at_boot(shape.initial.cpu),
            budget: shape.budget,
            order: None,
            orders: 0,
            plugged: (0..sockets).map(|n| n < count(first)).collect(),
            leaving: Vec::new(),
            online: first,
            told: None,
            is_moving: false,
            reports: 0,
            quota_shown: QuotaState::Unset,
            shape,
        }
    }

    /// The state, if a runner of this pod is there to show it.
    #[must_use]
    pub fn shown_to(&self, pod: &str) -> Option<&RunnerState> {
        (self.pod.name == pod && self.runner.is_some()).then_some(&self.state)
    }

    /// The heart of what the runner shows, for messages.
    #[must_use]
    pub fn shown(&self) -> String {
        let RunnerState {
            phase,
            cpus,
            memory,
            resize,
            ..
        } = &self.state;
        format!(
            "{phase:?} {cpus:?} {memory:?} {resize:?}; truly {} CPUs online",
            self.online
        )
    }

    /// Memory it takes of its node.
    #[must_use]
    pub fn memory(&self) -> u64 {
        if self.ended.is_some() {
            0
        } else {
            self.shape.base.0 + self.size
        }
    }

    /// CPU time it may take of its node: of its CPUs that are online, and no more than its quota. A
    /// guest that boots has the speed of its largest size for a bounded time, which nobody counts
    /// (`neonvm-shim/runner/src/core/quota.rs`).
    #[must_use]
    pub fn cpu_time(&self) -> MilliCpu {
        if self.ended.is_some() || self.quota_bound.boots {
            return MilliCpu(0);
        }
        let online = MilliCpu(self.online.saturating_mul(1000));
        match self.state.quota {
            QuotaState::Enforced { milli } => online.min(MilliCpu(milli)),
            _ => online,
        }
    }

    fn slots(&self) -> Vec<CpuSlot> {
        let boot = usize::try_from(self.shape.boot_cpus).unwrap_or(0);
        (0..self.plugged.len())
            .rev()
            .map(|index| self.slot(index, boot))
            .collect()
    }

    fn slot(&self, index: usize, boot: usize) -> CpuSlot {
        let socket = i64::try_from(index).unwrap_or(0);
        let props = [("socket-id", socket), ("core-id", 0), ("thread-id", 0)];
        let mut slot = CpuSlot {
            props: BTreeMap::from(props.map(|(name, value)| (name.to_owned(), value))),
            driver: "host-x86_64-cpu".into(),
            qom_path: None,
        };
        if self.plugged[index] {
            slot.qom_path = Some(if index < boot {
                format!("/machine/unattached/device[{index}]")
            } else {
                format!("/machine/peripheral/{}", slot.new_id())
            });
        }
        slot
    }

    pub(crate) fn plugged_cpus(&self) -> u32 {
        u32::try_from(self.plugged.iter().filter(|is| **is).count()).unwrap_or(0)
    }

    fn report(&mut self, now: Timestamp) -> GuestState {
        self.reports += 1;
        GuestState {
            generation: self.reports,
            cpus_online: self.online,
            cpus_present: self.plugged_cpus(),
            cpus_possible: self.shape.sockets,
            mem_total: Bytes((self.shape.base.0 + self.size).saturating_sub(KERNEL_BYTES)),
            mem_available: Bytes(0),
            boot_id: format!("boot-{}", self.id),
            kernel: "6.12".into(),
            uptime_s: now.0 / 1_000_000,
            programs: Vec::new(),
        }
    }

    fn sizer(&self, booting: bool, now: Timestamp) -> Sizer {
        let first = SizeOrder {
            cpu: self.shape.initial.cpu,
            memory: self.shape.initial.mem,
            trace: TraceId {
                vm: String::new(),
                revision: 0,
            },
        };
        let booting_since = booting.then_some(now);
        Sizer::new(
            self.shape.clone(),
            self.budget,
            first,
            self.order.clone(),
            booting_since,
            now,
        )
    }
}

impl World {
    // ---- the runner ----

    /// A runner starts and finds the machine, new or old.
    pub(crate) fn start_runner(&mut self, vm: usize) {
        let (now, id) = (self.now, self.number());
        let Some(machine) = self.vms[vm]
            .machine
            .as_mut()
            .filter(|machine| machine.runner.is_none())
        else {
            return;
        };
        let sizer = machine.sizer(!machine.is_up, now);
        machine.quota_bound.taken_over(machine.is_up);
        machine.runner = Some(RunnerProcess {
            id,
            sizer,
            alarm: None,
        });
        self.after(
            Span::from_millis(3),
            Event::Reply {
                vm,
                runner: id,
                event: SizerEvent::QmpUp,
            },
        );
        self.guest_reports(vm, Span::from_millis(8));
        self.drive_runner(vm);
    }

    pub(crate) fn crash_runner(&mut self, vm: usize) {
        if let Some(machine) = self.vms[vm].machine.as_mut() {
            machine.runner = None;
        }
        self.runner_has_news(vm);
    }

    pub(crate) fn runner_told(&mut self, vm: usize, id: u64, event: SizerEvent) {
        let now = self.now;
        let runner = self.vms[vm]
            .machine
            .as_mut()
            .and_then(|machine| machine.runner.as_mut());
        let Some(runner) = runner.filter(|runner| runner.id == id) else {
            return;
        };
        let is_up = matches!(event, SizerEvent::Guest(_));
        runner.sizer.handle(now, event);
        if is_up && let Some(machine) = self.vms[vm].machine.as_mut() {
            machine.quota_bound.boots = false;
        }
        self.drive_runner(vm);
    }

    /// An order is held and written down before it is answered, unless it was overtaken.
    pub(crate) fn runner_ordered(
        &mut self,
        vm: usize,
        order: SizeOrder,
        over: Option<u64>,
    ) -> Result<(), Overtaken> {
        let now = self.now;
        let Some(machine) = self.vms[vm].machine.as_mut() else {
            return Ok(());
        };
        let is_held = machine.order.as_ref() == Some(&order);
        machine.orders = overtaken::count(machine.orders, over, is_held)?;
        if !is_held {
            machine.quota_bound.ordered(order.cpu, now);
        }
        machine.order = Some(order.clone());
        if let Some(runner) = machine.runner.as_mut() {
            runner.sizer.handle(now, SizerEvent::Order(order));
        }
        self.drive_runner(vm);
        Ok(())
    }

    /// A wish is held by the process alone, and answered.
    pub(crate) fn runner_plugs_ahead(&mut self, vm: usize, wish: CpusAhead) {
        let (now, hurries) = (self.now, self.cheats(Sabotage::HurryAhead));
        let Some(machine) = self.vms[vm].machine.as_mut() else {
            return;
        };
        if let Some(runner) = machine.runner.as_mut() {
            self.tally.count("plugged ahead");
            runner.sizer.handle(now, SizerEvent::Ahead(wish));
        }
        if hurries {
            machine.state.quota = QuotaState::Enforced { milli: wish.cpu.0 };
            self.checks.touch(vm);
        }
        self.drive_runner(vm);
    }

    pub(crate) fn drive_runner(&mut self, vm: usize) {
        let turn = Turn::new("runner", Some(vm), self.now, ACTIONS_AT_ONCE);
        let act = |world: &mut Self, action| {
            let Some(runner) = world.runner(vm).map(|runner| runner.id) else {
                return;
            };
            if let Some(event) = world.obey(vm, action) {
                let delay = world.rng.span(Span(300), Span::from_millis(2));
                world.after(delay, Event::Reply { vm, runner, event });
            }
        };
        let rest = self.drive(
            &turn,
            |world| world.runner(vm).map(|runner| &mut runner.sizer),
            act,
        );
        let (Some(rest), Some(id)) = (rest, self.runner(vm).map(|runner| runner.id)) else {
            return;
        };
        self.set_alarm(Sleeper::Runner(vm, id), rest.deadline);
        self.publish_state(vm);
    }

    fn runner(&mut self, vm: usize) -> Option<&mut RunnerProcess> {
        self.vms[vm].machine.as_mut()?.runner.as_mut()
    }

    /// QEMU and guest do what they are told.
    fn obey(&mut self, vm: usize, action: Action) -> Option<SizerEvent> {
        let broken = self.rng.chance(self.rates.broken);
        let machine = self.vms[vm].machine.as_mut()?;
        let id = machine.id;
        let failure = |command: &str| QmpFailure {
            command: command.into(),
            message: "an error of QEMU".into(),
        };
        if broken {
            self.tally.count("qmp error");
        }
        match action {
            Action::QueryCpus if broken => {
                Some(SizerEvent::Cpus(Err(failure("query-hotpluggable-cpus"))))
            }
            Action::QueryCpus => Some(SizerEvent::Cpus(Ok(machine.slots()))),
            Action::QueryMemory if broken => {
                Some(SizerEvent::Memory(Err(failure("query-memory-devices"))))
            }
            Action::QueryMemory => {
                let view = DeviceView {
                    requested: Bytes(machine.requested),
                    size: Bytes(machine.size),
                };
                Some(SizerEvent::Memory(Ok(view)))
            }
            Action::Plug { .. } if broken => {
                Some(SizerEvent::CpuCommand(Err(failure("device_add"))))
            }
            Action::Plug { slots, budget } => {
                machine.budget = budget;
                let ids: Vec<String> = slots.iter().map(CpuSlot::new_id).collect();
                for index in machine.places(&ids) {
                    machine.plugged[index] = true;
                    machine.leaving.retain(|leaving| *leaving != index);
                }
                let delay = self.rng.millis(5, 60);
                self.after(delay, Event::CpusSettle { vm, machine: id });
                Some(SizerEvent::CpuCommand(Ok(())))
            }
            Action::Unplug { .. } if broken => {
                Some(SizerEvent::CpuCommand(Err(failure("device_del"))))
            }
            Action::Unplug { ids } => {
                machine.leaving = machine.places(&ids);
                let delay = self.rng.millis(20, 300);
                self.after(delay, Event::CpusSettle { vm, machine: id });
                Some(SizerEvent::CpuCommand(Ok(())))
            }
            Action::Request(_) if broken => Some(SizerEvent::Requested(Err(failure("qom-set")))),
            Action::Request(bytes) => {
                machine.requested = bytes.0;
                let (plugged, requested) = (machine.size, machine.requested);
                self.note(Note::Memory {
                    vm,
                    plugged,
                    requested,
                });
                self.memory_shall_move(vm);
                Some(SizerEvent::Requested(Ok(())))
            }
            Action::SetGuestCpus(count) => {
                machine.told = Some(count);
                let delay = self.rng.millis(5, 60);
                self.after(delay, Event::CpusSettle { vm, machine: id });
                Some(SizerEvent::GuestCpusSet)
            }
            Action::SetQuota(milli) => {
                machine.state.quota = QuotaState::Enforced { milli: milli.0 };
                if self.options.requests {
                    self.note(Note::Quota { vm, cpu: milli });
                }
                self.checks.touch(vm);
                None
            }
        }
    }

    /// Shows what the runner knows, as its supervisor does: a new generation for every difference.
    fn publish_state(&mut self, vm: usize) {
        let now = self.now;
        let Some(machine) = self.vms[vm].machine.as_mut() else {
            return;
        };
        let Some(runner) = machine.runner.as_ref() else {
            return;
        };
        let old = &machine.state;
        let phase = match (&machine.ended, machine.is_up) {
            (Some(_), _) => RunnerPhase::Exited,
            (None, true) if runner.sizer.has_looked() => RunnerPhase::Running,
            (None, _) => RunnerPhase::Booting,
        };
        let (cpus, memory) = (runner.sizer.cpus(), runner.sizer.memory());
        let resize = runner.sizer.report(now, |_| 0);
        let same = old.phase == phase
            && old.cpus == cpus
            && old.memory == memory
            && old.resize == resize
            && old.orders == Some(machine.orders)
            && old.quota == machine.quota_shown
            && old.exit == machine.ended;
        if same {
            return;
        }
        let next = RunnerState {
            generation: old.generation + 1,
            phase,
            cpus,
            memory,
            resize,
            orders: Some(machine.orders),
            exit: machine.ended.clone(),
            ..old.clone()
        };
        machine.quota_shown = next.quota.clone();
        machine.state = next;
        self.runner_has_news(vm);
    }

    // ---- the guest ----

    pub(crate) fn guest_reports(&mut self, vm: usize, delay: Span) {
        let now = self.now;
        let Some(machine) = self.vms[vm]
            .machine
            .as_mut()
            .filter(|machine| machine.is_up)
        else {
            return;
        };
        let state = machine.report(now);
        if let Some(runner) = machine.runner.as_ref() {
            let event = Event::Reply {
                vm,
                runner: runner.id,
                event: SizerEvent::Guest(state),
            };
            self.after(delay, event);
        }
    }

    fn hint(&mut self, vm: usize, event: SizerEvent) {
        let runner = self.vms[vm]
            .machine
            .as_ref()
            .and_then(|machine| machine.runner.as_ref());
        if let Some(runner) = runner {
            let id = runner.id;
            self.after(
                Span(500),
                Event::Reply {
                    vm,
                    runner: id,
                    event,
                },
            );
        }
    }

    pub(crate) fn cpus_settle(&mut self, vm: usize, id: u64) {
        let clings = self.vms[vm].guest_faults.clings_until > self.now;
        let keeps = self.cheats(Sabotage::KeepAhead);
        let Some(machine) = self.vms[vm]
            .machine
            .as_mut()
            .filter(|machine| machine.id == id && machine.is_up)
        else {
            return;
        };
        let mut news = Vec::new();
        if !clings {
            for index in std::mem::take(&mut machine.leaving) {
                machine.plugged[index] = keeps;
                news.push(SizerEvent::CpuGone(machine.slot(index, 0).new_id()));
            }
        } else if !machine.leaving.is_empty() {
            news.push(SizerEvent::CpuHint);
        }
        let plugged = machine.plugged_cpus();
        machine.online = machine.told.map_or(plugged, |told| {
            if clings {
                machine.online
            } else {
                told.min(plugged)
            }
        });
        if machine.online >= plugged {
            machine.told = None;
        }
        for event in news {
            self.hint(vm, event);
        }
        self.checks.touch(vm);
        self.guest_reports(vm, Span::from_millis(4));
    }
}

impl Machine {
    /// The places of these device ids.
    fn places(&self, ids: &[String]) -> Vec<usize> {
        let boot = usize::try_from(self.shape.boot_cpus).unwrap_or(0);
        (0..self.plugged.len())
            .filter(|index| ids.contains(&self.slot(*index, boot).new_id()))
            .collect()
    }
}
