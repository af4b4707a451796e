//! One VM's task: it alone owns the VM's core. It takes inputs one by one, lets the core decide,
//! starts the requests the core asks for, and reports their ends as inputs again. Nothing is
//! polled: a wish of the monitor leads to a decision as soon as it is read. Source:
//! docs/compatibility/agent.md §3.10, §6.1.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use agent_events::{Goal, GoalComponents, LastReported, ScalingSender, UsageMeter};
use daemon_kit::StageLog;
use daemon_kit::clock::Clock;
use hyper::header::HeaderValue;
use kube::api::{Api, ApiResource, DynamicObject};
use protocol::monitor_v2::AskReason;
use protocol::permit::NamespacedName;
use protocol::time::{Span, Timestamp};
use protocol::trace::{Stage, StageRecord, TraceId};
use protocol::units::Resources;
use rand::Rng;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::config::Config;
use super::input::{INPUT_BOUND, Input, InputKind, Took};
use super::journal::{JournalHandle, Scribe};
use super::metrics::{AgentMetrics, RunnerGauge, RunnerState};
use super::monitor::{Call, Link};
use super::monitor_key::MonitorKey;
use super::permit::PermitClient;
use super::pushed::{Pushed, signals_of, system_of};
use super::schedulers::SchedulerPod;
use super::scrape::{Scraper, Source};
use super::state::{DecisionEntry, Place, Refusal, text_of, wall_of};
use super::token::bearer_header;
use super::vm_metrics::{VmLabels, VmMetrics};
use crate::core::health::Health;
use crate::core::journal::Output;
use crate::core::{Core, Decision, Event, Left, Observation, Path, SystemMetrics, VmUpdate};

/// Jitter of the heartbeat, milliseconds.
const TICK_JITTER_MS: u64 = 100;
/// How long the monitor connection gets to say good-bye.
const GOOD_BYE: Duration = Duration::from_millis(500);

/// What every VM's task shares.
pub(super) struct Context {
    pub config: Config,
    pub clock: Clock,
    pub kube: kube::Client,
    pub metrics: AgentMetrics,
    pub vm_metrics: VmMetrics,
    pub stages: StageLog,
    pub schedulers: watch::Receiver<Option<SchedulerPod>>,
    pub permit_client: PermitClient,
    /// Derives the tokens of monitors, where they ask for one.
    pub monitor_key: Option<MonitorKey>,
    pub health_check_every: Duration,
    pub journal: Option<JournalHandle>,
    pub usage: UsageMeter,
    pub scaling: ScalingSender,
}

/// A state of the VM object, ready for the core.
#[derive(Debug, Clone)]
pub(super) struct VmFeed {
    pub update: VmUpdate,
    pub endpoint_id: String,
    pub labels: VmLabels,
    /// When it was read.
    pub arrived: Timestamp,
}

/// Who a task is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Subject {
    pub vm: NamespacedName,
    pub pod: NamespacedName,
    /// Of the VM object.
    pub uid: String,
    pub pod_ip: String,
    pub vsock_cid: Option<u32>,
}

impl Subject {
    /// What the agent shows to the VM's monitor.
    fn monitor_token(&self, key: Option<&MonitorKey>) -> Option<HeaderValue> {
        let token = key?
            .current()?
            .token(&self.vm.namespace, &self.vm.name, &self.uid);
        bearer_header(token.as_bytes())
    }
}

/// One VM's task.
pub(super) struct Runner {
    pub(super) ctx: Arc<Context>,
    pub(super) subject: Subject,
    pub(super) core: Core,
    pub(super) health: Health,
    pub(super) api: Api<DynamicObject>,
    feed: watch::Receiver<VmFeed>,
    inputs: mpsc::Receiver<Input>,
    pub(super) inputs_tx: mpsc::Sender<Input>,
    pub(super) monitor: Option<(u64, mpsc::Sender<Call>)>,
    pub(super) scribe: Scribe,
    wants_lfc: Arc<AtomicBool>,
    pushed: Pushed,
    /// What the guest was last seen to have, by its monitor's confirmation of a growth.
    pub(super) observed: Option<Resources>,
    /// The monitor's last answer to a shrink, if it was no.
    pub(super) refusal: Option<Refusal>,
    pub(super) io: JoinSet<()>,
    is_started: bool,
    pub(super) is_permit_failing: bool,
    last_decision: Option<Decision>,
    last_computations: u64,
    last_faults: u64,
    pub(super) endpoint_id: String,
    labels: VmLabels,
    last_reported: LastReported,
    gauge: RunnerGauge,
    place: Place,
}

impl Runner {
    pub(super) fn new(
        ctx: Arc<Context>,
        subject: Subject,
        mut feed: watch::Receiver<VmFeed>,
        place: Place,
        left: Option<Left>,
    ) -> Self {
        let first = feed.borrow_and_update().clone();
        let jitter = Span::from_millis(rand::rng().random_range(0..TICK_JITTER_MS));
        let mut core = Core::new(ctx.config.core(jitter), first.update.info);
        // One that crashed left its place as it was.
        if let Some(left) = place.left().or(left) {
            core.goes_on_from(&left);
        }
        let health = Health::new(ctx.config.health(), ctx.clock.now());
        let resource = ApiResource::from_gvk(&super::vms::virtual_machine_kind());
        let api = Api::namespaced_with(ctx.kube.clone(), &subject.vm.namespace, &resource);
        let (inputs_tx, inputs) = mpsc::channel(INPUT_BOUND);
        let ctx_journal = ctx.journal.clone();
        let unit = ctx.config.scaling.compute_unit;
        let gauge = ctx.metrics.runner(!first.endpoint_id.is_empty());
        let wants_lfc = Arc::new(AtomicBool::new(core.wants_lfc_metrics()));
        {
            let mut view = place.lock();
            view.start_time = text_of(&ctx.clock, ctx.clock.now());
            view.pod_ip.clone_from(&subject.pod_ip);
            view.endpoint_id.clone_from(&first.endpoint_id);
            view.core = Some((core.clone(), ctx.clock));
            view.state = Some(RunnerState::Ok);
            view.state_updated_at = view.start_time.clone();
        }
        Self {
            ctx,
            subject,
            core,
            health,
            api,
            feed,
            inputs,
            inputs_tx,
            monitor: None,
            scribe: Scribe::new(ctx_journal, unit),
            wants_lfc,
            pushed: Pushed::default(),
            observed: None,
            refusal: None,
            io: JoinSet::new(),
            is_started: false,
            is_permit_failing: false,
            last_decision: None,
            last_computations: 0,
            last_faults: 0,
            endpoint_id: first.endpoint_id,
            labels: first.labels,
            last_reported: LastReported::default(),
            gauge,
            place,
        }
    }

    /// Runs until cancelled. A crash of any task it started ends it with the same crash. Boxed,
    /// because a future holds what it is called with and what it works on each in a place of its
    /// own.
    pub(super) async fn run(mut self: Box<Self>, cancel: CancellationToken) {
        self.start_io(&cancel);
        let mut refresh = tokio::time::interval(self.ctx.config.refresh_state_interval.duration());
        refresh.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut deadline: Option<Timestamp> = None;
        loop {
            let wake = deadline.map(|at| self.ctx.clock.instant_of(at).into());
            let arrived = tokio::select! {
                biased;
                () = cancel.cancelled() => break,
                Some(ended) = self.io.join_next() => {
                    if let Err(error) = ended && error.is_panic() {
                        std::panic::resume_unwind(error.into_panic());
                    }
                    continue;
                }
                Some(input) = self.inputs.recv() => {
                    let arrived = input.arrived;
                    self.take(input);
                    arrived
                }
                changed = self.feed.changed() => {
                    if changed.is_err() {
                        break;
                    }
                    self.take_feed()
                }
                _ = refresh.tick() => {
                    self.refresh_state();
                    continue;
                }
                () = sleep_until(wake) => {
                    let now = self.scribe.begin(self.ctx.clock.now());
                    self.handle(now, Event::Tick);
                    now
                }
            };
            deadline = self.drive(arrived);
        }
        self.scribe.end();
        self.ctx.vm_metrics.forget_desired(&self.labels);
        // The monitor link says good-bye by itself; everything else is simply dropped.
        let _ = tokio::time::timeout(GOOD_BYE, async {
            while self.io.join_next().await.is_some() {}
        })
        .await;
    }

    fn start_io(&mut self, cancel: &CancellationToken) {
        let (ctx, inputs) = (&self.ctx, &self.inputs_tx);
        let always = Arc::new(AtomicBool::new(true));
        let sources = [
            (Source::System, ctx.config.metrics.system, always),
            (
                Source::Lfc,
                ctx.config.metrics.lfc,
                Arc::clone(&self.wants_lfc),
            ),
        ];
        for (source, config, is_active) in sources {
            let scraper = Scraper {
                source,
                config,
                pod_ip: self.subject.pod_ip.clone(),
                clock: ctx.clock,
                is_active,
                pushed: match source {
                    Source::System => self.pushed.clone(),
                    Source::Lfc => Pushed::default(),
                },
                failures: ctx.metrics.scrape_failures.clone(),
                inputs: inputs.clone(),
            };
            let cancel = cancel.clone();
            self.io.spawn(async move {
                tokio::select! {
                    () = scraper.run() => {}
                    () = cancel.cancelled() => {}
                }
            });
        }
        let link = Link {
            config: ctx.config.monitor.clone(),
            push_every: ctx.config.metrics.system.between_requests.span(),
            health_check_every: Span::from_duration(ctx.health_check_every),
            pod_ip: self.subject.pod_ip.clone(),
            vsock_cid: self.subject.vsock_cid,
            token: self.subject.monitor_token(ctx.monitor_key.as_ref()),
            clock: ctx.clock,
            metrics: ctx.metrics.clone(),
            inputs: inputs.clone(),
        };
        self.io.spawn(link.run(cancel.clone()));
    }

    /// Passes an input to the core.
    fn take(&mut self, input: Input) {
        let now = self.scribe.begin(self.ctx.clock.now());
        let event = match *input.kind {
            InputKind::System(metrics) => Event::SystemMetrics(metrics),
            InputKind::Lfc(metrics) => Event::LfcMetrics(metrics),
            InputKind::MonitorUp { generation, calls } => {
                self.monitor = Some((generation, calls));
                self.health.monitor_succeeded(now);
                Event::MonitorActive
            }
            InputKind::MonitorDown { generation } => {
                self.pushed.ended();
                if self.monitor.take().is_some() {
                    tracing::info!(generation, "the monitor connection is down");
                }
                Event::MonitorReset
            }
            InputKind::MonitorWish { generation, wish } if self.is_current(generation) => {
                let reason = wish.reason.map(AskReason::label);
                let wanted = wish.wanted.map(|wanted| wanted.0);
                tracing::debug!(reason, wanted, "the monitor asks to grow");
                Event::MonitorUpscaleRequested(wish)
            }
            InputKind::Pushed {
                generation,
                metrics,
            } if self.is_current(generation) => {
                // What lacks something is scraped for, as from a monitor that pushes nothing.
                let Some(system) = system_of(&metrics) else {
                    return;
                };
                self.pushed.came(now);
                let signals = signals_of(&metrics, &self.core.vm().config.scaling);
                Event::SystemMetrics(SystemMetrics { signals, ..system })
            }
            InputKind::MonitorHealthy => {
                self.health.monitor_succeeded(now);
                self.refresh_state();
                return;
            }
            InputKind::PluginDone { id, took, result } => self.plugin_done(now, id, took, result),
            InputKind::NeonVmDone { id, took, result } => self.neonvm_done(now, id, took, result),
            InputKind::UpscaleDone {
                generation,
                id,
                result,
            } if self.is_current(generation) => self.upscale_done(now, id, result),
            InputKind::DownscaleDone {
                generation,
                id,
                took,
                result,
            } if self.is_current(generation) => self.downscale_done(now, id, took, result),
            // Of a connection that is gone: the core has forgotten it already.
            InputKind::MonitorWish { .. }
            | InputKind::Pushed { .. }
            | InputKind::UpscaleDone { .. }
            | InputKind::DownscaleDone { .. } => return,
        };
        self.is_started = true;
        self.handle(now, event);
    }

    /// Feeds the core, and the journal what it is fed.
    fn handle(&mut self, now: Timestamp, event: Event) {
        self.scribe.event(now, &event, &self.core);
        self.core.handle(now, event);
    }

    fn is_current(&self, generation: u64) -> bool {
        self.monitor
            .as_ref()
            .is_some_and(|(current, _)| *current == generation)
    }

    fn take_feed(&mut self) -> Timestamp {
        let feed = self.feed.borrow_and_update().clone();
        let now = self.scribe.begin(self.ctx.clock.now());
        if feed.endpoint_id != self.endpoint_id {
            self.endpoint_id.clone_from(&feed.endpoint_id);
            self.health.endpoint_assigned(now);
            let mut view = self.place.lock();
            view.endpoint_id.clone_from(&feed.endpoint_id);
            view.endpoint_assigned_at = Some(text_of(&self.ctx.clock, now));
        }
        if feed.labels != self.labels {
            self.ctx.vm_metrics.forget_desired(&self.labels);
            self.labels = feed.labels;
        }
        self.handle(now, Event::VmUpdated(Box::new(feed.update)));
        self.wants_lfc
            .store(self.core.wants_lfc_metrics(), Ordering::Relaxed);
        self.is_started = true;
        feed.arrived
    }

    /// Lets the core decide and starts what it asks for. Returns when to look again.
    fn drive(&mut self, arrived: Timestamp) -> Option<Timestamp> {
        if !self.is_started {
            return None;
        }
        let now = self.scribe.step(self.ctx.clock.now(), &self.core);
        let output = self.decide(now);
        self.note_decision(arrived, &output);
        // What a request rests on is in the journal before the request leaves.
        self.scribe.output(now, &output);
        for (id, action) in output.started {
            self.launch(id, action);
        }
        self.after_decision();
        output.deadline
    }

    /// Asks the core what to do next, and adds up how long it takes to say so.
    fn decide(&mut self, now: Timestamp) -> Output {
        let began = self.ctx.clock.now();
        let output = Output::of(&mut self.core, now);
        let took = self.ctx.clock.now().since(began);
        self.ctx.metrics.deciding_s.inc_by(took.as_secs_f64());
        output
    }

    /// Logs and keeps the decision when it is another than the last one.
    fn note_decision(&mut self, arrived: Timestamp, output: &Output) {
        let (decision, warnings) = (output.decision, output.warnings);
        let now = self.ctx.clock.now();
        let last = self.last_decision.replace(decision);
        self.place.lock().latest = Some(decision);
        if last.is_none_or(|last| last.revision.value != decision.revision.value)
            && decision.revision.value != 0
        {
            let took = Took {
                from: arrived,
                span: now.since(arrived),
            };
            self.record(
                Stage::Decision,
                decision.revision.value,
                took,
                decision.current,
                decision.target,
            );
        }
        if last.is_some_and(|last| !decision.differs_from(&last)) {
            return;
        }
        self.ctx.metrics.decided(&decision);
        let is_move = last.is_none_or(|last| decision.moves_from(&last));
        if is_move {
            self.log_decision(&decision);
        }
        let at = text_of(&self.ctx.clock, now);
        self.place.lock().decided(DecisionEntry {
            at,
            decision,
            warnings,
        });
    }

    fn log_decision(&self, decision: &Decision) {
        let bounded: Vec<&str> = decision
            .bounded_by
            .iter()
            .map(crate::core::Bound::as_str)
            .collect();
        let set = decision.working_set;
        tracing::info!(
            current = %decision.current,
            target = %decision.target,
            reason = decision.reason.as_str(),
            vote_cpu = decision.votes.cpu,
            vote_memory = decision.votes.memory,
            vote_working_set = decision.votes.working_set,
            vote_monitor_estimate = decision.votes.monitor_estimate,
            vote_memory_pressure = decision.votes.memory_pressure,
            bounded_by = bounded.join(","),
            revision = decision.revision.value,
            estimate_wss_pages = set.map(|set| set.estimate_pages),
            predicted_next_wss_pages = set.map(|set| set.predicted_pages),
            required_cu = decision.goal_units,
            "decided"
        );
    }

    /// Passes on what the core measured and shows its state.
    fn after_decision(&mut self) {
        while let Some(observation) = self.core.poll_observation() {
            if let Observation::Latency { path, after, flags } = observation {
                self.ctx.metrics.observe_latency(path, after, flags);
                if path == Path::EndToEnd {
                    self.scribe.verified(&self.core, after, &self.ctx.stages);
                }
            }
        }
        let computations = self.core.computations();
        self.ctx
            .metrics
            .next_actions
            .inc_by(computations - self.last_computations);
        self.last_computations = computations;
        let faults = self.core.faults();
        if faults.total() > self.last_faults {
            tracing::error!(?faults, "an invariant of the core did not hold");
            self.ctx
                .metrics
                .faults
                .inc_by(faults.total() - self.last_faults);
            self.last_faults = faults.total();
        }
        self.show_desired();
        let core = self.core.clone();
        let mut view = self.place.lock();
        view.core = Some((core, self.ctx.clock));
        view.monitor_waiters = self
            .monitor
            .as_ref()
            .map(|(_, calls)| super::monitor::CALL_BOUND.saturating_sub(calls.capacity()));
        view.observed = self.observed;
        view.refusal.clone_from(&self.refusal);
        view.workers = self.io.len();
    }

    fn show_desired(&mut self) {
        let Some(decision) = &self.last_decision else {
            return;
        };
        let unit = self.ctx.config.scaling.compute_unit;
        if decision.has_all_metrics && decision.current.exact_multiple_of(unit).is_some() {
            let goal = Goal {
                current: decision.current,
                units: decision.goal_units,
                components: GoalComponents {
                    cpu: decision.votes.cpu,
                    mem: decision.votes.memory,
                    lfc: decision.votes.working_set,
                },
            };
            let scaling = &self.ctx.scaling;
            scaling.hypothetical(&mut self.last_reported, &self.endpoint_id, &goal);
            let by = self.ctx.config.scaling_events.cu_multiplier;
            let votes = [
                Some(f64::from(decision.goal_units)),
                decision.votes.cpu,
                decision.votes.memory,
                decision.votes.working_set,
            ];
            self.ctx
                .vm_metrics
                .set_desired(&self.labels, votes.map(|vote| vote.map(|v| v * by)));
        }
    }

    pub(super) fn refresh_state(&mut self) {
        let now = self.ctx.clock.now();
        let stuck = self.health.stuck(now);
        let state = if stuck.is_some() {
            RunnerState::Stuck
        } else {
            RunnerState::Ok
        };
        self.gauge.set(!self.endpoint_id.is_empty(), state);
        let clock = &self.ctx.clock;
        let mut view = self.place.lock();
        if view.stuck != stuck {
            match stuck {
                Some(reason) => tracing::warn!(?reason, "scaling is stuck"),
                None => tracing::info!("scaling is not stuck any more"),
            }
        }
        if view.state != Some(state) {
            view.state_updated_at = text_of(clock, now);
        }
        view.state = Some(state);
        view.stuck = stuck;
        view.failures = self.health.counts(now);
        view.last_monitor_success = self
            .health
            .last_monitor_success()
            .map(|at| text_of(clock, at));
    }

    pub(super) fn record(
        &self,
        stage: Stage,
        revision: i64,
        took: Took,
        from: Resources,
        to: Resources,
    ) {
        self.ctx.stages.record(StageRecord {
            trace: TraceId {
                vm: self.subject.vm.to_string(),
                revision,
            },
            stage,
            start_unix_us: wall_of(&self.ctx.clock, took.from).0,
            duration_us: took.span.0,
            change: format!("{from} -> {to}"),
        });
    }
}

async fn sleep_until(wake: Option<tokio::time::Instant>) {
    match wake {
        Some(wake) => tokio::time::sleep_until(wake).await,
        None => std::future::pending().await,
    }
}
