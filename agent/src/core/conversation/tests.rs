//! The agent's half of the transactions of one connection, over every order of what may come: right
//! answers, answers of another kind, late, repeated and unknown ones, complaints, wishes in
//! between, and none at all.

use std::collections::BTreeMap;

use protocol::monitor_v2::{AskReason, RefusalReason, Refused};

use super::*;
use crate::core::{DownscaleAnswer, Refusal};

const LIMITS: Limits = Limits {
    response: Span::from_secs(5),
    health_check_every: Span::from_secs(5),
    unhealthy: Span::from_secs(60),
    push_every: Span::from_secs(5),
};

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

/// The kinds of calls, as the choices number them.
const ASKS: [Ask; 3] = [Ask::Upscale, Ask::Downscale, Ask::Health];

/// What an answer of some kind looks like; from 3 on they answer no call.
fn answer_of(kind: u64, id: u64, choices: &mut Choices) -> String {
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

/// One conversation's state as the test sees it.
struct Talk<'a> {
    now: Timestamp,
    conversation: Conversation,
    waiting: BTreeMap<u64, Ask>,
    /// Ids that were answered, or given up.
    done: Vec<u64>,
    /// How often each end came, for the whole run.
    ends: &'a mut BTreeMap<&'static str, u64>,
}

/// What came out of one step.
#[derive(Debug, Default)]
struct Came {
    frames: Vec<AgentFrameV2>,
    done: Vec<(u64, Result<Answer, CallError>)>,
    end: Option<Breach>,
}

impl Talk<'_> {
    fn take(&mut self) -> Came {
        let mut came = Came::default();
        while let Some(output) = self.conversation.poll_action() {
            assert_eq!(came.end, None, "something after the end: {output:?}");
            match output {
                Output::Send(frame) => {
                    let text = frame.encode();
                    let read = AgentFrameV2::decode(&text).expect("our own frames read");
                    assert_eq!(read, frame);
                    came.frames.push(frame);
                }
                Output::Done { id, ask, outcome } => {
                    if ask != Ask::Capabilities {
                        assert_eq!(self.waiting.remove(&id), Some(ask), "{id} ends once");
                        self.done.push(id);
                    }
                    came.done.push((id, outcome));
                }
                Output::Wish(_) | Output::Complaint(_) | Output::Paused => {}
                Output::End(breach) => came.end = Some(breach),
                other => panic!("{other:?}"),
            }
        }
        came
    }

    /// The frames of new calls are under ids of their own.
    fn calls(&mut self, ask: Ask, frames: &[AgentFrameV2]) {
        let [frame] = frames else {
            panic!("{frames:?}")
        };
        assert!(frame.id.is_multiple_of(2), "our ids are even");
        let before = self.waiting.insert(frame.id, ask);
        assert!(
            before.is_none() && !self.done.contains(&frame.id),
            "{} again",
            frame.id
        );
    }

    fn call(&mut self, ask: Ask) {
        let size = Resources::new(250, 1 << 30);
        let id = match ask {
            Ask::Upscale => self.conversation.upscale(self.now, size),
            _ => self.conversation.downscale(self.now, size),
        };
        let came = self.take();
        self.calls(ask, &came.frames);
        assert!(self.waiting.contains_key(&id) && came.done.is_empty());
    }

    /// A frame of that kind under that id comes in.
    fn answer(&mut self, kind: u64, id: u64, choices: &mut Choices) -> Option<Breach> {
        let text = answer_of(kind, id, choices);
        let waits = self.waiting.get(&id).copied();
        self.conversation.received(self.now, &text);
        let came = self.take();
        let Some(waits) = waits else {
            // Late, repeated or unknown: said so once, unless it is a complaint itself.
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
            "an answer is not answered: {came:?}"
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

    /// Time passes: what is overdue by then is given up, and nothing else; health is checked when
    /// that is due.
    fn pass(&mut self, span: Span) -> Option<Breach> {
        self.now = self.now + span;
        let was_checking = self.waiting.values().any(|ask| *ask == Ask::Health);
        self.conversation.elapsed(self.now);
        let came = self.take();
        for (_, outcome) in &came.done {
            *self.ends.entry("timed_out").or_default() += 1;
            assert_eq!(*outcome, Err(CallError::TimedOut));
        }
        if !came.frames.is_empty() {
            let gave_up = came.done.len() > usize::from(!was_checking);
            assert!(!was_checking || gave_up, "one health check at a time");
            self.calls(Ask::Health, &came.frames);
        }
        if came.end.is_none() {
            assert!(self.conversation.poll_deadline() > self.now);
        }
        came.end
    }

    /// The connection ends: whoever still waits hears of it.
    fn end(mut self) {
        let waited = self.waiting.len();
        self.conversation.close();
        let came = self.take();
        let lost = came.done.iter();
        let lost = lost.filter(|(_, outcome)| *outcome == Err(CallError::Disconnected));
        *self.ends.entry("disconnected").or_default() += waited as u64;
        assert!(lost.count() >= waited && came.frames.is_empty());
        assert!(self.waiting.is_empty());
    }
}

fn number_of(ask: Ask) -> u64 {
    let at = ASKS.iter().position(|known| *known == ask);
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
    // Version 2 begins with capabilities, which no choice below answers: they are overdue some
    // time, or end with the rest.
    assert_eq!(
        talk.take().frames.len(),
        usize::from(version >= Version::V2)
    );
    for _ in 0..4 + choices.below(12) {
        let known: Vec<u64> = talk.waiting.keys().copied().collect();
        let end = match choices.below(8) {
            0..3 => {
                talk.call(ASKS[usize::try_from(choices.below(2)).expect("few")]);
                None
            }
            3 | 4 => pick(&known, choices).and_then(|id| {
                // Mostly the right kind.
                let right = number_of(talk.waiting[&id]);
                let kind = if choices.below(4) > 0 {
                    right
                } else {
                    choices.below(5)
                };
                talk.answer(kind, id, choices)
            }),
            5 => {
                // Repeated, late, or never asked.
                let done = talk.done.clone();
                let id = pick(&done, choices).unwrap_or_else(|| 1001 + 2 * choices.below(100));
                talk.answer(choices.below(5), id, choices)
            }
            6 => talk.pass(Span::from_millis(choices.below(4000))),
            _ => {
                let asked = Asked {
                    reason: AskReason::Forecast,
                    urgency: None,
                    wanted: None,
                };
                // Its id is the monitor's own, and may be one of ours by chance: it answers
                // nothing.
                let (body, id) = (MonitorBodyV2::Asked(asked), choices.below(20));
                let text = MonitorFrameV2 { body, id }.encode();
                talk.conversation.received(talk.now, &text);
                let came = talk.take();
                // In version 1 the details are not read, and it is a wish all the same.
                assert!(came.frames.is_empty() && came.done.is_empty(), "{came:?}");
                came.end
            }
        };
        match end {
            None => {}
            // A monitor that fails its health checks for too long is left.
            Some(Breach::Unhealthy) => break,
            Some(other) => panic!("{other}"),
        }
    }
    talk.end();
}

#[test]
fn n33_n37_a_hundred_thousand_conversations_leave_no_caller_waiting() {
    let (mut choices, mut ends) = (Choices(0x5EED_0A6E_4712), BTreeMap::new());
    for _ in 0..100_000 {
        conversation(&mut ends, &mut choices);
    }
    for end in ["right", "wrong", "unknown", "timed_out", "disconnected"] {
        let count = ends.get(end).copied().unwrap_or(0);
        assert!(count > 10_000, "only {count} of {end}: {ends:?}");
    }
}

/// Everything that is to be done now.
fn outputs(conversation: &mut Conversation) -> Vec<Output> {
    std::iter::from_fn(|| conversation.poll_action()).collect()
}

#[test]
fn a_monitor_that_fails_its_health_checks_for_too_long_is_left() {
    let mut conversation = Conversation::new(Timestamp(0), Version::V1, LIMITS);
    let mut checks = 0;
    let end = loop {
        let now = conversation.poll_deadline();
        conversation.elapsed(now);
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
    // The first fails 10 s after the start, and one that fails more than 60 s later is one too
    // many.
    assert_eq!(end, (Timestamp(75_000_000), Breach::Unhealthy));
    assert_eq!(checks, 14);
}

/// The answer that ends a failed health check for good is itself one to complain of: there is one
/// end, and nothing after it.
#[test]
fn a_connection_ends_once() {
    for kind in ["Odd", "DownscaleResult"] {
        let mut conversation = Conversation::new(Timestamp(0), Version::V1, LIMITS);
        let first_failed = Timestamp(10_000_000);
        conversation.elapsed(Timestamp(5_000_000));
        conversation.elapsed(first_failed);
        let last = outputs(&mut conversation).into_iter().rev();
        let id = last.into_iter().find_map(|output| match output {
            Output::Send(frame) => Some(frame.id),
            _ => None,
        });
        let id = id.expect("a second check");
        let now = first_failed + LIMITS.unhealthy + Span::from_secs(1);
        conversation.received(now, &format!(r#"{{"type":"{kind}","id":{id}}}"#));
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
fn one_good_health_check_makes_up_for_all_bad_ones() {
    let mut conversation = Conversation::new(Timestamp(0), Version::V1, LIMITS);
    let mut well = 0;
    // Every third check is answered: for ten minutes nothing ends.
    while conversation.poll_deadline() < Timestamp(600_000_000) {
        let now = conversation.poll_deadline();
        conversation.elapsed(now);
        for output in outputs(&mut conversation) {
            match output {
                Output::Send(frame) if (frame.id / 2).is_multiple_of(3) => {
                    let id = frame.id;
                    let body = MonitorBodyV2::Plain(MonitorBody::HealthCheck);
                    conversation.received(now, &MonitorFrameV2 { body, id }.encode());
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
fn wishes_and_pushes_too_close_together_are_one() {
    let mut conversation = Conversation::new(Timestamp(0), Version::V2, LIMITS);
    outputs(&mut conversation);
    let mut wish = |millis: u64, urgency: Option<Urgency>| {
        let asked = Asked {
            reason: AskReason::Forecast,
            urgency,
            wanted: None,
        };
        let (body, id) = (MonitorBodyV2::Asked(asked), 3);
        let at = Timestamp(millis * 1000);
        conversation.received(at, &MonitorFrameV2 { body, id }.encode());
        match &outputs(&mut conversation)[..] {
            [Output::Wish(wish)] => wish.is_some(),
            other => panic!("{other:?}"),
        }
    };
    assert!(wish(0, None), "the first always counts");
    assert!(!wish(99, None));
    assert!(wish(99, Some(Urgency::Now)), "more urgent");
    assert!(!wish(198, Some(Urgency::Now)));
    assert!(wish(199, Some(Urgency::Now)));
    let mut push = |millis: u64| {
        let (body, id) = (MonitorBodyV2::Metrics(Box::default()), 5);
        let at = Timestamp(millis * 1000);
        conversation.received(at, &MonitorFrameV2 { body, id }.encode());
        outputs(&mut conversation).len()
    };
    assert_eq!([push(0), push(99), push(100), push(150)], [1, 0, 1, 0]);
}

#[test]
fn a_call_whose_frame_could_not_be_sent_never_left() {
    let mut conversation = Conversation::new(Timestamp(0), Version::V1, LIMITS);
    let size = Resources::new(1000, 1 << 30);
    let (first, second) = (
        conversation.upscale(Timestamp(0), size),
        conversation.downscale(Timestamp(0), size),
    );
    outputs(&mut conversation);
    conversation.unsent(Timestamp(1), second);
    conversation.close();
    let third = conversation.upscale(Timestamp(2), size);
    let done = |id, ask, error| Output::Done {
        id,
        ask,
        outcome: Err(error),
    };
    assert_eq!(
        outputs(&mut conversation),
        [
            done(second, Ask::Downscale, CallError::NotSent),
            done(first, Ask::Upscale, CallError::Disconnected),
            done(third, Ask::Upscale, CallError::NotSent),
        ]
    );
    assert_eq!(
        CallError::NotSent.failure(),
        crate::core::Failure::NotApplied
    );
}

#[test]
fn a_refusal_keeps_its_reason_and_its_words() {
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
    conversation.received(Timestamp(1), &MonitorFrameV2 { body, id }.encode());
    let answer = Answer::Downscale(Downscaled {
        answer: DownscaleAnswer::Denied(Refusal {
            smallest: Some(Resources::new(1000, 2 << 30)),
            again: Some(Span::from_millis(2500)),
        }),
        status: "700 MiB are in use".to_owned(),
        reason: Some(RefusalReason::InUse),
    });
    let (ask, outcome) = (Ask::Downscale, Ok(answer));
    assert_eq!(
        outputs(&mut conversation),
        [Output::Done { id, ask, outcome }]
    );
}

#[test]
fn n31_a_handshake_ends_with_a_version_that_was_offered_or_none() {
    let chosen = |text| chosen(offer(Version::V2), text);
    assert_eq!(chosen(r#"{"version":1}"#), Ok(Version::V1));
    assert_eq!(chosen(r#"{"version":2}"#), Ok(Version::V2));
    assert_eq!(chosen(r#"{"version":3}"#), Err(HandshakeError::Version(3)));
    assert_eq!(chosen("[]"), Err(HandshakeError::Unreadable));
    let words = "no ".repeat(200);
    let refused = chosen(&format!(r#"{{"error":"{words}"}}"#));
    assert_eq!(
        refused,
        Err(HandshakeError::Refused(words.chars().take(200).collect()))
    );
}

mod whatever_comes {
    use proptest::prelude::*;

    use super::*;

    /// Frames of every type with members of every type, and what is no frame at all.
    fn text() -> impl Strategy<Value = String> {
        let kind = "(DownscaleResult|UpscaleRequest|UpscaleConfirmation|HealthCheck|Capabilities|Metrics|InternalError|InvalidMessage|[a-zA-Z]{0,6})";
        let value = "(true|false|null|-?[0-9]{1,20}|\"[a-z]{0,4}\"|\\[\"metrics=[0-9]{1,9}\"\\]|\\{\"cpu\":-?[0-9]{1,3}(e[0-9]{1,3})?,\"mem\":[0-9]{1,19}\\})";
        let name = "(ok|status|reason|smallest|again_ms|observed|wanted|urgency|names|error|load1|memory|guest)";
        let member = format!(",\"{name}\":{value}");
        let frame = format!("\\{{\"type\":\"{kind}\",\"id\":[0-9]{{1,2}}({member}){{0,4}}\\}}");
        let frame = proptest::string::string_regex(&frame).expect("a pattern");
        prop_oneof![8 => frame, 1 => ".{0,40}"]
    }

    proptest! {
        #[test]
        fn n33_every_call_ends_once(
            version in 1_u8..3,
            steps in prop::collection::vec((0_u64..9000, 0_u8..4, text()), 0..40),
        ) {
            let mut now = Timestamp(0);
            let mut conversation = Conversation::new(now, Version(version), LIMITS);
            let (mut asked, mut ended) = (Vec::new(), Vec::new());
            let mut is_over = false;
            for (millis, what, text) in steps {
                now = now + Span::from_millis(millis);
                match what {
                    0 => asked.push(conversation.upscale(now, Resources::new(250, 1))),
                    1 => asked.push(conversation.downscale(now, Resources::new(250, 1))),
                    2 => conversation.elapsed(now),
                    _ => conversation.received(now, &text),
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
            conversation.close();
            for output in outputs(&mut conversation) {
                if let Output::Done { id, .. } = output {
                    ended.push(id);
                }
            }
            for id in asked {
                let times = ended.iter().filter(|ended| **ended == id).count();
                prop_assert_eq!(times, 1, "call {}", id);
            }
        }
    }
}
