//! Drives a guest to the newest order: all CPUs and all memory in one pass, each on a lane of its
//! own. A look is a query to QEMU.
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
//! * *Truth* is `query-hotpluggable-cpus` and `query-memory-devices`, and for single CPUs a
//!   successful `device_add` and the event of a deleted device. A look stalls a guest whose CPU or
//!   memory is just being plugged or unplugged. Other events, and a guest that sees about the
//!   ordered memory, only hasten the next look.
//! * *Superseding*: a lane that waits for a reply decides again, by the newest order, when it
//!   comes.
//! * *Failures*: a refused command is reported as the problem and retried with a growing pause. A
//!   CPU that does not leave is asked again after [`LEAVE_AGAIN`]. Memory that does not leave stays
//!   requested (the guest's driver retries by itself).
//! * *Cold start and recovery*: nothing is known before the first look at each lane, and the
//!   history does not matter.
//! * *Under TCG* CPUs are switched off inside the guest once [`super::budget`] says that unplugging
//!   is over.

use std::collections::BTreeMap;

use protocol::core::Core;
use protocol::runner::SizeOrder;
use protocol::time::{Span, Timestamp};
use protocol::units::{Bytes, MilliCpu, Resources};
use serde::Serialize;

use super::budget::PlugBudget;
use super::quota::{QuotaInput, quota};
use super::shape::Shape;

mod cpus;
mod lane;
mod memory;
mod parts;
mod progress;
mod report;

use lane::{LOOK_SLOW, Lane};
pub use parts::{Action, CpuSlot, DeviceView, Event, QmpFailure, Sight};

/// Pause after which a CPU that has not left is asked again. It then counts as stuck.
pub const LEAVE_AGAIN: Span = Span::from_secs(5);
/// Memory whose size has not changed for this long counts as stuck.
pub const MEMORY_STUCK: Span = Span::from_secs(30);
/// A guest that does not see a size for this long after QEMU has it counts as blind.
pub const GUEST_BLIND: Span = Span::from_secs(10);
/// Time that a guest has to online new CPUs by itself.
const ONLINE_GRACE: Span = Span::from_secs(2);
/// Longest time that CPUs stay plugged ahead of an order.
const AHEAD: Span = Span::from_secs(30);
/// Pause between two requests to the guest's daemon.
const REQUEST_AGAIN: Span = Span::from_secs(1);

#[derive(Debug, Clone, Serialize)]
struct Held {
    order: SizeOrder,
    /// Whether it was ordered. The size to boot with is not an order.
    asked: bool,
    at: Timestamp,
    /// CPU limit in force before the order.
    before: MilliCpu,
    matched: Option<Timestamp>,
    visible: Option<Timestamp>,
}

/// Core that drives one QEMU to the newest order.
#[derive(Debug, Clone, Serialize)]
pub struct Sizer {
    shape: Shape,
    budget: Option<PlugBudget>,
    held: Held,
    qmp: bool,
    /// Why the monitor is not connected, once the outage lasts.
    unreached: Option<String>,
    cpu: Lane,
    memory: Lane,
    slots: Option<Vec<CpuSlot>>,
    /// No command has changed the slots since the last look.
    slots_fresh: bool,
    /// Slots of the `device_add`s in progress.
    plugging: Vec<CpuSlot>,
    /// CPU limit for which CPUs are plugged ahead of an order, and until when.
    ahead: Option<(MilliCpu, Timestamp)>,
    /// CPUs that were asked to leave, and when.
    leaving: BTreeMap<String, Timestamp>,
    /// Since when CPUs have been leaving without interruption.
    leaving_since: Option<Timestamp>,
    device: Option<DeviceView>,
    /// The device was queried after the last request for another size.
    device_fresh: bool,
    /// Size requested of the device since the last look at it.
    requesting: Option<Bytes>,
    /// The device before the monitor was disconnected: reported until the next look.
    device_before: Option<DeviceView>,
    /// Both CPUs and memory have been queried.
    looked: bool,
    memory_moved: Timestamp,
    at_rest_since: Option<Timestamp>,
    guest: Option<Sight>,
    /// Memory that the guest's kernel reserves: boot and plugged memory less MemTotal, the smallest
    /// value at rest.
    reserved: Option<u64>,
    /// Whether `reserved` was learnt from memory at rest.
    reserved_at_rest: bool,
    is_requesting: bool,
    /// Number of CPUs that the guest's daemon was last asked to have online. It onlines no more
    /// than that by itself.
    guest_target: Option<u32>,
    requested_at: Option<Timestamp>,
    booting_since: Option<Timestamp>,
    quota: Option<MilliCpu>,
    /// The migration during which the size is fixed.
    held_for: Option<String>,
    pending: Vec<Action>,
    /// Time of the newest call. Deadlines count from it.
    #[serde(skip)]
    now: Timestamp,
}

impl Sizer {
    /// A sizer for a QEMU of this shape. `order` is the last order of an earlier runner of the
    /// QEMU; `booting_since` is when the guest began to boot, if it may still boot.
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
            requesting: None,
            device_before: None,
            looked: false,
            memory_moved: now,
            at_rest_since: (shape.device.0 == 0).then_some(Timestamp(0)),
            guest: None,
            reserved: None,
            reserved_at_rest: false,
            is_requesting: false,
            guest_target: None,
            requested_at: None,
            booting_since,
            quota: None,
            held_for: None,
            pending: Vec::new(),
            now,
            shape,
        }
    }
}

impl Core for Sizer {
    type Time = Timestamp;
    type Event = Event;
    type Action = Action;

    fn handle(&mut self, now: Timestamp, event: Event) {
        self.now = now;
        match event {
            Event::Order(order) => self.take(now, order),
            Event::Ahead(request) => self.plug_ahead(now, request.cpu),
            Event::QmpUp => self.connected(now),
            Event::QmpDown => {
                self.qmp = false;
                (self.cpu.busy, self.memory.busy) = (false, false);
                self.pending.clear();
            }
            Event::QmpUnreached(why) => self.unreached = (!self.qmp).then_some(why),
            Event::CpuHint => self.cpu.hint(now),
            Event::CpuGone(id) => self.cpu_deleted(now, &id),
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
                    Ok(()) if !plugged.is_empty() => self.cpus_plugged(now, &plugged),
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
                    // A look would stall the guest, which has just begun. QEMU sends an event at
                    // the end.
                    Ok(()) => self.memory.expect_event(now),
                    Err(failure) => self.memory.fail(now, failure),
                }
            }
            Event::GuestCpusSet => self.is_requesting = false,
            Event::Guest(state) => self.see_guest(now, Sight::from(&state)),
            Event::GuestCpus(online) => self.see_guest(now, Sight::of_cpus(online)),
            Event::Hold(migration) => self.hold(now, migration),
        }
        self.looked |= self.slots.is_some() && self.device.is_some();
        self.stamp_stages(now);
    }

    fn poll_action(&mut self, now: Timestamp) -> Option<Action> {
        self.now = now;
        if self.ahead.is_some_and(|(_, until)| now >= until) {
            self.ahead = None;
            self.decide_cpus(now);
        }
        if let Some(action) = self.pending.pop() {
            return Some(action);
        }
        self.stamp_stages(now);
        let wanted = self.wanted_quota(now).0;
        if self.quota != Some(wanted) {
            self.quota = Some(wanted);
            return Some(Action::SetQuota(wanted));
        }
        if let Some(cpus) = self
            .cpus_to_request(now)
            .filter(|(_, at)| now >= *at)
            .map(|(n, _)| n)
        {
            self.is_requesting = true;
            self.guest_target = Some(cpus);
            self.requested_at = Some(now);
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

    fn poll_deadline(&self) -> Option<Timestamp> {
        let is_sized = self.qmp && !self.memory.busy && self.shape.device.0 > 0;
        let deadlines = [
            // A problem is reported within a second.
            Some(self.now + LOOK_SLOW),
            (self.qmp && !self.cpu.busy).then_some(self.cpu.look_at),
            is_sized.then_some(self.memory.look_at),
            self.cpus_to_request(self.now).map(|(_, at)| at),
            self.wanted_quota(self.now).1,
            self.ahead.map(|(_, until)| until),
        ];
        deadlines.into_iter().flatten().min()
    }
}

impl Sizer {
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

    /// Whether QEMU is at rest, and stays so until the hold ends.
    #[must_use]
    pub fn is_still(&self) -> bool {
        self.held_for.is_some()
            && !self.cpu.busy
            && !self.memory.busy
            && !self.is_requesting
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
        self.requested_at = None;
        self.ahead = None;
        if !self.device_fresh {
            self.memory.hint(now);
        }
        // The known state suffices to act at once; the next look corrects it.
        self.decide_cpus(now);
        self.decide_memory(now);
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

    /// The ordered size, if the shape allows it.
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

    fn wanted_quota(&self, now: Timestamp) -> (MilliCpu, Option<Timestamp>) {
        let wanted = self.wanted_cpus();
        let online = self.guest.as_ref().map(|guest| guest.cpus_online);
        // CPUs above the order, once it was reached, are plugged ahead of the next one. They have
        // no deadline.
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
