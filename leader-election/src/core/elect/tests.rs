use super::*;
use crate::core::lease::{Lead, Standing, Turn};
use proptest::prelude::*;

const DURATION: Span = Span::from_secs(8);

const fn at(seconds: u64) -> Timestamp {
    Timestamp(seconds * 1_000_000)
}

fn rule(identity: &str) -> ElectRule {
    ElectRule {
        identity: identity.into(),
        duration: DURATION,
        settle: Span::from_secs(2),
    }
}

/// A state of version `version` held by `holder`.
fn state(version: u64, holder: &str) -> LeaseState {
    LeaseState {
        version,
        holder: holder.into(),
        duration: DURATION,
        transitions: 3,
        is_drained: false,
        handover: None,
    }
}

fn drained(handover: Option<&str>) -> Leave {
    Leave {
        is_drained: true,
        handover: handover.map(str::to_owned),
    }
}

fn write_of(step: Step) -> LeaseWrite {
    match step {
        Step::Write(write) => write,
        other => panic!("no write: {other:?}"),
    }
}

/// What the API makes of a write.
fn applied(write: &LeaseWrite, version: u64) -> LeaseState {
    LeaseState {
        version,
        ..write.state.clone()
    }
}

/// An elector that has read this.
fn reader(now: Timestamp, found: Option<LeaseState>) -> Elector {
    let mut elector = Elector::new(rule("a"));
    assert_eq!(elector.poll(now), Step::Read);
    assert_eq!(
        elector.poll(now),
        Step::Wait(Timestamp(u64::MAX)),
        "one call"
    );
    assert_eq!(elector.seen(now, found), None);
    elector
}

#[test]
fn anothers_lease_is_taken_when_it_was_not_renewed_for_its_duration() {
    let mut elector = reader(at(100), Some(state(5, "b")));
    assert_eq!(elector.poll(at(100)), Step::Wait(at(108)));
    elector.seen(at(103), Some(state(6, "b")));
    assert_eq!(elector.poll(at(108)), Step::Wait(at(111)));
    // The same state again, and an older one, are no renewals.
    elector.seen(at(110), Some(state(6, "b")));
    elector.seen(at(110), Some(state(5, "b")));
    let write = write_of(elector.poll(at(111)));
    assert_eq!(
        (write.base, write.takes, write.state.transitions),
        (Some(6), true, 4)
    );
    let told = elector
        .written(at(112), applied(&write, 7))
        .expect("is told");
    let expected = LeaseSeen {
        holder: "a".into(),
        renewed: at(111),
        settled: at(111),
        handover: None,
    };
    assert_eq!(
        told, expected,
        "counted from its sending; the other stopped at its deadline"
    );
    assert_eq!(
        elector.poll(at(111)),
        Step::Wait(at(112)),
        "renewed each second"
    );
    let write = write_of(elector.poll(at(112)));
    assert_eq!(
        (write.base, write.takes, write.state.transitions),
        (Some(7), false, 4)
    );
    // A longer Lease than ours is respected for as long as it says.
    let long = LeaseState {
        duration: Span::from_secs(15),
        ..state(5, "b")
    };
    assert_eq!(
        reader(at(100), Some(long)).poll(at(108)),
        Step::Wait(at(115))
    );
    let short = LeaseState {
        duration: Span(0),
        ..state(5, "b")
    };
    assert_eq!(
        reader(at(100), Some(short)).poll(at(101)),
        Step::Wait(at(108))
    );
}

#[test]
fn a_lease_handed_over_is_led_at_once_and_one_that_is_gone_is_not() {
    for (found, settled) in [
        (
            Some(LeaseState {
                is_drained: true,
                ..state(9, "")
            }),
            at(100),
        ),
        (Some(state(9, "")), at(108)),
        (None, at(108)),
    ] {
        let base = found.as_ref().map(|state| state.version);
        let mut elector = reader(at(100), found);
        let write = write_of(elector.poll(at(100)));
        assert_eq!((write.base, write.state.is_drained), (base, false));
        let told = elector
            .written(at(100), applied(&write, 10))
            .expect("is told");
        assert_eq!(told.settled, settled, "{base:?}");
        let mut lead = Lead::new(rule("a").lease_rule());
        lead.seen(at(100), &told);
        let leads = matches!(lead.standing(at(100)), Standing::Leading { .. });
        assert_eq!(leads, settled == at(100));
    }
}

#[test]
fn a_failed_call_is_made_again_after_a_pause_and_starts_no_duration_anew() {
    let mut elector = reader(at(100), Some(state(5, "b")));
    let write = write_of(elector.poll(at(108)));
    elector.failed(at(109));
    assert_eq!(elector.poll(at(109)), Step::Wait(at(110)));
    assert_eq!(elector.poll(at(110)), Step::Read);
    elector.seen(at(110), Some(state(5, "b")));
    assert_eq!(write_of(elector.poll(at(110))), write);
    // This one landed and its answer was lost: it is ours, and led once a renewal says since when.
    elector.failed(at(111));
    assert_eq!(elector.poll(at(112)), Step::Read);
    assert_eq!(elector.seen(at(112), Some(applied(&write, 6))), None);
    let write = write_of(elector.poll(at(112)));
    assert!(!write.takes);
    let told = elector
        .written(at(113), applied(&write, 7))
        .expect("is told");
    assert_eq!((told.renewed, told.settled), (at(112), at(108)));
}

#[test]
fn who_is_told_to_leave_gives_it_up_and_takes_none() {
    let mut elector = reader(at(100), None);
    let write = write_of(elector.poll(at(100)));
    elector.written(at(100), applied(&write, 1));
    elector.leave(drained(None));
    assert!(!elector.has_left());
    let write = write_of(elector.poll(at(108)));
    assert_eq!(
        (write.state.holder.as_str(), write.state.is_drained),
        ("", true)
    );
    let told = elector
        .written(at(109), applied(&write, 2))
        .expect("is told");
    assert_eq!((told.holder.as_str(), elector.has_left()), ("", true));
    assert_eq!(elector.poll(at(200)), Step::Wait(Timestamp(u64::MAX)));
    let mut follower = reader(at(100), Some(state(5, "b")));
    follower.leave(drained(None));
    assert!(follower.has_left());
}

#[test]
fn who_leaves_before_it_settled_promises_nothing_of_the_one_before() {
    let mut elector = reader(at(100), None);
    let write = write_of(elector.poll(at(100)));
    elector.written(at(100), applied(&write, 1));
    elector.leave(drained(None));
    let write = write_of(elector.poll(at(101)));
    assert_eq!(
        (write.state.holder.as_str(), write.state.is_drained),
        ("", false)
    );
}

/// What whoever takes this Lease is told.
fn told_of(found: LeaseState) -> LeaseSeen {
    let now = at(200);
    let mut elector = reader(now, Some(found));
    let write = write_of(elector.poll(now));
    assert_eq!(write.state.handover, None, "it is removed");
    let told = elector.written(now, applied(&write, 100));
    let told = told.expect("is told");
    let again = write_of(elector.poll(now + rule("a").retry()));
    let renewed = elector.written(now, applied(&again, 101));
    assert_eq!(renewed.expect("is told").handover, None, "it is told once");
    told
}

#[test]
fn a_note_reaches_whoever_takes_over_from_the_one_that_left_it_and_nobody_else() {
    let mut elector = reader(at(100), None);
    let write = write_of(elector.poll(at(100)));
    elector.written(at(100), applied(&write, 1));
    elector.leave(drained(Some("all to 7")));
    let write = write_of(elector.poll(at(108)));
    let left = applied(&write, 2);
    assert_eq!(
        left.handover.as_ref().map(|handover| handover.transitions),
        Some(1)
    );
    assert_eq!(told_of(left.clone()).handover.as_deref(), Some("all to 7"));
    // A holder of before notes were known took it and gave it up: it removed its own mark alone.
    let since = LeaseState {
        transitions: 2,
        ..left.clone()
    };
    assert_eq!(told_of(since).handover, None, "somebody led since");
    let undrained = LeaseState {
        is_drained: false,
        ..left.clone()
    };
    assert_eq!(
        told_of(undrained).handover,
        None,
        "something may be under way"
    );
    let mut late = reader(
        at(190),
        Some(LeaseState {
            holder: "b".into(),
            ..left
        }),
    );
    let write = write_of(late.poll(at(198)));
    let told = late.written(at(198), applied(&write, 3));
    assert_eq!(
        told.expect("is told").handover,
        None,
        "it was not handed over"
    );
}

#[test]
fn who_leaves_before_it_settled_leaves_no_note() {
    let mut elector = reader(at(100), None);
    let write = write_of(elector.poll(at(100)));
    elector.written(at(100), applied(&write, 1));
    elector.leave(drained(Some("all to 7")));
    assert_eq!(write_of(elector.poll(at(101))).state.handover, None);
}

#[test]
fn a_lease_that_is_taken_or_deleted_under_us_ends_the_lead_at_once() {
    for lost in [Some(state(9, "b")), Some(state(9, "")), None] {
        let mut elector = reader(at(100), None);
        let write = write_of(elector.poll(at(100)));
        elector.written(at(100), applied(&write, 1));
        let told = elector.seen(at(101), lost.clone()).expect("is told");
        assert_ne!(told.holder, "a");
        assert_eq!(elector.seen(at(101), lost), None, "once");
    }
}

/// What may happen to one of three processes at a moment.
#[derive(Debug, Clone)]
enum Blow {
    /// Time passes, in tenths of a second.
    Pass(u64),
    /// It is killed, and the next of its place starts.
    Restart(usize),
    /// It does not run for that many tenths.
    Freeze(usize, u64),
    /// Its next calls do this to the API and to it.
    Calls(usize, bool, bool),
    /// It sees what there is.
    Watch(usize),
    /// It is told to go; whether its calls have ended.
    Leave(usize, bool),
    /// Somebody deletes the Lease.
    Delete,
}

fn blows() -> impl Strategy<Value = Vec<Blow>> {
    let one = prop_oneof![
        8 => (1_u64..40).prop_map(Blow::Pass),
        1 => (0_usize..3).prop_map(Blow::Restart),
        1 => (0_usize..3, 1_u64..200).prop_map(|(n, for_)| Blow::Freeze(n, for_)),
        2 => (0_usize..3, any::<bool>(), any::<bool>()).prop_map(|(n, a, b)| Blow::Calls(n, a, b)),
        4 => (0_usize..3).prop_map(Blow::Watch),
        1 => (0_usize..3, any::<bool>()).prop_map(|(n, drained)| Blow::Leave(n, drained)),
        1 => Just(Blow::Delete),
    ];
    proptest::collection::vec(one, 1..120)
}

struct Process {
    elector: Elector,
    lead: Lead,
    /// Its calls reach the API, and their answers reach it.
    arrives: bool,
    answered: bool,
    frozen_until: Timestamp,
    /// Sent and not landed yet: it lands late.
    late: Option<(Timestamp, LeaseWrite)>,
    /// Until when something of its term may yet be under way.
    busy_until: Timestamp,
}

struct Api {
    now: Timestamp,
    version: u64,
    lease: Option<LeaseState>,
    processes: Vec<Process>,
    started: u64,
    led: u64,
    noted: u64,
    /// Whoever held it, the last one last.
    holders: Vec<String>,
}

impl Api {
    fn new() -> Self {
        let mut api = Self {
            now: at(100),
            version: 1,
            lease: None,
            processes: Vec::new(),
            started: 0,
            led: 0,
            noted: 0,
            holders: Vec::new(),
        };
        api.processes = (0..3).map(|_| api.process()).collect();
        api
    }

    fn process(&mut self) -> Process {
        self.started += 1;
        let rule = rule(&format!("p{}", self.started));
        Process {
            lead: Lead::new(rule.lease_rule()),
            elector: Elector::new(rule),
            arrives: true,
            answered: true,
            frozen_until: Timestamp(0),
            late: None,
            busy_until: Timestamp(0),
        }
    }

    fn apply(&mut self, write: &LeaseWrite) -> Option<LeaseState> {
        if self.lease.as_ref().map(|lease| lease.version) != write.base {
            return None;
        }
        self.version += 1;
        self.lease = Some(applied(write, self.version));
        let holder = &write.state.holder;
        if !holder.is_empty() && self.holders.last() != Some(holder) {
            self.holders.push(holder.clone());
        }
        self.lease.clone()
    }

    /// One process does what is due.
    fn run(&mut self, n: usize) {
        let now = self.now;
        if self.processes[n].frozen_until > now {
            return;
        }
        if self.processes[n]
            .late
            .as_ref()
            .is_some_and(|(lands, _)| *lands <= now)
            && let Some((_, write)) = self.processes[n].late.take()
        {
            self.apply(&write);
        }
        let told = match self.processes[n].elector.poll(now) {
            Step::Wait(_) => None,
            Step::Read => {
                let found = self.lease.clone();
                let process = &mut self.processes[n];
                if process.arrives && process.answered {
                    process.elector.seen(now, found)
                } else {
                    process.elector.failed(now);
                    None
                }
            }
            Step::Write(write) => self.write(n, write),
        };
        let process = &mut self.processes[n];
        if let Some(told) = told {
            if let Some(handover) = &told.handover {
                let before = self.holders.iter().rev().nth(1);
                assert_eq!(before, Some(handover), "it is not of the last holder");
                self.noted += 1;
            }
            process.lead.seen(now, &told);
        }
        if process.lead.turn(now) == Some(Turn::Opens) {
            self.led += 1;
        }
    }

    fn write(&mut self, n: usize, write: LeaseWrite) -> Option<LeaseSeen> {
        let (now, arrives) = (self.now, self.processes[n].arrives);
        let done = arrives.then(|| self.apply(&write)).flatten();
        let process = &mut self.processes[n];
        if !arrives {
            process.late = Some((now + Span::from_millis(1500), write));
        }
        match done {
            Some(state) if process.answered => process.elector.written(now, state),
            _ => {
                process.elector.failed(now);
                None
            }
        }
    }

    /// Nobody acts while another may, or while what another began may yet land.
    fn check(&mut self) {
        let now = self.now;
        let leads = |process: &Process| match process.lead.standing(now) {
            Standing::Leading { left } => Some(left),
            Standing::Following | Standing::Settling { .. } => None,
        };
        let leaders: Vec<usize> = (0..3)
            .filter(|n| leads(&self.processes[*n]).is_some())
            .collect();
        assert!(leaders.len() <= 1, "{leaders:?} lead at {now:?}");
        let Some(leader) = leaders.first().copied() else {
            return;
        };
        for (n, process) in self.processes.iter().enumerate() {
            assert!(
                n == leader || process.busy_until <= now,
                "{n} may yet act at {now:?}"
            );
        }
        let left = leads(&self.processes[leader]).unwrap_or_default();
        // A call begun now is given up within a second or what is left, and may land a second
        // later.
        let lasts = Span(left.min(Span::from_secs(1)).0 + 1_000_000);
        self.processes[leader].busy_until = now + lasts;
    }

    fn strike(&mut self, blow: &Blow) {
        match *blow {
            Blow::Pass(tenths) => {
                for _ in 0..tenths {
                    self.now = self.now + Span::from_millis(100);
                    (0..3).for_each(|n| self.run(n));
                    self.check();
                }
            }
            Blow::Restart(n) => {
                let busy_until = self.processes[n].busy_until;
                let next = self.process();
                self.processes[n] = Process { busy_until, ..next };
            }
            Blow::Freeze(n, tenths) => {
                self.processes[n].frozen_until = self.now + Span::from_millis(tenths * 100);
            }
            Blow::Calls(n, arrives, answered) => {
                self.processes[n].arrives = arrives;
                self.processes[n].answered = answered;
            }
            Blow::Watch(n) => {
                let found = self.lease.clone();
                let process = &mut self.processes[n];
                if let Some(told) = process.elector.seen(self.now, found) {
                    process.lead.seen(self.now, &told);
                }
            }
            Blow::Leave(n, drained) => {
                // Whoever says that nothing is under way has waited for its own calls, and begins
                // none any more.
                let process = &mut self.processes[n];
                process.lead = Lead::new(rule("nobody").lease_rule());
                if drained {
                    process.busy_until = self.now;
                }
                let handover = Some(process.elector.rule.identity.clone());
                process.elector.leave(Leave {
                    is_drained: drained,
                    handover,
                });
            }
            Blow::Delete => self.lease = None,
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]
    #[test]
    fn at_most_one_leads_whatever_happens(blows in blows()) {
        let mut api = Api::new();
        for blow in &blows {
            api.strike(blow);
        }
        // And when everything works again, somebody does.
        for n in 0..3 {
            api.processes[n].frozen_until = Timestamp(0);
            let busy_until = api.processes[n].busy_until;
            let next = api.process();
            api.processes[n] = Process { busy_until, ..next };
        }
        let before = api.led;
        api.strike(&Blow::Pass(200));
        prop_assert!(api.led > before, "nobody leads");
    }
}
