//! Sessions of version 2 over made-up time.

use protocol::monitor::MonitorBody;
use protocol::monitor_v2::{
    AgentBodyV2, AgentFrameV2, AskReason, Capabilities, GuestMetrics, MonitorBodyV2,
    MonitorFrameV2, OBSERVE_LIMIT, RefusalReason, Refused, Urgency,
};

use super::*;
use crate::core::event::Seen;

/// A fixture whose agent speaks version 2 and has named these capabilities.
fn agreed(capabilities: Capabilities, rules: Rules) -> Fixture {
    let mut fixture = Fixture::with(rules, CacheMode::Off, Watched::Cgroup);
    fixture.tell(Event::AgentReady {
        connection: AGENT,
        version: Version::V2,
        machine_total: Some(Bytes::gib(4)),
    });
    name(&mut fixture, capabilities, 2);
    fixture.run_for(Span::from_millis(500));
    fixture.done.clear();
    fixture
}

fn deployed_rule() -> Rules {
    Rules {
        asks_early: false,
        ..Rules::default()
    }
}

fn name(fixture: &mut Fixture, capabilities: Capabilities, id: u64) {
    let names = capabilities.names();
    let text = AgentFrameV2 {
        body: AgentBodyV2::Capabilities { names },
        id,
    }
    .encode();
    let what = Received::Text(text);
    fixture.tell(Event::Received {
        connection: AGENT,
        what,
    });
}

/// All capabilities of a monitor that has no file for a schedule.
fn all() -> Capabilities {
    Capabilities {
        schedule: false,
        ..Capabilities::all(Span::from_secs(5))
    }
}

/// Every frame sent, of either version.
fn frames(fixture: &Fixture) -> Vec<MonitorFrameV2> {
    let frame = |action: &Action| match action {
        Action::Send { frame, .. } => Some(MonitorFrameV2 {
            body: MonitorBodyV2::Plain(frame.body.clone()),
            id: frame.id,
        }),
        Action::SendV2 { frame, .. } => Some(frame.clone()),
        _ => None,
    };
    fixture.done.iter().filter_map(frame).collect()
}

#[test]
fn the_first_exchange_names_what_will_be_done() {
    let mut fixture = Fixture::with(deployed_rule(), CacheMode::Off, Watched::Cgroup);
    fixture.tell(Event::AgentReady {
        connection: AGENT,
        version: Version::V2,
        machine_total: Some(Bytes::gib(4)),
    });
    name(&mut fixture, all(), 2);
    let [answer, pushed] = &frames(&fixture)[..] else {
        panic!("{:?}", frames(&fixture));
    };
    let names = all().names();
    assert_eq!(answer.body, MonitorBodyV2::Capabilities { names });
    assert_eq!(answer.id, 2);
    assert!(matches!(pushed.body, MonitorBodyV2::Metrics(_)));
    assert_eq!(fixture.core.snapshot(fixture.now).capabilities, all());
}

#[test]
fn an_agent_of_version_1_has_no_such_exchange() {
    let mut fixture = Fixture::served(CacheMode::Off);
    name(&mut fixture, all(), 2);
    let sent = fixture.sent();
    assert!(
        matches!(sent[0].body, MonitorBody::InvalidMessage { .. }),
        "{sent:?}"
    );
    assert_eq!(
        fixture.core.snapshot(fixture.now).capabilities,
        Capabilities::default()
    );
}

#[test]
fn without_capabilities_version_2_is_version_1() {
    let mut fixture = agreed(Capabilities::default(), deployed_rule());
    fixture.usage = Ok(Bytes::gib(4));
    fixture.run_for(Span::from_secs(1));
    fixture.ask_downscale(GIB, 4);
    fixture.tell_upscale(8 * GIB, 6);
    fixture.run_for(Span::from_secs(10));
    let sent = frames(&fixture);
    assert_eq!(sent.len(), 3);
    assert!(
        sent.iter()
            .all(|frame| matches!(frame.body, MonitorBodyV2::Plain(_))),
        "{sent:?}"
    );
}

#[test]
fn n30_a_request_says_why_how_soon_and_how_much() {
    let mut fixture = agreed(all(), deployed_rule());
    fixture.usage = Ok(Bytes::mib(3600));
    fixture.run_for(Span::from_secs(1));
    let asked = frames(&fixture)
        .into_iter()
        .find_map(|frame| match frame.body {
            MonitorBodyV2::Asked(asked) => Some(asked),
            _ => None,
        });
    let asked = asked.expect("a request");
    assert_eq!(
        (asked.reason, asked.urgency),
        (AskReason::Threshold, Some(Urgency::Now))
    );
    let wanted = asked.wanted.expect("a size");
    assert!((wanted.cpu - 2.0).abs() < f64::EPSILON);
    // What is in use would be let shrink to this size, and it is more than there is.
    assert_eq!(wanted.mem, Rules::default().smallest_for(Bytes::mib(3600)));
    assert!(wanted.mem > 4 * GIB);
}

#[test]
fn request_after_a_kill_is_critical() {
    let mut fixture = agreed(all(), Rules::default());
    for oom_kill in [0, 1] {
        fixture.tell(Event::OutOfMemory(OomCounts { oom: 0, oom_kill }));
        fixture.run_for(Span::from_millis(100));
    }
    let asked: Vec<_> = frames(&fixture)
        .into_iter()
        .filter_map(|frame| match frame.body {
            MonitorBodyV2::Asked(asked) => Some((asked.reason, asked.urgency)),
            _ => None,
        })
        .collect();
    assert_eq!(asked, [(AskReason::OomEvent, Some(Urgency::Critical))]);
}

#[test]
fn n30_a_race_is_critical_and_wants_what_the_climb_will_take() {
    let mut fixture = agreed(all(), Rules::default());
    for n in 0..30 {
        fixture.usage = Ok(Bytes::mib(100 + 100 * n));
        fixture.run_for(Span::from_millis(100));
    }
    let first = frames(&fixture)
        .into_iter()
        .find_map(|frame| match frame.body {
            MonitorBodyV2::Asked(asked) => Some(asked),
            _ => None,
        });
    let asked = first.expect("a request");
    assert_eq!(asked.reason, AskReason::Forecast);
    assert_eq!(asked.urgency, Some(Urgency::Soon));
    let used = fixture
        .core
        .snapshot(fixture.now)
        .asked
        .and_then(|ask| ask.used);
    let wanted = asked.wanted.expect("a size").mem;
    assert!(
        wanted > used.expect("known").0 + 400 * (1 << 20),
        "{wanted}"
    );
}

#[test]
fn n27_a_refusal_says_why_and_what_would_do() {
    let mut fixture = agreed(all(), deployed_rule());
    fixture.usage = Ok(Bytes::mib(2000));
    fixture.run_for(Span::from_secs(1));
    fixture.done.clear();
    fixture.ask_downscale(GIB, 4);
    let sent = frames(&fixture);
    let MonitorBodyV2::Refused(refused) = &sent[0].body else {
        panic!("{sent:?}");
    };
    assert_eq!(refused.reason, RefusalReason::InUse);
    let smallest = refused.smallest.expect("a size");
    assert!((smallest.cpu - 0.25).abs() < f64::EPSILON);
    fixture.ask_downscale(smallest.mem, 6);
    let sent = frames(&fixture);
    let body = &sent[1].body;
    assert!(
        matches!(
            body,
            MonitorBodyV2::Plain(MonitorBody::DownscaleResult { ok: true, .. })
        ),
        "{body:?}"
    );
}

fn refused(fixture: &Fixture) -> Option<Refused> {
    match frames(fixture).pop().map(|frame| frame.body) {
        Some(MonitorBodyV2::Refused(refused)) => Some(refused),
        _ => None,
    }
}

/// A guest of 4 GiB that used 2 GiB until a second ago, and 100 MiB since.
fn relieved(capabilities: Capabilities) -> Fixture {
    let mut fixture = agreed(capabilities, Rules::default());
    fixture.usage = Ok(Bytes::gib(2));
    fixture.run_for(Span::from_secs(5));
    fixture.usage = Ok(Bytes::mib(100));
    fixture.run_for(Span::from_secs(1));
    fixture.done.clear();
    fixture
}

#[test]
fn refusal_for_a_recent_peak_says_when_to_ask_again() {
    let mut fixture = relieved(all());
    fixture.ask_downscale(GIB, 4);
    let said = refused(&fixture).expect("a refusal");
    assert_eq!(said.reason, RefusalReason::RecentPeak);
    let again = said.again.expect("a time");
    assert!(again <= Rules::default().peak_window, "{again:?}");
    // Not a moment before, and then it is agreed to.
    fixture.run_for(Span(again.0 - 1));
    fixture.ask_downscale(GIB, 6);
    let early = refused(&fixture).expect("a refusal");
    assert_eq!(early.again, Some(Span(1)));
    fixture.run_for(Span(1));
    fixture.ask_downscale(GIB, 8);
    assert_eq!(refused(&fixture), None);
    let without = Capabilities {
        refusal_again: false,
        ..all()
    };
    let mut fixture = relieved(without);
    fixture.ask_downscale(GIB, 4);
    assert_eq!(refused(&fixture).expect("a refusal").again, None);
}

/// The readings of an idle guest are a second apart, so their mean is older than its use.
#[test]
fn refusal_for_a_mean_that_falls_says_when_to_ask_again() {
    let mut fixture = relieved(all());
    fixture.bound = Some(Bytes::mib(150));
    fixture.usage = Ok(Bytes::gib(2));
    fixture.run_for(Span::from_secs(10));
    fixture.usage = Ok(Bytes::mib(100));
    fixture.ask_downscale(GIB, 4);
    let said = refused(&fixture).expect("a refusal");
    assert_eq!(said.reason, RefusalReason::InUse);
    fixture.run_for(said.again.expect("a time"));
    fixture.ask_downscale(GIB, 6);
    assert_eq!(refused(&fixture), None);
}

#[test]
fn refusal_for_what_is_in_use_says_no_time() {
    let mut fixture = agreed(all(), deployed_rule());
    fixture.usage = Ok(Bytes::gib(2));
    fixture.run_for(Span::from_secs(1));
    fixture.ask_downscale(GIB, 4);
    let said = refused(&fixture).expect("a refusal");
    assert_eq!((said.reason, said.again), (RefusalReason::InUse, None));
}

#[test]
fn n36_growth_is_confirmed_when_the_guest_sees_it() {
    let mut fixture = agreed(all(), deployed_rule());
    let before = fixture.core.snapshot(fixture.now).threshold;
    fixture.done.clear();
    fixture.tell_upscale(8 * GIB, 4);
    fixture.run_for(Span::from_secs(1));
    let confirmed = |fixture: &Fixture| {
        let found = frames(fixture).into_iter().find(|frame| frame.id == 4);
        found.map(|frame| frame.body)
    };
    assert_eq!(confirmed(&fixture), None, "it does not see 8 GiB");
    assert_eq!(fixture.core.snapshot(fixture.now).threshold, before);
    fixture.seen.total = Some(Bytes::mib(8100));
    fixture.run_for(Span::from_millis(60));
    let Some(MonitorBodyV2::Confirmed { observed }) = confirmed(&fixture) else {
        panic!("{:?}", frames(&fixture));
    };
    assert_eq!(observed.mem, Bytes::mib(8100).0);
    let rules = Rules::default();
    let expected = rules.threshold(rules.usable(8 * GIB));
    assert_eq!(fixture.core.snapshot(fixture.now).threshold, Some(expected));
    let last = frames(&fixture).pop().expect("metrics right after");
    assert!(matches!(last.body, MonitorBodyV2::Metrics(_)), "{last:?}");
}

#[test]
fn n36_after_the_limit_the_guest_says_what_it_sees() {
    let mut fixture = agreed(all(), deployed_rule());
    fixture.done.clear();
    fixture.seen.total = Some(Bytes::gib(5));
    fixture.tell_upscale(8 * GIB, 4);
    // Another request waits behind it, and a health check does not.
    fixture.ask_downscale(2 * GIB, 6);
    fixture.say(AgentBody::HealthCheck, 8);
    let ids: Vec<u64> = frames(&fixture).iter().map(|frame| frame.id).collect();
    assert_eq!(ids, [8]);
    fixture.run_for(OBSERVE_LIMIT);
    let sent = frames(&fixture);
    let confirmed = sent.iter().find(|frame| frame.id == 4).expect("confirmed");
    let MonitorBodyV2::Confirmed { observed } = confirmed.body else {
        panic!("{confirmed:?}");
    };
    assert_eq!(observed.mem, Bytes::gib(5).0);
    let rules = Rules::default();
    assert_eq!(
        fixture
            .core
            .snapshot(fixture.now)
            .counters
            .upscales
            .get("not_seen"),
        1,
        "and it is counted"
    );
    // What is not there was not counted on: the shrink behind it was judged and set its own
    // threshold.
    assert!(sent.iter().any(|frame| frame.id == 6));
    let total = fixture.core.snapshot(fixture.now).total;
    assert_eq!(total, Some(rules.usable(2 * GIB)));
}

#[test]
fn a_growth_of_an_agent_that_left_is_forgotten() {
    let mut fixture = agreed(all(), deployed_rule());
    fixture.tell_upscale(8 * GIB, 4);
    fixture.tell(Event::AgentGone { connection: AGENT });
    fixture.run_for(Span::from_secs(10));
    assert_eq!(fixture.core.poll_deadline(), None);
    assert!(frames(&fixture).iter().all(|frame| frame.id != 4));
}

#[test]
fn n02_metrics_are_pushed_at_their_period() {
    let mut fixture = agreed(Capabilities::all(Span::from_secs(2)), deployed_rule());
    fixture.done.clear();
    fixture.run_for(Span::from_secs(20));
    let pushed: Vec<_> = frames(&fixture)
        .into_iter()
        .filter_map(|frame| match frame.body {
            MonitorBodyV2::Metrics(metrics) => Some((frame.id, metrics)),
            _ => None,
        })
        .collect();
    assert_eq!(pushed.len(), 10);
    assert!(
        pushed.windows(2).all(|two| two[1].0 == two[0].0 + 2),
        "own ids"
    );
    let (_, metrics) = &pushed[0];
    assert_eq!(metrics.load1, Some(0.5));
    assert_eq!(metrics.cgroup.used, Some(100 << 20));
    assert_eq!(
        metrics.cgroup.threshold,
        fixture.core.snapshot(fixture.now).threshold.map(|t| t.0)
    );
}

/// One random conversation of both sides' transactions in version 2, with duplicate and crossed
/// requests, answers that come late, and capabilities that change; returns how many own frames
/// crossed an agent's.
fn crossed_conversation(choices: &mut Choices) -> u64 {
    let capabilities = Capabilities {
        ask_details: choices.below(2) == 0,
        refusal_details: choices.below(2) == 0,
        refusal_again: choices.below(2) == 0,
        observed: choices.below(2) == 0,
        metrics: (choices.below(2) == 0).then_some(Span::from_secs(1)),
        schedule: false,
    };
    let mut fixture = agreed(capabilities, deployed_rule());
    let first_own = fixture
        .core
        .snapshot(fixture.now)
        .next_id
        .expect("a session");
    fixture.usage = Ok(Bytes::gib(4));
    let (mut next_id, mut asked, mut crossed) = (4, std::collections::BTreeMap::new(), 0);
    for _ in 0..4 + choices.below(8) {
        let before = fixture.done.len();
        match choices.below(7) {
            0 => {
                fixture.ask_downscale(GIB * (1 + choices.below(9)), next_id);
                asked.insert(next_id, "DownscaleResult");
                next_id += 2;
            }
            1 => {
                fixture.tell_upscale(GIB * (1 + choices.below(9)), next_id);
                asked.insert(next_id, "UpscaleConfirmation");
                next_id += 2;
            }
            2 => {
                fixture.say(AgentBody::HealthCheck, next_id);
                asked.insert(next_id, "HealthCheck");
                next_id += 2;
            }
            3 => {
                name(&mut fixture, capabilities, next_id);
                asked.insert(next_id, "Capabilities");
                next_id += 2;
            }
            4 => fixture.seen.total = Some(Bytes::gib(1 + choices.below(9))),
            // An answer to nothing, and one that comes twice.
            5 => fixture.say(
                AgentBody::InvalidMessage { error: "?".into() },
                choices.below(99),
            ),
            _ => fixture.run_for(Span::from_millis(300 + choices.below(1000))),
        }
        if fixture.done.len() > before + 1 {
            crossed += 1;
        }
    }
    // Everything in flight comes to its end: the first growth by the limit perhaps, those behind it
    // as they are seen.
    fixture.run_for(OBSERVE_LIMIT);
    fixture.seen.total = Some(Bytes::gib(99));
    fixture.run_for(Span::from_secs(1));
    let mut own = Vec::new();
    for frame in frames(&fixture) {
        let word = frame.body.wire_type();
        if matches!(word, "UpscaleRequest" | "Metrics") {
            own.push(frame.id);
            let is_detailed = matches!(frame.body, MonitorBodyV2::Asked(_));
            assert!(word == "Metrics" || is_detailed == capabilities.ask_details);
            assert!(word != "Metrics" || capabilities.metrics.is_some());
            continue;
        }
        let question = asked
            .remove(&frame.id)
            .expect("one answer to each question");
        assert_eq!(question, word, "{frame:?}");
        match frame.body {
            MonitorBodyV2::Confirmed { .. } => assert!(capabilities.observed),
            MonitorBodyV2::Refused(refused) => {
                assert!(capabilities.refusal_details);
                assert!(refused.again.is_none() || capabilities.refusal_again);
            }
            _ => {}
        }
    }
    assert!(asked.is_empty(), "unanswered: {asked:?}");
    let expected: Vec<u64> = (0_u64..)
        .map(|n| first_own + 2 * n)
        .take(own.len())
        .collect();
    assert_eq!(own, expected, "own ids");
    crossed
}

#[test]
fn n33_crossed_transactions_of_version_2_keep_their_ids() {
    let mut choices = Choices(0x0BE1_1035_5EED);
    let crossed: u64 = (0..100_000)
        .map(|_| crossed_conversation(&mut choices))
        .sum();
    assert!(crossed > 10_000, "only {crossed} transactions crossed");
}

#[test]
fn gauges_of_the_kernel_come_through() {
    let mut fixture = agreed(all(), deployed_rule());
    let metrics = GuestMetrics {
        load5: Some(1.5),
        ..GuestMetrics::default()
    };
    fixture.done.clear();
    fixture.tell(Event::Measured(Box::new(metrics)));
    let sent = frames(&fixture);
    let MonitorBodyV2::Metrics(pushed) = &sent[0].body else {
        panic!("{sent:?}");
    };
    assert_eq!((pushed.load1, pushed.load5), (None, Some(1.5)));
    fixture.tell(Event::Observed(Seen::default()));
    assert_eq!(frames(&fixture).len(), 1, "nobody waits for it");
}
