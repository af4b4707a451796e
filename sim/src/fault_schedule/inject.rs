//! Injects the faults of a fault phase.

use protocol::time::{Span, Timestamp};

use super::{FAULT_KINDS, FaultTarget};
use crate::event::Reader;
use crate::journal::{Note, Part};
use crate::rng::MILLION;
use crate::store::Kind;
use crate::watch::RELIST_PAUSE;
use crate::world::{GuestFaults, World};

impl World {
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
        // Each client with a watch must list again.
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
