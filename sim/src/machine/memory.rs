//! Memory of a guest: how QEMU's blocks move towards what is requested, and what is in use.

use agent::core::SystemMetrics;
use agent::core::metrics::KERNEL_ALLOWANCE_BYTES;
use neonvm_runner::core::sizer::Event as SizerEvent;
use protocol::time::Span;
use protocol::vm::MEMORY_BLOCK_BYTES;

use super::{KERNEL_BYTES, Machine};
use crate::event::Event;
use crate::journal::Note;
use crate::world::World;

impl World {
    pub(crate) fn memory_shall_move(&mut self, vm: usize) {
        let delay = self.rng.millis(10, 60);
        let Some(machine) = self.vms[vm].machine.as_mut() else {
            return;
        };
        let id = machine.id;
        if machine.size != machine.requested && !std::mem::replace(&mut machine.is_moving, true) {
            self.after(delay, Event::MemoryMoves { vm, machine: id });
        }
    }

    pub(crate) fn memory_moves(&mut self, vm: usize, id: u64) {
        let (now, guest_faults, needed) = (self.now, self.vms[vm].guest_faults, self.needed(vm));
        let Some(machine) = self.vms[vm]
            .machine
            .as_mut()
            .filter(|machine| machine.id == id)
        else {
            return;
        };
        machine.is_moving = false;
        if machine.ended.is_some() || !machine.is_up {
            return;
        }
        let (before, wanted) = (machine.size, machine.requested);
        let slow = guest_faults.slow_until > now;
        let step = if slow { 64 << 20 } else { 1 << 30 };
        let is_blocked = guest_faults.blocks_until > now;
        let mut pause = if slow {
            Span::from_millis(500)
        } else {
            Span::from_millis(40)
        };
        machine.move_memory(step, needed, is_blocked);
        let after = machine.size;
        if after == before {
            pause = Span::from_secs(1);
        } else {
            self.checks.touch(vm);
            self.note(Note::Memory {
                vm,
                plugged: after,
                requested: wanted,
            });
            self.hint(vm, SizerEvent::MemoryHint);
            self.guest_reports(vm, Span::from_millis(4));
        }
        if after != wanted
            && let Some(machine) = self.vms[vm].machine.as_mut()
        {
            machine.is_moving = true;
            self.after(pause, Event::MemoryMoves { vm, machine: id });
        }
    }

    /// Bytes the guest cannot give back.
    fn needed(&self, vm: usize) -> u64 {
        self.used(vm).unwrap_or(0) + KERNEL_BYTES
    }

    /// Bytes in use in a guest that is up.
    fn used(&self, vm: usize) -> Option<u64> {
        let machine = self.vms[vm]
            .machine
            .as_ref()
            .filter(|machine| machine.is_up)?;
        let most = machine.memory().saturating_sub(KERNEL_BYTES + (32 << 20));
        Some((self.vms[vm].load.mib << 20).min(most))
    }

    /// Bytes in use as the guest says.
    pub(crate) fn used_as_shown(&self, vm: usize) -> Option<u64> {
        let (used, guest_faults) = (self.used(vm)?, self.vms[vm].guest_faults);
        let lies = guest_faults.lies_until > self.now;
        Some(if lies {
            used / 100 * guest_faults.lies_percent
        } else {
            used
        })
    }

    /// The guest's page, if it has one now.
    #[expect(clippy::cast_precision_loss, reason = "a gauge")]
    pub(crate) fn page_of(&self, vm: usize) -> Option<SystemMetrics> {
        let guest_faults = self.vms[vm].guest_faults;
        let used = self
            .used_as_shown(vm)
            .filter(|_| guest_faults.mute_until <= self.now)?;
        let load = f64::from(self.vms[vm].load.milli) / 1000.0;
        Some(SystemMetrics {
            load1: load,
            load5: load,
            memory_usage_bytes: used as f64 + KERNEL_ALLOWANCE_BYTES,
            ..SystemMetrics::default()
        })
    }
}

impl Machine {
    /// Plugs or unplugs a step of memory towards what is requested. What is in use stays.
    fn move_memory(&mut self, step: u64, needed: u64, is_blocked: bool) {
        let (before, wanted) = (self.size, self.requested);
        if before < wanted {
            self.size = wanted.min(before + step);
        } else if !is_blocked {
            let blocks = needed
                .saturating_sub(self.shape.base.0)
                .div_ceil(MEMORY_BLOCK_BYTES);
            let floor = wanted.max(blocks * MEMORY_BLOCK_BYTES).min(before);
            self.size = floor.max(before.saturating_sub(step));
        }
    }
}
