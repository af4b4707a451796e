//! One link under all kinds of input: right and wrong responses, late, repeated and unknown ones,
//! complaints, upscale requests in between, and silence.

use std::collections::BTreeMap;

use protocol::monitor_v2::{AskReason, RefusalReason, Refused};

use super::*;
use crate::core::{DownscaleResponse, Refusal};

const LIMITS: Limits = Limits {
    response: Span::from_secs(5),
    health_check_every: Span::from_secs(5),
    unhealthy: Span::from_secs(60),
    push_every: Span::from_secs(5),
};

/// Pseudo-random choices, the same on every machine.
struct Choices(u64);

impl Choices {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

/// Kinds of requests, by the number of the response that fits.
const REQUESTS: [MonitorRequest; 3] = [
    MonitorRequest::Upscale,
    MonitorRequest::Downscale,
    MonitorRequest::Health,
];

/// A response of kind `kind`; 3 and above are complaints.
fn response_of(kind: u64, id: u64, choices: &mut Choices) -> String {
    let body = match kind {
        0 if choices.below(2) == 0 => MonitorBodyV2::Confirmed {
            observed: Allocation { cpu: 1.0, mem: 1 },
        },
        0 => MonitorBodyV2::Plain(MonitorBody::UpscaleConfirmation),
        1 if choices.below(2) == 0 => MonitorBodyV2::Refused(Refused {
            status: "no".to_owned(),
            reason: RefusalReason::InUse,
            smallest: None,
            again: None,
        }),
        1 => MonitorBodyV2::Plain(MonitorBody::DownscaleResult {
            ok: true,
            status: "yes".to_owned(),
        }),
        2 => MonitorBodyV2::Plain(MonitorBody::HealthCheck),
        3 => MonitorBodyV2::Plain(MonitorBody::InternalError {
            error: "no database".to_owned(),
        }),
        _ => MonitorBodyV2::Plain(MonitorBody::InvalidMessage {
            error: "what?".to_owned(),
        }),
    };
    MonitorFrameV2 { body, id }.encode()
}

/// One conversation and the requests that should be open.
struct Talk<'a> {
    now: Timestamp,
    conversation: Conversation,
    waiting: BTreeMap<u64, MonitorRequest>,
    /// Ids of requests that have ended.
    done: Vec<u64>,
    /// Number of requests by how they ended, over all conversations.
    ends: &'a mut BTreeMap<&'static str, u64>,
}

/// Output of one step.
#[derive(Debug, Default)]
struct Outcome {
    frames: Vec<AgentFrameV2>,
    done: Vec<(u64, Result<MonitorResponse, MonitorRequestError>)>,
    end: Option<Breach>,
}

impl Talk<'_> {
    fn take(&mut self) -> Outcome {
        let mut came = Outcome::default();
        while let Some(output) = self.conversation.poll_action(self.now) {
            assert_eq!(came.end, None, "something after the end: {output:?}");
            match output {
                Output::Send(frame) => {
                    let text = frame.encode();
                    let read = AgentFrameV2::decode(&text).expect("our own frames read");
                    assert_eq!(read, frame);
                    came.frames.push(frame);
                }
                Output::Done {
                    id,
                    request,
                    outcome,
                } => {
                    if request != MonitorRequest::Capabilities {
                        assert_eq!(self.waiting.remove(&id), Some(request), "{id} ends once");
                        self.done.push(id);
                    }
                    came.done.push((id, outcome));
                }
                Output::UpscaleRequest(_) | Output::Complaint(_) | Output::Paused => {}
                Output::End(breach) => came.end = Some(breach),
                other => panic!("{other:?}"),
            }
        }
        came
    }

    /// Checks that the frame of a new request has an unused id.
    fn sent(&mut self, request: MonitorRequest, frames: &[AgentFrameV2]) {
        let [frame] = frames else {
            panic!("{frames:?}")
        };
        assert!(frame.id.is_multiple_of(2), "our ids are even");
        let before = self.waiting.insert(frame.id, request);
        assert!(
            before.is_none() && !self.done.contains(&frame.id),
            "{} again",
            frame.id
        );
    }

    fn request(&mut self, request: MonitorRequest) {
        let size = Resources::new(250, 1 << 30);
        let id = match request {
            MonitorRequest::Upscale => self.conversation.upscale(self.now, size),
            _ => self.conversation.downscale(self.now, size),
        };
        let came = self.take();
        self.sent(request, &came.frames);
        assert!(self.waiting.contains_key(&id) && came.done.is_empty());
    }

    /// Receives a frame of kind `kind` with the id `id`.
    fn respond(&mut self, kind: u64, id: u64, choices: &mut Choices) -> Option<Breach> {
        let text = response_of(kind, id, choices);
        let waits = self.waiting.get(&id).copied();
        self.conversation.handle(self.now, Event::Text(text));
        let came = self.take();
        let Some(waits) = waits else {
            // Late, repeated or unknown: it gets one complaint, unless it is a complaint itself.
            *self.ends.entry("unknown").or_default() += 1;
            assert_eq!(came.end, None);
            let is_complaint = kind >= 3;
            assert_eq!(came.frames.len(), usize::from(!is_complaint), "{came:?}");
            for frame in came.frames {
                assert_eq!(frame.id, id);
                assert!(matches!(
                    frame.body,
                    AgentBodyV2::Plain(AgentBody::InvalidMessage { .. })
                ));
            }
            return None;
        };
        assert!(
            came.frames.is_empty(),
            "a response gets no response: {came:?}"
        );
        let [(ended, heard)] = &came.done[..] else {
            panic!("{came:?}")
        };
        let is_right = number_of(waits) == kind;
        assert_eq!((*ended, heard.is_ok()), (id, is_right), "{heard:?}");
        let end = if is_right { "right" } else { "wrong" };
        *self.ends.entry(end).or_default() += 1;
        came.end
    }

    /// Lets time pass. Only overdue requests end, and a due health check starts.
    fn pass(&mut self, span: Span) -> Option<Breach> {
        self.now = self.now + span;
        let was_checking = self
            .waiting
            .values()
            .any(|request| *request == MonitorRequest::Health);
        self.conversation.handle(self.now, Event::Elapsed);
        let came = self.take();
        for (_, outcome) in &came.done {
            *self.ends.entry("timed_out").or_default() += 1;
            assert_eq!(*outcome, Err(MonitorRequestError::TimedOut));
        }
        if !came.frames.is_empty() {
            let gave_up = came.done.len() > usize::from(!was_checking);
            assert!(!was_checking || gave_up, "one health check at a time");
            self.sent(MonitorRequest::Health, &came.frames);
        }
        if came.end.is_none() {
            assert!(self.conversation.poll_deadline() > Some(self.now));
        }
        came.end
    }

    /// Closes the link, which ends all open requests.
    fn end(mut self) {
        let waited = self.waiting.len();
        self.conversation.handle(self.now, Event::Closed);
        let came = self.take();
        let disconnected = Err(MonitorRequestError::Disconnected);
        let lost = came.done.iter().filter(|(_, end)| *end == disconnected);
        *self.ends.entry("disconnected").or_default() += waited as u64;
        assert!(lost.count() >= waited && came.frames.is_empty());
        assert!(self.waiting.is_empty());
    }
}

fn number_of(request: MonitorRequest) -> u64 {
    let at = REQUESTS.iter().position(|known| *known == request);
    at.expect("one of them") as u64
}

fn pick(from: &[u64], choices: &mut Choices) -> Option<u64> {
    let count = u64::try_from(from.len()).expect("few");
    let at = usize::try_from(choices.below(count.max(1))).expect("few");
    from.get(at).copied()
}

fn conversation(ends: &mut BTreeMap<&'static str, u64>, choices: &mut Choices) {
    let version = Version(u8::from(choices.below(4) > 0) + 1);
    let now = Timestamp(choices.below(1 << 40));
    let mut talk = Talk {
        now,
        conversation: Conversation::new(now, version, LIMITS),
        waiting: BTreeMap::new(),
        done: Vec::new(),
        ends,
    };
    // Version 2 begins with capabilities, which get no response below.
    assert_eq!(
        talk.take().frames.len(),
        usize::from(version >= Version::V2)
    );
    for _ in 0..4 + choices.below(12) {
        let known: Vec<u64> = talk.waiting.keys().copied().collect();
        let end = match choices.below(8) {
            0..3 => {
                talk.request(REQUESTS[usize::try_from(choices.below(2)).expect("few")]);
                None
            }
            3 | 4 => pick(&known, choices).and_then(|id| {
                // Three of four have the right kind.
                let right = number_of(talk.waiting[&id]);
                let kind = if choices.below(4) > 0 {
                    right
                } else {
                    choices.below(5)
                };
                talk.respond(kind, id, choices)
            }),
            5 => {
                // Repeated, late or unknown.
                let done = talk.done.clone();
                let id = pick(&done, choices).unwrap_or_else(|| 1001 + 2 * choices.below(100));
                talk.respond(choices.below(5), id, choices)
            }
            6 => talk.pass(Span::from_millis(choices.below(4000))),
            _ => {
                let asked = UpscaleDetails {
                    reason: AskReason::Forecast,
                    urgency: None,
                    wanted: None,
                };
                // Its id may equal one of ours. It is no response all the same.
                let (body, id) = (MonitorBodyV2::Asked(asked), choices.below(20));
                let text = MonitorFrameV2 { body, id }.encode();
                talk.conversation.handle(talk.now, Event::Text(text));
                let came = talk.take();
                // Version 1 ignores the details of the request.
                assert!(came.frames.is_empty() && came.done.is_empty(), "{came:?}");
                came.end
            }
        };
        match end {
            None => {}
            Some(Breach::Unhealthy) => break,
            Some(other) => panic!("{other}"),
        }
    }
    talk.end();
}

/// Requirement: N33, N37
#[test]
fn hundred_thousand_conversations_end_every_request() {
    let (mut choices, mut ends) = (Choices(0x5EED_0A6E_4712), BTreeMap::new());
    for _ in 0..100_000 {
        conversation(&mut ends, &mut choices);
    }
    for end in ["right", "wrong", "unknown", "timed_out", "disconnected"] {
        let count = ends.get(end).copied().unwrap_or(0);
        assert!(count > 10_000, "only {count} of {end}: {ends:?}");
    }
}

fn outputs(conversation: &mut Conversation) -> Vec<Output> {
    std::iter::from_fn(|| conversation.poll_action(Timestamp::default())).collect()
}

#[test]
fn link_with_failing_health_checks_is_closed() {
    let mut conversation = Conversation::new(Timestamp(0), Version::V1, LIMITS);
    let mut checks = 0;
    let end = loop {
        let now = conversation.poll_deadline().expect("a health check");
        conversation.handle(now, Event::Elapsed);
        let came = outputs(&mut conversation);
        checks += came
            .iter()
            .filter(|output| matches!(output, Output::Send(_)))
            .count();
        if let Some(Output::End(breach)) = came.last() {
            break (now, breach.clone());
        }
        assert!(checks < 100, "it never ends");
    };
    // The first check fails 10 s after the start. One that fails more than 60 s later ends the
    // link.
    assert_eq!(end, (Timestamp(75_000_000), Breach::Unhealthy));
    assert_eq!(checks, 14);
}

/// The malformed response of the last health check is itself a reason to end the link.
#[test]
fn link_ends_once() {
    for kind in ["Odd", "DownscaleResult"] {
        let mut conversation = Conversation::new(Timestamp(0), Version::V1, LIMITS);
        let first_failed = Timestamp(10_000_000);
        conversation.handle(Timestamp(5_000_000), Event::Elapsed);
        conversation.handle(first_failed, Event::Elapsed);
        let mut sent = outputs(&mut conversation).into_iter().rev();
        let id = sent
            .find_map(|output| match output {
                Output::Send(frame) => Some(frame.id),
                _ => None,
            })
            .expect("a second check");
        let now = first_failed + LIMITS.unhealthy + Span::from_secs(1);
        conversation.handle(
            now,
            Event::Text(format!(r#"{{"type":"{kind}","id":{id}}}"#)),
        );
        let came = outputs(&mut conversation);
        assert!(
            matches!(
                came[..],
                [
                    Output::Unreadable,
                    Output::Done { .. },
                    Output::End(Breach::Unhealthy)
                ]
            ),
            "{kind}: {came:?}"
        );
    }
}

#[test]
fn one_good_health_check_resets_the_failures() {
    let mut conversation = Conversation::new(Timestamp(0), Version::V1, LIMITS);
    let mut well = 0;
    // Every third check gets a response, so the link lasts for ten minutes.
    while conversation.poll_deadline() < Some(Timestamp(600_000_000)) {
        let now = conversation.poll_deadline().expect("a health check");
        conversation.handle(now, Event::Elapsed);
        for output in outputs(&mut conversation) {
            match output {
                Output::Send(frame) if (frame.id / 2).is_multiple_of(3) => {
                    let id = frame.id;
                    let body = MonitorBodyV2::Plain(MonitorBody::HealthCheck);
                    conversation.handle(now, Event::Text(MonitorFrameV2 { body, id }.encode()));
                }
                Output::Done { outcome, .. } => well += u32::from(outcome.is_ok()),
                Output::End(breach) => panic!("{breach}"),
                _ => {}
            }
        }
    }
    assert!(well > 20, "{well}");
}

#[test]
fn upscale_requests_and_pushes_too_close_together_count_once() {
    let mut conversation = Conversation::new(Timestamp(0), Version::V2, LIMITS);
    outputs(&mut conversation);
    let mut counts = |millis: u64, urgency: Option<Urgency>| {
        let asked = UpscaleDetails {
            reason: AskReason::Forecast,
            urgency,
            wanted: None,
        };
        let (body, id) = (MonitorBodyV2::Asked(asked), 3);
        let at = Timestamp(millis * 1000);
        conversation.handle(at, Event::Text(MonitorFrameV2 { body, id }.encode()));
        match &outputs(&mut conversation)[..] {
            [Output::UpscaleRequest(request)] => request.is_some(),
            other => panic!("{other:?}"),
        }
    };
    assert!(counts(0, None), "the first always counts");
    assert!(!counts(99, None));
    assert!(counts(99, Some(Urgency::Now)), "more urgent");
    assert!(!counts(198, Some(Urgency::Now)));
    assert!(counts(199, Some(Urgency::Now)));
    let mut push = |millis: u64| {
        let (body, id) = (MonitorBodyV2::Metrics(Box::default()), 5);
        let at = Timestamp(millis * 1000);
        conversation.handle(at, Event::Text(MonitorFrameV2 { body, id }.encode()));
        outputs(&mut conversation).len()
    };
    assert_eq!([push(0), push(99), push(100), push(150)], [1, 0, 1, 0]);
}

#[test]
fn request_with_unsent_frame_is_not_applied() {
    let mut conversation = Conversation::new(Timestamp(0), Version::V1, LIMITS);
    let size = Resources::new(1000, 1 << 30);
    let (first, second) = (
        conversation.upscale(Timestamp(0), size),
        conversation.downscale(Timestamp(0), size),
    );
    outputs(&mut conversation);
    conversation.handle(Timestamp(1), Event::Unsent(second));
    conversation.handle(Timestamp(1), Event::Closed);
    let third = conversation.upscale(Timestamp(2), size);
    let done = |id, request, error| Output::Done {
        id,
        request,
        outcome: Err(error),
    };
    assert_eq!(
        outputs(&mut conversation),
        [
            done(
                second,
                MonitorRequest::Downscale,
                MonitorRequestError::NotSent
            ),
            done(
                first,
                MonitorRequest::Upscale,
                MonitorRequestError::Disconnected
            ),
            done(third, MonitorRequest::Upscale, MonitorRequestError::NotSent),
        ]
    );
    assert_eq!(
        MonitorRequestError::NotSent.failure(),
        crate::core::Failure::NotApplied
    );
}

#[test]
fn refusal_keeps_reason_and_status() {
    let mut conversation = Conversation::new(Timestamp(0), Version::V2, LIMITS);
    let id = conversation.downscale(Timestamp(0), Resources::new(1000, 1 << 30));
    outputs(&mut conversation);
    let body = MonitorBodyV2::Refused(Refused {
        status: "700 MiB are in use".to_owned(),
        reason: RefusalReason::InUse,
        smallest: Some(Allocation {
            cpu: 1.0,
            mem: 2 << 30,
        }),
        again: Some(Span::from_millis(2500)),
    });
    conversation.handle(
        Timestamp(1),
        Event::Text(MonitorFrameV2 { body, id }.encode()),
    );
    let response = MonitorResponse::Downscale(DownscaleResult {
        response: DownscaleResponse::Denied(Refusal {
            smallest: Some(Resources::new(1000, 2 << 30)),
            again: Some(Span::from_millis(2500)),
        }),
        status: "700 MiB are in use".to_owned(),
        reason: Some(RefusalReason::InUse),
    });
    assert_eq!(
        outputs(&mut conversation),
        [Output::Done {
            id,
            request: MonitorRequest::Downscale,
            outcome: Ok(response),
        }]
    );
}

/// Requirement: N31
#[test]
fn handshake_accepts_offered_versions_only() {
    let chosen = |text| chosen(offer(Version::V2), text);
    assert_eq!(chosen(r#"{"version":1}"#), Ok(Version::V1));
    assert_eq!(chosen(r#"{"version":2}"#), Ok(Version::V2));
    assert_eq!(chosen(r#"{"version":3}"#), Err(HandshakeError::Version(3)));
    assert_eq!(chosen("[]"), Err(HandshakeError::Unreadable));
    let reason = "no ".repeat(200);
    let refused = chosen(&format!(r#"{{"error":"{reason}"}}"#));
    assert_eq!(
        refused,
        Err(HandshakeError::Refused(reason.chars().take(200).collect()))
    );
}

mod arbitrary_frames {
    use proptest::prelude::*;

    use super::*;

    /// Frames of every type with members of every type, and texts that are no frame.
    fn text() -> impl Strategy<Value = String> {
        let kind = "(DownscaleResult|UpscaleRequest|UpscaleConfirmation|HealthCheck|Capabilities|Metrics|ScheduleRequest|InternalError|InvalidMessage|[a-zA-Z]{0,6})";
        let value = "(true|false|null|-?[0-9]{1,20}|\"[a-z]{0,4}\"|\\[\"metrics=[0-9]{1,9}\"\\]|\\{\"cpu\":-?[0-9]{1,3}(e[0-9]{1,3})?,\"mem\":[0-9]{1,19}\\})";
        let name = "(ok|status|version|kind|reason|smallest|again_ms|observed|wanted|urgency|names|error|load1|memory|guest)";
        let member = format!(",\"{name}\":{value}");
        let frame = format!("\\{{\"type\":\"{kind}\",\"id\":[0-9]{{1,2}}({member}){{0,4}}\\}}");
        let frame = proptest::string::string_regex(&frame).expect("a pattern");
        prop_oneof![8 => frame, 1 => ".{0,40}"]
    }

    proptest! {
        /// Requirement: N33
        #[test]
        fn every_request_ends_once(
            version in 1_u8..3,
            steps in prop::collection::vec((0_u64..9000, 0_u8..4, text()), 0..40),
        ) {
            let mut now = Timestamp(0);
            let mut conversation = Conversation::new(now, Version(version), LIMITS);
            let mut sent = Vec::new();
            let mut ended = Vec::new();
            let mut is_over = false;
            for (millis, what, text) in steps {
                now = now + Span::from_millis(millis);
                match what {
                    0 => sent.push(conversation.upscale(now, Resources::new(250, 1))),
                    1 => sent.push(conversation.downscale(now, Resources::new(250, 1))),
                    2 => conversation.handle(now, Event::Elapsed),
                    _ => conversation.handle(now, Event::Text(text)),
                }
                for output in outputs(&mut conversation) {
                    match output {
                        Output::Done { id, .. } => ended.push(id),
                        Output::Send(_) => prop_assert!(!is_over),
                        Output::End(_) => {
                            prop_assert!(!std::mem::replace(&mut is_over, true));
                        }
                        _ => {}
                    }
                }
            }
            conversation.handle(now, Event::Closed);
            for output in outputs(&mut conversation) {
                if let Output::Done { id, .. } = output {
                    ended.push(id);
                }
            }
            for id in sent {
                let times = ended.iter().filter(|ended| **ended == id).count();
                prop_assert_eq!(times, 1, "request {}", id);
            }
        }
    }
}
