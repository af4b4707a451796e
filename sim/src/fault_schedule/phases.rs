//! Begin and end of the phases, and the loads in them.

use protocol::time::Span;

use crate::event::Event;
use crate::faults::rates;
use crate::journal::{Note, Part};
use crate::options::{Level, Sabotage};
use crate::rng::{MILLION, Rng};
use crate::world::{GuestFaults, Load, World};

/// Shortest and longest fault phase.
const FAULT_PHASE: (Span, Span) = (Span::from_secs(60), Span::from_secs(600));

/// Shortest and longest time between two changes of a guest's load, ms.
const LOAD_LASTS: (u64, u64) = (5_000, 120_000);

impl World {
    pub(crate) fn first_fault_phase(&mut self, rng: &mut Rng) {
        // Each world has time to come up before the first fault phase.
        let first = rng.millis(15_000, 40_000);
        self.fault_schedule.is_active = true;
        self.fault_schedule.faults_end = self.now + first;
        self.put(self.fault_schedule.faults_end, Event::Quiesce);
    }

    fn begin_fault_phase(&mut self) {
        let length = self.rng.span(FAULT_PHASE.0, FAULT_PHASE.1);
        self.fault_schedule.is_active = true;
        self.fault_schedule.faults_end = self.now + length;
        self.fault_schedule.tally_before = self.tally.clone();
        self.rates = rates(self.options.level);
        self.note(Note::Storm);
        self.put(self.fault_schedule.faults_end, Event::Quiesce);
        for vm in 0..self.vms.len() {
            let delay = self.load_rng.millis(0, 30_000);
            self.after(delay, Event::Load(vm));
        }
        if self.options.level != Level::None {
            self.schedule_next_fault();
        }
    }

    pub(super) fn schedule_next_fault(&mut self) {
        let mean = self.rates.fault_pause.0;
        // More VMs, more that can go wrong.
        let mean = Span(mean * 8 / (8 + self.vms.len() as u64));
        let pause = self.rng.span(Span::from_millis(10), Span(mean.0 * 2));
        self.after(pause, Event::InjectFault);
    }

    /// Stops all faults. Requests in flight end, and crashed components are back.
    pub(crate) fn quiesce(&mut self) {
        self.fault_schedule.is_active = false;
        self.fault_schedule.quiescent_since = self.now;
        self.fault_schedule.away_until = self.now;
        self.rates = rates(Level::None);
        self.note(Note::Calm);
        let within = self.recovers_within();
        let now = self.now;
        for reader in self.streams.values_mut() {
            reader.stalled_until = now;
        }
        for vm in 0..self.vms.len() {
            self.vms[vm].guest_faults = GuestFaults::default();
            self.memory_shall_move(vm);
            for part in [Part::Runner(vm), Part::Monitor(vm)] {
                self.start(part);
            }
        }
        let nodes = 0..self.nodes.len();
        for part in nodes
            .map(Part::Agent)
            .chain((0..self.schedulers.len()).map(Part::Scheduler))
            .chain([Part::Controller])
        {
            self.start(part);
        }
        let begin = self.now.max(self.fault_schedule.stalled_until);
        self.put(begin + within, Event::CheckConverged);
    }

    /// End of a quiescent phase: the world must have converged.
    pub(crate) fn check_converged(&mut self) {
        self.all_is_where_it_should_be();
        self.fault_schedule.converged += 1;
        self.begin_fault_phase();
    }

    pub(crate) fn load_changes(&mut self, vm: usize) {
        if !self.fault_schedule.is_active {
            return;
        }
        let (min, max) = self.vms[vm].bounds;
        let units = self
            .load_rng
            .between(u64::from(min.saturating_sub(1)), u64::from(max + 1));
        let rng = &mut self.load_rng;
        let milli = if rng.chance(MILLION / 2) {
            units * 225
        } else {
            rng.below(u64::from(max) * 250)
        };
        let mib = if rng.chance(MILLION / 2) {
            units * 700
        } else {
            rng.below(u64::from(max) * 800)
        };
        let load = Load {
            milli: u32::try_from(milli).unwrap_or(0),
            mib,
        };
        if self.cheats(Sabotage::GrowUnseen)
            && let Some(machine) = self.vms[vm].machine.as_mut()
        {
            machine.size += 1 << 40;
            self.checks.touch(vm);
        }
        self.vms[vm].load = load;
        self.note(Note::Load {
            vm,
            milli: load.milli,
            mib,
        });
        let next = self.load_rng.millis(LOAD_LASTS.0, LOAD_LASTS.1);
        self.after(next, Event::Load(vm));
    }
}
