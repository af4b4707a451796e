//! How soon must the world have converged once nothing goes wrong any more?
//!
//! * A phase without faults has the smallest bound: that of its slowest VM ([`undisturbed`], and
//!   what the VM's own settings add).
//! * Each kind of fault adds the timers that it may leave running ([`rows`]). A phase has the bound
//!   of the slowest fault that was played in it.
//! * A VM whose guest is down when the faults end has the row of a guest's crash.
//!
//! README.md lists the rows; a test compares.

mod rows;

use agent::core::{ScalingConfig, ShrinkStep, Timers, VmInfo};
use protocol::time::Span;
use vm_monitor::core::memory::Rules;

use crate::agent::times::SCRAPE_PERIOD;
use crate::policy::delays_convergence;
use crate::store::Kind;
use crate::world::World;
use rows::{GUEST_CRASH, NO_FAULTS, rows};

/// Messages on their way, and the moves of CPUs and memory in the guests.
const MARGIN: Span = Span::from_secs(10);
/// One step of a shrink, with the monitor's refusal and the pause after it.
const STEP: Span = Span::from_secs(6);

/// Bound of a VM with default settings in a phase without faults: a scrape shows the load, an
/// upscale request of before holds the size, a shrink waits for the peak of use to pass, and the
/// next permit request reports the size.
fn undisturbed() -> Span {
    let timers = Timers::default();
    sum(&[
        SCRAPE_PERIOD,
        timers.monitor_requested_upscale_valid_period,
        Rules::default().peak_window,
        timers.permit_request_tick,
        MARGIN,
    ])
}

fn sum(spans: &[Span]) -> Span {
    Span(spans.iter().map(|span| span.0).sum())
}

/// What a fault that the tally counts under `name` adds to [`undisturbed`]. `None` if the table has
/// no such row.
fn fault_adds(name: &str) -> Option<Span> {
    let rows = rows();
    let mut found = rows.iter().filter(|row| row.faults.contains(&name));
    found.next().map(|row| row.adds())
}

impl World {
    /// Bound of the phase that ends now: that of the slowest VM.
    pub(crate) fn recovers_within(&mut self) -> Span {
        if let Some(bound) = self.fault_schedule.fixed_bound {
            return bound;
        }
        let faults = self.played_faults_add();
        let bounds = (0..self.vms.len()).map(|vm| self.vm_recovers_within(vm, faults));
        bounds.max().unwrap_or_else(undisturbed)
    }

    /// What the slowest fault adds that was played in this phase.
    fn played_faults_add(&mut self) -> Span {
        let mut slowest = Span(0);
        for name in self.tally.names_since(&self.fault_schedule.tally_before) {
            // Guests that are still down are asked for one by one.
            let is_advice = name.starts_with("advice ");
            if name == GUEST_CRASH || is_advice || NO_FAULTS.contains(&name) {
                continue;
            }
            match fault_adds(name) {
                Some(adds) => slowest = slowest.max(adds),
                None => self.checks.fail(
                    "every_fault_has_a_bound",
                    None,
                    format!("{name:?} is in no row of sim/src/recovery/rows.rs"),
                ),
            }
        }
        slowest
    }

    fn vm_recovers_within(&self, vm: usize, faults: Span) -> Span {
        let is_up = self.vms[vm].machine.as_ref().is_some_and(|it| it.is_up);
        let crash = if is_up { None } else { fault_adds(GUEST_CRASH) };
        let adds = faults.max(crash.unwrap_or_default());
        let policy = delays_convergence(self.options.policy);
        sum(&[undisturbed(), adds, self.settings_take(vm), policy])
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

#[cfg(test)]
mod tests;
