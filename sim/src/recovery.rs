//! How soon everything must be where it should be once nothing goes wrong any more: what each fault
//! that was in force, and each setting of a VM, may take from then on.

use agent::core::{ScalingConfig, ShrinkStep, VmInfo};
use protocol::time::Span;

use crate::store::Kind;
use crate::world::World;

/// A VM whose guest is up: its agent lists, connects, hears metrics and is permitted, the guest
/// gets there and says so.
const SETTLES: Span = Span::from_secs(60);
/// A guest that ended, or boots: up to 60 s of back-off and 9 s of boot.
const RESTARTS: Span = Span::from_secs(75);
/// One step of a shrink that goes one unit at a time, with a refusal and its pause.
const STEP: Span = Span::from_secs(6);

impl World {
    /// The bound of the world: that of its slowest VM.
    pub(crate) fn recovers_within(&self) -> Span {
        let bounds = (0..self.vms.len()).map(|vm| self.vm_recovers_within(vm));
        bounds.max().unwrap_or(SETTLES)
    }

    fn vm_recovers_within(&self, vm: usize) -> Span {
        let is_up = self.vms[vm].machine.as_ref().is_some_and(|it| it.is_up);
        let restart = if is_up { Span(0) } else { RESTARTS };
        Span(SETTLES.0 + restart.0 + self.settings_take(vm).0)
    }

    /// What a VM's own settings add: steps of a shrink, and what holds it at a turn.
    fn settings_take(&self, vm: usize) -> Span {
        let object = self.store.get(Kind::Vm, &self.vms[vm].name);
        let info =
            object.and_then(|it| VmInfo::from_object(it.vm(), &ScalingConfig::default()).ok());
        let settings = info.map_or_else(ScalingConfig::default, |info| info.config.scaling);
        let (min, max) = self.vms[vm].bounds;
        let units = u64::from(max - min);
        let steps = match settings.shrink_step {
            ShrinkStep::Unit => units,
            // Half of what is left, each time it is refused.
            ShrinkStep::Whole => u64::from(units.ilog2() + 1),
        };
        let held = [
            settings.downscale_hold_seconds,
            settings.downscale_cooldown_seconds,
            settings.upscale_cooldown_seconds,
        ];
        let held: u64 = held.into_iter().map(u64::from).sum();
        Span(steps * STEP.0 + Span::from_secs(held).0)
    }
}
