//! A core with a clock, scripted readings and a record of its actions.

use super::*;

pub(super) const AGENT: ConnectionId = ConnectionId(1);
pub(super) const GIB: u64 = 1 << 30;

/// A core, its time, and what it did.
pub(super) struct Fixture {
    pub(super) core: Monitor,
    pub(super) now: Timestamp,
    pub(super) usage: Result<Bytes, ReadFailure>,
    /// What `memory.current` says; without it there is no such file, and the deployed monitor's
    /// pace holds.
    pub(super) bound: Option<Bytes>,
    /// Times of the readings of the use.
    pub(super) read_at: Vec<Timestamp>,
    /// Looks at the bound.
    pub(super) probes: u64,
    /// What the guest sees of its size.
    pub(super) seen: Seen,
    /// What weighs on memory beside what is in use.
    pub(super) weight: Weight,
    /// What the zones hold.
    pub(super) zones: Option<Zones>,
    /// Readings of the zones.
    pub(super) zone_reads: u64,
    pub(super) done: Vec<Action>,
}

impl Fixture {
    /// With the deployed monitor's rule alone.
    pub(super) fn new(file_cache: CacheMode, watched: Watched) -> Self {
        let rules = Rules {
            asks_early: false,
            ..Rules::default()
        };
        Self::with(rules, file_cache, watched)
    }

    pub(super) fn with(rules: Rules, file_cache: CacheMode, watched: Watched) -> Self {
        let setup = Setup {
            rules,
            sizing: Sizing::default(),
            watched,
            file_cache,
            hooks: false,
            estimates: false,
            squeezes: false,
            asks_schedule: false,
            exit_when_alone: None,
        };
        Self {
            core: Monitor::new(setup),
            now: Timestamp(7_000_000),
            usage: Ok(Bytes::mib(100)),
            bound: None,
            read_at: Vec::new(),
            probes: 0,
            seen: Seen {
                cpus: Some(2),
                total: Some(Bytes::gib(4)),
            },
            weight: Weight::default(),
            zones: None,
            zone_reads: 0,
            done: Vec::new(),
        }
    }

    /// With an agent on a 4 GiB machine, five readings and the start of the connection behind it.
    pub(super) fn served(file_cache: CacheMode) -> Self {
        let mut fixture = Self::new(file_cache, Watched::Cgroup);
        fixture.connect(AGENT);
        fixture.finish_cache(Ok(change(3072)));
        fixture.run_for(Span::from_millis(500));
        fixture.done.clear();
        fixture
    }

    pub(super) fn connect(&mut self, connection: ConnectionId) {
        let machine_total = Some(Bytes::gib(4));
        self.tell(Event::AgentReady {
            connection,
            version: Version::V1,
            machine_total,
        });
    }

    pub(super) fn tell(&mut self, event: Event) {
        self.core.handle(self.now, event);
        self.act();
    }

    pub(super) fn act(&mut self) {
        while let Some(action) = self.core.poll_action(self.now) {
            match action {
                Action::Probe => {
                    self.probes += 1;
                    self.core.handle(self.now, Event::Probed(self.bound));
                }
                Action::Sample => {
                    self.read_at.push(self.now);
                    self.core
                        .handle(self.now, Event::Sampled(self.usage.clone()));
                }
                Action::Weigh => self.core.handle(self.now, Event::Weighed(self.weight)),
                Action::ReadZones => {
                    self.zone_reads += 1;
                    self.core.handle(self.now, Event::ZonesRead(self.zones));
                }
                Action::Observe => self.core.handle(self.now, Event::Observed(self.seen)),
                Action::Measure => {
                    let metrics = GuestMetrics {
                        load1: Some(0.5),
                        ..GuestMetrics::default()
                    };
                    let event = Event::Measured(Box::new(metrics));
                    self.core.handle(self.now, event);
                }
                _ => self.done.push(action),
            }
        }
    }

    pub(super) fn run_for(&mut self, span: Span) {
        let end = self.now + span;
        while let Some(at) = self.core.poll_deadline().filter(|at| *at <= end) {
            self.now = self.now.max(at);
            self.act();
        }
        self.now = end;
    }

    pub(super) fn say(&mut self, body: AgentBody, id: u64) {
        let text = AgentFrame { body, id }.encode();
        let what = Received::Text(text);
        self.tell(Event::Received {
            connection: AGENT,
            what,
        });
    }

    pub(super) fn ask_downscale(&mut self, mem: u64, id: u64) {
        let target = Allocation { cpu: 0.25, mem };
        self.say(AgentBody::DownscaleRequest { target }, id);
    }

    pub(super) fn tell_upscale(&mut self, mem: u64, id: u64) {
        let granted = Allocation { cpu: 0.25, mem };
        self.say(AgentBody::UpscaleNotification { granted }, id);
    }

    /// Ends the operation in flight, if one is.
    pub(super) fn finish_cache(&mut self, outcome: Result<CacheChange, CacheFailure>) {
        let last = self.done.iter().rev().find_map(|action| match action {
            Action::SetFileCache { operation, .. } => Some(*operation),
            _ => None,
        });
        if let Some(operation) = last {
            self.tell(Event::CacheSet { operation, outcome });
        }
    }

    pub(super) fn sent(&self) -> Vec<MonitorFrame> {
        let frame = |action: &Action| match action {
            Action::Send { frame, .. } => Some(frame.clone()),
            _ => None,
        };
        self.done.iter().filter_map(frame).collect()
    }

    /// How many requests of its own and how many answers it has sent.
    pub(super) fn sent_counts(&self) -> (usize, usize) {
        let (mut own, mut answers) = (0, 0);
        for action in &self.done {
            match action {
                Action::Send { frame, .. } if frame.body == MonitorBody::UpscaleRequest => own += 1,
                Action::Send { .. } => answers += 1,
                _ => {}
            }
        }
        (own, answers)
    }

    pub(super) fn upscale_requests(&self) -> Vec<u64> {
        let sent = self.sent();
        let asks = sent
            .iter()
            .filter(|frame| frame.body == MonitorBody::UpscaleRequest);
        asks.map(|frame| frame.id).collect()
    }
}

pub(super) fn change(mib: u64) -> CacheChange {
    CacheChange {
        was: None,
        now: Bytes::mib(mib),
    }
}

pub(super) fn unreachable() -> CacheFailure {
    CacheFailure::Unreachable {
        detail: "connection refused".into(),
    }
}

/// A small generator of its own: the sequence of choices is the same on every machine.
pub(super) struct Choices(pub(super) u64);

impl Choices {
    pub(super) fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}
