//! One connection to a VM's monitor after its handshake. The question it answers: *what is to be
//! sent now, who has his answer, and is the monitor still there?*
//!
//! ```text
//!   our calls, a health check every 5 s --> frames out, each under an id of its own --> [`Output::Send`]
//!   frames in --+-- an answer under an id somebody waits for --> [`Output::Done`], once per call
//!               +-- a wish to grow, pushed metrics             --> [`Output::Wish`], [`Output::Pushed`]
//!               +-- anything else                              --> a complaint, or the end
//! ```
//!
//! *Happy path*: a call is sent under the next even id; the frame under that id ends it. *Failure
//! paths*: no answer in time, one of another kind or one that does not decode ends the call with a
//! [`CallError`]; what cannot be read as a frame, a known message with wrong content, and health
//! checks that fail for too long end the connection ([`Breach`]). *Recovery*: a connection has no
//! state that the next one needs; [`Conversation::close`] ends every call that still waits.
//!
//! # Invariants
//! * A call ends exactly once, whatever comes, and no id is used twice:
//!   `n33_n37_a_hundred_thousand_conversations_…`.
//! * One health check at a time: same test.
//! * A complaint is never answered, so that two sides cannot complain to one another for ever: same
//!   test.
//! * A guest cannot make us handle more than ten wishes of one urgency, and ten pushes, a second:
//!   `wishes_and_pushes_too_close_together_are_one`.
//! * A guest cannot make us read more than [`pace::FRAMES`] allows, and one that tries for long is
//!   left: `monitor_that_floods_is_paused_and_then_left`.
//!
//! Source: docs/compatibility/agent.md §4.1.

mod answers;
pub mod pace;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};

use protocol::monitor::{
    AGENT_FIRST_ID, AgentBody, Allocation, FrameError, FrameErrorKind, MonitorBody, MonitorFrame,
    Version, VersionRange, VersionResponse,
};
use protocol::monitor_v2::{
    AgentBodyV2, AgentFrameV2, Asked, Capabilities, GuestMetrics, METRICS_PERIODS, MonitorBodyV2,
    MonitorFrameV2, Urgency,
};
use protocol::time::{Span, Timestamp};
use protocol::units::{Bytes, Resources};

use self::pace::{Bucket, FRAMES, Flood};
use super::Wish;
pub use answers::{Answer, Ask, CallError, Downscaled};

/// Wishes closer together than this are one: a guest must not be able to keep the agent busy. The
/// first one always counts, and so does one that is more urgent.
pub const WISH_GAP: Span = Span::from_millis(100);
/// Pushes closer together than this are one, for the same reason.
pub const PUSH_GAP: Span = Span::from_millis(100);
/// Characters of a monitor's own words that are kept when it refuses the protocol.
const REFUSAL_CHARS: usize = 200;

/// How long things may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Time that a call may wait for its answer; then it fails as timed out.
    pub response: Span,
    /// From one health check to the next.
    pub health_check_every: Span,
    /// Health checks may fail.
    pub unhealthy: Span,
    /// How often metrics may be pushed: as often as they would be scraped.
    pub push_every: Span,
}

/// What the shell is to do, or to pass on.
#[derive(Debug, Clone, PartialEq)]
pub enum Output {
    /// Send this frame; if that fails, say so with [`Conversation::unsent`].
    Send(AgentFrameV2),
    /// A call has ended.
    Done {
        /// Its id, as [`Conversation::upscale`] and [`Conversation::downscale`] gave it.
        id: u64,
        /// What it was.
        ask: Ask,
        /// Answer of the monitor, or the reason why the call failed.
        outcome: Result<Answer, CallError>,
    },
    /// The monitor wishes to grow; none if it follows too closely on a wish that was as urgent.
    Wish(Option<Wish>),
    /// Metrics the monitor pushed.
    Pushed(Box<GuestMetrics>),
    /// A frame could not be read.
    Unreadable,
    /// A complaint about something nobody waits for.
    Complaint(CallError),
    /// The monitor has sent more than it may: reading pauses.
    Paused,
    /// The connection is to end. Nothing follows.
    End(Breach),
}

/// What ends a connection.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Breach {
    /// Not JSON, or JSON without type and id.
    #[error("the monitor sent something that is no frame: {0}")]
    NotAFrame(String),
    /// A message both sides know, with the wrong content.
    #[error("a known message of the monitor does not decode: {0}")]
    BadContent(String),
    /// No health check for longer than [`Limits::unhealthy`].
    #[error("no health check succeeded for too long")]
    Unhealthy,
    /// More than [`pace::FRAMES`] or [`pace::BYTES`] allow, for [`pace::FLOOD_LIMIT`].
    #[error(
        "the monitor floods: it sends more than {} frames or {} KiB a second",
        FRAMES.per_second,
        pace::BYTES.per_second >> 10
    )]
    Flood,
}

/// Why a handshake failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HandshakeError {
    /// The monitor says no, with these words.
    #[error("the monitor refused the protocol: {0}")]
    Refused(String),
    /// It chose what was not offered.
    #[error("the monitor chose protocol version {0}, which was not offered")]
    Version(u8),
    /// Its answer does not decode.
    #[error("the monitor's first frame does not decode")]
    Unreadable,
}

/// The versions to offer, as the first frame says them.
#[must_use]
pub const fn offer(highest: Version) -> VersionRange {
    VersionRange {
        min: Version::V1,
        max: highest,
    }
}

/// The version a monitor chose of what was offered.
///
/// # Errors
/// When it chose none of them.
pub fn chosen(offered: VersionRange, text: &str) -> Result<Version, HandshakeError> {
    match serde_json::from_str(text) {
        Ok(VersionResponse::Version(version))
            if version >= offered.min && version <= offered.max =>
        {
            Ok(version)
        }
        Ok(VersionResponse::Version(Version(other))) => Err(HandshakeError::Version(other)),
        Ok(VersionResponse::Error(text)) => Err(HandshakeError::Refused(
            text.chars().take(REFUSAL_CHARS).collect(),
        )),
        Err(_) => Err(HandshakeError::Unreadable),
    }
}

/// State of one connection to a monitor, after the handshake: open calls, health checks and limits.
#[derive(Debug)]
pub struct Conversation {
    limits: Limits,
    version: Version,
    next_id: u64,
    /// By id: until when, and what.
    waiting: BTreeMap<u64, (Timestamp, Ask)>,
    next_health_check: Timestamp,
    unhealthy_since: Option<Timestamp>,
    last_wish: Option<(Timestamp, Option<Urgency>)>,
    last_push: Option<Timestamp>,
    frames: Bucket,
    flood: Flood,
    outputs: VecDeque<Output>,
    is_over: bool,
}

impl Conversation {
    /// A connection whose handshake has just ended with `version`. In version 2 it begins with our
    /// capabilities.
    #[must_use]
    pub fn new(now: Timestamp, version: Version, limits: Limits) -> Self {
        let mut conversation = Self {
            limits,
            version,
            next_id: AGENT_FIRST_ID,
            waiting: BTreeMap::new(),
            next_health_check: now + limits.health_check_every,
            unhealthy_since: None,
            last_wish: None,
            last_push: None,
            frames: Bucket::new(now, FRAMES),
            flood: Flood::default(),
            outputs: VecDeque::new(),
            is_over: false,
        };
        if version >= Version::V2 {
            let (least, most) = METRICS_PERIODS;
            let names = Capabilities::all(limits.push_every.clamp(least, most)).names();
            conversation.ask(now, AgentBodyV2::Capabilities { names }, Ask::Capabilities);
        }
        conversation
    }

    /// Tells the monitor of a growth; the id under which [`Output::Done`] comes.
    pub fn upscale(&mut self, now: Timestamp, size: Resources) -> u64 {
        let granted = allocation(size);
        self.ask(
            now,
            AgentBody::UpscaleNotification { granted },
            Ask::Upscale,
        )
    }

    /// Asks whether it may shrink to a size; the id under which [`Output::Done`] comes.
    pub fn downscale(&mut self, now: Timestamp, size: Resources) -> u64 {
        let target = allocation(size);
        self.ask(now, AgentBody::DownscaleRequest { target }, Ask::Downscale)
    }

    /// A text frame came in.
    pub fn received(&mut self, now: Timestamp, text: &str) {
        if self.is_over {
            return;
        }
        self.count(now);
        match self.decode(text) {
            Ok(frame) => self.frame(now, frame),
            Err(error) => self.unreadable(now, error),
        }
    }

    /// A frame came in that says nothing, such as a ping.
    pub fn ignored(&mut self, now: Timestamp) {
        self.count(now);
    }

    /// The carrier has begun to pause, for the bytes that came.
    pub fn carrier_paused(&mut self, now: Timestamp) {
        if self.is_over {
            return;
        }
        self.outputs.push_back(Output::Paused);
        if self.flood.paused(now) {
            self.end(Breach::Flood);
        }
    }

    /// Until when no frame is to be read, if that is later than `now`.
    #[must_use]
    pub fn paused_until(&self, now: Timestamp) -> Option<Timestamp> {
        self.frames.paused_until().filter(|until| *until > now)
    }

    /// Time has passed: gives up what is overdue, checks health when that is due.
    pub fn elapsed(&mut self, now: Timestamp) {
        let overdue = self.waiting.iter();
        let overdue = overdue.filter(|(_, (deadline, _))| *deadline <= now);
        for id in overdue.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.settle(now, id, Err(CallError::TimedOut));
        }
        if !self.is_over && self.next_health_check <= now {
            self.next_health_check = now + self.limits.health_check_every;
            let mut asks = self.waiting.values().map(|(_, ask)| *ask);
            if !asks.any(|ask| ask == Ask::Health) {
                self.ask(now, AgentBody::HealthCheck, Ask::Health);
            }
        }
    }

    /// The frame with this id could not be sent: a call under it never left.
    pub fn unsent(&mut self, now: Timestamp, id: u64) {
        self.settle(now, id, Err(CallError::NotSent));
    }

    /// The connection has ended: so do all calls. What was to be sent is not to be sent any more.
    pub fn close(&mut self) {
        self.is_over = true;
        self.outputs
            .retain(|output| !matches!(output, Output::Send(_)));
        for (id, (_, ask)) in std::mem::take(&mut self.waiting) {
            let outcome = Err(CallError::Disconnected);
            self.outputs.push_back(Output::Done { id, ask, outcome });
        }
    }

    /// The next thing to do, oldest first.
    pub fn poll_action(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// When [`Conversation::elapsed`] is due next.
    #[must_use]
    pub fn poll_deadline(&self) -> Timestamp {
        let answers = self.waiting.values().map(|(deadline, _)| *deadline);
        answers.fold(self.next_health_check, Timestamp::min)
    }

    fn count(&mut self, now: Timestamp) {
        if self.frames.take(now, 1) {
            self.carrier_paused(now);
        }
    }

    fn ask(&mut self, now: Timestamp, body: impl Into<AgentBodyV2>, ask: Ask) -> u64 {
        let id = self.next_id;
        self.next_id += 2;
        if self.is_over {
            let outcome = Err(CallError::NotSent);
            self.outputs.push_back(Output::Done { id, ask, outcome });
            return id;
        }
        self.waiting.insert(id, (now + self.limits.response, ask));
        self.send(body, id);
        id
    }

    /// Frames of version 1 are the same in version 2.
    fn send(&mut self, body: impl Into<AgentBodyV2>, id: u64) {
        if self.is_over {
            return;
        }
        let body = body.into();
        self.outputs
            .push_back(Output::Send(AgentFrameV2 { body, id }));
    }

    fn complain(&mut self, id: u64, error: String) {
        self.send(AgentBody::InvalidMessage { error }, id);
    }

    /// Only the first reason counts.
    fn end(&mut self, breach: Breach) {
        if !std::mem::replace(&mut self.is_over, true) {
            self.outputs.push_back(Output::End(breach));
        }
    }

    /// Reads a frame by the version agreed on.
    fn decode(&self, text: &str) -> Result<MonitorFrameV2, FrameError> {
        if self.version >= Version::V2 {
            return MonitorFrameV2::decode(text);
        }
        let MonitorFrame { body, id } = MonitorFrame::decode(text)?;
        let body = MonitorBodyV2::Plain(body);
        Ok(MonitorFrameV2 { body, id })
    }

    fn unreadable(&mut self, now: Timestamp, error: FrameError) {
        self.outputs.push_back(Output::Unreadable);
        let FrameError { id, kind, reason } = error;
        match kind {
            FrameErrorKind::NotJson | FrameErrorKind::NotAFrame => {
                self.end(Breach::NotAFrame(reason));
            }
            FrameErrorKind::UnknownType => {
                self.settle(now, id, Err(CallError::UnknownAnswer));
                self.complain(id, reason);
            }
            FrameErrorKind::BadContent => {
                self.settle(now, id, Err(CallError::BadAnswer));
                self.complain(id, reason.clone());
                self.end(Breach::BadContent(reason));
            }
        }
    }

    fn frame(&mut self, now: Timestamp, frame: MonitorFrameV2) {
        let id = frame.id;
        match frame.body {
            MonitorBodyV2::Plain(MonitorBody::UpscaleRequest) => self.wish(now, None),
            MonitorBodyV2::Asked(asked) => self.wish(now, Some(asked)),
            MonitorBodyV2::Metrics(metrics) => self.pushed(now, metrics),
            body => {
                let got = answers::read(body);
                if self.waiting.contains_key(&id) {
                    self.settle(now, id, got);
                } else if let Err(complaint) = got {
                    // Answering a complaint could go on for ever.
                    self.outputs.push_back(Output::Complaint(complaint));
                } else {
                    self.complain(id, format!("nobody waits for an answer under id {id}"));
                }
            }
        }
    }

    fn wish(&mut self, now: Timestamp, asked: Option<Asked>) {
        let urgency = asked.and_then(|asked| asked.urgency);
        let is_repeated = self
            .last_wish
            .is_some_and(|(at, before)| now.since(at) < WISH_GAP && urgency <= before);
        if is_repeated {
            self.outputs.push_back(Output::Wish(None));
            return;
        }
        self.last_wish = Some((now, urgency));
        let wanted = asked.and_then(|asked| asked.wanted);
        self.outputs.push_back(Output::Wish(Some(Wish {
            reason: asked.map(|asked| asked.reason),
            wanted: wanted.map(|wanted| Bytes(wanted.mem)),
        })));
    }

    fn pushed(&mut self, now: Timestamp, metrics: Box<GuestMetrics>) {
        let mut last = self.last_push.into_iter();
        if !last.any(|last| now.since(last) < PUSH_GAP) {
            self.last_push = Some(now);
            self.outputs.push_back(Output::Pushed(metrics));
        }
    }

    /// Ends the wait under an id, if there is one.
    fn settle(&mut self, now: Timestamp, id: u64, got: Result<Answer, CallError>) {
        let Some((_, ask)) = self.waiting.remove(&id) else {
            return;
        };
        let outcome = answers::outcome(ask, got);
        let is_well = outcome.is_ok();
        self.outputs.push_back(Output::Done { id, ask, outcome });
        if ask != Ask::Health {
            return;
        }
        if is_well {
            self.unhealthy_since = None;
            return;
        }
        let since = *self.unhealthy_since.get_or_insert(now);
        if now.since(since) > self.limits.unhealthy {
            self.end(Breach::Unhealthy);
        }
    }
}

fn allocation(size: Resources) -> Allocation {
    Allocation {
        cpu: size.cpu.as_cores(),
        mem: size.mem.0,
    }
}
