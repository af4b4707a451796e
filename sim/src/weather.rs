//! Storm and calm. In a storm loads change and things go wrong; a calm has neither, and at its end
//! everything must be where it should be.

use protocol::time::{Span, Timestamp};

use crate::dice::{Dice, MILLION};
use crate::event::{Event, Reader};
use crate::faults::rates;
use crate::journal::{Note, Part};
use crate::options::{Level, Sabotage};
use crate::store::Kind;
use crate::world::{Load, Whims, World};

/// Shortest and longest storm.
const STORM: (Span, Span) = (Span::from_secs(60), Span::from_secs(600));
/// Between two changes of a guest's load.
const LOAD_LASTS: (u64, u64) = (5_000, 120_000);

/// Storm or calm.
#[derive(Debug, Clone, Copy, Default)]
pub struct Weather {
    /// Whether things go wrong and loads change.
    pub storm: bool,
    /// When the storm ends.
    pub storm_ends: Timestamp,
    /// When calm began.
    pub calm_since: Timestamp,
    /// The API server is away until then.
    pub away_until: Timestamp,
    /// The last stalled call is carried out then.
    pub stalled_until: Timestamp,
    /// Calms that ended well.
    pub judged: u64,
}

impl Weather {
    /// Whether the API server does not answer.
    #[must_use]
    pub fn api_is_away(&self, now: Timestamp) -> bool {
        now < self.away_until
    }
}

impl World {
    pub(crate) fn first_weather(&mut self, dice: &mut Dice) {
        // Each world has time to come up before the first storm.
        let first = dice.millis(15_000, 40_000);
        self.weather.storm = true;
        self.weather.storm_ends = self.now + first;
        self.put(self.weather.storm_ends, Event::Calm);
    }

    fn begin_storm(&mut self) {
        let length = self.dice.span(STORM.0, STORM.1);
        self.weather.storm = true;
        self.weather.storm_ends = self.now + length;
        self.rates = rates(self.options.level);
        self.note(Note::Storm);
        self.put(self.weather.storm_ends, Event::Calm);
        for vm in 0..self.vms.len() {
            let delay = self.load_dice.millis(0, 30_000);
            self.after(delay, Event::Load(vm));
        }
        if self.options.level != Level::None {
            self.next_mischief();
        }
    }

    fn next_mischief(&mut self) {
        let mean = self.rates.mischief.0;
        // More VMs, more that can go wrong.
        let mean = Span(mean * 8 / (8 + self.vms.len() as u64));
        let pause = self.dice.span(Span::from_millis(10), Span(mean.0 * 2));
        self.after(pause, Event::Mischief);
    }

    /// Faults stop: whatever is under way ends, crashed parts are back.
    pub(crate) fn calm(&mut self) {
        self.weather.storm = false;
        self.weather.calm_since = self.now;
        self.weather.away_until = self.now;
        self.rates = rates(Level::None);
        self.note(Note::Calm);
        let within = self.recovers_within();
        let now = self.now;
        for reader in self.streams.values_mut() {
            reader.stalled_until = now;
        }
        for vm in 0..self.vms.len() {
            self.vms[vm].whims = Whims::default();
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
        let begin = self.now.max(self.weather.stalled_until);
        self.put(begin + within, Event::Judge);
    }

    /// The end of a calm.
    pub(crate) fn judge(&mut self) {
        self.all_is_where_it_should_be();
        self.weather.judged += 1;
        self.begin_storm();
    }

    pub(crate) fn load_changes(&mut self, vm: usize) {
        if !self.weather.storm {
            return;
        }
        let (min, max) = self.vms[vm].bounds;
        let units = self
            .load_dice
            .between(u64::from(min.saturating_sub(1)), u64::from(max + 1));
        let dice = &mut self.load_dice;
        let milli = if dice.chance(MILLION / 2) {
            units * 225
        } else {
            dice.below(u64::from(max) * 250)
        };
        let mib = if dice.chance(MILLION / 2) {
            units * 700
        } else {
            dice.below(u64::from(max) * 800)
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
        let next = self.load_dice.millis(LOAD_LASTS.0, LOAD_LASTS.1);
        self.after(next, Event::Load(vm));
    }

    /// Something goes wrong.
    pub(crate) fn mischief(&mut self) {
        if !self.weather.storm {
            return;
        }
        let vm = self.dice.index(self.vms.len());
        let node = self.dice.index(self.nodes.len());
        let last = Span(
            self.dice
                .span(Span::from_millis(200), Span::from_secs(40))
                .0,
        );
        let short = self.dice.span(Span::from_millis(50), Span::from_secs(8));
        let until = (self.now + last).min(self.weather.storm_ends);
        // Where there are two of them, that is what the run is for.
        if self.schedulers.len() > 1 && self.dice.chance(MILLION / 4) {
            self.scheduler_trouble(short);
            return self.next_mischief();
        }
        match self.dice.below(22) {
            0 | 1 => self.crash(Part::Agent(node), short),
            2 | 3 => self.scheduler_trouble(short),
            4 => self.crash(Part::Controller, short),
            5 => self.crash(Part::Runner(vm), short),
            6 => self.crash(Part::Monitor(vm), short),
            7 => self.break_a_link(vm),
            8 => self.stall_a_watch(until),
            9 => self.gap_in_a_watch(),
            10 => self.api_goes_away(short),
            11 => self.whim(vm, "monitor hangs", |whims| whims.frozen_until = until),
            12 => self.whim(vm, "monitor absent", |whims| whims.absent_until = until),
            13 => self.whim(vm, "memory unreadable", |whims| {
                whims.unreadable_until = until
            }),
            14 => self.whim(vm, "metrics mute", |whims| whims.mute_until = until),
            15 => self.guest_lies(vm, until),
            16 => self.whim(vm, "cpu clings", |whims| whims.clings_until = until),
            17 => self.whim(vm, "memory blocked", |whims| whims.blocks_until = until),
            18 => self.whim(vm, "memory slow", |whims| whims.slow_until = until),
            19 if self.dice.chance(MILLION / 3) => {
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
        self.next_mischief();
    }

    fn whim(&mut self, vm: usize, name: &'static str, set: impl FnOnce(&mut Whims)) {
        self.tally.count(name);
        self.note(Note::Fault(name, vm));
        set(&mut self.vms[vm].whims);
        if name == "monitor absent" {
            self.break_a_link(vm);
        }
    }

    fn guest_lies(&mut self, vm: usize, until: Timestamp) {
        let percent = self.dice.between(10, 190);
        self.whim(vm, "guest lies", |whims| {
            whims.lies_percent = percent;
            whims.lies_until = until;
        });
    }

    fn break_a_link(&mut self, vm: usize) {
        self.tally.count("connection broken");
        self.note(Note::Fault("connection broken", vm));
        let open: Vec<u64> = self.vms[vm].connections.keys().copied().collect();
        for connection in open {
            self.break_connection(vm, connection);
        }
    }

    fn a_reader(&mut self) -> Option<Reader> {
        let readers: Vec<Reader> = self.streams.keys().copied().collect();
        let index = self.dice.index(readers.len());
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
            let pause = self.dice.millis(500, 1_000);
            self.restart_stream(reader, pause);
        }
    }

    fn api_goes_away(&mut self, span: Span) {
        self.tally.count("api away");
        self.note(Note::Fault("api away", 0));
        self.weather.away_until = (self.now + span).min(self.weather.storm_ends);
        // Whoever watched has to list again.
        let readers: Vec<Reader> = self
            .streams
            .keys()
            .copied()
            .filter(|reader| self.is_up(reader.part))
            .collect();
        for reader in readers {
            let pause = self.dice.millis(500, 1_000);
            self.restart_stream(reader, pause);
        }
    }
}
