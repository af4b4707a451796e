//! The monitor's decisions: *may this VM shrink, and does it need more memory now?*
//!
//! Synchronous and deterministic, as [`protocol::core`] says.
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

mod alone;
mod asking;
mod busy;
pub mod cache;
pub mod counters;
pub mod decision;
pub mod event;
mod figures;
pub mod file_cache;
pub mod files;
mod frames;
pub mod growth_request;
pub mod handshake;
mod hook_runs;
pub mod hooks;
mod jobs;
pub mod memory;
pub mod pressure;
pub mod process_files;
mod requests;
pub mod runnable;
mod sampling;
mod schedule;
mod scheduling;
mod session;
pub mod setup;
pub mod squeeze;
mod squeezing;
mod stalls;
mod state_dump;
#[cfg(test)]
mod tests;
pub mod throttle;
pub mod v2;
pub mod watch;
mod weighing;
pub mod working_set;
pub mod zones;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use protocol::core::Core;
use protocol::time::Timestamp;
use protocol::units::Bytes;

use alone::Alone;
use cache::CacheState;
use counters::Counters;
use decision::Watched;
use event::Seen;
use files::OomCounts;
use growth_request::GrowthRequest;
use handshake::HandshakeFailure;
use jobs::{Growth, Job, Request, Weighing};
use memory::Window;
use pressure::{Refaults, Stalled};
use schedule::ScheduleRequests;
use session::Session;
use watch::{Peak, Watch};
use working_set::Estimator;
use zones::ZoneSizes;

pub use event::{Action, CloseReason, ConnectionId, Event, OperationId, Received};
pub use session::TEXT_LIMIT_BYTES;
pub use setup::Setup;
pub use state_dump::StateDump;

/// The decision core. One per process.
#[derive(Debug)]
pub struct Monitor {
    setup: Setup,
    session: Option<Session>,
    alone: Alone,
    schedule: ScheduleRequests,
    window: Window,
    threshold: Option<Bytes>,
    total: Option<Bytes>,
    cache: CacheState,
    watch: Watch,
    asked: Option<GrowthRequest>,
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
            alone: Alone::default(),
            schedule: ScheduleRequests::default(),
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
}

impl Core for Monitor {
    type Time = Timestamp;
    type Event = Event;
    type Action = Action;

    fn handle(&mut self, now: Timestamp, event: Event) {
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
            Event::ScheduleWritten { is_written } => self.schedule_written(now, is_written),
            Event::CacheSet { operation, outcome } => self.cache_set(now, operation, outcome),
        }
        self.start_next_job(now);
    }

    fn poll_action(&mut self, now: Timestamp) -> Option<Action> {
        self.end_overdue_squeeze(now);
        if let Some(action) = self.outbox.pop_front() {
            return Some(action);
        }
        if let Some(action) = self.poll_schedule(now) {
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
        if is_due {
            return Some(self.look(now));
        }
        self.end_alone(now)
    }

    fn poll_deadline(&self) -> Option<Timestamp> {
        let times = [
            self.look_at(),
            self.deadline_v2(),
            self.estimate_at(),
            self.squeeze_until(),
            self.schedule_at(),
            self.end_alone_at(),
        ];
        times.into_iter().flatten().min()
    }
}

impl Monitor {
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
}
