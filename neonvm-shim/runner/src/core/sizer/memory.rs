//! The memory lane: what is asked of QEMU, and what its answers and the guest's MemTotal say
//! together.

use protocol::time::{Span, Timestamp};
use protocol::units::Resources;

use super::Sizer;
use super::parts::{Action, DeviceView};

/// Memory must have been at rest for this long before the guest's MemTotal is taken as belonging to
/// it.
const MEMORY_AT_REST: Span = Span::from_secs(2);
/// How far the guest's MemTotal may lie from what it should be: kernel bookkeeping, and a 32nd of
/// what was plugged.
const TOTAL_SLACK: u64 = 16 << 20;

impl Sizer {
    pub(super) fn see_memory(&mut self, now: Timestamp, view: DeviceView) {
        self.memory.succeed();
        if self.device.is_none_or(|before| before.size != view.size) {
            self.memory_moved = now;
            self.at_rest_since = None;
        }
        let at_rest = view.requested == view.size;
        self.at_rest_since = at_rest.then(|| self.at_rest_since.unwrap_or(now));
        self.device = Some(view);
        self.device_fresh = true;
        let rested = self.has_rested(now);
        if self.reserved.is_none() || (rested && !self.reserved_at_rest) {
            self.learn_reserved(rested);
        }
    }

    /// QEMU tells that the device has another size: when that begins, and then once a second. Of
    /// what has just been asked for that says nothing new, and a look would hold the guest up; it
    /// tells itself when it is done, and a look is due soon.
    pub(super) fn hear_of_memory(&mut self, now: Timestamp) {
        let has_just_begun = !self.device_fresh && self.memory.looks_soon(now);
        if !has_just_begun {
            self.memory.hint(now);
        }
    }

    pub(super) fn has_rested(&self, now: Timestamp) -> bool {
        self.at_rest_since
            .is_some_and(|since| now >= since + MEMORY_AT_REST)
    }

    pub(super) fn decide_memory(&mut self, now: Timestamp) {
        if self.held_for.is_some() && !self.memory.busy {
            return self.memory.rest(now);
        }
        if self.memory.busy
            || !self.qmp
            || !self.device_fresh
            || self.memory.failure.is_some()
            || self.shape.device.0 == 0
        {
            return;
        }
        let (Some(wanted), Some(view)) = (self.wanted_device(), self.device) else {
            return;
        };
        if view.requested != wanted {
            (self.memory.busy, self.device_fresh) = (true, false);
            self.at_rest_since = None;
            self.pending.push(Action::Request(wanted));
        } else if view.size != wanted {
            self.memory.wait(now);
        } else {
            self.memory.rest(now);
        }
    }

    /// Whether the memory that the guest sees is about what is wanted.
    pub(super) fn guest_comes_near(&self) -> bool {
        let (Some(wanted), Some(reserved)) = (self.wanted(), self.reserved) else {
            return false;
        };
        let total = self.guest.and_then(|guest| guest.mem_total);
        total.is_some_and(|total| {
            (total.0 + reserved).abs_diff(wanted.mem.0) <= self.total_slack(wanted)
        })
    }

    /// How far the guest's MemTotal may be from what it should be.
    pub(super) fn total_slack(&self, wanted: Resources) -> u64 {
        TOTAL_SLACK + (wanted.mem.0 - self.shape.base.0) / 32
    }

    /// Takes the guest's MemTotal as belonging to the memory QEMU has plugged, if that is at rest.
    /// What is learnt before it has `rested` may rest on a report from before the last block moved:
    /// it holds only until there is better.
    pub(super) fn learn_reserved(&mut self, rested: bool) {
        let at_rest = self
            .device
            .filter(|view| self.device_fresh && view.requested == view.size);
        let total = self.guest.and_then(|guest| guest.mem_total);
        let (Some(view), Some(total)) = (at_rest, total) else {
            return;
        };
        let Some(kept) = (self.shape.base.0 + view.size.0).checked_sub(total.0) else {
            // It is of a larger size.
            return;
        };
        // With nothing plugged there is nothing that the guest might not have taken in yet: then
        // the newest is right, even where an older report was late.
        let least = self
            .reserved
            .filter(|_| self.reserved_at_rest && view.size.0 > 0);
        self.reserved = Some(least.map_or(kept, |least| least.min(kept)));
        self.reserved_at_rest |= rested;
    }
}
