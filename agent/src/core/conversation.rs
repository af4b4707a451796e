//! One link to a VM's monitor after the handshake. The question it answers: *which frame is sent
//! next, how does each request end, and does the monitor still respond?*
//!
//! ```text
//!   our requests, a health check every 5 s --> frames, each with its own id  --> [`Output::Send`]
//!   frames in --+-- a response with the id of a request     --> [`Output::Done`], once per request
//!               +-- an upscale request, pushed metrics      --> [`Output::UpscaleRequest`], [`Output::Pushed`]
//!               +-- a request for a schedule                --> [`Output::ScheduleRequest`]
//!               +-- anything else                           --> a complaint, or the end
//! ```
//!
//! *Happy path*: a request is sent with the next even id; the frame with that id ends it. *Failure
//! paths*: a request ends with a [`MonitorRequestError`] if its response is late, of another kind
//! or malformed. A text that is no frame, a known message with wrong content, and health checks
//! that fail for too long end the link ([`Breach`]). *Recovery*: the next link needs no state of
//! this one. [`Event::Closed`] ends every open request.
//!
//! # Invariants
//! * A request ends exactly once, whatever arrives, and no id is used twice:
//!   `hundred_thousand_conversations_end_every_request`.
//! * One health check is open at a time: same test.
//! * A complaint gets no complaint in return, so two sides cannot complain endlessly: same test.
//! * A guest cannot make us handle more than ten upscale requests of one urgency and ten pushes a
//!   second: `upscale_requests_and_pushes_too_close_together_count_once`.
//! * A guest cannot make us read more than [`pace::FRAMES`]. A link with a long flood is closed:
//!   `flooding_monitor_is_paused_and_then_disconnected`.
//!
//! Source: docs/compatibility/agent.md §4.1.

pub mod pace;
mod responses;
mod schedule;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};

use protocol::core::Core;
use protocol::monitor::{
    AGENT_FIRST_ID, AgentBody, Allocation, FrameError, FrameErrorKind, MonitorBody, MonitorFrame,
    Version, VersionRange, VersionResponse,
};
use protocol::monitor_v2::{
    AgentBodyV2, AgentFrameV2, Capabilities, GuestMetrics, METRICS_PERIODS, MonitorBodyV2,
    MonitorFrameV2, ScheduleRequest, UpscaleDetails, Urgency,
};
use protocol::time::{Span, Timestamp};
use protocol::units::{Bytes, Resources};

use self::pace::{Bucket, FRAMES, Flood};
use super::UpscaleRequest;
pub use responses::{DownscaleResult, MonitorRequest, MonitorRequestError, MonitorResponse};

/// Upscale requests closer together than this count as one, so that a guest cannot keep the agent
/// busy. The first one and each more urgent one always count.
pub const UPSCALE_REQUEST_GAP: Span = Span::from_millis(100);
/// Pushed metrics closer together than this count as one.
pub const PUSH_GAP: Span = Span::from_millis(100);
/// Longest text kept of a monitor that refuses the protocol, characters.
const REFUSAL_CHARS: usize = 200;

/// Times of one link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Time limit of a request.
    pub response: Span,
    /// Time between two health checks.
    pub health_check_every: Span,
    /// Longest time from the first of consecutive failed health checks to the last one.
    pub unhealthy: Span,
    /// Period of pushed metrics; equals the scrape period.
    pub push_every: Span,
}

/// Input of a conversation, besides new requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A text frame.
    Text(String),
    /// A frame without content, such as a ping. It only counts for the rate.
    Ignored,
    /// The stream below has exceeded its byte rate and pauses.
    StreamPaused,
    /// The VM's annotation for [`Output::ScheduleRequest`] was read.
    Schedule {
        /// Id of the monitor's request.
        id: u64,
        /// Kind of the schedule that the monitor asks for.
        kind: String,
        /// Value of [`protocol::fleet::KEY_SCHEDULE`], if the VM has it.
        annotation: Option<String>,
    },
    /// Time has passed: overdue requests end, and a due health check starts.
    Elapsed,
    /// The frame of the request with this id could not be sent.
    Unsent(u64),
    /// The link is down: all open requests end, and unsent frames are dropped.
    Closed,
}

/// Output of a conversation for the shell.
#[derive(Debug, Clone, PartialEq)]
pub enum Output {
    /// Send this frame. If that fails, [`Event::Unsent`] follows.
    Send(AgentFrameV2),
    /// A request has ended.
    Done {
        /// Id that [`Conversation::upscale`] or [`Conversation::downscale`] returned.
        id: u64,
        /// Kind of the request.
        request: MonitorRequest,
        /// Response of the monitor, or the failure.
        outcome: Result<MonitorResponse, MonitorRequestError>,
    },
    /// The monitor requests an upscale; `None` = it counts as one with the request before.
    UpscaleRequest(Option<UpscaleRequest>),
    /// The monitor pushed metrics.
    Pushed(Box<GuestMetrics>),
    /// The monitor asks for the schedule of its upgrades; [`Event::Schedule`] brings it.
    ScheduleRequest {
        /// Id of the request.
        id: u64,
        /// Version and kind.
        request: ScheduleRequest,
    },
    /// A frame was malformed or of an unknown type.
    Unreadable,
    /// The monitor complains about an id without an open request.
    Complaint(MonitorRequestError),
    /// The monitor has exceeded its rate, so reading pauses.
    Paused,
    /// Close the link. No output follows.
    End(Breach),
}

/// Why the agent closes a link.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Breach {
    /// A text was not JSON, or had no type and id.
    #[error("the monitor sent something that is no frame: {0}")]
    NotAFrame(String),
    /// A message of a known type had wrong content.
    #[error("a known message of the monitor does not decode: {0}")]
    BadContent(String),
    /// Health checks failed for longer than [`Limits::unhealthy`].
    #[error("no health check succeeded for too long")]
    Unhealthy,
    /// The monitor exceeded [`pace::FRAMES`] or [`pace::BYTES`] for [`pace::FLOOD_LIMIT`].
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
    /// The monitor refused the protocol with this text.
    #[error("the monitor refused the protocol: {0}")]
    Refused(String),
    /// The monitor chose a version that was not offered.
    #[error("the monitor chose protocol version {0}, which was not offered")]
    Version(u8),
    /// The monitor's first frame is malformed.
    #[error("the monitor's first frame does not decode")]
    Unreadable,
}

/// Versions that the first frame of a handshake offers.
#[must_use]
pub const fn offer(highest: Version) -> VersionRange {
    VersionRange {
        min: Version::V1,
        max: highest,
    }
}

/// Reads the monitor's first frame.
///
/// # Errors
/// [`HandshakeError`] unless it chose an offered version.
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

/// State of one link to a monitor after the handshake: open requests, health checks and rates.
#[derive(Debug)]
pub struct Conversation {
    limits: Limits,
    version: Version,
    next_id: u64,
    /// Open requests by id, each with its deadline.
    waiting: BTreeMap<u64, (Timestamp, MonitorRequest)>,
    next_health_check: Timestamp,
    unhealthy_since: Option<Timestamp>,
    last_upscale_request: Option<(Timestamp, Option<Urgency>)>,
    last_push: Option<Timestamp>,
    frames: Bucket,
    flood: Flood,
    outputs: VecDeque<Output>,
    is_over: bool,
}

impl Conversation {
    /// Starts after a handshake with `version`. In version 2 the first frame has our capabilities.
    #[must_use]
    pub fn new(now: Timestamp, version: Version, limits: Limits) -> Self {
        let mut conversation = Self {
            limits,
            version,
            next_id: AGENT_FIRST_ID,
            waiting: BTreeMap::new(),
            next_health_check: now + limits.health_check_every,
            unhealthy_since: None,
            last_upscale_request: None,
            last_push: None,
            frames: Bucket::new(now, FRAMES),
            flood: Flood::default(),
            outputs: VecDeque::new(),
            is_over: false,
        };
        if version >= Version::V2 {
            let (least, most) = METRICS_PERIODS;
            let names = Capabilities::all(limits.push_every.clamp(least, most)).names();
            conversation.request(
                now,
                AgentBodyV2::Capabilities { names },
                MonitorRequest::Capabilities,
            );
        }
        conversation
    }

    /// Notifies the monitor of a growth. Returns the id for [`Output::Done`].
    pub fn upscale(&mut self, now: Timestamp, size: Resources) -> u64 {
        let granted = allocation(size);
        self.request(
            now,
            AgentBody::UpscaleNotification { granted },
            MonitorRequest::Upscale,
        )
    }

    /// Asks the monitor to approve a size. Returns the id for [`Output::Done`].
    pub fn downscale(&mut self, now: Timestamp, size: Resources) -> u64 {
        let target = allocation(size);
        self.request(
            now,
            AgentBody::DownscaleRequest { target },
            MonitorRequest::Downscale,
        )
    }

    fn received(&mut self, now: Timestamp, text: &str) {
        if self.is_over {
            return;
        }
        self.count(now);
        match self.decode(text) {
            Ok(frame) => self.frame(now, frame),
            Err(error) => self.unreadable(now, error),
        }
    }

    fn stream_paused(&mut self, now: Timestamp) {
        if self.is_over {
            return;
        }
        self.outputs.push_back(Output::Paused);
        if self.flood.paused(now) {
            self.end(Breach::Flood);
        }
    }

    /// End of the pause in reading frames, if it is after `now`.
    #[must_use]
    pub fn paused_until(&self, now: Timestamp) -> Option<Timestamp> {
        self.frames.paused_until().filter(|until| *until > now)
    }

    fn elapsed(&mut self, now: Timestamp) {
        let open = self.waiting.iter();
        let overdue = open.filter(|(_, (deadline, _))| *deadline <= now);
        for id in overdue.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.settle(now, id, Err(MonitorRequestError::TimedOut));
        }
        if !self.is_over && self.next_health_check <= now {
            self.next_health_check = now + self.limits.health_check_every;
            let mut open = self.waiting.values();
            if !open.any(|(_, request)| *request == MonitorRequest::Health) {
                self.request(now, AgentBody::HealthCheck, MonitorRequest::Health);
            }
        }
    }

    fn close(&mut self) {
        self.is_over = true;
        self.outputs
            .retain(|output| !matches!(output, Output::Send(_)));
        for (id, (_, request)) in std::mem::take(&mut self.waiting) {
            self.end_request(id, request, Err(MonitorRequestError::Disconnected));
        }
    }

    fn count(&mut self, now: Timestamp) {
        if self.frames.take(now, 1) {
            self.stream_paused(now);
        }
    }

    fn end_request(
        &mut self,
        id: u64,
        request: MonitorRequest,
        outcome: Result<MonitorResponse, MonitorRequestError>,
    ) {
        self.outputs.push_back(Output::Done {
            id,
            request,
            outcome,
        });
    }

    fn request(
        &mut self,
        now: Timestamp,
        body: impl Into<AgentBodyV2>,
        request: MonitorRequest,
    ) -> u64 {
        let id = self.next_id;
        self.next_id += 2;
        if self.is_over {
            self.end_request(id, request, Err(MonitorRequestError::NotSent));
            return id;
        }
        let deadline = now + self.limits.response;
        self.waiting.insert(id, (deadline, request));
        self.send(body, id);
        id
    }

    /// Queues a frame. Frames of version 1 are the same in version 2.
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

    /// Ends the link. Only the first reason counts.
    fn end(&mut self, breach: Breach) {
        if !std::mem::replace(&mut self.is_over, true) {
            self.outputs.push_back(Output::End(breach));
        }
    }

    /// Reads a frame in the chosen version.
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
                self.settle(now, id, Err(MonitorRequestError::UnknownResponse));
                self.complain(id, reason);
            }
            FrameErrorKind::BadContent => {
                self.settle(now, id, Err(MonitorRequestError::BadResponse));
                self.complain(id, reason.clone());
                self.end(Breach::BadContent(reason));
            }
        }
    }

    fn frame(&mut self, now: Timestamp, frame: MonitorFrameV2) {
        let id = frame.id;
        match frame.body {
            MonitorBodyV2::Plain(MonitorBody::UpscaleRequest) => self.upscale_requested(now, None),
            MonitorBodyV2::Asked(asked) => self.upscale_requested(now, Some(asked)),
            MonitorBodyV2::Metrics(metrics) => self.pushed(now, metrics),
            MonitorBodyV2::ScheduleRequest(request) => {
                self.outputs
                    .push_back(Output::ScheduleRequest { id, request });
            }
            body => {
                let got = responses::read(body);
                if self.waiting.contains_key(&id) {
                    self.settle(now, id, got);
                } else if let Err(complaint) = got {
                    // Complaints about complaints would never end.
                    self.outputs.push_back(Output::Complaint(complaint));
                } else {
                    self.complain(id, format!("nobody waits for an answer under id {id}"));
                }
            }
        }
    }

    fn upscale_requested(&mut self, now: Timestamp, details: Option<UpscaleDetails>) {
        let urgency = details.and_then(|details| details.urgency);
        let is_repeated = self
            .last_upscale_request
            .is_some_and(|(at, before)| now.since(at) < UPSCALE_REQUEST_GAP && urgency <= before);
        if is_repeated {
            self.outputs.push_back(Output::UpscaleRequest(None));
            return;
        }
        self.last_upscale_request = Some((now, urgency));
        let wanted = details.and_then(|details| details.wanted);
        let request = UpscaleRequest {
            reason: details.map(|details| details.reason),
            wanted: wanted.map(|wanted| Bytes(wanted.mem)),
        };
        self.outputs
            .push_back(Output::UpscaleRequest(Some(request)));
    }

    fn pushed(&mut self, now: Timestamp, metrics: Box<GuestMetrics>) {
        let mut last = self.last_push.into_iter();
        if !last.any(|last| now.since(last) < PUSH_GAP) {
            self.last_push = Some(now);
            self.outputs.push_back(Output::Pushed(metrics));
        }
    }

    /// Ends the request with this id, if one is open.
    fn settle(
        &mut self,
        now: Timestamp,
        id: u64,
        got: Result<MonitorResponse, MonitorRequestError>,
    ) {
        let Some((_, request)) = self.waiting.remove(&id) else {
            return;
        };
        let outcome = responses::outcome(request, got);
        let is_well = outcome.is_ok();
        self.end_request(id, request, outcome);
        if request != MonitorRequest::Health {
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

impl Core for Conversation {
    type Time = Timestamp;
    type Event = Event;
    type Action = Output;

    fn handle(&mut self, now: Timestamp, event: Event) {
        match event {
            Event::Text(text) => self.received(now, &text),
            Event::Ignored => self.count(now),
            Event::StreamPaused => self.stream_paused(now),
            Event::Schedule {
                id,
                kind,
                annotation,
            } => self.send(schedule::answer(&kind, annotation), id),
            Event::Elapsed => self.elapsed(now),
            Event::Unsent(id) => self.settle(now, id, Err(MonitorRequestError::NotSent)),
            Event::Closed => self.close(),
        }
    }

    fn poll_action(&mut self, _: Timestamp) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// When [`Event::Elapsed`] is due next.
    fn poll_deadline(&self) -> Option<Timestamp> {
        let deadlines = self.waiting.values().map(|(deadline, _)| *deadline);
        deadlines.chain([self.next_health_check]).min()
    }
}

fn allocation(size: Resources) -> Allocation {
    Allocation {
        cpu: size.cpu.as_cores(),
        mem: size.mem.0,
    }
}
