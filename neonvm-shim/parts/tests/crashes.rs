//! A guest's part under crashes of its daemon after any step: the order sent again has the same
//! end, and a host that falls silent leaves the former program.

use proptest::prelude::*;
use protocol::parts::{PartName, PartPhase, PartSource};

use neonvm_parts::core::orders::{self, Plan, Step};
use neonvm_parts::core::record::{Record, Verb};
use neonvm_parts::core::refusal::Refusal;
use neonvm_parts::core::request::{Bring, Order};
use neonvm_parts::core::state::{Running, state};
use neonvm_parts::core::trial::source;
use neonvm_parts::shell::places::{Places, Stepped};

/// How an order ended.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Ending {
    Crashed,
    Refused(u16),
    Done(PartPhase),
}

/// A guest with one part, whose process and scripts are played.
struct Guest {
    _root: tempfile::TempDir,
    places: Places,
    running: PartSource,
    uptime_s: u64,
    /// Programs that ran while no trial of them was on the disk.
    ran_unwatched: bool,
}

impl Guest {
    fn new() -> Self {
        let root = tempfile::tempdir().expect("a folder");
        Self {
            places: Places::new(root.path(), PartName::Monitor),
            _root: root,
            running: PartSource::Image,
            uptime_s: 10,
            ran_unwatched: false,
        }
    }

    fn record(&self) -> Record {
        self.places.record().expect("readable")
    }

    fn running(&self) -> Running {
        Running {
            from: self.running,
            sha256: String::new(),
            version: String::new(),
            starts: 1,
            resident_bytes: 1,
        }
    }

    fn phase(&self) -> PartPhase {
        let sight = self.places.sight().expect("readable");
        state(&self.record(), &sight, &self.running(), self.uptime_s).phase
    }

    fn step(&mut self, step: &Step) -> Stepped {
        match step {
            Step::Change(slot) => {
                let sight = self.places.sight().expect("readable");
                self.ran_unwatched |= sight.trial.is_none();
                self.running = source(Some(*slot));
            }
            Step::Stop(slot) if self.running == source(Some(*slot)) => self.start(),
            _ => return self.places.carry_out(step).expect("carried out"),
        }
        Stepped::Done
    }

    /// `service` starts the part: a trial on the disk means that its program has ended.
    fn start(&mut self) {
        let sight = self.places.sight().expect("readable");
        if let Some(trial) = sight.trial.or(sight.returning) {
            let ending = orders::ending(&Record::default(), &trial, "it ended");
            for step in ending {
                self.places.carry_out(&step).expect("carried out");
            }
        }
        self.running = source(self.places.sight().expect("readable").current);
    }

    fn plan(&self, verb: Verb, number: u64) -> Result<Plan, Refusal> {
        let (record, sight) = (self.record(), self.places.sight().expect("readable"));
        let token = format!("t{number}");
        let order = Order {
            token: token.clone(),
            epoch: number,
            seconds: 60,
        };
        match verb {
            Verb::Bring => {
                let request = Bring {
                    sha256: format!("{number:064}"),
                    version: format!("0.1.{number}"),
                    token,
                    epoch: number,
                };
                let slot = match orders::may_bring(&record, &sight, &request)? {
                    Ok(slot) => slot,
                    Err(state) => return Ok(Plan::Repeat(state)),
                };
                self.places.open_draft(slot).expect("opened");
                Ok(orders::brought(&record, slot, &request))
            }
            Verb::Try => orders::attempt(&record, &sight, &order, self.running, self.uptime_s),
            Verb::Keep => orders::keep(&record, &sight, &order),
            Verb::Back => orders::back(&record, &sight, &order),
        }
    }

    /// Carries out an order. The daemon crashes after `limit` steps.
    fn order(&mut self, verb: Verb, number: u64, limit: usize) -> Ending {
        let (steps, mut after) = match self.plan(verb, number) {
            Err(refusal) => return Ending::Refused(refusal.status()),
            Ok(Plan::Repeat(state)) => return Ending::Done(state.phase),
            Ok(Plan::Carry(steps, after)) => (steps, after),
        };
        for (at, step) in steps.iter().enumerate() {
            if at == limit {
                return Ending::Crashed;
            }
            if self.step(step) == Stepped::Lost {
                return Ending::Refused(410);
            }
        }
        if steps.len() == limit {
            return Ending::Crashed;
        }
        let sight = self.places.sight().expect("readable");
        let state = state(&after, &sight, &self.running(), self.uptime_s);
        let phase = state.phase;
        after.remember(&format!("t{number}"), verb, state);
        self.step(&Step::Record(after));
        Ending::Done(phase)
    }

    /// The host falls silent until every trial is over.
    fn silence(&mut self) {
        self.uptime_s += 700;
        let sight = self.places.sight().expect("readable");
        for step in orders::due(&self.record(), &sight, self.uptime_s) {
            self.step(&step);
        }
    }
}

const ALWAYS: usize = usize::MAX;

/// A whole turn: crash after `limit` steps of `verb`, then the same order again.
fn turn(guest: &mut Guest, number: u64, crash: Option<(Verb, usize)>) -> Vec<Ending> {
    [Verb::Bring, Verb::Try, Verb::Keep]
        .map(|verb| {
            if let Some((at, limit)) = crash
                && at == verb
            {
                guest.order(verb, number, limit);
            }
            guest.order(verb, number, ALWAYS)
        })
        .to_vec()
}

/// Requirement: B38
#[test]
fn order_repeated_after_a_crash_at_any_step_has_the_same_end() {
    for verb in [Verb::Bring, Verb::Try, Verb::Keep] {
        for limit in 0..7 {
            let (mut guest, mut calm) = (Guest::new(), Guest::new());
            for number in 1..=3 {
                let crash = Some((verb, limit));
                let endings = turn(&mut guest, number, crash);
                assert_eq!(endings, turn(&mut calm, number, None), "{verb:?} {limit}");
                assert_eq!(endings.last(), Some(&Ending::Done(PartPhase::Settled)));
                assert_eq!(guest.running, calm.running);
                assert_ne!(guest.running, PartSource::Image);
            }
            assert!(!guest.ran_unwatched);
        }
    }
}

/// Requirement: R09
#[test]
fn silence_after_a_crash_at_any_step_leaves_the_former_program() {
    for limit in 0..7 {
        let mut guest = Guest::new();
        turn(&mut guest, 1, None);
        let before = guest.running;
        guest.order(Verb::Bring, 2, ALWAYS);
        guest.order(Verb::Try, 2, limit);
        guest.silence();
        assert_eq!(guest.running, before, "{limit}");
        assert_ne!(guest.phase(), PartPhase::Trial, "{limit}");
        let refused = guest.order(Verb::Keep, 2, ALWAYS);
        assert!(
            matches!(refused, Ending::Refused(409 | 410)),
            "{limit} {refused:?}"
        );
    }
}

/// Requirement: R09, B36
#[test]
fn program_that_ends_on_trial_is_taken_back_at_its_next_start() {
    let mut guest = Guest::new();
    guest.order(Verb::Bring, 1, ALWAYS);
    guest.order(Verb::Try, 1, ALWAYS);
    assert_eq!(guest.running, PartSource::A);
    guest.start();
    assert_eq!(
        (guest.running, guest.phase()),
        (PartSource::Image, PartPhase::Back)
    );
    assert_eq!(guest.order(Verb::Keep, 1, ALWAYS), Ending::Refused(410));
    assert_eq!(
        guest.order(Verb::Back, 1, ALWAYS),
        Ending::Done(PartPhase::Back)
    );
    let again = guest.order(Verb::Try, 1, ALWAYS);
    assert_eq!(
        again,
        Ending::Done(PartPhase::Trial),
        "the response of before"
    );
    assert_eq!(guest.running, PartSource::Image, "a token acts once");
}

proptest! {
    /// Any orders, crashes, ends of the process and silences: the part runs what its link names
    /// once it has started, no brought program ran unwatched, and silence ends every trial.
    #[test]
    fn any_history_ends_settled(
        history in prop::collection::vec((0_u8..6, 1_u64..4, 0_usize..8), 0..24),
    ) {
        let mut guest = Guest::new();
        for (kind, number, limit) in history {
            let verb = match kind {
                0 => Verb::Bring,
                1 => Verb::Try,
                2 => Verb::Keep,
                3 => Verb::Back,
                4 => {
                    guest.start();
                    continue;
                }
                _ => {
                    guest.silence();
                    continue;
                }
            };
            guest.order(verb, number, limit);
        }
        guest.silence();
        prop_assert!(!guest.ran_unwatched);
        prop_assert_ne!(guest.phase(), PartPhase::Trial);
        let runs = guest.running;
        guest.start();
        // A daemon that crashed between link and process leaves the former program until then.
        let is_other = runs != guest.running;
        prop_assert!(!is_other || guest.running == PartSource::Image || runs == PartSource::Image);
    }
}
