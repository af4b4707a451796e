//! How far the order is: whether QEMU has it, whether the guest sees it, and whether the guest's
//! daemon needs a request for that.

use protocol::time::Timestamp;

use super::{DeviceView, ONLINE_GRACE, REQUEST_AGAIN, Sizer};

impl Sizer {
    /// Whether QEMU has the ordered CPUs, and the ordered memory.
    pub(super) fn matches(&self) -> (bool, bool) {
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

    /// Whether the guest sees the ordered CPUs, and the ordered memory.
    pub(super) fn seen(&self) -> (bool, bool) {
        let (Some(guest), Some(wanted)) = (&self.guest, self.wanted()) else {
            return (false, false);
        };
        let sum = self.reserved.zip(guest.mem_total);
        let memory = sum.is_none_or(|(reserved, total)| {
            total.0 + reserved + self.total_slack(wanted) >= wanted.mem.0
        });
        (guest.cpus_online == self.shape.cpus_for(wanted.cpu), memory)
    }

    /// Stamps the stages that are reached.
    pub(super) fn stamp_stages(&mut self, now: Timestamp) {
        if self.held.matched.is_none() && self.matches() == (true, true) {
            self.held.matched = Some(now);
        }
        if self.held.visible.is_none() && self.held.matched.is_some() && self.seen() == (true, true)
        {
            self.held.visible = Some(now);
        }
    }

    /// Number of CPUs to request from the guest's daemon, and when.
    pub(super) fn cpus_to_request(&self, now: Timestamp) -> Option<(u32, Timestamp)> {
        let (guest, wanted) = (self.guest.as_ref()?, self.wanted_cpus()?);
        let (matched, _) = self.matches();
        if self.held_for.is_some() || self.is_requesting || !matched || guest.cpus_online == wanted
        {
            return None;
        }
        let inside = self.guest_target.is_some_and(|target| target < wanted)
            || self
                .plugged()
                .is_some_and(|plugged| self.keeps_plugged(plugged, wanted));
        let since = self.held.matched.unwrap_or(now).max(self.held.at);
        match self.requested_at {
            Some(at) => Some((wanted, at + REQUEST_AGAIN)),
            None if inside => Some((wanted, self.held.at)),
            // More are online than wanted and none is kept: the unplugged one is about to go.
            None => Some((wanted, since + ONLINE_GRACE)),
        }
    }
}
