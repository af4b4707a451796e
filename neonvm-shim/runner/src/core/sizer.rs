//! Drives a guest to the newest order: all CPUs and all memory in one pass, each on a lane of its
//! own.
//!
//! ```text
//!  order ──> CPU lane:    look ─> plug / unplug ─> look … match ─┐
//!        └─> memory lane: request ─> look, look, … ──── match ───┤─> QEMU has it ─> guest sees it ─> done
//!                         neonvmd's long-poll ───────────────────┘
//! ```
//!
//! * *Happy path up*: the free slots are known from the last look, so an order turns into
//!   `device_add`s and one `qom-set` at once; looks confirm; neonvmd reports that the guest uses
//!   them.
//! * *Truth* is `query-hotpluggable-cpus` and `query-memory-devices`, and of single CPUs what QEMU
//!   says of them: a `device_add` it has carried out, a device it has deleted. A look holds up the
//!   guest whose CPU or memory is just coming or going. Other events, and a guest that sees about
//!   the memory it is to have, only make the next look come at once.
//! * *Superseding*: a lane that waits for a reply decides again, by the newest order, when it
//!   comes.
//! * *Failures*: a refused command is kept as the problem and tried again with a growing pause; a
//!   CPU that does not leave is asked again after [`LEAVE_AGAIN`]; memory that does not leave stays
//!   requested (the guest's driver retries by itself).
//! * *Cold start and recovery*: nothing is known before the first look at each lane; what was
//!   before does not matter.
//! * *Under TCG* CPUs are switched off inside the guest once [`super::budget`] says that unplugging
//!   is over.

use std::collections::BTreeMap;

use protocol::runner::SizeOrder;
use protocol::time::{Span, Timestamp};
use protocol::units::{Bytes, MilliCpu, Resources};
use serde::Serialize;

use super::budget::PlugBudget;
use super::quota::{BOOT_ALLOWANCE, QuotaInput, quota};
use super::shape::{CpuControl, Shape};

mod lane;
mod memory;
mod parts;
mod verdict;

use lane::{LOOK_SLOW, Lane};
pub use parts::{Action, CpuSlot, DeviceView, Event, QmpFailure, Sight};

/// A CPU that has not left after this is asked again, and counts as stuck.
pub const LEAVE_AGAIN: Span = Span::from_secs(5);
/// Memory that has not moved for this long counts as stuck.
pub const MEMORY_STUCK: Span = Span::from_secs(30);
/// QEMU has had the size for this long and the guest does not see it: it is blind.
pub const GUEST_BLIND: Span = Span::from_secs(10);
/// A guest that does not online new CPUs by itself is told to after this.
const ONLINE_GRACE: Span = Span::from_secs(2);
/// How long CPUs stay plugged ahead of an order that does not come.
const AHEAD: Span = Span::from_secs(30);
/// Pause between two tellings.
const TELL_AGAIN: Span = Span::from_secs(1);

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
    /// Why the monitor is not reached, as far as that is worth telling.
    unreached: Option<String>,
    cpu: Lane,
    memory: Lane,
    slots: Option<Vec<CpuSlot>>,
    /// Whether no command has changed the slots since they were looked at.
    slots_fresh: bool,
    /// Where CPUs are being plugged.
    plugging: Vec<CpuSlot>,
    /// The CPU for which some are plugged ahead of an order, and until when.
    ahead: Option<(MilliCpu, Timestamp)>,
    /// CPUs asked to leave, and when.
    leaving: BTreeMap<String, Timestamp>,
    /// Since when CPUs have been leaving without end.
    leaving_since: Option<Timestamp>,
    device: Option<DeviceView>,
    /// Whether the memory was looked at since the last request for another size.
    device_fresh: bool,
    /// What it had before the monitor was lost: shown until the next look.
    device_before: Option<DeviceView>,
    /// Whether CPUs and memory were ever looked at.
    looked: bool,
    memory_moved: Timestamp,
    at_rest_since: Option<Timestamp>,
    guest: Option<Sight>,
    /// What the guest's kernel keeps of its memory: boot and plugged memory less MemTotal, the
    /// least seen at rest.
    reserved: Option<u64>,
    /// Whether that was learnt from memory at rest.
    reserved_at_rest: bool,
    telling: bool,
    /// How many CPUs the guest was told to have, if ever: of more its daemon brings up none by
    /// itself.
    told: Option<u32>,
    told_at: Option<Timestamp>,
    booting_since: Option<Timestamp>,
    quota: Option<MilliCpu>,
    /// The migration during which nothing is changed.
    held_for: Option<String>,
    pending: Vec<Action>,
}

impl Sizer {
    /// A sizer for a QEMU of this shape. `order` is what was ordered last, if this is not the first
    /// runner of the QEMU; `booting_since` is when the guest began to boot, if it still may.
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
            unreached: None,
            cpu: Lane::default(),
            memory: Lane::default(),
            slots: None,
            slots_fresh: false,
            plugging: Vec::new(),
            ahead: None,
            leaving: BTreeMap::new(),
            leaving_since: None,
            device: (shape.device.0 == 0).then(DeviceView::default),
            device_fresh: shape.device.0 == 0,
            device_before: None,
            looked: false,
            memory_moved: now,
            at_rest_since: (shape.device.0 == 0).then_some(Timestamp(0)),
            guest: None,
            reserved: None,
            reserved_at_rest: false,
            telling: false,
            told: None,
            told_at: None,
            booting_since,
            quota: None,
            held_for: None,
            pending: Vec::new(),
            shape,
        }
    }

    /// Updates the state by one event. [`Self::poll_action`] then says what to do.
    pub fn handle(&mut self, now: Timestamp, event: Event) {
        match event {
            Event::Order(order) => self.take(now, order),
            Event::Ahead(wish) => self.plug_ahead(now, wish.cpu),
            Event::QmpUp => self.connected(now),
            Event::QmpDown => {
                self.qmp = false;
                (self.cpu.busy, self.memory.busy) = (false, false);
                self.pending.clear();
            }
            Event::QmpUnreached(why) => self.unreached = (!self.qmp).then_some(why),
            Event::CpuHint => self.cpu.hint(now),
            Event::CpuGone(id) => self.gone(now, &id),
            Event::MemoryHint => self.hear_of_memory(now),
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
                let plugged = std::mem::take(&mut self.plugging);
                match reply {
                    Ok(()) if !plugged.is_empty() => self.come(now, &plugged),
                    Ok(()) if self.leaving.is_empty() => self.cpu.expect(now),
                    Ok(()) => self.cpu.expect_event(now),
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
                    // A look holds up the guest that has just begun; the guest itself tells when it
                    // has done it.
                    Ok(()) => self.memory.expect_event(now),
                    Err(failure) => self.memory.fail(now, failure),
                }
            }
            Event::GuestTold => self.telling = false,
            Event::Guest(state) => self.see_guest(now, Sight::from(&state)),
            Event::GuestCpus(online) => self.see_guest(now, Sight::of_cpus(online)),
            Event::Hold(migration) => self.hold(now, migration),
        }
        self.looked |= self.slots.is_some() && self.device.is_some();
        self.judge(now);
    }

    /// The next thing to do.
    pub fn poll_action(&mut self, now: Timestamp) -> Option<Action> {
        if self.ahead.is_some_and(|(_, until)| now >= until) {
            self.ahead = None;
            self.decide_cpus(now);
        }
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
            self.told = Some(cpus);
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
        self.ahead.map_or(at, |(_, until)| at.min(until))
    }

    fn hold(&mut self, now: Timestamp, migration: Option<String>) {
        if self.held_for == migration {
            return;
        }
        self.held_for = migration;
        self.memory_moved = now;
        if self.held_for.is_none() {
            self.cpu.expect(now);
            self.memory.expect(now);
        }
        self.decide_cpus(now);
        self.decide_memory(now);
    }

    /// Whether nothing of QEMU is being changed, nor will be before it is let go.
    #[must_use]
    pub fn is_still(&self) -> bool {
        self.held_for.is_some()
            && !self.cpu.busy
            && !self.memory.busy
            && !self.telling
            && self.pending.is_empty()
            && self.leaving.is_empty()
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
        self.ahead = None;
        if !self.device_fresh {
            self.memory.hint(now);
        }
        // What is known suffices to act at once; the next look corrects it.
        self.decide_cpus(now);
        self.decide_memory(now);
    }

    fn plug_ahead(&mut self, now: Timestamp, cpu: MilliCpu) {
        if !self.can_plug_ahead() {
            return;
        }
        self.ahead = (cpu > self.held.order.cpu).then(|| (cpu, now + AHEAD));
        self.decide_cpus(now);
    }

    /// CPUs that are switched inside the guest come at once, and those of one whose size is refused
    /// do not come.
    fn can_plug_ahead(&self) -> bool {
        self.shape.control == CpuControl::Plug && self.wanted().is_some()
    }

    fn connected(&mut self, now: Timestamp) {
        (self.qmp, self.unreached) = (true, None);
        (self.slots, self.slots_fresh) = (None, false);
        self.plugging.clear();
        self.leaving.clear();
        if self.shape.device.0 > 0 {
            self.device_before = self.device.take().or(self.device_before);
            self.device_fresh = false;
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

    /// Whether the CPUs above `wanted` stay plugged for good, because re-plugging them could not be
    /// paid for.
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
        if self.held_for.is_some() {
            let gone: Vec<String> = self
                .leaving
                .keys()
                .filter(|id| !self.has_device(id))
                .cloned()
                .collect();
            self.leaving.retain(|id, _| !gone.contains(id));
            return self.cpu.rest(now);
        }
        let ahead = self.ahead.map_or(0, |(cpu, _)| {
            self.shape.cpus_for(cpu.min(self.shape.max_cpu))
        });
        let wanted = self.wanted_cpus().map(|wanted| wanted.max(ahead));
        let (Some(wanted), Some(plugged)) = (wanted, self.plugged()) else {
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

    fn has_device(&self, id: &str) -> bool {
        let mut slots = self.slots.iter().flatten();
        slots.any(|slot| slot.removable() == Some(id))
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
        self.plugging.clone_from(&free);
        self.pending.push(Action::Plug {
            slots: free,
            budget: self.budget,
        });
    }

    /// QEMU has plugged all of these.
    fn come(&mut self, now: Timestamp, plugged: &[CpuSlot]) {
        for slot in self.slots.iter_mut().flatten() {
            if plugged.iter().any(|new| new.props == slot.props) {
                slot.qom_path = Some(slot.new_path());
            }
        }
        self.slots_fresh = true;
        self.cpu.succeed();
        self.decide_cpus(now);
    }

    /// QEMU has deleted a device. Where it may have told so before a reply that is yet to be heard,
    /// or where not all is known, it is looked at.
    fn gone(&mut self, now: Timestamp, id: &str) {
        let is_known = !self.cpu.busy && self.cpu.failure.is_none();
        let mut slots = self.slots.iter_mut().flatten();
        let slot = slots.find(|slot| slot.removable() == Some(id));
        let Some(slot) = slot.filter(|_| is_known) else {
            return self.cpu.hint(now);
        };
        slot.qom_path = None;
        self.slots_fresh = true;
        self.leaving.remove(id);
        self.decide_cpus(now);
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

    fn see_guest(&mut self, now: Timestamp, sight: Sight) {
        let booted = self.booting_since.take().is_some();
        self.guest = Some(sight);
        if booted {
            self.decide_cpus(now);
        }
        let rested = self.has_rested(now);
        if rested || self.reserved.is_none() {
            self.learn_reserved(rested);
        }
        let wanted = self.wanted_device();
        if self.guest_comes_near() && self.device.map(|view| view.size) != wanted {
            self.memory.hint(now);
        }
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
                let matching = DeviceView {
                    requested: wanted,
                    size: wanted,
                };
                self.device_fresh && view == matching
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
        let sum = self.reserved.zip(guest.mem_total);
        let memory = sum.is_none_or(|(reserved, total)| {
            total.0 + reserved + self.total_slack(wanted) >= wanted.mem.0
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
        if self.held_for.is_some() || self.telling || !matched || guest.cpus_online == wanted {
            return None;
        }
        let inside = self.told.is_some_and(|told| told < wanted)
            || self
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
        // More than wanted once it was reached are plugged ahead of another order, and not to be
        // hurried.
        let cpus_to_leave = self.held.visible.is_none()
            && matches!((wanted, online.or(self.plugged())), (Some(wanted), Some(have)) if have > wanted);
        let memory_to_leave = matches!((self.wanted_device(), self.device), (Some(wanted), Some(have)) if have.size > wanted);
        let input = QuotaInput {
            ordered: self.held.order.cpu.min(self.shape.max_cpu),
            ordered_at: self.held.at,
            before: self.held.before,
            cpus_to_leave,
            memory_to_leave,
            largest: self.shape.max_cpu,
            booting_since: self.booting_since,
        };
        quota(&input, now)
    }
}

#[cfg(test)]
mod tests;
