//! The agent's half of the transactions of one connection, over every order of what may come: right answers, answers of
//! another kind, late, repeated and unknown ones, complaints, wishes in between, and none at all.

use std::collections::BTreeMap;

use prometheus_client::registry::Registry;
use protocol::monitor_v2::{AskReason, RefusalReason};
use tokio::sync::oneshot::error::TryRecvError;

use super::*;
use crate::shell::config::Config;

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

/// Who waits, and for what.
enum Waits {
    Upscale(oneshot::Receiver<Result<Option<Resources>, CallError>>),
    Downscale(oneshot::Receiver<Result<DownscaleAnswer, CallError>>),
    Health,
}

impl Waits {
    fn kind(&self) -> u64 {
        match self {
            Self::Upscale(_) => 0,
            Self::Downscale(_) => 1,
            Self::Health => 2,
        }
    }

    /// What the caller has heard; nothing to hear for a health check.
    fn heard(&mut self) -> Option<Result<(), CallError>> {
        match self {
            Self::Upscale(from) => match from.try_recv() {
                Err(TryRecvError::Empty) => None,
                got => Some(
                    got.expect("an answer is sent before its sender goes")
                        .map(|_| ()),
                ),
            },
            Self::Downscale(from) => match from.try_recv() {
                Err(TryRecvError::Empty) => None,
                got => {
                    let got = got.expect("an answer is sent before its sender goes");
                    Some(got.map(|_| ()))
                }
            },
            Self::Health => None,
        }
    }
}

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
    session: Session<'a>,
    written: mpsc::Receiver<Message>,
    waiting: BTreeMap<u64, Waits>,
    /// Ids that were answered, or given up.
    done: Vec<u64>,
    /// How often each end came, for the whole run.
    ends: &'a mut BTreeMap<&'static str, u64>,
}

impl Talk<'_> {
    /// The frames written since the last look.
    fn frames(&mut self) -> Vec<AgentFrameV2> {
        let mut frames = Vec::new();
        while let Ok(Message::Text(text)) = self.written.try_recv() {
            frames.push(AgentFrameV2::decode(&text).expect("our own frames read"));
        }
        frames
    }

    fn call(&mut self, kind: u64) {
        let size = Resources::new(250, 1 << 30);
        let (waits, sent) = match kind {
            0 => {
                let (to, from) = oneshot::channel();
                (
                    Waits::Upscale(from),
                    self.session.call(Call::Upscale(size, to)),
                )
            }
            1 => {
                let (to, from) = oneshot::channel();
                (
                    Waits::Downscale(from),
                    self.session.call(Call::Downscale(size, to)),
                )
            }
            _ if self.waiting.values().any(|waits| waits.kind() == 2) => {
                self.session.check_health().expect("nothing to do");
                assert!(self.frames().is_empty(), "one health check at a time");
                return;
            }
            _ => (Waits::Health, self.session.check_health()),
        };
        sent.expect("there is room");
        let frames = self.frames();
        let [frame] = &frames[..] else {
            panic!("{frames:?}")
        };
        assert!(frame.id.is_multiple_of(2), "our ids are even");
        let before = self.waiting.insert(frame.id, waits);
        assert!(
            before.is_none() && !self.done.contains(&frame.id),
            "{} again",
            frame.id
        );
    }

    /// A frame of that kind under that id comes in.
    async fn answer(&mut self, kind: u64, id: u64, choices: &mut Choices) -> Result<(), Ended> {
        let text = answer_of(kind, id, choices);
        let came = self.session.received(Some(Ok(Message::text(text)))).await;
        let frames = self.frames();
        let Some(mut waits) = self.waiting.remove(&id) else {
            // Late, repeated or unknown: said so once, unless it is a complaint itself.
            *self.ends.entry("unknown").or_default() += 1;
            came.expect("no reason to end");
            let is_complaint = kind >= 3;
            assert_eq!(frames.len(), usize::from(!is_complaint), "{frames:?}");
            for frame in frames {
                assert_eq!(frame.id, id);
                assert!(matches!(
                    frame.body,
                    AgentBodyV2::Plain(AgentBody::InvalidMessage { .. })
                ));
            }
            return Ok(());
        };
        self.done.push(id);
        assert!(frames.is_empty(), "an answer is not answered: {frames:?}");
        let is_right = waits.kind() == kind;
        *self
            .ends
            .entry(if is_right { "right" } else { "wrong" })
            .or_default() += 1;
        if let Waits::Health = waits {
            return came;
        }
        let heard = waits.heard().expect("its caller has heard");
        assert_eq!(heard.is_ok(), is_right, "{heard:?}");
        came
    }

    /// Time passes: what is overdue by then is given up, and nothing else.
    async fn pass(&mut self, span: Duration) -> Result<(), Ended> {
        tokio::time::advance(span).await;
        let came = self.session.expire().await;
        let now = Instant::now();
        let left: Vec<u64> = self.session.waiting.keys().copied().collect();
        assert!(
            self.session
                .waiting
                .values()
                .all(|(deadline, _)| *deadline > now)
        );
        let overdue = self.waiting.keys().filter(|id| !left.contains(id));
        for id in overdue.copied().collect::<Vec<_>>() {
            let mut waits = self.waiting.remove(&id).expect("listed");
            *self.ends.entry("timed_out").or_default() += 1;
            self.done.push(id);
            if !matches!(waits, Waits::Health) {
                assert_eq!(waits.heard(), Some(Err(CallError::TimedOut)));
            }
        }
        came
    }

    /// The connection ends: whoever still waits hears of it.
    fn end(mut self) {
        self.session.fail_all();
        for waits in self.waiting.values_mut() {
            *self.ends.entry("disconnected").or_default() += 1;
            if !matches!(waits, Waits::Health) {
                assert_eq!(waits.heard(), Some(Err(CallError::Disconnected)));
            }
        }
        assert!(self.session.waiting.is_empty());
    }
}

async fn conversation(
    link: &Link,
    inputs: &mut mpsc::Receiver<Input>,
    ends: &mut BTreeMap<&'static str, u64>,
    choices: &mut Choices,
) {
    let (frames, written) = mpsc::channel(WRITE_BOUND);
    let session = Session {
        link,
        version: Version(u8::from(choices.below(4) > 0) + 1),
        generation: 1,
        frames,
        next_id: AGENT_FIRST_ID,
        waiting: BTreeMap::new(),
        unhealthy_since: None,
        healthy: 0,
        last_wish: None,
        last_push: None,
    };
    let (waiting, done) = (BTreeMap::new(), Vec::new());
    let mut talk = Talk {
        session,
        written,
        waiting,
        done,
        ends,
    };
    for _ in 0..4 + choices.below(12) {
        let known: Vec<u64> = talk.waiting.keys().copied().collect();
        let pick = |from: &[u64], choices: &mut Choices| {
            let count = u64::try_from(from.len()).expect("few");
            let at = usize::try_from(choices.below(count.max(1))).expect("few");
            from.get(at).copied()
        };
        let went = match choices.below(8) {
            0..3 => {
                talk.call(choices.below(3));
                Ok(())
            }
            3 | 4 => match pick(&known, choices) {
                // Mostly the right kind.
                Some(id) => {
                    let right = talk.waiting[&id].kind();
                    let kind = if choices.below(4) > 0 {
                        right
                    } else {
                        choices.below(5)
                    };
                    talk.answer(kind, id, choices).await
                }
                None => Ok(()),
            },
            5 => {
                // Repeated, late, or never asked.
                let done = talk.done.clone();
                let id = pick(&done, choices).unwrap_or_else(|| 1000 + choices.below(100));
                talk.answer(choices.below(5), id, choices).await
            }
            6 => talk.pass(Duration::from_millis(choices.below(4000))).await,
            _ => {
                let asked = Asked {
                    reason: AskReason::Forecast,
                    urgency: None,
                    wanted: None,
                };
                // Its id is the monitor's own, and may be one of ours by chance: it answers nothing.
                let (body, id) = (MonitorBodyV2::Asked(asked), choices.below(20));
                let text = MonitorFrameV2 { body, id }.encode();
                let came = talk.session.received(Some(Ok(Message::text(text)))).await;
                assert!(talk.frames().is_empty());
                came
            }
        };
        while inputs.try_recv().is_ok() {}
        match went {
            Ok(()) => {}
            // A monitor that fails its health checks for too long is left.
            Err(Ended::Unhealthy) => break,
            Err(other) => panic!("{other}"),
        }
    }
    talk.end();
}

#[tokio::test(start_paused = true)]
async fn n33_n37_a_hundred_thousand_conversations_leave_no_caller_waiting() {
    let config = Config::one_machine().expect("valid");
    let (to, mut inputs) = mpsc::channel(32);
    let link = Link {
        config: config.monitor.clone(),
        health_check_every: Duration::from_secs(5),
        pod_ip: "127.0.0.1".to_owned(),
        clock: Clock::new(),
        metrics: AgentMetrics::new(&mut Registry::default()),
        inputs: to,
        push_every: Span::from_secs(5),
    };
    let (mut choices, mut ends) = (Choices(0x5EED_0A6E_4712), BTreeMap::new());
    for _ in 0..100_000 {
        conversation(&link, &mut inputs, &mut ends, &mut choices).await;
    }
    for end in ["right", "wrong", "unknown", "timed_out", "disconnected"] {
        let count = ends.get(end).copied().unwrap_or(0);
        assert!(count > 10_000, "only {count} of {end}: {ends:?}");
    }
}
