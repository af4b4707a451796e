//! Fault phases and quiescent phases. In a fault phase loads change and components fail. A
//! quiescent phase has neither, and at its end the world must have converged.

use protocol::time::{Span, Timestamp};

use crate::event::{Event, Reader};
use crate::faults::{Tally, rates};
use crate::journal::{Note, Part};
use crate::options::{Level, Sabotage};
use crate::rng::{MILLION, Rng};
use crate::store::Kind;
use crate::watch::RELIST_PAUSE;
use crate::world::{GuestFaults, Load, World};

/// Shortest and longest fault phase.
const FAULT_PHASE: (Span, Span) = (Span::from_secs(60), Span::from_secs(600));
/// Number of kinds that [`World::play_fault`] draws from. Frequent kinds have two numbers.
pub(crate) const FAULT_KINDS: u64 = 22;
/// Shortest and longest time between two changes of a guest's load, ms.
const LOAD_LASTS: (u64, u64) = (5_000, 120_000);

/// Phases of a run. Fault phases and quiescent phases alternate.
#[derive(Debug, Clone, Default)]
pub struct FaultSchedule {
    /// Whether faults happen and loads change.
    pub is_active: bool,
    /// End of the fault phase.
    pub faults_end: Timestamp,
    /// Begin of the quiescent phase.
    pub quiescent_since: Timestamp,
    /// End of the API server's outage.
    pub away_until: Timestamp,
    /// Time at which the last stalled call is carried out.
    pub stalled_until: Timestamp,
    /// Number of quiescent phases at whose end the world had converged.
    pub converged: u64,
    /// Counts of faults when the phase began.
    pub(crate) tally_before: Tally,
    /// Bound of every quiescent phase in place of that of its faults. Set only in tests.
    pub(crate) fixed_bound: Option<Span>,
}

/// Where a fault strikes and for how long.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FaultTarget {
    pub(crate) vm: usize,
    pub(crate) node: usize,
    /// Time until a crashed component starts again.
    pub(crate) short: Span,
    /// End of a fault of a guest or of a watch.
    pub(crate) until: Timestamp,
}

impl FaultSchedule {
    /// Whether the API server gives no responses at `now`.
    #[must_use]
    pub fn api_is_away(&self, now: Timestamp) -> bool {
        now < self.away_until
    }
}

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

    fn schedule_next_fault(&mut self) {
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

    /// Injects one fault, drawn from the seed.
    pub(crate) fn inject_fault(&mut self) {
        if !self.fault_schedule.is_active {
            return;
        }
        let target = self.draw_target();
        // Where there are two of them, that is what the run is for.
        if self.schedulers.len() > 1 && self.rng.chance(MILLION / 4) {
            self.scheduler_trouble(target.short);
            return self.schedule_next_fault();
        }
        let kind = self.rng.below(FAULT_KINDS);
        self.play_fault(kind, target);
        self.schedule_next_fault();
    }

    pub(crate) fn draw_target(&mut self) -> FaultTarget {
        let vm = self.rng.index(self.vms.len());
        let node = self.rng.index(self.nodes.len());
        let last = self.rng.span(Span::from_millis(200), Span::from_secs(40));
        let short = self.rng.span(Span::from_millis(50), Span::from_secs(8));
        FaultTarget {
            vm,
            node,
            short,
            until: (self.now + last).min(self.fault_schedule.faults_end),
        }
    }

    /// Injects a fault by its number, from 0 to [`FAULT_KINDS`].
    pub(crate) fn play_fault(&mut self, kind: u64, target: FaultTarget) {
        let FaultTarget {
            vm,
            node,
            short,
            until,
        } = target;
        match kind {
            0 | 1 => self.crash(Part::Agent(node), short),
            2 | 3 => self.scheduler_trouble(short),
            4 => self.crash(Part::Controller, short),
            5 => self.crash(Part::Runner(vm), short),
            6 => self.crash(Part::Monitor(vm), short),
            7 => self.break_a_link(vm),
            8 => self.stall_a_watch(until),
            9 => self.gap_in_a_watch(),
            10 => self.api_goes_away(short),
            11..=18 => self.guest_misbehaves(kind, vm, until),
            19 if self.rng.chance(MILLION / 3) => {
                self.tally.count("guest crash");
                self.guest_ends(vm, "a panic of its own");
            }
            20 => {
                self.tally.count("guest oom");
                self.vms[vm].load.mib = 150;
                self.crash(Part::Monitor(vm), short);
            }
            _ => {
                self.tally.count("object touched");
                self.touch_object(vm);
            }
        }
    }

    fn guest_misbehaves(&mut self, kind: u64, vm: usize, until: Timestamp) {
        match kind {
            11 => self.guest_fault(vm, "monitor hangs", |it| it.frozen_until = until),
            12 => self.guest_fault(vm, "monitor absent", |it| it.absent_until = until),
            13 => self.guest_fault(vm, "memory unreadable", |it| it.unreadable_until = until),
            14 => self.guest_fault(vm, "metrics mute", |it| it.mute_until = until),
            15 => self.guest_lies(vm, until),
            16 => self.guest_fault(vm, "cpu clings", |it| it.clings_until = until),
            17 => self.guest_fault(vm, "memory blocked", |it| it.blocks_until = until),
            _ => self.guest_fault(vm, "memory slow", |it| it.slow_until = until),
        }
    }

    fn guest_fault(&mut self, vm: usize, name: &'static str, set: impl FnOnce(&mut GuestFaults)) {
        self.tally.count(name);
        self.note(Note::Fault(name, vm));
        set(&mut self.vms[vm].guest_faults);
        if name == "monitor absent" {
            self.break_a_link(vm);
        }
    }

    fn guest_lies(&mut self, vm: usize, until: Timestamp) {
        let percent = self.rng.between(10, 190);
        self.guest_fault(vm, "guest lies", |guest_faults| {
            guest_faults.lies_percent = percent;
            guest_faults.lies_until = until;
        });
    }

    pub(crate) fn break_a_link(&mut self, vm: usize) {
        self.tally.count("connection broken");
        self.note(Note::Fault("connection broken", vm));
        let open: Vec<u64> = self.vms[vm].connections.keys().copied().collect();
        for connection in open {
            self.break_connection(vm, connection);
        }
    }

    fn a_reader(&mut self) -> Option<Reader> {
        let readers: Vec<Reader> = self.streams.keys().copied().collect();
        let index = self.rng.index(readers.len());
        readers
            .get(index)
            .copied()
            .filter(|reader| reader.kind != Kind::Node)
    }

    fn stall_a_watch(&mut self, until: Timestamp) {
        if let Some(stream) = self
            .a_reader()
            .and_then(|reader| self.streams.get_mut(&reader))
        {
            stream.stalled_until = until;
            self.tally.count("watch stale");
            self.note(Note::Fault("watch stalls", 0));
        }
    }

    fn gap_in_a_watch(&mut self) {
        if let Some(reader) = self.a_reader().filter(|reader| self.is_up(reader.part)) {
            self.tally.count("watch gap");
            self.note(Note::Fault("watch gap", 0));
            let pause = self.rng.span(RELIST_PAUSE.0, RELIST_PAUSE.1);
            self.restart_stream(reader, pause);
        }
    }

    fn api_goes_away(&mut self, span: Span) {
        self.tally.count("api away");
        self.note(Note::Fault("api away", 0));
        self.fault_schedule.away_until = (self.now + span).min(self.fault_schedule.faults_end);
        // Whoever watched has to list again.
        let readers: Vec<Reader> = self
            .streams
            .keys()
            .copied()
            .filter(|reader| self.is_up(reader.part))
            .collect();
        for reader in readers {
            let pause = self.rng.span(RELIST_PAUSE.0, RELIST_PAUSE.1);
            self.restart_stream(reader, pause);
        }
    }
}
