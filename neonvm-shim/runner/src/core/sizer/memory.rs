//! The memory lane: requests to QEMU, and the meaning of its answers together with the guest's
//! MemTotal.

use protocol::time::{Span, Timestamp};
use protocol::units::Resources;

use super::Sizer;
use super::parts::{Action, DeviceView};

/// Time that memory must be at rest before the guest's MemTotal is attributed to it.
const MEMORY_AT_REST: Span = Span::from_secs(2);
/// Tolerance for the guest's MemTotal in bytes: kernel bookkeeping. A 32nd of the plugged memory is
/// added.
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
        (self.device, self.device_fresh) = (Some(view), true);
        self.requesting = None;
        let rested = self.has_rested(now);
        if self.reserved.is_none() || (rested && !self.reserved_at_rest) {
            self.learn_reserved(rested);
        }
    }

    /// QEMU sends an event when the device begins to change its size, and then once a second. An
    /// event about a fresh request carries no news, and a look would stall the guest. QEMU sends
    /// another event at the end, and a look is due soon.
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
            self.requesting = Some(wanted);
            self.pending.push(Action::Request(wanted));
        } else if view.size != wanted {
            self.memory.wait(now);
        } else {
            self.memory.rest(now);
        }
    }

    /// Whether the memory that the guest sees is about the wanted size.
    pub(super) fn guest_comes_near(&self) -> bool {
        let (Some(wanted), Some(reserved)) = (self.wanted(), self.reserved) else {
            return false;
        };
        let total = self.guest.and_then(|guest| guest.mem_total);
        total.is_some_and(|total| {
            (total.0 + reserved).abs_diff(wanted.mem.0) <= self.total_slack(wanted)
        })
    }

    /// Tolerance in bytes for the guest's MemTotal.
    pub(super) fn total_slack(&self, wanted: Resources) -> u64 {
        TOTAL_SLACK + (wanted.mem.0 - self.shape.base.0) / 32
    }

    /// Attributes the guest's MemTotal to the memory that QEMU has plugged, if that is at rest.
    /// Before memory has `rested`, the report may be older than the last block: the value is then
    /// provisional.
    pub(super) fn learn_reserved(&mut self, rested: bool) {
        let at_rest = self
            .device
            .filter(|view| self.device_fresh && view.requested == view.size);
        let total = self.guest.and_then(|guest| guest.mem_total);
        let (Some(view), Some(total)) = (at_rest, total) else {
            return;
        };
        let Some(kept) = (self.shape.base.0 + view.size.0).checked_sub(total.0) else {
            // The report belongs to a larger size.
            return;
        };
        // With nothing plugged, the guest cannot be behind: the newest value is right, even where
        // an older report was late.
        let least = self
            .reserved
            .filter(|_| self.reserved_at_rest && view.size.0 > 0);
        self.reserved = Some(least.map_or(kept, |least| least.min(kept)));
        self.reserved_at_rest |= rested;
    }
}
