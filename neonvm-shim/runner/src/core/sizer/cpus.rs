//! The CPU lane: plugs and unplugs towards the ordered number of CPUs, or the number ahead of it.

use protocol::time::Timestamp;
use protocol::units::MilliCpu;

use super::{AHEAD, Action, CpuSlot, LEAVE_AGAIN, Sizer};
use crate::core::quota::BOOT_ALLOWANCE;
use crate::core::shape::CpuControl;

impl Sizer {
    pub(super) fn plug_ahead(&mut self, now: Timestamp, cpu: MilliCpu) {
        if !self.can_plug_ahead() {
            return;
        }
        self.ahead = (cpu > self.held.order.cpu).then(|| (cpu, now + AHEAD));
        self.decide_cpus(now);
    }

    /// CPUs switched in the guest come at once, and a refused size gets none.
    pub(super) fn can_plug_ahead(&self) -> bool {
        self.shape.control == CpuControl::Plug && self.wanted().is_some()
    }

    pub(super) fn plugged(&self) -> Option<u32> {
        let slots = self.slots.as_ref()?;
        u32::try_from(slots.iter().filter(|slot| slot.qom_path.is_some()).count()).ok()
    }

    /// Whether the CPUs above `wanted` stay plugged, because the budget does not allow plugging
    /// them again.
    pub(super) fn keeps_plugged(&self, plugged: u32, wanted: u32) -> bool {
        match (self.shape.control, self.budget) {
            (CpuControl::Guest, _) => plugged >= wanted,
            (CpuControl::Plug, Some(budget)) => {
                plugged > wanted
                    && !budget.allows_unplug(plugged - wanted, plugged, self.shape.max_cpus)
            }
            (CpuControl::Plug, None) => false,
        }
    }

    pub(super) fn decide_cpus(&mut self, now: Timestamp) {
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

    /// Whether the guest still boots with one CPU (see [`super::shape`]).
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

    /// QEMU has carried out these `device_add`s.
    pub(super) fn cpus_plugged(&mut self, now: Timestamp, plugged: &[CpuSlot]) {
        for slot in self.slots.iter_mut().flatten() {
            if plugged.iter().any(|new| new.props == slot.props) {
                slot.qom_path = Some(slot.new_path());
            }
        }
        self.slots_fresh = true;
        self.cpu.succeed();
        self.decide_cpus(now);
    }

    /// QEMU has deleted a device. A look follows if a reply in progress may be older than this
    /// event, or if the slots are not known.
    pub(super) fn cpu_deleted(&mut self, now: Timestamp, id: &str) {
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
}
