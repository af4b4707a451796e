//! The monitor's decisions: *may this VM shrink, and does it need more memory now?*
//!
//! Synchronous and deterministic. The shell tells it what happened ([`Monitor::handle`]), asks what
//! to do ([`Monitor::poll_action`]) and when to come back ([`Monitor::poll_deadline`]).
//!
//! ```text
//!             AgentReady                         AgentReady (newer): Close the old one
//!   no agent ───────────► serving one agent ──┐ ◄─┘
//!      ▲                     │  by deadline: Probe ─► Sample ─► threshold, forecast ─► UpscaleRequest, ≤ 1 a second
//!      └──── AgentGone ──────┤  DownscaleRequest    ─► judge ─► squeeze ─► hooks ─► file cache ─► threshold ─► DownscaleResult
//!                            │  UpscaleNotification ─────────► file cache ─► threshold ─► UpscaleConfirmation
//!                            │  HealthCheck ─► HealthCheck;  anything unreadable ─► InvalidMessage, go on
//! ```
//!
//! *Happy path:* an agent completes its handshake (that part is [`handshake`], before the core
//! knows of it), the threshold is taken from the machine's own total, readings begin, requests are
//! answered in the order they came.
//!
//! *Failure paths:* memory unreadable: every shrink is refused, with the reason, and growth is not
//! asked for (the agent's own metrics still see it). File cache not settable: the request fails
//! with `InternalError`; growth still raises the threshold, because the memory is there. A bad
//! frame: `InvalidMessage` under its id. A frame that cannot even be text: the same under id 0,
//! then the connection ends, as the WebSocket protocol wants.
//!
//! *Precedence:* one request is carried out at a time; health checks overtake it, so that a slow
//! database does not look like a dead monitor. *Cold start and recovery:* nothing is remembered
//! between connections but the state of the file cache; each new agent starts from the machine as
//! it is.
//!
//! # Invariants
//! * A shrink is approved only on readings that are there and fresh:
//!   `decision::tests::n27_the_checks_come_in_their_order`.
//! * Each request of an agent gets exactly one answer, with its id; our own ids are odd, from 3, in
//!   steps of two: `n33_crossed_transactions_keep_their_ids`.
//! * A shrink sets the file cache before the threshold and before the answer:
//!   `n27_the_file_cache_shrinks_before_the_answer`.
//! * `InvalidMessage` and `InternalError` are never answered: `n38_errors_are_never_answered`.
//! * At most one `UpscaleRequest` a second: `n29_asks_at_most_once_a_second`.

pub mod ask;
pub mod cache;
pub mod counters;
pub mod decision;
pub mod file_cache;
pub mod files;
pub mod handshake;
pub mod hooks;
pub mod memory;
pub mod pressure;
mod requests;
pub mod runnable;
mod sampling;
pub mod squeeze;
#[cfg(test)]
mod tests;
pub mod throttle;
pub mod v2;
pub mod watch;
mod weighing;
pub mod working_set;
pub mod zones;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use protocol::monitor::{
    AgentBody, AgentFrame, FrameErrorKind, MAX_ID, MONITOR_FIRST_ID, MONITOR_FRAME_LIMIT_BYTES,
    MonitorBody, MonitorFrame, Version,
};
use protocol::monitor_v2::{Capabilities, GuestMetrics, MonitorFrameV2};
use protocol::time::{Span, Timestamp};
use protocol::units::Bytes;
use serde::Serialize;

use ask::Ask;
use cache::{CacheChange, CacheFailure, CacheMode, CacheState};
use counters::Counters;
use decision::{Watched, Weight};
use file_cache::Sizing;
use files::{OomCounts, ReadFailure};
use handshake::HandshakeFailure;
use hooks::{HookEvent, HookSizes, HookVeto};
use memory::{Rules, Window};
use pressure::{Refaults, Stalled};
use requests::{Job, Request};
use v2::{Growth, Seen};
use watch::{Peak, Watch};
use weighing::Weighing;
use working_set::{Estimator, Gauge};
use zones::{ZoneSizes, Zones};

/// Longest text in an answer, bytes: the agent drops a connection on frames past 32 KiB, and people
/// read these.
pub const TEXT_LIMIT_BYTES: usize = 1000;

/// Between two lines in the log about strangers at the door, for each reason. The counters have all
/// of them.
const STRANGER_LOG_EVERY: Span = Span::from_secs(60);

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
    /// Whether there may be hooks to run.
    pub hooks: bool,
    /// Whether the working set is estimated by taking memory from the group.
    pub estimates: bool,
    /// Whether the group is brought down to its new size before a shrink is approved.
    pub squeezes: bool,
}

/// What came over a connection.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Received {
    /// A text frame.
    Text(String),
    /// A binary frame: counted and ignored.
    NotText,
    /// A text frame past [`MONITOR_FRAME_LIMIT_BYTES`], read and dropped: answered, and the
    /// connection lives on.
    TooLarge {
        /// Length of the frame's text in UTF-8 bytes.
        bytes: usize,
    },
    /// A text frame that is no UTF-8: answered, and the connection must end (RFC 6455 §8.1).
    NotUtf8,
    /// A frame so large that it was not read: answered, and the connection must end.
    FarTooLarge,
}

/// Input of the core, from connections, readings and finished actions.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// An agent has completed its handshake: it is the one from now on.
    AgentReady {
        /// Connection of the new agent. An earlier agent's connection is closed as replaced.
        connection: ConnectionId,
        /// The version both speak.
        version: Version,
        /// The machine's own `MemTotal`, if it could be read.
        machine_total: Option<Bytes>,
    },
    /// A handshake has failed.
    HandshakeFailed(HandshakeFailure),
    /// A connection has ended.
    AgentGone {
        /// Connection that has ended. One that is no longer served changes nothing.
        connection: ConnectionId,
    },
    /// A frame came.
    Received {
        /// Over which connection.
        connection: ConnectionId,
        /// Text of the frame, or why the core gets none.
        what: Received,
    },
    /// The bound on memory use was read; `None` where there is no such figure.
    Probed(Option<Bytes>),
    /// Memory use was read, or could not be.
    Sampled(Result<Bytes, ReadFailure>),
    /// A signal of the kernel's is listened to from now on.
    Listening(String),
    /// Tasks were stalled for want of memory.
    Stalled(Stalled),
    /// The group's out-of-memory counts, at the beginning and at each change.
    OutOfMemory(OomCounts),
    /// The figures of the estimator's step were read, or could not be.
    Gauged(Option<Gauge>),
    /// What weighs on memory beside what is in use was read.
    Weighed(Weight),
    /// The zones of memory were read, or could not be.
    ZonesRead(Option<Zones>),
    /// A step of the soft squeeze has ended and was looked at.
    Squeezed {
        /// Number from [`Action::Squeeze`]. One of an earlier squeeze is ignored.
        operation: OperationId,
        /// The figures after it; none where the group cannot be squeezed or its figures not be
        /// read.
        gauge: Option<Gauge>,
    },
    /// The hooks have ended: all were content, or the first that was not.
    HooksDone {
        /// Number from [`Action::RunHooks`]. One that no job waits for is ignored.
        operation: OperationId,
        /// `Err` holds the first hook's veto. It refuses a shrink, and is only logged after a
        /// growth.
        outcome: Result<(), HookVeto>,
    },
    /// What the guest sees of its size was read.
    Observed(Seen),
    /// The figures to push were read; those of the group are filled in here.
    Measured(Box<GuestMetrics>),
    /// An attempt to set the file cache has ended.
    CacheSet {
        /// Number from [`Action::SetFileCache`]. One that no job waits for is ignored.
        operation: OperationId,
        /// Sizes before and after, or why the database did not take the size.
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
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// Read the bound on memory use now; [`Event::Probed`] brings it.
    Probe,
    /// Read memory use now; [`Event::Sampled`] brings it.
    Sample,
    /// Read the figures of the estimator's step; [`Event::Gauged`] brings them.
    Gauge,
    /// Take this much from the group.
    Reclaim {
        /// Bytes to reclaim. The kernel may reclaim less; the next [`Action::Gauge`] shows it.
        bytes: Bytes,
    },
    /// Read what weighs on memory beside what is in use; [`Event::Weighed`] brings it.
    Weigh,
    /// Read the zones of memory; [`Event::ZonesRead`] brings them.
    ReadZones,
    /// Take this much from the group, then read its figures; [`Event::Squeezed`] brings them.
    Squeeze {
        /// Number of the squeeze, repeated in [`Event::Squeezed`].
        operation: OperationId,
        /// Bytes to reclaim; 0 reads the figures only.
        bytes: Bytes,
    },
    /// Run the hooks; [`Event::HooksDone`] brings the outcome.
    RunHooks {
        /// Number of this run, repeated in [`Event::HooksDone`].
        operation: OperationId,
        /// Event whose hooks are run.
        event: HookEvent,
        /// Sizes for the hooks' environment variables.
        sizes: HookSizes,
    },
    /// Read what the guest sees of its size; [`Event::Observed`] brings it.
    Observe,
    /// Read the figures to push; [`Event::Measured`] brings them.
    Measure,
    /// Set the file cache; [`Event::CacheSet`] brings the outcome.
    SetFileCache {
        /// Number of this attempt, repeated in [`Event::CacheSet`].
        operation: OperationId,
        /// The size wanted, whole MiB, before the database's own maximum.
        size: Bytes,
    },
    /// Send a frame.
    Send {
        /// Over which connection.
        connection: ConnectionId,
        /// Body of version 1, and the transaction it belongs to. Version 2 uses such frames as
        /// well.
        frame: MonitorFrame,
    },
    /// Send a frame of version 2.
    SendV2 {
        /// Over which connection.
        connection: ConnectionId,
        /// Body that version 1 does not have, and the transaction it belongs to.
        frame: MonitorFrameV2,
    },
    /// End a connection, after what has been sent.
    Close {
        /// Connection to end, by then no longer the one that is served.
        connection: ConnectionId,
        /// Reason, which sets code and text of the WebSocket close frame.
        reason: CloseReason,
    },
}

/// The agent being served.
#[derive(Debug, Clone, Copy, Serialize)]
struct Session {
    connection: ConnectionId,
    version: Version,
    capabilities: Capabilities,
    next_id: u64,
}

/// The state for people and tools: `/debug/state`, metrics. Never used for decisions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct StateDump {
    /// Configuration of this process; it does not change while the process runs.
    pub setup: Setup,
    /// The agent being served.
    pub connection: Option<ConnectionId>,
    /// The version spoken with it.
    pub version: Option<Version>,
    /// What may be added to its frames.
    pub capabilities: Capabilities,
    /// What the guest sees of its size, as far as it was looked at.
    pub seen: Seen,
    /// The id of the next own transaction.
    pub next_id: Option<u64>,
    /// The use at which more memory is asked for.
    pub threshold: Option<Bytes>,
    /// The size the threshold was taken from.
    pub total: Option<Bytes>,
    /// The newest readings, oldest first.
    pub samples: Vec<Bytes>,
    /// Mean of `samples`, compared with the threshold; `None` without a sample.
    pub mean: Option<Bytes>,
    /// Age of the newest reading, milliseconds.
    pub sample_age_ms: Option<u64>,
    /// The most that was in use lately.
    pub peak: Option<Bytes>,
    /// What the group needs, by estimate.
    pub working_set: Option<Bytes>,
    /// The newest bound on use: `memory.current`, with its page cache.
    pub bound: Option<Bytes>,
    /// How fast use climbs, bytes a second.
    pub climb: u64,
    /// Time from asking for growth to having it, as learned, milliseconds.
    pub lead_ms: u64,
    /// When memory is looked at next, milliseconds from now.
    pub next_look_ms: Option<u64>,
    /// The newest request for growth.
    pub asked: Option<Ask>,
    /// Signals of the kernel's that are listened to.
    pub signals: BTreeSet<String>,
    /// Out-of-memory counts of the watched group.
    pub oom: Option<OomCounts>,
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
    watch: Watch,
    asked: Option<Ask>,
    /// A stall for which the use is being read.
    stalled: Option<Stalled>,
    /// What was read back since the last shrink.
    refaults: Refaults,
    oom: Option<OomCounts>,
    /// Signals of the kernel's that are listened to: one for each trigger.
    signals: BTreeSet<String>,
    /// When growth was first asked for, while none has come.
    waiting_for_growth_since: Option<Timestamp>,
    waiting: VecDeque<Request>,
    job: Option<(OperationId, Job)>,
    /// A shrink for which the weight on memory is being read.
    weighing: Option<Weighing>,
    /// Sizes of the zones as last read.
    zone_sizes: Option<ZoneSizes>,
    /// The most that was in use lately.
    peak: Peak,
    estimator: Estimator,
    /// When a shrink was last approved, while no growth has followed.
    shrunk_at: Option<Timestamp>,
    /// A growth that the guest does not see yet; requests wait behind it.
    growth: Option<Growth>,
    seen: Seen,
    /// When metrics are pushed next.
    metrics_at: Option<Timestamp>,
    next_operation: u64,
    outbox: VecDeque<Action>,
    counters: Counters,
    /// When a failed handshake was last worth a line in the log.
    strangers_logged: BTreeMap<HandshakeFailure, Timestamp>,
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
            watch: Watch::new(setup.rules.pacing),
            asked: None,
            stalled: None,
            refaults: Refaults::default(),
            oom: None,
            signals: BTreeSet::new(),
            waiting_for_growth_since: None,
            waiting: VecDeque::new(),
            job: None,
            weighing: None,
            zone_sizes: None,
            peak: Peak::default(),
            estimator: Estimator::default(),
            shrunk_at: None,
            growth: None,
            seen: Seen::default(),
            metrics_at: None,
            next_operation: 1,
            outbox: VecDeque::new(),
            counters: Counters::default(),
            strangers_logged: BTreeMap::new(),
        }
    }

    /// Takes in one event at `now`. What follows from it waits for [`Self::poll_action`].
    pub fn handle(&mut self, now: Timestamp, event: Event) {
        match event {
            Event::AgentReady {
                connection,
                version,
                machine_total,
            } => {
                self.agent_ready(now, (connection, version), machine_total);
            }
            Event::HandshakeFailed(failure) => self.handshake_failed(now, failure),
            Event::AgentGone { connection } => self.agent_gone(connection),
            Event::Received { connection, what } => {
                if self
                    .session
                    .is_some_and(|session| session.connection == connection)
                {
                    self.received(now, connection, what);
                }
            }
            Event::Probed(bound) => self.probed(now, bound),
            Event::Sampled(outcome) => self.sampled(now, outcome),
            Event::Listening(signal) => drop(self.signals.insert(signal)),
            Event::Stalled(stalled) => self.tasks_stalled(stalled),
            Event::OutOfMemory(counts) => self.oom_counted(now, counts),
            Event::Gauged(gauge) => self.gauged(now, gauge),
            Event::Weighed(weight) => self.weighed(now, weight),
            Event::ZonesRead(zones) => self.zones_read(now, zones),
            Event::Squeezed { operation, gauge } => self.squeezed(now, operation, gauge),
            Event::HooksDone { operation, outcome } => self.hooks_done(now, operation, outcome),
            Event::Observed(seen) => self.observed(now, seen),
            Event::Measured(metrics) => self.measured(*metrics),
            Event::CacheSet { operation, outcome } => self.cache_set(now, operation, outcome),
        }
        self.start_next_job(now);
    }

    /// The next thing to do now; ask until there is none.
    pub fn poll_action(&mut self, now: Timestamp) -> Option<Action> {
        self.end_overdue_squeeze(now);
        if let Some(action) = self.outbox.pop_front() {
            return Some(action);
        }
        if let Some(action) = self.poll_v2(now) {
            return Some(action);
        }
        if self.estimate_at().is_some_and(|at| now >= at) {
            self.estimator.begin(now);
            return Some(Action::Gauge);
        }
        let is_due = self.look_at().is_some_and(|at| now >= at);
        is_due.then(|| self.look(now))
    }

    /// When to ask for an action though nothing has happened.
    #[must_use]
    pub fn poll_deadline(&self) -> Option<Timestamp> {
        let times = [
            self.look_at(),
            self.deadline_v2(),
            self.estimate_at(),
            self.squeeze_until(),
        ];
        times.into_iter().flatten().min()
    }

    /// When the estimator's next step is due; only with an agent, who can give back what is taken
    /// too much.
    fn estimate_at(&self) -> Option<Timestamp> {
        let is_on = self.setup.estimates && self.session.is_some();
        is_on.then(|| self.estimator.next_at())
    }

    /// When memory is looked at next.
    fn look_at(&self) -> Option<Timestamp> {
        let is_watching = self.session.is_some() && self.setup.watched != Watched::Nothing;
        is_watching.then_some(self.watch.next_look_at)
    }

    /// The state, for people and tools.
    #[must_use]
    pub fn snapshot(&self, now: Timestamp) -> StateDump {
        StateDump {
            setup: self.setup,
            connection: self.session.map(|session| session.connection),
            version: self.session.map(|session| session.version),
            capabilities: self.capabilities(),
            seen: self.seen,
            next_id: self.session.map(|session| session.next_id),
            threshold: self.threshold,
            total: self.total,
            samples: self.window.samples().collect(),
            mean: self.window.mean(),
            sample_age_ms: self.window.age(now).map(|age| age.as_millis()),
            peak: self.peak.highest(now, self.setup.rules.peak_window),
            working_set: self.estimator.estimate(),
            bound: self.watch.bound(),
            climb: self.watch.climb(self.threshold),
            lead_ms: self.watch.lead().as_millis(),
            next_look_ms: self.look_at().map(|at| at.since(now).as_millis()),
            asked: self.asked,
            signals: self.signals.clone(),
            oom: self.oom,
            read_failure: self.window.failure().cloned(),
            file_cache: self.cache.clone(),
            waiting: self.waiting.len()
                + usize::from(self.job.is_some())
                + usize::from(self.growth.is_some()),
            counters: self.counters.clone(),
        }
    }

    fn agent_ready(
        &mut self,
        now: Timestamp,
        (connection, version): (ConnectionId, Version),
        total: Option<Bytes>,
    ) {
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
            version,
            capabilities: Capabilities::default(),
            next_id: MONITOR_FIRST_ID,
        });
        self.growth = None;
        self.metrics_at = None;
        self.weighing = None;
        self.shrunk_at = None;
        self.peak.clear();
        self.window.clear();
        self.watch.restart(now);
        self.stalled = None;
        self.waiting.clear();
        self.total = total;
        self.threshold = total.map(|total| self.setup.rules.threshold(total));
        tracing::info!(connection = connection.0, total = ?total, threshold = ?self.threshold, "agent connected");
        if let Some(total) = total {
            // Once at the start of each connection, so that missing rights show before they matter.
            self.waiting.push_back(Request::Start { total });
        }
    }

    /// Somebody came as far as the door. Whoever it is must not be able to fill the log.
    fn handshake_failed(&mut self, now: Timestamp, failure: HandshakeFailure) {
        let reason = failure.label();
        self.counters.handshake_failures.add(reason);
        let last = self.strangers_logged.get(&failure);
        if last.is_none_or(|at| now.since(*at) >= STRANGER_LOG_EVERY) {
            self.strangers_logged.insert(failure, now);
            let count = self.counters.handshake_failures.get(reason);
            tracing::warn!(reason, count, "handshake failed");
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
            self.growth = None;
            self.metrics_at = None;
            self.weighing = None;
        }
    }

    fn received(&mut self, now: Timestamp, connection: ConnectionId, what: Received) {
        let (label, complaint, close) = match what {
            Received::Text(text) => return self.frame(now, connection, &text),
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

    fn frame(&mut self, now: Timestamp, connection: ConnectionId, text: &str) {
        let is_v2 = self
            .session
            .is_some_and(|session| session.version >= Version::V2);
        let decoded = if is_v2 {
            self.frame_v2(now, connection, text)
        } else {
            AgentFrame::decode(text).map(Some)
        };
        let AgentFrame { body, id } = match decoded {
            Ok(Some(frame)) => frame,
            Ok(None) => return,
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
                    target,
                });
            }
            AgentBody::UpscaleNotification { granted } => {
                self.enqueue(Request::Upscale {
                    connection,
                    id,
                    granted,
                });
            }
            AgentBody::InvalidMessage { error } | AgentBody::InternalError { error } => {
                tracing::debug!(id, error = %shorten(error), "the agent complains");
            }
        }
    }

    /// The connection served and the next id of our own for it.
    fn next_own_id(&mut self) -> Option<(ConnectionId, u64)> {
        let session = self.session.as_mut()?;
        let id = session.next_id;
        session.next_id = if id + 2 < MAX_ID {
            id + 2
        } else {
            MONITOR_FIRST_ID
        };
        Some((session.connection, id))
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
