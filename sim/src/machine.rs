//! A QEMU with its guest, and the runner that owns it: the shipped sizer over a machine made up
//! here.
//!
//! The machine does what its lab notes say of the real one: CPUs come at once and go when the guest
//! lets them, memory moves in blocks towards what is requested, and never below what the guest has
//! in use.

mod guest;
mod memory;
mod runner;

use std::collections::{BTreeMap, VecDeque};

use neonvm_runner::core::budget::PlugBudget;
use neonvm_runner::core::shape::Shape;
use neonvm_runner::core::sizer::{CpuSlot, DeviceView, Sizer};
use protocol::runner::{
    CpuState, ExitReport, GuestState, MemoryState, QuotaState, RunnerPhase, RunnerState, SizeOrder,
};
use protocol::time::Timestamp;
use protocol::trace::TraceId;
use protocol::units::{Bytes, MilliCpu};

use crate::event::PodId;
use crate::monitor::GuestMonitor;
use crate::quota_bound::QuotaBound;

/// What the guest's kernel keeps of its memory.
const KERNEL_BYTES: u64 = 100 << 20;

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
            guest_parts: std::collections::BTreeMap::new(),
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
            parts: protocol::parts::PartStates::new(),
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

    fn device(&self) -> DeviceView {
        DeviceView {
            requested: Bytes(self.requested),
            size: Bytes(self.size),
        }
    }

    fn plug(&mut self, slots: &[CpuSlot], budget: Option<PlugBudget>) {
        self.budget = budget;
        let ids: Vec<String> = slots.iter().map(CpuSlot::new_id).collect();
        for index in self.places(&ids) {
            self.plugged[index] = true;
            self.leaving.retain(|leaving| *leaving != index);
        }
    }

    /// The places of these device ids.
    fn places(&self, ids: &[String]) -> Vec<usize> {
        let boot = usize::try_from(self.shape.boot_cpus).unwrap_or(0);
        (0..self.plugged.len())
            .filter(|index| ids.contains(&self.slot(*index, boot).new_id()))
            .collect()
    }
}
