//! Processes and an API server under blows of any order: at most one leads.

use super::*;

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
    /// Processes that have held the Lease, in order.
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
            process.lead.handle(now, told);
        }
        if process.lead.poll_action(now) == Some(Turn::Opens) {
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
                    process.lead.handle(self.now, told);
                }
            }
            Blow::Leave(n, drained) => {
                // A drained process has waited for its calls and begins no other.
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
