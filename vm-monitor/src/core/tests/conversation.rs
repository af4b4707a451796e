//! Agents that connect and leave, the ids of transactions, and bad frames.

use super::*;

/// The deployed agent reads ids as floats, which hold whole numbers up to 2^53 exactly.
#[test]
fn n33_own_ids_stay_below_2_to_the_53() {
    let mut fixture = Fixture::served(CacheMode::Off);
    let session = fixture.core.session.as_mut().expect("served");
    session.next_id = MAX_ID - 3;
    fixture.usage = Ok(Bytes::gib(4));
    fixture.run_for(Span::from_secs(3));
    assert_eq!(fixture.upscale_requests(), [MAX_ID - 3, MAX_ID - 1, 3]);
}

#[test]
fn the_newest_agent_wins_and_the_old_one_is_not_heard() {
    let mut fixture = Fixture::served(CacheMode::Off);
    fixture.connect(ConnectionId(2));
    let reason = CloseReason::Replaced;
    assert_eq!(
        fixture.done,
        [Action::Close {
            connection: AGENT,
            reason
        }]
    );
    fixture.say(AgentBody::HealthCheck, 2);
    fixture.tell(Event::AgentGone { connection: AGENT });
    assert_eq!(fixture.sent(), []);
    assert_eq!(
        fixture.core.snapshot(fixture.now).connection,
        Some(ConnectionId(2))
    );
}

#[test]
fn a_shrink_whose_asker_left_leaves_the_threshold() {
    let mut fixture = Fixture::served(CacheMode::Auto);
    let before = fixture.core.snapshot(fixture.now).threshold;
    fixture.ask_downscale(GIB, 2);
    fixture.connect(ConnectionId(2));
    fixture.finish_cache(Ok(change(607)));
    assert_eq!(fixture.core.snapshot(fixture.now).threshold, before);
    assert_eq!(fixture.sent(), []);
    let resets = fixture
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
    let mut fixture = Fixture::served(CacheMode::Off);
    fixture.tell(Event::AgentGone { connection: AGENT });
    assert_eq!(fixture.core.poll_deadline(), None);
}

#[test]
fn n37_health_checks_overtake_a_slow_database() {
    let mut fixture = Fixture::served(CacheMode::Auto);
    fixture.ask_downscale(GIB, 2);
    fixture.say(AgentBody::HealthCheck, 4);
    assert_eq!(
        fixture.sent(),
        [MonitorFrame {
            body: MonitorBody::HealthCheck,
            id: 4
        }]
    );
}

#[test]
fn n38_too_many_requests_fail_and_all_others_are_answered() {
    let mut fixture = Fixture::served(CacheMode::Auto);
    let count = u64::try_from(requests::WAITING_LIMIT).expect("small") + 3;
    for n in 0..count {
        fixture.tell_upscale(GIB, 2 * n);
    }
    let busy = fixture.sent();
    assert_eq!(busy.len(), 2);
    assert!(
        busy.iter()
            .all(|frame| matches!(frame.body, MonitorBody::InternalError { .. }))
    );
    for _ in 0..count {
        fixture.finish_cache(Ok(change(1)));
    }
    let mut ids: Vec<_> = fixture.sent().iter().map(|frame| frame.id).collect();
    ids.sort_unstable();
    assert_eq!(ids, (0..count).map(|n| 2 * n).collect::<Vec<_>>());
}

#[test]
fn n38_bad_frames_are_answered_under_their_id() {
    let mut fixture = Fixture::served(CacheMode::Off);
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
        fixture.tell(Event::Received {
            connection: AGENT,
            what,
        });
        let last = fixture.sent().pop().expect("an answer");
        assert_eq!(last.id, id, "{text}");
        let MonitorBody::InvalidMessage { error } = &last.body else {
            panic!("{last:?}")
        };
        assert!(error.len() <= TEXT_LIMIT_BYTES && !error.is_empty());
    }
    let bytes = MONITOR_FRAME_LIMIT_BYTES + 1;
    fixture.tell(Event::Received {
        connection: AGENT,
        what: Received::TooLarge { bytes },
    });
    fixture.tell(Event::Received {
        connection: AGENT,
        what: Received::NotText,
    });
    assert_eq!(fixture.sent().len(), texts.len() + 1);
    fixture.say(AgentBody::HealthCheck, 16);
    assert_eq!(
        fixture.sent().pop().expect("alive").body,
        MonitorBody::HealthCheck
    );
}

#[test]
fn n38_errors_are_never_answered() {
    let mut fixture = Fixture::served(CacheMode::Off);
    for id in [0, 2, 3, 99] {
        fixture.say(
            AgentBody::InvalidMessage {
                error: "what?".into(),
            },
            id,
        );
        fixture.say(AgentBody::InternalError { error: "oh".into() }, id);
    }
    for text in [
        r#"{"type":"InvalidMessage"}"#,
        r#"{"type":"InternalError","content":7,"id":"x"}"#,
    ] {
        let what = Received::Text(text.to_owned());
        fixture.tell(Event::Received {
            connection: AGENT,
            what,
        });
    }
    assert_eq!(fixture.done, []);
}

/// One random conversation of both sides' transactions; returns how many own requests crossed an
/// agent's.
fn crossed_conversation(choices: &mut Choices) -> u64 {
    let mut fixture = Fixture::served(CacheMode::Auto);
    fixture.usage = Ok(Bytes::gib(4));
    let (mut next_id, mut asked, mut crossed) = (2, std::collections::BTreeMap::new(), 0);
    let steps = 4 + choices.below(8);
    for _ in 0..steps {
        let (own_before, _) = fixture.sent_counts();
        match choices.below(5) {
            0 => {
                fixture.ask_downscale(GIB * (1 + choices.below(9)), next_id);
                asked.insert(next_id, "DownscaleRequest");
                next_id += 2;
            }
            1 => {
                // Small enough that the next reading asks for more again.
                fixture.tell_upscale(GIB * (1 + choices.below(3)), next_id);
                asked.insert(next_id, "UpscaleNotification");
                next_id += 2;
            }
            2 => {
                fixture.say(AgentBody::HealthCheck, next_id);
                asked.insert(next_id, "HealthCheck");
                next_id += 2;
            }
            3 => fixture.finish_cache(if choices.below(4) == 0 {
                Err(unreachable())
            } else {
                Ok(change(1))
            }),
            _ => fixture.run_for(Span::from_millis(1000)),
        }
        let (own, answered) = fixture.sent_counts();
        if own > own_before && answered < asked.len() {
            crossed += 1;
        }
    }
    // Everything in flight comes to its end.
    for _ in 0..=asked.len() {
        fixture.finish_cache(Ok(change(1)));
    }
    let own: Vec<u64> = fixture.upscale_requests();
    let expected: Vec<u64> = (0_u64..).map(|n| 3 + 2 * n).take(own.len()).collect();
    assert_eq!(own, expected, "own ids");
    for frame in fixture
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

/// Each failure is counted. A line is logged once a minute for each kind.
#[test]
fn failed_handshakes_cannot_fill_the_log() {
    let mut fixture = Fixture::served(CacheMode::Off);
    let began = fixture.now;
    let failure = HandshakeFailure::NotText;
    for (second, logged) in [(0, 0), (59, 0), (60, 60), (61, 60), (120, 120)] {
        fixture.now = began + Span::from_secs(second);
        fixture.tell(Event::HandshakeFailed(failure));
        let last = fixture.core.strangers_logged.get(&failure);
        assert_eq!(
            last,
            Some(&(began + Span::from_secs(logged))),
            "at {second} s"
        );
    }
    assert_eq!(fixture.core.counters.handshake_failures.get("not_text"), 5);
}
