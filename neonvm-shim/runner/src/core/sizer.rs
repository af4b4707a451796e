//! Drives a guest to the newest order: all CPUs and all memory in one pass, each on a lane of its own.
//!
//! ```text
//!  order ──> CPU lane:    look ─> plug / unplug ─> look … match ─┐
//!        └─> memory lane: request ─> look, look, … ──── match ───┤─> QEMU has it ─> guest sees it ─> done
//!                         neonvmd's long-poll ───────────────────┘
//! ```
//!
//! * *Happy path up*: the free slots are known from the last look, so an order turns into `device_add`s and one `qom-set`
//!   at once; looks confirm; neonvmd reports that the guest uses them.
//! * *Truth* is `query-hotpluggable-cpus` and `query-memory-devices`. Events only make the next look come at once.
//! * *Superseding*: a lane that waits for a reply decides again, by the newest order, when it comes.
//! * *Failures*: a refused command is kept as the problem and tried again with a growing pause; a CPU that does not leave is
//!   asked again after [`LEAVE_AGAIN`]; memory that does not leave stays requested (the guest's driver retries by itself).
//! * *Cold start and recovery*: nothing is known before the first look at each lane; what was before does not matter.
//! * *Under TCG* CPUs are switched off inside the guest once [`super::budget`] says that unplugging is over.

use std::collections::BTreeMap;

use protocol::runner::{
    CpuState, GuestState, MemoryState, ResizeProblem, ResizeReport, SizeOrder, StageStamp,
};
use protocol::time::{Span, Timestamp};
use protocol::trace::Stage;
use protocol::units::{Bytes, MilliCpu, Resources};
use serde::Serialize;

use super::budget::PlugBudget;
use super::quota::{BOOT_ALLOWANCE, QuotaInput, quota};
use super::shape::{CpuControl, Shape};

/// First pause between two looks while something is expected.
const LOOK_FIRST: Span = Span::from_millis(5);
/// Longest such pause within [`LOOK_BRISK`].
const LOOK_STEP: Span = Span::from_millis(50);
/// How long looks come quickly.
const LOOK_BRISK: Span = Span::from_secs(2);
/// Pause afterwards.
const LOOK_SLOW: Span = Span::from_secs(1);
/// Pause when nothing is expected: the bound on how long a change nobody told of goes unseen.
const LOOK_IDLE: Span = Span::from_secs(5);
/// A CPU that has not left after this is asked again, and counts as stuck.
pub const LEAVE_AGAIN: Span = Span::from_secs(5);
/// Memory that has not moved for this long counts as stuck.
pub const MEMORY_STUCK: Span = Span::from_secs(30);
/// QEMU has had the size for this long and the guest does not see it: it is blind.
pub const GUEST_BLIND: Span = Span::from_secs(10);
/// A guest that does not online new CPUs by itself is told to after this.
const ONLINE_GRACE: Span = Span::from_secs(2);
/// Pause between two tellings.
const TELL_AGAIN: Span = Span::from_secs(1);
/// Memory must have been at rest for this long before the guest's MemTotal is taken as belonging to it.
const MEMORY_AT_REST: Span = Span::from_secs(2);
/// First pause after a refused command; doubles up to [`RETRY_MOST`].
const RETRY_FIRST: Span = Span::from_millis(250);
/// Longest pause after a refused command.
const RETRY_MOST: Span = Span::from_secs(5);
/// How far the guest's MemTotal may lie below what it should be: kernel bookkeeping, and a 32nd of what was plugged.
const TOTAL_SLACK: u64 = 16 << 20;

/// One possible CPU of QEMU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CpuSlot {
    /// Properties that name it (`socket-id`, `core-id`, …).
    pub props: BTreeMap<String, i64>,
    /// Device type to plug there.
    pub driver: String,
    /// Where it is, if it is plugged.
    pub qom_path: Option<String>,
}

impl CpuSlot {
    /// Its order among the slots.
    fn index(&self) -> [i64; 3] {
        ["socket-id", "core-id", "thread-id"].map(|key| self.props.get(key).copied().unwrap_or(0))
    }

    /// The device id of a CPU that can be unplugged. A boot CPU has none.
    fn removable(&self) -> Option<&str> {
        self.qom_path
            .as_deref()?
            .strip_prefix("/machine/peripheral/")
    }

    /// The device id to plug it under.
    #[must_use]
    pub fn new_id(&self) -> String {
        format!(
            "cpu{}",
            self.index()
                .map(|n| n.to_string())
                .join("-")
                .trim_end_matches("-0")
        )
    }
}

/// The virtio-mem device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct DeviceView {
    /// What is asked of it.
    pub requested: Bytes,
    /// What it has plugged.
    pub size: Bytes,
}

/// A command QEMU refused or did not answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct QmpFailure {
    /// The command.
    pub command: String,
    /// Why.
    pub message: String,
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A new order.
    Order(SizeOrder),
    /// The monitor is connected.
    QmpUp,
    /// It is lost; replies under way will not come.
    QmpDown,
    /// Reply to [`Action::QueryCpus`].
    Cpus(Result<Vec<CpuSlot>, QmpFailure>),
    /// Reply to [`Action::QueryMemory`].
    Memory(Result<DeviceView, QmpFailure>),
    /// Reply to [`Action::Plug`] and [`Action::Unplug`].
    CpuCommand(Result<(), QmpFailure>),
    /// Reply to [`Action::Request`].
    Requested(Result<(), QmpFailure>),
    /// Reply to [`Action::SetGuestCpus`]; the guest's refusal is its own news.
    GuestTold,
    /// The guest's daemon reported.
    Guest(GuestState),
    /// QEMU told of CPUs.
    CpuHint,
    /// QEMU told of memory.
    MemoryHint,
}

/// What to do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// `query-hotpluggable-cpus`.
    QueryCpus,
    /// `query-memory-devices`.
    QueryMemory,
    /// `device_add` for each; `budget` must be on disk before the first.
    Plug {
        /// Where.
        slots: Vec<CpuSlot>,
        /// The budget afterwards.
        budget: Option<PlugBudget>,
    },
    /// `device_del` for each.
    Unplug {
        /// Device ids.
        ids: Vec<String>,
    },
    /// `qom-set requested-size`.
    Request(Bytes),
    /// `PUT /cpu` of neonvmd.
    SetGuestCpus(u32),
    /// Write the cgroup's quota.
    SetQuota(MilliCpu),
}

/// A lane: at most one command under way, a time for the next look, a pause that grows.
#[derive(Debug, Clone, Default, Serialize)]
struct Lane {
    busy: bool,
    look_at: Timestamp,
    pause: Span,
    brisk_until: Timestamp,
    failure: Option<QmpFailure>,
    retry: Span,
}

impl Lane {
    /// Something is expected from now on.
    fn expect(&mut self, now: Timestamp) {
        self.pause = LOOK_FIRST;
        self.brisk_until = now + LOOK_BRISK;
        self.look_at = now;
    }

    /// Nothing new: when to look next.
    fn wait(&mut self, now: Timestamp) {
        if now >= self.brisk_until {
            self.pause = LOOK_SLOW;
        }
        self.look_at = now + self.pause;
        self.pause = Span((self.pause.0 * 2).clamp(LOOK_FIRST.0, LOOK_STEP.0));
    }

    fn rest(&mut self, now: Timestamp) {
        self.look_at = now + LOOK_IDLE;
    }

    fn fail(&mut self, now: Timestamp, failure: QmpFailure) {
        self.failure = Some(failure);
        self.retry = Span((self.retry.0 * 2).clamp(RETRY_FIRST.0, RETRY_MOST.0));
        self.look_at = now + self.retry;
    }

    fn succeed(&mut self) {
        self.failure = None;
        self.retry = Span(0);
    }
}

/// The order in force and how far it is.
#[derive(Debug, Clone, Serialize)]
struct Held {
    order: SizeOrder,
    /// Whether somebody ordered it; the size to boot with is nobody's order.
    asked: bool,
    at: Timestamp,
    /// The CPU limit before it.
    before: MilliCpu,
    matched: Option<Timestamp>,
    visible: Option<Timestamp>,
}

/// The sizer. One per QEMU.
#[derive(Debug, Clone, Serialize)]
pub struct Sizer {
    shape: Shape,
    budget: Option<PlugBudget>,
    held: Held,
    qmp: bool,
    cpu: Lane,
    memory: Lane,
    slots: Option<Vec<CpuSlot>>,
    /// Whether no command has changed the slots since they were looked at.
    slots_fresh: bool,
    /// CPUs asked to leave, and when.
    leaving: BTreeMap<String, Timestamp>,
    /// Since when CPUs have been leaving without end.
    leaving_since: Option<Timestamp>,
    device: Option<DeviceView>,
    memory_moved: Timestamp,
    at_rest_since: Option<Timestamp>,
    guest: Option<GuestState>,
    /// What the guest's kernel keeps of its memory: boot and plugged memory less MemTotal, the least seen at rest.
    reserved: Option<u64>,
    telling: bool,
    told_at: Option<Timestamp>,
    booting_since: Option<Timestamp>,
    quota: Option<MilliCpu>,
    pending: Vec<Action>,
}

impl Sizer {
    /// A sizer for a QEMU of this shape. `order` is what was ordered last, if this is not the first runner of the QEMU;
    /// `booting_since` is when the guest began to boot, if it still may.
    #[must_use]
    pub fn new(
        shape: Shape,
        budget: Option<PlugBudget>,
        first: SizeOrder,
        order: Option<SizeOrder>,
        booting_since: Option<Timestamp>,
        now: Timestamp,
    ) -> Self {
        let asked = order.is_some();
        let order = order.unwrap_or(first);
        let before = order.cpu;
        Self {
            budget,
            held: Held {
                order,
                asked,
                at: now,
                before,
                matched: None,
                visible: None,
            },
            qmp: false,
            cpu: Lane::default(),
            memory: Lane::default(),
            slots: None,
            slots_fresh: false,
            leaving: BTreeMap::new(),
            leaving_since: None,
            device: (shape.device.0 == 0).then(DeviceView::default),
            memory_moved: now,
            at_rest_since: (shape.device.0 == 0).then_some(Timestamp(0)),
            guest: None,
            reserved: None,
            telling: false,
            told_at: None,
            booting_since,
            quota: None,
            pending: Vec::new(),
            shape,
        }
    }

    /// Something happened.
    pub fn handle(&mut self, now: Timestamp, event: Event) {
        match event {
            Event::Order(order) => self.take(now, order),
            Event::QmpUp => self.connected(now),
            Event::QmpDown => {
                self.qmp = false;
                (self.cpu.busy, self.memory.busy) = (false, false);
                self.pending.clear();
            }
            Event::CpuHint => self.cpu.look_at = self.cpu.look_at.min(now),
            Event::MemoryHint => self.memory.look_at = self.memory.look_at.min(now),
            Event::Cpus(reply) => {
                self.cpu.busy = false;
                match reply {
                    Ok(slots) => {
                        self.slots = Some(slots);
                        self.slots_fresh = true;
                        self.cpu.succeed();
                    }
                    Err(failure) => self.cpu.fail(now, failure),
                }
                self.decide_cpus(now);
            }
            Event::CpuCommand(reply) => {
                self.cpu.busy = false;
                match reply {
                    Ok(()) => self.cpu.expect(now),
                    Err(failure) => {
                        self.leaving.clear();
                        self.cpu.fail(now, failure);
                    }
                }
            }
            Event::Memory(reply) => {
                self.memory.busy = false;
                match reply {
                    Ok(view) => self.see_memory(now, view),
                    Err(failure) => self.memory.fail(now, failure),
                }
                self.decide_memory(now);
            }
            Event::Requested(reply) => {
                self.memory.busy = false;
                self.memory_moved = now;
                match reply {
                    Ok(()) => self.memory.expect(now),
                    Err(failure) => self.memory.fail(now, failure),
                }
            }
            Event::GuestTold => self.telling = false,
            Event::Guest(state) => self.see_guest(now, state),
        }
        self.judge(now);
    }

    /// The next thing to do.
    pub fn poll_action(&mut self, now: Timestamp) -> Option<Action> {
        if let Some(action) = self.pending.pop() {
            return Some(action);
        }
        self.judge(now);
        let wanted = self.wanted_quota(now).0;
        if self.quota != Some(wanted) {
            self.quota = Some(wanted);
            return Some(Action::SetQuota(wanted));
        }
        if let Some(cpus) = self
            .guest_to_be_told(now)
            .filter(|(_, at)| now >= *at)
            .map(|(n, _)| n)
        {
            self.telling = true;
            self.told_at = Some(now);
            return Some(Action::SetGuestCpus(cpus));
        }
        if !self.qmp {
            return None;
        }
        if !self.cpu.busy && now >= self.cpu.look_at {
            self.cpu.busy = true;
            return Some(Action::QueryCpus);
        }
        if !self.memory.busy && self.shape.device.0 > 0 && now >= self.memory.look_at {
            self.memory.busy = true;
            return Some(Action::QueryMemory);
        }
        None
    }

    /// When to ask again even if nothing happens.
    #[must_use]
    pub fn poll_deadline(&self, now: Timestamp) -> Timestamp {
        // A problem is told within a second of its becoming one.
        let mut at = now + LOOK_SLOW;
        if self.qmp && !self.cpu.busy {
            at = at.min(self.cpu.look_at);
        }
        if self.qmp && !self.memory.busy && self.shape.device.0 > 0 {
            at = at.min(self.memory.look_at);
        }
        if let Some((_, tell_at)) = self.guest_to_be_told(now) {
            at = at.min(tell_at);
        }
        if let Some(quota_at) = self.wanted_quota(now).1 {
            at = at.min(quota_at);
        }
        at
    }

    fn take(&mut self, now: Timestamp, order: SizeOrder) {
        if self.held.asked && self.held.order == order {
            return;
        }
        let before = self.held.order.cpu;
        self.held = Held {
            order,
            asked: true,
            at: now,
            before,
            matched: None,
            visible: None,
        };
        self.memory_moved = now;
        self.leaving_since = None;
        self.told_at = None;
        // What is known suffices to act at once; the next look corrects it.
        self.decide_cpus(now);
        self.decide_memory(now);
    }

    fn connected(&mut self, now: Timestamp) {
        self.qmp = true;
        (self.slots, self.slots_fresh) = (None, false);
        self.leaving.clear();
        if self.shape.device.0 > 0 {
            self.device = None;
        }
        self.cpu.expect(now);
        self.memory.expect(now);
    }

    /// The size ordered, if this QEMU can have it.
    fn wanted(&self) -> Option<Resources> {
        let size = Resources {
            cpu: self.held.order.cpu,
            mem: self.held.order.memory,
        };
        self.shape.refuses(size).is_none().then_some(size)
    }

    fn wanted_cpus(&self) -> Option<u32> {
        self.wanted().map(|size| self.shape.cpus_for(size.cpu))
    }

    fn wanted_device(&self) -> Option<Bytes> {
        self.wanted()
            .map(|size| Bytes(size.mem.0 - self.shape.base.0))
    }

    fn plugged(&self) -> Option<u32> {
        let slots = self.slots.as_ref()?;
        u32::try_from(slots.iter().filter(|slot| slot.qom_path.is_some()).count()).ok()
    }

    /// Whether the CPUs above `wanted` stay plugged for good, because re-plugging them could not be paid for.
    fn keeps_plugged(&self, plugged: u32, wanted: u32) -> bool {
        match (self.shape.control, self.budget) {
            (CpuControl::Guest, _) => plugged >= wanted,
            (CpuControl::Plug, Some(budget)) => {
                plugged > wanted
                    && !budget.allows_unplug(plugged - wanted, plugged, self.shape.max_cpus)
            }
            (CpuControl::Plug, None) => false,
        }
    }

    fn decide_cpus(&mut self, now: Timestamp) {
        if self.cpu.busy || !self.qmp || !self.slots_fresh || self.cpu.failure.is_some() {
            return;
        }
        let (Some(wanted), Some(plugged)) = (self.wanted_cpus(), self.plugged()) else {
            return;
        };
        if plugged == wanted || self.keeps_plugged(plugged, wanted) {
            self.leaving.clear();
            self.leaving_since = None;
            self.cpu.rest(now);
        } else if plugged < wanted && self.boots_alone(now) {
            self.cpu.rest(now);
        } else if plugged < wanted {
            self.plug(wanted - plugged);
        } else {
            self.unplug(now, plugged - wanted);
        }
    }

    /// Whether the guest still boots on one CPU (see [`super::shape`]).
    fn boots_alone(&self, now: Timestamp) -> bool {
        let boots = self
            .booting_since
            .is_some_and(|since| now < since + BOOT_ALLOWANCE);
        boots && self.budget.is_some()
    }

    fn plug(&mut self, count: u32) {
        self.leaving.clear();
        self.leaving_since = None;
        let affordable = self.budget.map_or(count, |budget| budget.left().min(count));
        let mut free: Vec<CpuSlot> = self
            .slots
            .iter()
            .flatten()
            .filter(|slot| slot.qom_path.is_none())
            .cloned()
            .collect();
        free.sort_by_key(CpuSlot::index);
        free.truncate(usize::try_from(affordable).unwrap_or(usize::MAX));
        if free.is_empty() {
            return;
        }
        self.budget = self.budget.map(|budget| budget.after(affordable));
        (self.cpu.busy, self.slots_fresh) = (true, false);
        self.pending.push(Action::Plug {
            slots: free,
            budget: self.budget,
        });
    }

    fn unplug(&mut self, now: Timestamp, count: u32) {
        let mut there: Vec<&CpuSlot> = self
            .slots
            .iter()
            .flatten()
            .filter(|slot| slot.removable().is_some())
            .collect();
        there.sort_by_key(|slot| std::cmp::Reverse(slot.index()));
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        let ids: Vec<String> = there
            .iter()
            .take(count)
            .filter_map(|slot| slot.removable())
            .filter(|id| {
                self.leaving
                    .get(*id)
                    .is_none_or(|at| now >= *at + LEAVE_AGAIN)
            })
            .map(str::to_owned)
            .collect();
        self.leaving_since.get_or_insert(now);
        if ids.is_empty() {
            self.cpu.wait(now);
            return;
        }
        self.leaving.extend(ids.iter().map(|id| (id.clone(), now)));
        (self.cpu.busy, self.slots_fresh) = (true, false);
        self.pending.push(Action::Unplug { ids });
    }

    fn see_memory(&mut self, now: Timestamp, view: DeviceView) {
        self.memory.succeed();
        if self.device.is_none_or(|before| before.size != view.size) {
            self.memory_moved = now;
        }
        let at_rest = view.requested == view.size;
        self.at_rest_since = at_rest.then(|| self.at_rest_since.unwrap_or(now));
        self.device = Some(view);
        if self.reserved.is_none() {
            self.learn_reserved();
        }
    }

    fn decide_memory(&mut self, now: Timestamp) {
        if self.memory.busy
            || !self.qmp
            || self.memory.failure.is_some()
            || self.shape.device.0 == 0
        {
            return;
        }
        let (Some(wanted), Some(view)) = (self.wanted_device(), self.device) else {
            return;
        };
        if view.requested != wanted {
            self.memory.busy = true;
            self.at_rest_since = None;
            self.pending.push(Action::Request(wanted));
        } else if view.size != wanted {
            self.memory.wait(now);
        } else {
            self.memory.rest(now);
        }
    }

    fn see_guest(&mut self, now: Timestamp, state: GuestState) {
        let booted = self.booting_since.take().is_some();
        self.guest = Some(state);
        if booted {
            self.decide_cpus(now);
        }
        let rested = self
            .at_rest_since
            .is_some_and(|since| now >= since + MEMORY_AT_REST);
        if rested || self.reserved.is_none() {
            self.learn_reserved();
        }
    }

    /// Takes the guest's MemTotal as belonging to the memory QEMU has plugged, if that is at rest.
    fn learn_reserved(&mut self) {
        let at_rest = self.device.filter(|view| view.requested == view.size);
        let (Some(view), Some(guest)) = (at_rest, &self.guest) else {
            return;
        };
        let kept = (self.shape.base.0 + view.size.0).saturating_sub(guest.mem_total.0);
        self.reserved = Some(self.reserved.map_or(kept, |least| least.min(kept)));
    }

    /// Whether QEMU has the order's CPUs, and its memory.
    fn matches(&self) -> (bool, bool) {
        let cpus = match (self.wanted_cpus(), self.plugged()) {
            (Some(wanted), Some(plugged)) => {
                self.slots_fresh && (plugged == wanted || self.keeps_plugged(plugged, wanted))
            }
            _ => false,
        };
        let memory = match (self.wanted_device(), self.device) {
            (Some(wanted), Some(view)) => {
                view == DeviceView {
                    requested: wanted,
                    size: wanted,
                }
            }
            _ => false,
        };
        (cpus, memory)
    }

    /// Whether the guest sees the order's CPUs, and its memory.
    fn seen(&self) -> (bool, bool) {
        let (Some(guest), Some(wanted)) = (&self.guest, self.wanted()) else {
            return (false, false);
        };
        let memory = self.reserved.is_none_or(|reserved| {
            let slack = TOTAL_SLACK + (wanted.mem.0 - self.shape.base.0) / 32;
            guest.mem_total.0 + reserved + slack >= wanted.mem.0
        });
        (guest.cpus_online == self.shape.cpus_for(wanted.cpu), memory)
    }

    /// Stamps what was reached.
    fn judge(&mut self, now: Timestamp) {
        if self.held.matched.is_none() && self.matches() == (true, true) {
            self.held.matched = Some(now);
        }
        if self.held.visible.is_none() && self.held.matched.is_some() && self.seen() == (true, true)
        {
            self.held.visible = Some(now);
        }
    }

    /// How many CPUs the guest must be told to have, and when.
    fn guest_to_be_told(&self, now: Timestamp) -> Option<(u32, Timestamp)> {
        let (guest, wanted) = (self.guest.as_ref()?, self.wanted_cpus()?);
        let (matched, _) = self.matches();
        if self.telling || !matched || guest.cpus_online == wanted {
            return None;
        }
        let inside = self
            .plugged()
            .is_some_and(|plugged| self.keeps_plugged(plugged, wanted));
        let since = self.held.matched.unwrap_or(now).max(self.held.at);
        match self.told_at {
            Some(told) => Some((wanted, told + TELL_AGAIN)),
            None if inside => Some((wanted, self.held.at)),
            // More online than wanted and nothing kept: the unplugged one is just about to be gone.
            None => Some((wanted, since + ONLINE_GRACE)),
        }
    }

    fn wanted_quota(&self, now: Timestamp) -> (MilliCpu, Option<Timestamp>) {
        let wanted = self.wanted_cpus();
        let online = self.guest.as_ref().map(|guest| guest.cpus_online);
        let cpus_to_leave = matches!((wanted, online.or(self.plugged())), (Some(wanted), Some(have)) if have > wanted);
        let input = QuotaInput {
            ordered: self.held.order.cpu.min(self.shape.max_cpu),
            ordered_at: self.held.at,
            before: self.held.before,
            cpus_to_leave,
            largest: self.shape.max_cpu,
            booting_since: self.booting_since,
        };
        quota(&input, now)
    }

    /// What stands in the way of the order.
    #[must_use]
    pub fn problem(&self, now: Timestamp) -> Option<ResizeProblem> {
        let order = &self.held.order;
        if let Some(rule) = self.shape.refuses(Resources {
            cpu: order.cpu,
            mem: order.memory,
        }) {
            return Some(ResizeProblem::OutOfRange { rule });
        }
        if let Some(failure) = self.cpu.failure.as_ref().or(self.memory.failure.as_ref()) {
            let QmpFailure { command, message } = failure.clone();
            return Some(ResizeProblem::Qmp { command, message });
        }
        let (cpus_match, memory_match) = self.matches();
        self.cpu_problem(now, cpus_match)
            .or_else(|| self.memory_problem(now, memory_match))
            .or_else(|| self.sight_problem(now))
    }

    fn cpu_problem(&self, now: Timestamp, matched: bool) -> Option<ResizeProblem> {
        let (wanted, plugged) = (self.wanted_cpus()?, self.plugged()?);
        if let Some(guest) = &self.guest
            && guest.cpus_possible < wanted
        {
            return Some(ResizeProblem::GuestBlind {
                expected: format!("{wanted} possible CPUs"),
                seen: guest.cpus_possible.to_string(),
            });
        }
        let stuck = self
            .leaving_since
            .is_some_and(|since| now >= since + LEAVE_AGAIN);
        (!matched && stuck && plugged > wanted).then(|| ResizeProblem::CpuStuck {
            missing: plugged - wanted,
        })
    }

    fn memory_problem(&self, now: Timestamp, matched: bool) -> Option<ResizeProblem> {
        let (wanted, view) = (self.wanted_device()?, self.device?);
        if matched || now < self.memory_moved + MEMORY_STUCK {
            return None;
        }
        Some(if view.size > wanted {
            ResizeProblem::MemoryStuck {
                missing: Bytes(view.size.0 - wanted.0),
            }
        } else {
            ResizeProblem::GuestBlind {
                expected: format!("{wanted} of hot-plugged memory taken"),
                seen: view.size.to_string(),
            }
        })
    }

    fn sight_problem(&self, now: Timestamp) -> Option<ResizeProblem> {
        let (guest, matched) = (self.guest.as_ref()?, self.held.matched?);
        if self.held.visible.is_some() || now < matched + GUEST_BLIND {
            return None;
        }
        let order = &self.held.order;
        Some(ResizeProblem::GuestBlind {
            expected: format!(
                "{} CPUs online, {}",
                self.shape.cpus_for(order.cpu),
                order.memory
            ),
            seen: format!(
                "{} CPUs online, MemTotal {}",
                guest.cpus_online, guest.mem_total
            ),
        })
    }

    /// The budget as it stands.
    #[must_use]
    pub fn budget(&self) -> Option<PlugBudget> {
        self.budget
    }

    /// The order, if somebody gave one.
    #[must_use]
    pub fn order(&self) -> Option<&SizeOrder> {
        self.held.asked.then_some(&self.held.order)
    }

    /// The size in force or on the way.
    #[must_use]
    pub fn target(&self) -> &SizeOrder {
        &self.held.order
    }

    /// CPUs as everyone sees them.
    #[must_use]
    pub fn cpus(&self) -> CpuState {
        CpuState {
            limit: self.held.order.cpu,
            plugged: self
                .plugged()
                .unwrap_or(self.shape.boot_cpus + self.shape.early_cpus),
            guest_online: self.guest.as_ref().map(|guest| guest.cpus_online),
        }
    }

    /// Memory as everyone sees it.
    #[must_use]
    pub fn memory(&self) -> MemoryState {
        let view = self.device.unwrap_or_default();
        MemoryState {
            base: self.shape.base,
            plugged: view.size,
            requested: view.requested,
            guest_total: self.guest.as_ref().map(|guest| guest.mem_total),
        }
    }

    /// What became of the order; `unix_us` turns a timestamp into microseconds since 1970.
    pub fn report(
        &self,
        now: Timestamp,
        unix_us: impl Fn(Timestamp) -> i64,
    ) -> Option<ResizeReport> {
        if !self.held.asked {
            return None;
        }
        let stamp = |stage, from: Timestamp, to: Timestamp| StageStamp {
            stage,
            start_unix_us: unix_us(from),
            duration_us: to.since(from).0,
        };
        let mut stages = Vec::new();
        if let Some(matched) = self.held.matched {
            stages.push(stamp(Stage::Qmp, self.held.at, matched));
            if let Some(visible) = self.held.visible {
                stages.push(stamp(Stage::GuestVisible, matched, visible));
            }
        }
        // Done is what holds now, not what held once: a guest that lost a CPU since is not done.
        let done = self.held.visible.is_some()
            && self.matches() == (true, true)
            && self.seen() == (true, true);
        Some(ResizeReport {
            order: self.held.order.clone(),
            done,
            stages,
            problem: self.problem(now),
        })
    }
}

#[cfg(test)]
mod tests;
