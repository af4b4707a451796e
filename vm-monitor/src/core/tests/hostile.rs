//! Whatever an agent sends, it is answered or ends the exchange, nothing grows, and the monitor
//! lives on. These bodies take any bytes, so that a fuzzer can drive them as well.

use proptest::prelude::*;

use super::*;

/// One frame of any text to a session of either version; then a health check.
fn frame_of_any_text(version: Version, text: &str) {
    let mut fixture = Fixture::with(Rules::default(), CacheMode::Off, Watched::Cgroup);
    fixture.tell(Event::AgentReady {
        connection: AGENT,
        version,
        machine_total: Some(Bytes::gib(4)),
    });
    fixture.run_for(Span::from_millis(500));
    fixture.done.clear();
    let what = Received::Text(text.to_owned());
    fixture.tell(Event::Received {
        connection: AGENT,
        what,
    });
    fixture.run_for(Span::from_secs(4));
    let answers = fixture.done.len();
    let ends_an_exchange = text.contains("InvalidMessage") || text.contains("InternalError");
    assert!(answers <= 2, "{text}");
    assert!(answers >= 1 || ends_an_exchange, "silence: {text}");
    fixture.say(AgentBody::HealthCheck, 1 << 20);
    let last = fixture.done.last();
    let is_alive = matches!(last, Some(Action::Send { frame, .. }) if frame.id == 1 << 20);
    assert!(is_alive, "{text}");
    for action in &fixture.done {
        let length = match action {
            Action::Send { frame, .. } => frame.encode().len(),
            Action::SendV2 { frame, .. } => frame.encode().len(),
            _ => 0,
        };
        assert!(
            length < protocol::monitor::AGENT_FRAME_LIMIT_BYTES / 2,
            "{length}"
        );
    }
}

fn any_frame() -> impl Strategy<Value = String> {
    let kind = "(DownscaleRequest|UpscaleNotification|HealthCheck|Capabilities|InvalidMessage|InternalError|[A-Za-z]{0,9})";
    let content = "(\\{\\}|\\{\"(target|granted|names|error)\":[\\{\\[]?[0-9a-z\"\\[\\]{},:.-]{0,20}\\}|[0-9a-z\"\\[\\]{},:.-]{0,20})";
    (kind, content, any::<i64>()).prop_map(|(kind, content, id)| {
        format!(r#"{{"type":"{kind}","content":{content},"id":{id}}}"#)
    })
}

proptest! {
    #[test]
    fn n38_any_frame_is_answered(text in any_frame(), is_v2 in any::<bool>()) {
        frame_of_any_text(if is_v2 { Version::V2 } else { Version::V1 }, &text);
    }

    #[test]
    fn n38_any_text_is_answered(text in ".{0,200}", is_v2 in any::<bool>()) {
        frame_of_any_text(if is_v2 { Version::V2 } else { Version::V1 }, &text);
    }

    #[test]
    fn n38_any_first_frame_is_a_version_or_an_error(text in ".{0,80}") {
        if let Err(refused) = handshake::negotiate(&text) {
            let answer = serde_json::to_string(&refused.answer).expect("encodes");
            prop_assert!(answer.len() < 2000, "{}", answer);
        }
    }

    #[test]
    fn n38_any_figures_leave_the_monitor_in_order(
        steps in prop::collection::vec((any::<u64>(), any::<u64>(), 0_u64..5_000_000), 1..40),
    ) {
        let mut fixture = Fixture::with(Rules::default(), CacheMode::Off, Watched::Cgroup);
        fixture.connect(AGENT);
        for (used, bound, wait) in steps {
            fixture.usage = Ok(Bytes(used));
            fixture.bound = Some(Bytes(bound));
            fixture.run_for(Span(wait));
            // However odd the figures, the next look is ahead and near.
            let next = fixture.core.poll_deadline().expect("an agent is served");
            prop_assert!(next > fixture.now - Span::from_secs(1));
            prop_assert!(next <= fixture.now + Span::from_secs(1));
        }
    }
}
