//! The monitor's decisions: *may this VM shrink, and does it need more memory now?*
//!
//! Synchronous and deterministic. The shell tells it what happened ([`Monitor::handle`]), asks what to do
//! ([`Monitor::poll_action`]) and when to come back ([`Monitor::poll_deadline`]).
//!
//! ```text
//!             AgentReady                         AgentReady (newer): Close the old one
//!   no agent ───────────► serving one agent ──┐ ◄─┘
//!      ▲                     │  every 100 ms: Sample ─► mean of 5 ≥ threshold ─► UpscaleRequest, ≤ 1 a second
//!      └──── AgentGone ──────┤  DownscaleRequest    ─► judge ─► file cache ─► threshold ─► DownscaleResult
//!                            │  UpscaleNotification ─────────► file cache ─► threshold ─► UpscaleConfirmation
//!                            │  HealthCheck ─► HealthCheck;  anything unreadable ─► InvalidMessage, go on
//! ```
//!
//! *Happy path:* an agent completes its handshake (that part is [`handshake`], before the core knows of it), the threshold
//! is taken from the machine's own total, readings begin, requests are answered in the order they came.
//!
//! *Failure paths:* memory unreadable: every shrink is refused, with the reason, and growth is not asked for (the agent's
//! own metrics still see it). File cache not settable: the request fails with `InternalError`; growth still raises the
//! threshold, because the memory is there. A bad frame: `InvalidMessage` under its id. A frame that cannot even be text:
//! the same under id 0, then the connection ends, as the WebSocket protocol wants.
//!
//! *Precedence:* one request is carried out at a time; health checks overtake it, so that a slow database does not look
//! like a dead monitor. *Cold start and recovery:* nothing is remembered between connections but the state of the file
//! cache; each new agent starts from the machine as it is.
//!
//! # Invariants
//! * A shrink is approved only on readings that are there and fresh: `decision::tests::n27_the_checks_come_in_their_order`.
//! * Each request of an agent gets exactly one answer, with its id; our own ids are odd, from 3, in steps of two:
//!   `n33_crossed_transactions_keep_their_ids`.
//! * A shrink sets the file cache before the threshold and before the answer: `n27_the_file_cache_shrinks_before_the_answer`.
//! * `InvalidMessage` and `InternalError` are never answered: `n38_errors_are_never_answered`.
//! * At most one `UpscaleRequest` a second: `n29_asks_at_most_once_a_second`.

pub mod cache;
pub mod counters;
pub mod decision;
pub mod file_cache;
pub mod files;
pub mod handshake;
pub mod memory;
mod requests;
pub mod runnable;
#[cfg(test)]
mod tests;
pub mod throttle;

use std::collections::VecDeque;

use protocol::monitor::{
    AgentBody, AgentFrame, FrameErrorKind, MAX_ID, MONITOR_FIRST_ID, MONITOR_FRAME_LIMIT_BYTES,
    MonitorBody, MonitorFrame,
};
use protocol::time::Timestamp;
use protocol::units::Bytes;
use serde::Serialize;

use cache::{CacheChange, CacheFailure, CacheMode, CacheState};
use counters::Counters;
use decision::Watched;
use file_cache::Sizing;
use files::ReadFailure;
use handshake::HandshakeFailure;
use memory::{Rules, Window};
use requests::{Job, Request};

/// Longest text in an answer, bytes: the agent drops a connection on frames past 32 KiB, and people read these.
pub const TEXT_LIMIT_BYTES: usize = 1000;

/// A connection, numbered by the shell in the order of acceptance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct ConnectionId(pub u64);

/// An attempt to set the file cache, numbered by the core.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct OperationId(pub u64);

/// How the monitor is set up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Setup {
    /// The numbers of the memory rules.
    pub rules: Rules,
    /// The numbers of the file cache's size.
    pub sizing: Sizing,
    /// What is watched.
    pub watched: Watched,
    /// Whether there is a file cache.
    pub file_cache: CacheMode,
}

/// What came over a connection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Received {
    /// A text frame.
    Text(String),
    /// A binary frame: counted and ignored.
    NotText,
    /// A text frame past [`MONITOR_FRAME_LIMIT_BYTES`], read and dropped: answered, and the connection lives on.
    TooLarge {
        /// Its length.
        bytes: usize,
    },
    /// A text frame that is no UTF-8: answered, and the connection must end (RFC 6455 §8.1).
    NotUtf8,
    /// A frame so large that it was not read: answered, and the connection must end.
    FarTooLarge,
}

/// Something happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// An agent has completed its handshake: it is the one from now on.
    AgentReady {
        /// Its connection.
        connection: ConnectionId,
        /// The machine's own `MemTotal`, if it could be read.
        machine_total: Option<Bytes>,
    },
    /// A handshake has failed.
    HandshakeFailed(HandshakeFailure),
    /// A connection has ended.
    AgentGone {
        /// Which.
        connection: ConnectionId,
    },
    /// A frame came.
    Received {
        /// Over which connection.
        connection: ConnectionId,
        /// What.
        what: Received,
    },
    /// Memory use was read, or could not be.
    Sampled(Result<Bytes, ReadFailure>),
    /// An attempt to set the file cache has ended.
    CacheSet {
        /// Which.
        operation: OperationId,
        /// How.
        outcome: Result<CacheChange, CacheFailure>,
    },
}

/// Why the monitor ends a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CloseReason {
    /// A newer agent has completed its handshake.
    Replaced,
    /// A text frame was no UTF-8.
    NotUtf8,
    /// A frame was too large to be read at all.
    TooLarge,
}

/// The next thing to do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// Read memory use now and tell.
    Sample,
    /// Set the file cache and tell.
    SetFileCache {
        /// Under which number to tell.
        operation: OperationId,
        /// The size wanted, whole MiB, before the database's own maximum.
        size: Bytes,
    },
    /// Send a frame.
    Send {
        /// Over which connection.
        connection: ConnectionId,
        /// What.
        frame: MonitorFrame,
    },
    /// End a connection, after what has been sent.
    Close {
        /// Which.
        connection: ConnectionId,
        /// Why.
        reason: CloseReason,
    },
}

/// The agent being served.
#[derive(Debug, Clone, Copy, Serialize)]
struct Session {
    connection: ConnectionId,
    next_id: u64,
    next_sample_at: Timestamp,
}

/// The state for people and tools: `/debug/state`, metrics. Never used for decisions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct StateDump {
    /// The setup.
    pub setup: Setup,
    /// The agent being served.
    pub connection: Option<ConnectionId>,
    /// The id of the next own transaction.
    pub next_id: Option<u64>,
    /// The use at which more memory is asked for.
    pub threshold: Option<Bytes>,
    /// The size the threshold was taken from.
    pub total: Option<Bytes>,
    /// The newest readings, oldest first.
    pub samples: Vec<Bytes>,
    /// Their mean.
    pub mean: Option<Bytes>,
    /// Age of the newest reading, milliseconds.
    pub sample_age_ms: Option<u64>,
    /// Why the newest attempt to read failed, if it did.
    pub read_failure: Option<ReadFailure>,
    /// The file cache.
    pub file_cache: CacheState,
    /// Requests not yet answered.
    pub waiting: usize,
    /// What was done so far.
    pub counters: Counters,
}

/// The decision core. One per process.
#[derive(Debug)]
pub struct Monitor {
    setup: Setup,
    session: Option<Session>,
    window: Window,
    threshold: Option<Bytes>,
    total: Option<Bytes>,
    cache: CacheState,
    asked_at: Option<Timestamp>,
    waiting: VecDeque<Request>,
    job: Option<(OperationId, Job)>,
    next_operation: u64,
    outbox: VecDeque<Action>,
    counters: Counters,
}

impl Monitor {
    /// A monitor without an agent yet.
    #[must_use]
    pub fn new(setup: Setup) -> Self {
        Self {
            setup,
            session: None,
            window: Window::default(),
            threshold: None,
            total: None,
            cache: CacheState::initial(setup.file_cache),
            asked_at: None,
            waiting: VecDeque::new(),
            job: None,
            next_operation: 1,
            outbox: VecDeque::new(),
            counters: Counters::default(),
        }
    }

    /// Something happened.
    pub fn handle(&mut self, now: Timestamp, event: Event) {
        match event {
            Event::AgentReady {
                connection,
                machine_total,
            } => {
                self.agent_ready(now, connection, machine_total);
            }
            Event::HandshakeFailed(failure) => {
                self.counters.handshake_failures.add(failure.label());
                tracing::debug!(reason = failure.label(), "handshake failed");
            }
            Event::AgentGone { connection } => self.agent_gone(connection),
            Event::Received { connection, what } => {
                if self
                    .session
                    .is_some_and(|session| session.connection == connection)
                {
                    self.received(connection, what);
                }
            }
            Event::Sampled(outcome) => self.sampled(now, outcome),
            Event::CacheSet { operation, outcome } => self.cache_set(operation, outcome),
        }
        self.start_next_job(now);
    }

    /// The next thing to do now; ask until there is none.
    pub fn poll_action(&mut self, now: Timestamp) -> Option<Action> {
        if let Some(action) = self.outbox.pop_front() {
            return Some(action);
        }
        let interval = self.setup.rules.sample_interval;
        if self.setup.watched == Watched::Nothing {
            return None;
        }
        let session = self
            .session
            .as_mut()
            .filter(|session| now >= session.next_sample_at)?;
        // Readings that were missed are not made up for.
        let next = session.next_sample_at + interval;
        session.next_sample_at = if next > now { next } else { now + interval };
        Some(Action::Sample)
    }

    /// When to ask for an action though nothing has happened.
    #[must_use]
    pub fn poll_deadline(&self) -> Option<Timestamp> {
        let session = self
            .session
            .filter(|_| self.setup.watched != Watched::Nothing)?;
        Some(session.next_sample_at)
    }

    /// The state, for people and tools.
    #[must_use]
    pub fn snapshot(&self, now: Timestamp) -> StateDump {
        StateDump {
            setup: self.setup,
            connection: self.session.map(|session| session.connection),
            next_id: self.session.map(|session| session.next_id),
            threshold: self.threshold,
            total: self.total,
            samples: self.window.samples().collect(),
            mean: self.window.mean(),
            sample_age_ms: self.window.age(now).map(|age| age.as_millis()),
            read_failure: self.window.failure().cloned(),
            file_cache: self.cache.clone(),
            waiting: self.waiting.len() + usize::from(self.job.is_some()),
            counters: self.counters.clone(),
        }
    }

    fn agent_ready(&mut self, now: Timestamp, connection: ConnectionId, total: Option<Bytes>) {
        self.counters.connections += 1;
        if let Some(old) = self.session.take() {
            self.counters.replaced += 1;
            let reason = CloseReason::Replaced;
            self.outbox.push_back(Action::Close {
                connection: old.connection,
                reason,
            });
        }
        self.session = Some(Session {
            connection,
            next_id: MONITOR_FIRST_ID,
            next_sample_at: now,
        });
        self.window.clear();
        self.waiting.clear();
        self.total = total;
        self.threshold = total.map(|total| self.setup.rules.threshold(total));
        tracing::info!(connection = connection.0, total = ?total, threshold = ?self.threshold, "agent connected");
        if let Some(total) = total {
            // Once at the start of each connection, so that missing rights show before they matter.
            self.waiting.push_back(Request::Start { total });
        }
    }

    fn agent_gone(&mut self, connection: ConnectionId) {
        if self
            .session
            .is_some_and(|session| session.connection == connection)
        {
            tracing::info!(connection = connection.0, "agent gone");
            self.session = None;
            self.waiting.clear();
        }
    }

    fn received(&mut self, connection: ConnectionId, what: Received) {
        let (label, complaint, close) = match what {
            Received::Text(text) => return self.frame(connection, &text),
            Received::NotText => return self.counters.received.add("not_text"),
            Received::TooLarge { bytes } => {
                let limit = MONITOR_FRAME_LIMIT_BYTES;
                let complaint = format!("frame has {bytes} bytes, the limit is {limit}");
                ("too_large", complaint, None)
            }
            Received::NotUtf8 => {
                let complaint = "text frame is not UTF-8".to_owned();
                ("not_utf8", complaint, Some(CloseReason::NotUtf8))
            }
            Received::FarTooLarge => {
                let complaint = "frame is too large to be read".to_owned();
                ("too_large", complaint, Some(CloseReason::TooLarge))
            }
        };
        self.counters.received.add(label);
        self.invalid(connection, 0, &complaint);
        if let Some(reason) = close {
            self.outbox.push_back(Action::Close { connection, reason });
            self.agent_gone(connection);
        }
    }

    fn frame(&mut self, connection: ConnectionId, text: &str) {
        let AgentFrame { body, id } = match AgentFrame::decode(text) {
            Ok(frame) => frame,
            Err(error) => {
                self.counters.received.add(match error.kind {
                    FrameErrorKind::NotJson => "not_json",
                    FrameErrorKind::NotAFrame => "not_a_frame",
                    FrameErrorKind::UnknownType => "unknown_type",
                    FrameErrorKind::BadContent => "bad_content",
                });
                return self.invalid(connection, error.id, &error.reason);
            }
        };
        self.counters.received.add(body.wire_type());
        match body {
            AgentBody::HealthCheck => self.send(connection, id, MonitorBody::HealthCheck),
            AgentBody::DownscaleRequest { target } => {
                self.enqueue(Request::Downscale {
                    connection,
                    id,
                    mem: target.mem,
                });
            }
            AgentBody::UpscaleNotification { granted } => {
                self.enqueue(Request::Upscale {
                    connection,
                    id,
                    mem: granted.mem,
                });
            }
            AgentBody::InvalidMessage { error } | AgentBody::InternalError { error } => {
                tracing::debug!(id, error = %shorten(error), "the agent complains");
            }
        }
    }

    fn sampled(&mut self, now: Timestamp, outcome: Result<Bytes, ReadFailure>) {
        match &outcome {
            Ok(_) => self.counters.samples.add("read"),
            Err(failure) => {
                self.counters.samples.add("failed");
                if self.window.failure().is_none() {
                    tracing::warn!(%failure, "memory use is unknown: every shrink is refused");
                }
            }
        }
        self.window.push(now, outcome, self.setup.rules.window);
        self.ask_for_more(now);
    }

    /// Asks for growth when the mean has reached the threshold.
    fn ask_for_more(&mut self, now: Timestamp) {
        let rules = self.setup.rules;
        let (Some(session), Some(threshold), Some(mean)) =
            (self.session.as_mut(), self.threshold, self.window.mean())
        else {
            return;
        };
        let too_soon = self
            .asked_at
            .is_some_and(|at| now.since(at) < rules.upscale_interval);
        let unknown = self.window.len() < rules.min_samples || self.window.failure().is_some();
        if mean < threshold || too_soon || unknown {
            return;
        }
        let (connection, id) = (session.connection, session.next_id);
        session.next_id = if id + 2 < MAX_ID {
            id + 2
        } else {
            MONITOR_FIRST_ID
        };
        // The first of a run is news; the following ones, one a second, are not.
        let is_first = self
            .asked_at
            .is_none_or(|at| now.since(at) >= rules.max_age);
        self.asked_at = Some(now);
        if is_first {
            tracing::info!(
                id,
                mean = mean.0,
                threshold = threshold.0,
                "asking for more memory"
            );
        }
        self.send(connection, id, MonitorBody::UpscaleRequest);
    }

    fn invalid(&mut self, connection: ConnectionId, id: u64, why: &str) {
        let error = shorten(why.to_owned());
        tracing::debug!(id, error, "bad frame from the agent");
        self.send(connection, id, MonitorBody::InvalidMessage { error });
    }

    fn send(&mut self, connection: ConnectionId, id: u64, body: MonitorBody) {
        self.counters.sent.add(body.wire_type());
        let frame = MonitorFrame { body, id };
        self.outbox.push_back(Action::Send { connection, frame });
    }
}

/// Cuts a text to [`TEXT_LIMIT_BYTES`], at the end of a character.
fn shorten(mut text: String) -> String {
    if text.len() > TEXT_LIMIT_BYTES {
        text.truncate(text.floor_char_boundary(TEXT_LIMIT_BYTES));
    }
    text
}
