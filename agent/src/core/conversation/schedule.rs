//! The answer to a monitor that asks for the schedule of its upgrades.

use protocol::fleet::KEY_SCHEDULE;
use protocol::monitor::AgentBody;
use protocol::monitor_v2::{
    AgentBodyV2, SCHEDULE_LIMIT_BYTES, SCHEDULE_PERIODS_S, SYSTEMD_TIMER, Schedule,
};

/// Answers with the VM's annotation. Its text is the updater's to read, not the agent's. A VM
/// without the annotation has no schedule.
pub(super) fn answer(kind: &str, annotation: Option<String>) -> AgentBodyV2 {
    let refuse = |error: String| AgentBody::InternalError { error }.into();
    if kind != SYSTEMD_TIMER {
        return refuse(format!("no schedule of this kind: ask for {SYSTEMD_TIMER}"));
    }
    let spec = annotation.unwrap_or_default();
    let bytes = spec.len();
    if bytes > SCHEDULE_LIMIT_BYTES {
        return refuse(format!(
            "annotation {KEY_SCHEDULE} has {bytes} bytes, at most {SCHEDULE_LIMIT_BYTES} are sent: \
             shorten it"
        ));
    }
    let (_, valid_s) = SCHEDULE_PERIODS_S;
    AgentBodyV2::Schedule(Schedule { spec, valid_s })
}

#[cfg(test)]
mod tests {
    use protocol::core::Core as _;
    use protocol::monitor::Version;
    use protocol::monitor_v2::{AgentFrameV2, MonitorBodyV2, MonitorFrameV2, ScheduleRequest};
    use protocol::time::{Span, Timestamp};

    use super::*;
    use crate::core::conversation::{Conversation, Event, Limits, Output};

    const NOW: Timestamp = Timestamp(0);

    fn conversation(version: Version) -> Conversation {
        let limits = Limits {
            response: Span::from_secs(5),
            health_check_every: Span::from_secs(5),
            unhealthy: Span::from_secs(60),
            push_every: Span::from_secs(5),
        };
        let mut conversation = Conversation::new(NOW, version, limits);
        while conversation.poll_action(NOW).is_some() {}
        conversation
    }

    fn request(kind: &str) -> String {
        let (version, kind) = ("1.2.3".to_owned(), kind.to_owned());
        let body = MonitorBodyV2::ScheduleRequest(ScheduleRequest { version, kind });
        MonitorFrameV2 { body, id: 7 }.encode()
    }

    /// The one frame that answers a request.
    fn answered(kind: &str, annotation: Option<&str>) -> AgentFrameV2 {
        let mut conversation = conversation(Version::V2);
        conversation.handle(NOW, Event::Text(request(kind)));
        let Some(Output::ScheduleRequest { id, request }) = conversation.poll_action(NOW) else {
            panic!("no request");
        };
        let annotation = annotation.map(str::to_owned);
        let kind = request.kind;
        conversation.handle(
            NOW,
            Event::Schedule {
                id,
                kind,
                annotation,
            },
        );
        let Some(Output::Send(frame)) = conversation.poll_action(NOW) else {
            panic!("no answer");
        };
        assert_eq!(conversation.poll_action(NOW), None);
        frame
    }

    /// Requirement: R20
    #[test]
    fn schedule_is_the_annotation_as_it_is_and_empty_without_one() {
        let longest = "x".repeat(SCHEDULE_LIMIT_BYTES);
        for text in ["*-*-* 02:00:00 UTC\n", "no schedule", "", &longest] {
            let frame = answered(SYSTEMD_TIMER, Some(text));
            let (spec, valid_s) = (text.to_owned(), 21_600);
            assert_eq!(frame.id, 7);
            assert_eq!(
                frame.body,
                AgentBodyV2::Schedule(Schedule { spec, valid_s })
            );
        }
        assert_eq!(
            answered(SYSTEMD_TIMER, None),
            answered(SYSTEMD_TIMER, Some(""))
        );
    }

    /// Requirement: R22
    #[test]
    fn schedule_of_another_kind_or_past_its_limit_is_refused_under_its_id() {
        let long = "x".repeat(SCHEDULE_LIMIT_BYTES + 1);
        for (kind, annotation) in [("kube-controller", ""), ("", ""), (SYSTEMD_TIMER, &*long)] {
            let frame = answered(kind, Some(annotation));
            assert_eq!(frame.id, 7);
            let AgentBodyV2::Plain(AgentBody::InternalError { error }) = frame.body else {
                panic!("{frame:?}");
            };
            assert!(error.contains(SYSTEMD_TIMER) || error.contains(KEY_SCHEDULE));
        }
    }

    /// Requirement: R19
    #[test]
    fn version_1_has_no_request_for_a_schedule() {
        let mut conversation = conversation(Version::V1);
        conversation.handle(NOW, Event::Text(request(SYSTEMD_TIMER)));
        let outputs = std::iter::from_fn(|| conversation.poll_action(NOW));
        let outputs: Vec<Output> = outputs.collect();
        assert!(
            matches!(&outputs[..], [Output::Unreadable, Output::Send(_)]),
            "{outputs:?}"
        );
    }
}
