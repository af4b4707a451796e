//! The whole core over made-up time.

mod climbing;
mod hostile;
mod shrinking;
mod spiking;
mod squeezing;
mod v2;
mod weighing;

use protocol::monitor::{AgentBody, AgentFrame, Allocation, MonitorBody, MonitorFrame};
use protocol::time::Span;

use super::*;

const AGENT: ConnectionId = ConnectionId(1);
const GIB: u64 = 1 << 30;

/// A core, its time, and what it did.
struct Bench {
    core: Monitor,
    now: Timestamp,
    usage: Result<Bytes, ReadFailure>,
    /// What `memory.current` says; without it there is no such file, and the deployed monitor's
    /// pace holds.
    bound: Option<Bytes>,
    /// Times of the readings of the use.
    read_at: Vec<Timestamp>,
    /// Looks at the bound.
    probes: u64,
    /// What the guest sees of its size.
    seen: Seen,
    /// What weighs on memory beside what is in use.
    weight: Weight,
    /// What the zones hold.
    zones: Option<Zones>,
    /// Readings of the zones.
    zone_reads: u64,
    done: Vec<Action>,
}

impl Bench {
    /// With the deployed monitor's rule alone.
    fn new(file_cache: CacheMode, watched: Watched) -> Self {
        let rules = Rules {
            asks_early: false,
            ..Rules::default()
        };
        Self::with(rules, file_cache, watched)
    }

    fn with(rules: Rules, file_cache: CacheMode, watched: Watched) -> Self {
        let setup = Setup {
            rules,
            sizing: Sizing::default(),
            watched,
            file_cache,
            hooks: false,
            estimates: false,
            squeezes: false,
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
    fn served(file_cache: CacheMode) -> Self {
        let mut bench = Self::new(file_cache, Watched::Cgroup);
        bench.connect(AGENT);
        bench.finish_cache(Ok(change(3072)));
        bench.run_for(Span::from_millis(500));
        bench.done.clear();
        bench
    }

    fn connect(&mut self, connection: ConnectionId) {
        let machine_total = Some(Bytes::gib(4));
        self.tell(Event::AgentReady {
            connection,
            version: Version::V1,
            machine_total,
        });
    }

    fn tell(&mut self, event: Event) {
        self.core.handle(self.now, event);
        self.act();
    }

    fn act(&mut self) {
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

    fn run_for(&mut self, span: Span) {
        let end = self.now + span;
        while let Some(at) = self.core.poll_deadline().filter(|at| *at <= end) {
            self.now = self.now.max(at);
            self.act();
        }
        self.now = end;
    }

    fn say(&mut self, body: AgentBody, id: u64) {
        let text = AgentFrame { body, id }.encode();
        let what = Received::Text(text);
        self.tell(Event::Received {
            connection: AGENT,
            what,
        });
    }

    fn ask_downscale(&mut self, mem: u64, id: u64) {
        let target = Allocation { cpu: 0.25, mem };
        self.say(AgentBody::DownscaleRequest { target }, id);
    }

    fn tell_upscale(&mut self, mem: u64, id: u64) {
        let granted = Allocation { cpu: 0.25, mem };
        self.say(AgentBody::UpscaleNotification { granted }, id);
    }

    /// Ends the operation in flight, if one is.
    fn finish_cache(&mut self, outcome: Result<CacheChange, CacheFailure>) {
        let last = self.done.iter().rev().find_map(|action| match action {
            Action::SetFileCache { operation, .. } => Some(*operation),
            _ => None,
        });
        if let Some(operation) = last {
            self.tell(Event::CacheSet { operation, outcome });
        }
    }

    fn sent(&self) -> Vec<MonitorFrame> {
        let frame = |action: &Action| match action {
            Action::Send { frame, .. } => Some(frame.clone()),
            _ => None,
        };
        self.done.iter().filter_map(frame).collect()
    }

    /// How many requests of its own and how many answers it has sent.
    fn sent_counts(&self) -> (usize, usize) {
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

    fn upscale_requests(&self) -> Vec<u64> {
        let sent = self.sent();
        let asks = sent
            .iter()
            .filter(|frame| frame.body == MonitorBody::UpscaleRequest);
        asks.map(|frame| frame.id).collect()
    }
}

fn change(mib: u64) -> CacheChange {
    CacheChange {
        was: None,
        now: Bytes::mib(mib),
    }
}

fn unreachable() -> CacheFailure {
    CacheFailure::Unreachable {
        detail: "connection refused".into(),
    }
}

#[test]
fn n27_downscale_by_what_is_in_use() {
    let mut bench = Bench::served(CacheMode::Off);
    bench.usage = Ok(Bytes::mib(685));
    bench.run_for(Span::from_millis(500));
    bench.ask_downscale(GIB, 2);
    bench.usage = Ok(Bytes::mib(686));
    bench.run_for(Span::from_millis(500));
    bench.ask_downscale(GIB, 4);
    let sent = bench.sent();
    let [first, second] = &sent[..] else {
        panic!("{sent:?}")
    };
    assert!(
        matches!(&first.body, MonitorBody::DownscaleResult { ok: true, .. }),
        "{first:?}"
    );
    let MonitorBody::DownscaleResult { ok: false, status } = &second.body else {
        panic!("{second:?}");
    };
    assert!(status.contains("too low"), "{status}");
    assert_eq!((first.id, second.id), (2, 4));
}

#[test]
fn n27_the_file_cache_shrinks_before_the_answer() {
    let mut bench = Bench::served(CacheMode::Auto);
    let before = bench.core.snapshot(bench.now).threshold;
    bench.ask_downscale(GIB, 2);
    let wanted = match &bench.done[..] {
        [Action::SetFileCache { size, .. }] => *size,
        other => panic!("{other:?}"),
    };
    // (1024 - 100 - 256) / 1.1 = 607.3
    assert_eq!(wanted, Bytes::mib(607));
    assert_eq!(
        bench.core.snapshot(bench.now).threshold,
        before,
        "not before the cache is small"
    );
    bench.finish_cache(Ok(CacheChange {
        was: Some(Bytes::mib(3072)),
        now: wanted,
    }));
    let MonitorBody::DownscaleResult { ok: true, status } = &bench.sent()[0].body else {
        panic!("{:?}", bench.sent());
    };
    assert_eq!(
        status,
        "file cache limit set from 3072 MiB to 607 MiB; \
         cgroup memory threshold set from 3481.6 MiB to 785.4 MiB, for a new total of 924 MiB"
    );
    assert_eq!(
        bench.core.snapshot(bench.now).threshold,
        Some(Bytes(823_551_590))
    );
}

#[test]
fn n28_upscale_grows_the_cache_then_the_threshold_then_confirms() {
    let mut bench = Bench::served(CacheMode::Auto);
    bench.tell_upscale(8 * GIB, 2);
    assert_eq!(bench.sent(), []);
    bench.finish_cache(Ok(change(6069)));
    let confirmation = MonitorFrame {
        body: MonitorBody::UpscaleConfirmation,
        id: 2,
    };
    assert_eq!(bench.sent(), [confirmation]);
    let rules = Rules::default();
    let dump = bench.core.snapshot(bench.now);
    assert_eq!(dump.threshold, Some(rules.threshold(rules.usable(8 * GIB))));
}

#[test]
fn a_cache_that_cannot_be_set_is_an_internal_error_but_growth_counts() {
    let mut bench = Bench::served(CacheMode::Auto);
    let before = bench.core.snapshot(bench.now).threshold;
    bench.ask_downscale(GIB, 2);
    bench.finish_cache(Err(unreachable()));
    assert_eq!(
        bench.core.snapshot(bench.now).threshold,
        before,
        "a failed shrink changes nothing"
    );
    bench.tell_upscale(8 * GIB, 4);
    bench.finish_cache(Err(unreachable()));
    let sent = bench.sent();
    for (frame, id) in sent.iter().zip([2, 4]) {
        assert!(
            matches!(frame.body, MonitorBody::InternalError { .. }),
            "{frame:?}"
        );
        assert_eq!(frame.id, id);
    }
    assert_eq!(sent.len(), 2);
    assert!(
        bench.core.snapshot(bench.now).threshold > before,
        "the memory is there"
    );
}

#[test]
fn auto_without_the_setting_goes_on_and_still_tries_each_time() {
    let mut bench = Bench::new(CacheMode::Auto, Watched::Cgroup);
    let absent = || CacheFailure::NoSuchSetting {
        setting: "neon.file_cache_size_limit".into(),
    };
    bench.connect(AGENT);
    bench.finish_cache(Err(absent()));
    bench.run_for(Span::from_millis(500));
    bench.ask_downscale(GIB, 2);
    bench.finish_cache(Err(absent()));
    let sent = bench.sent();
    assert!(
        matches!(
            &sent[..],
            [MonitorFrame {
                body: MonitorBody::DownscaleResult { ok: true, .. },
                id: 2
            }]
        ),
        "{sent:?}"
    );
}

#[test]
fn nothing_managed_approves_and_says_so() {
    let mut bench = Bench::new(CacheMode::Off, Watched::Nothing);
    bench.connect(AGENT);
    bench.ask_downscale(GIB, 2);
    let MonitorBody::DownscaleResult { ok: true, status } = &bench.sent()[0].body else {
        panic!("{:?}", bench.sent());
    };
    assert_eq!(
        status,
        "approved: neither memory nor a file cache is managed"
    );
    assert_eq!(bench.core.poll_deadline(), None, "and nothing is read");
}

#[test]
fn n27_unreadable_memory_refuses_with_the_reason_and_asks_for_nothing() {
    let mut bench = Bench::served(CacheMode::Off);
    bench.usage = Ok(Bytes::gib(4));
    bench.run_for(Span::from_millis(100));
    bench.usage = Err(ReadFailure::new(
        "/sys/fs/cgroup/db/memory.stat",
        "no such file",
    ));
    bench.run_for(Span::from_secs(10));
    bench.ask_downscale(GIB, 2);
    let sent = bench.sent();
    let [
        MonitorFrame {
            body: MonitorBody::DownscaleResult { ok: false, status },
            ..
        },
    ] = &sent[..]
    else {
        panic!("{sent:?}");
    };
    assert!(
        status.contains("/sys/fs/cgroup/db/memory.stat: no such file"),
        "{status}"
    );
    // Once it can be read again, all is well.
    bench.usage = Ok(Bytes::mib(100));
    bench.run_for(Span::from_millis(600));
    bench.ask_downscale(GIB, 4);
    let sent = bench.sent();
    assert!(
        matches!(&sent[1].body, MonitorBody::DownscaleResult { ok: true, .. }),
        "{sent:?}"
    );
}

#[test]
fn a_monitor_that_was_suspended_says_so() {
    let mut bench = Bench::served(CacheMode::Off);
    bench.now = bench.now + Span::from_secs(9);
    let target = Allocation { cpu: 1.0, mem: GIB };
    let what = Received::Text(
        AgentFrame {
            body: AgentBody::DownscaleRequest { target },
            id: 2,
        }
        .encode(),
    );
    // The request is handled before the overdue reading.
    bench.tell(Event::Received {
        connection: AGENT,
        what,
    });
    let sent = bench.sent();
    assert!(
        matches!(&sent[0].body, MonitorBody::InternalError { error } if error.contains("9")),
        "{sent:?}"
    );
}

#[test]
fn n29_asks_when_the_mean_reaches_the_threshold() {
    let mut bench = Bench::served(CacheMode::Off);
    bench.usage = Ok(Bytes(Bytes::gib(4).0 / 100 * 90));
    let began = bench.now;
    while bench.upscale_requests().is_empty() {
        bench.run_for(Span::from_millis(100));
        assert!(
            bench.now.since(began) <= Span::from_millis(500),
            "five readings are enough"
        );
    }
    assert_eq!(bench.upscale_requests(), [3]);
    assert!(
        bench.now.since(began) >= Span::from_millis(400),
        "one spike is not"
    );
}

#[test]
fn n29_asks_at_most_once_a_second() {
    let mut bench = Bench::served(CacheMode::Off);
    bench.usage = Ok(Bytes::gib(4));
    bench.run_for(Span::from_secs(10));
    let ids = bench.upscale_requests();
    assert_eq!(ids, [3, 5, 7, 9, 11, 13, 15, 17, 19, 21]);
    // A newer agent does not shorten the second, and its ids start anew.
    bench.done.clear();
    bench.connect(ConnectionId(2));
    bench.run_for(Span::from_millis(300));
    assert!(bench.upscale_requests().is_empty());
    bench.run_for(Span::from_secs(1));
    assert_eq!(bench.upscale_requests(), [3]);
}

/// The deployed agent reads ids as floats, which hold whole numbers up to 2^53 exactly.
#[test]
fn n33_own_ids_stay_below_2_to_the_53() {
    let mut bench = Bench::served(CacheMode::Off);
    let session = bench.core.session.as_mut().expect("served");
    session.next_id = MAX_ID - 3;
    bench.usage = Ok(Bytes::gib(4));
    bench.run_for(Span::from_secs(3));
    assert_eq!(bench.upscale_requests(), [MAX_ID - 3, MAX_ID - 1, 3]);
}

#[test]
fn n34_growth_ends_the_asking() {
    let mut bench = Bench::served(CacheMode::Off);
    bench.usage = Ok(Bytes::gib(4));
    bench.run_for(Span::from_secs(1));
    assert_eq!(bench.upscale_requests(), [3]);
    bench.tell_upscale(8 * GIB, 2);
    bench.run_for(Span::from_secs(5));
    assert_eq!(bench.upscale_requests(), [3]);
}

#[test]
fn the_newest_agent_wins_and_the_old_one_is_not_heard() {
    let mut bench = Bench::served(CacheMode::Off);
    bench.connect(ConnectionId(2));
    let reason = CloseReason::Replaced;
    assert_eq!(
        bench.done,
        [Action::Close {
            connection: AGENT,
            reason
        }]
    );
    bench.say(AgentBody::HealthCheck, 2);
    bench.tell(Event::AgentGone { connection: AGENT });
    assert_eq!(bench.sent(), []);
    assert_eq!(
        bench.core.snapshot(bench.now).connection,
        Some(ConnectionId(2))
    );
}

#[test]
fn a_shrink_whose_asker_left_leaves_the_threshold() {
    let mut bench = Bench::served(CacheMode::Auto);
    let before = bench.core.snapshot(bench.now).threshold;
    bench.ask_downscale(GIB, 2);
    bench.connect(ConnectionId(2));
    bench.finish_cache(Ok(change(607)));
    assert_eq!(bench.core.snapshot(bench.now).threshold, before);
    assert_eq!(bench.sent(), []);
    let resets = bench
        .done
        .iter()
        .filter(|action| matches!(action, Action::SetFileCache { .. }));
    assert_eq!(
        resets.count(),
        2,
        "the newer connection sets the cache for the machine as it is"
    );
}

#[test]
fn no_agent_no_readings() {
    let mut bench = Bench::served(CacheMode::Off);
    bench.tell(Event::AgentGone { connection: AGENT });
    assert_eq!(bench.core.poll_deadline(), None);
}

#[test]
fn n37_health_checks_overtake_a_slow_database() {
    let mut bench = Bench::served(CacheMode::Auto);
    bench.ask_downscale(GIB, 2);
    bench.say(AgentBody::HealthCheck, 4);
    assert_eq!(
        bench.sent(),
        [MonitorFrame {
            body: MonitorBody::HealthCheck,
            id: 4
        }]
    );
}

#[test]
fn n38_too_many_requests_fail_and_all_others_are_answered() {
    let mut bench = Bench::served(CacheMode::Auto);
    let count = u64::try_from(requests::WAITING_LIMIT).expect("small") + 3;
    for n in 0..count {
        bench.tell_upscale(GIB, 2 * n);
    }
    let busy = bench.sent();
    assert_eq!(busy.len(), 2);
    assert!(
        busy.iter()
            .all(|frame| matches!(frame.body, MonitorBody::InternalError { .. }))
    );
    for _ in 0..count {
        bench.finish_cache(Ok(change(1)));
    }
    let mut ids: Vec<_> = bench.sent().iter().map(|frame| frame.id).collect();
    ids.sort_unstable();
    assert_eq!(ids, (0..count).map(|n| 2 * n).collect::<Vec<_>>());
}

#[test]
fn n38_bad_frames_are_answered_under_their_id() {
    let mut bench = Bench::served(CacheMode::Off);
    let long = format!("\"{}\"", "é".repeat(4000));
    let texts = [
        ("nonsense", 0),
        (r#"{"type":"Migrate","id":8}"#, 8),
        (r#"{"type":"DownscaleRequest","id":10}"#, 10),
        (
            r#"{"type":"DownscaleRequest","content":{"target":{"cpu":1,"mem":"1Gi"}},"id":12}"#,
            12,
        ),
        (
            &format!(r#"{{"type":"UpscaleNotification","content":{{"granted":{long}}},"id":14}}"#),
            14,
        ),
    ];
    for (text, id) in texts {
        let what = Received::Text(text.to_owned());
        bench.tell(Event::Received {
            connection: AGENT,
            what,
        });
        let last = bench.sent().pop().expect("an answer");
        assert_eq!(last.id, id, "{text}");
        let MonitorBody::InvalidMessage { error } = &last.body else {
            panic!("{last:?}")
        };
        assert!(error.len() <= TEXT_LIMIT_BYTES && !error.is_empty());
    }
    let bytes = MONITOR_FRAME_LIMIT_BYTES + 1;
    bench.tell(Event::Received {
        connection: AGENT,
        what: Received::TooLarge { bytes },
    });
    bench.tell(Event::Received {
        connection: AGENT,
        what: Received::NotText,
    });
    assert_eq!(bench.sent().len(), texts.len() + 1);
    bench.say(AgentBody::HealthCheck, 16);
    assert_eq!(
        bench.sent().pop().expect("alive").body,
        MonitorBody::HealthCheck
    );
}

#[test]
fn n38_errors_are_never_answered() {
    let mut bench = Bench::served(CacheMode::Off);
    for id in [0, 2, 3, 99] {
        bench.say(
            AgentBody::InvalidMessage {
                error: "what?".into(),
            },
            id,
        );
        bench.say(AgentBody::InternalError { error: "oh".into() }, id);
    }
    for text in [
        r#"{"type":"InvalidMessage"}"#,
        r#"{"type":"InternalError","content":7,"id":"x"}"#,
    ] {
        let what = Received::Text(text.to_owned());
        bench.tell(Event::Received {
            connection: AGENT,
            what,
        });
    }
    assert_eq!(bench.done, []);
}

/// A small generator of its own: the sequence of choices is the same on every machine.
struct Choices(u64);

impl Choices {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

/// One random conversation of both sides' transactions; returns how many own requests crossed an
/// agent's.
fn crossed_conversation(choices: &mut Choices) -> u64 {
    let mut bench = Bench::served(CacheMode::Auto);
    bench.usage = Ok(Bytes::gib(4));
    let (mut next_id, mut asked, mut crossed) = (2, std::collections::BTreeMap::new(), 0);
    let steps = 4 + choices.below(8);
    for _ in 0..steps {
        let (own_before, _) = bench.sent_counts();
        match choices.below(5) {
            0 => {
                bench.ask_downscale(GIB * (1 + choices.below(9)), next_id);
                asked.insert(next_id, "DownscaleRequest");
                next_id += 2;
            }
            1 => {
                // Small enough that the next reading asks for more again.
                bench.tell_upscale(GIB * (1 + choices.below(3)), next_id);
                asked.insert(next_id, "UpscaleNotification");
                next_id += 2;
            }
            2 => {
                bench.say(AgentBody::HealthCheck, next_id);
                asked.insert(next_id, "HealthCheck");
                next_id += 2;
            }
            3 => bench.finish_cache(if choices.below(4) == 0 {
                Err(unreachable())
            } else {
                Ok(change(1))
            }),
            _ => bench.run_for(Span::from_millis(1000)),
        }
        let (own, answered) = bench.sent_counts();
        if own > own_before && answered < asked.len() {
            crossed += 1;
        }
    }
    // Everything in flight comes to its end.
    for _ in 0..=asked.len() {
        bench.finish_cache(Ok(change(1)));
    }
    let own: Vec<u64> = bench.upscale_requests();
    let expected: Vec<u64> = (0_u64..).map(|n| 3 + 2 * n).take(own.len()).collect();
    assert_eq!(own, expected, "own ids");
    for frame in bench
        .sent()
        .into_iter()
        .filter(|frame| frame.body != MonitorBody::UpscaleRequest)
    {
        let question = asked
            .remove(&frame.id)
            .expect("one answer to each question");
        let fits = match frame.body.wire_type() {
            "InternalError" => question != "HealthCheck",
            "DownscaleResult" => question == "DownscaleRequest",
            "UpscaleConfirmation" => question == "UpscaleNotification",
            answer => answer == question,
        };
        assert!(fits, "{question} answered by {frame:?}");
    }
    assert!(asked.is_empty(), "unanswered: {asked:?}");
    crossed
}

#[test]
fn n33_crossed_transactions_keep_their_ids() {
    let mut choices = Choices(0x5EED_0BE1_1035);
    let crossed: u64 = (0..100_000)
        .map(|_| crossed_conversation(&mut choices))
        .sum();
    assert!(crossed > 10_000, "only {crossed} transactions crossed");
}
