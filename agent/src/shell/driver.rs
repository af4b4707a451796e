//! The driver of one VM: the task that owns the VM's core. It takes one input at a time, lets the
//! core decide and starts the requests of the core. The end of each request is an input again.
//! Nothing is polled, so an upscale request of the monitor leads to a decision as soon as it is
//! read. The loop is not that of [`daemon_kit::driver`], because the journal must have a decision
//! before its requests are sent. Source: docs/compatibility/agent.md §3.10, §6.1.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use agent_events::LastReported;
use daemon_kit::driver::sleep_until;
use kube::api::{Api, DynamicObject};
use protocol::core::Core as _;
use protocol::monitor_v2::AskReason;
use protocol::time::{Span, Timestamp};
use protocol::units::Resources;
use rand::Rng;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::context::{Context, Subject};
use super::input::{INPUT_BOUND, Input, InputKind};
use super::journal::JournalWriter;
use super::metrics::{DriverGauge, DriverState};
use super::monitor::Link;
use super::monitor::request::LinkRequest;
use super::patch::vm_resource;
use super::policy::{PolicyEvent, VmPolicy, next_event};
use super::pushed::{Pushed, signals_of, system_of};
use super::scrape::{Scraper, Source};
use super::state::{RefusalEntry, StateSlot, text_of};
use super::vm_feed::VmFeed;
use super::vm_metrics::VmLabels;
use crate::core::health::Health;
use crate::core::journal::Output;
use crate::core::{Core, Decision, Event, Handoff, SystemMetrics};

/// Upper bound of the random part by which a heartbeat is earlier, milliseconds.
const TICK_JITTER_MS: u64 = 100;
/// Time limit for the close frame of the link when the task ends.
const CLOSE_LIMIT: Duration = Duration::from_millis(500);

/// One VM's task.
pub(super) struct Driver {
    pub(super) ctx: Arc<Context>,
    pub(super) subject: Arc<Subject>,
    pub(super) core: Core,
    pub(super) health: Health,
    pub(super) api: Api<DynamicObject>,
    feed: watch::Receiver<VmFeed>,
    inputs: mpsc::Receiver<Input>,
    pub(super) inputs_tx: mpsc::Sender<Input>,
    /// Generation of the link and its queue, while the link is up.
    pub(super) monitor: Option<(u64, mpsc::Sender<LinkRequest>)>,
    pub(super) journal: JournalWriter,
    /// In a box, so that a VM without one does not hold its size.
    pub(super) policy: Option<Box<VmPolicy>>,
    wants_lfc: Arc<AtomicBool>,
    pushed: Pushed,
    /// Size of the guest in the monitor's last confirmation of a growth.
    pub(super) observed: Option<Resources>,
    /// The monitor's last response to a downscale request, if it was a refusal.
    pub(super) refusal: Option<RefusalEntry>,
    pub(super) io: JoinSet<()>,
    is_started: bool,
    pub(super) is_permit_failing: bool,
    pub(super) last_decision: Option<Decision>,
    pub(super) last_computations: u64,
    pub(super) last_faults: u64,
    pub(super) endpoint_id: String,
    pub(super) labels: VmLabels,
    pub(super) last_reported: LastReported,
    pub(super) gauge: DriverGauge,
    pub(super) slot: StateSlot,
}

impl Driver {
    pub(super) fn new(
        ctx: Arc<Context>,
        subject: Arc<Subject>,
        mut feed: watch::Receiver<VmFeed>,
        slot: StateSlot,
        handoff: Option<Handoff>,
    ) -> Self {
        let first = feed.borrow_and_update().clone();
        let jitter = Span::from_millis(rand::rng().random_range(0..TICK_JITTER_MS));
        let mut core = Core::new(ctx.config.core(jitter), first.update.info);
        // A task that panicked has left its state in the slot.
        if let Some(last) = slot.handoff().or(handoff) {
            core.resume_from(&last);
        }
        let health = Health::new(ctx.config.health(), ctx.clock.now());
        let api = Api::namespaced_with(ctx.kube.clone(), &subject.vm.namespace, &vm_resource());
        let (inputs_tx, inputs) = mpsc::channel(INPUT_BOUND);
        let ctx_journal = ctx.journal.clone();
        let unit = ctx.config.scaling.compute_unit;
        let gauge = ctx.metrics.driver(!first.endpoint_id.is_empty());
        let wants_lfc = Arc::new(AtomicBool::new(core.wants_lfc_metrics()));
        let policy = ctx.policies.clone().map(|runtime| {
            let choice = first.choice.unwrap_or_default();
            Box::new(VmPolicy::new(
                runtime,
                Arc::clone(&subject),
                choice,
                &core,
                ctx.clock.now(),
            ))
        });
        {
            let mut view = slot.lock();
            view.start_time = text_of(&ctx.clock, ctx.clock.now());
            view.pod_ip.clone_from(&subject.pod_ip);
            view.endpoint_id.clone_from(&first.endpoint_id);
            view.core = Some((core.clone(), ctx.clock));
            view.state = Some(DriverState::Ok);
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
            journal: JournalWriter::new(ctx_journal, unit),
            policy,
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
            slot,
        }
    }

    /// Runs until cancelled. A panic of any task it started ends it with the same panic. Boxed,
    /// because a future keeps its arguments and its working copy apart.
    pub(super) async fn run(mut self: Box<Self>, cancel: CancellationToken) {
        self.start_io(&cancel);
        let mut refresh = tokio::time::interval(self.ctx.config.refresh_state_interval.duration());
        refresh.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut deadline: Option<Timestamp> = None;
        loop {
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
                event = next_event(&mut self.policy, self.ctx.clock) => {
                    let Some(arrived) = self.take_policy_event(event) else {
                        continue;
                    };
                    arrived
                }
                _ = refresh.tick() => {
                    self.refresh_state();
                    continue;
                }
                () = sleep_until(self.ctx.clock, deadline) => {
                    let now = self.journal.begin(self.ctx.clock.now());
                    self.handle(now, Event::Tick);
                    now
                }
            };
            deadline = self.drive(arrived);
            if let Some(arrived) = self.bind_policy() {
                deadline = self.drive(arrived);
            }
        }
        self.journal.end();
        self.ctx.vm_metrics.forget_desired(&self.labels);
        // The link sends its close frame by itself; the other tasks are dropped.
        let _ = tokio::time::timeout(CLOSE_LIMIT, async {
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
            feed: self.feed.clone(),
            inputs: inputs.clone(),
        };
        self.io.spawn(link.run(cancel.clone()));
    }

    /// Passes an input to the core.
    fn take(&mut self, input: Input) {
        let now = self.journal.begin(self.ctx.clock.now());
        let event = match *input.kind {
            InputKind::System(metrics) => Event::SystemMetrics(metrics),
            InputKind::Lfc(metrics) => Event::LfcMetrics(metrics),
            InputKind::MonitorUp {
                generation,
                requests,
            } => {
                self.monitor = Some((generation, requests));
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
            InputKind::MonitorUpscaleRequest {
                generation,
                request,
            } if self.is_current(generation) => {
                let reason = request.reason.map(AskReason::label);
                let wanted = request.wanted.map(|wanted| wanted.0);
                tracing::debug!(reason, wanted, "the monitor asks to grow");
                Event::MonitorUpscaleRequested(request)
            }
            InputKind::Pushed {
                generation,
                metrics,
            } if self.is_current(generation) => {
                // An incomplete push does not replace a scrape.
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
            InputKind::PermitDone { id, took, result } => self.permit_done(now, id, took, result),
            InputKind::VmPatchDone { id, took, result } => {
                self.vm_patch_done(now, id, took, result)
            }
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
            // From an earlier link, whose requests the core has dropped.
            InputKind::MonitorUpscaleRequest { .. }
            | InputKind::Pushed { .. }
            | InputKind::UpscaleDone { .. }
            | InputKind::DownscaleDone { .. } => return,
        };
        self.is_started = true;
        self.handle(now, event);
    }

    /// Records an event in the journal and passes it to the core.
    fn handle(&mut self, now: Timestamp, event: Event) {
        self.journal.event(now, &event, &self.core);
        if let Some(policy) = &mut self.policy {
            policy.event(now, &event, &self.core);
        }
        self.core.handle(now, event);
    }

    /// Takes an answer of a policy, or a change of the policies. Returns the time of the event that
    /// the core got, if it got one.
    fn take_policy_event(&mut self, event: PolicyEvent) -> Option<Timestamp> {
        let policy = self.policy.as_mut()?;
        let advice = match event {
            PolicyEvent::Said(said) => policy.said(said, &self.core, &self.ctx, &mut self.journal),
            PolicyEvent::Changed => {
                policy.choose(&self.core, self.ctx.clock.now());
                None
            }
            PolicyEvent::Fed(values) => {
                policy.fed(values, &self.core, &self.ctx, &mut self.journal);
                return None;
            }
            PolicyEvent::Due => {
                policy.due(&self.core, &self.ctx, &mut self.journal);
                return None;
            }
        };
        policy.show(&self.ctx, &self.slot);
        match advice {
            Some(advice) => Some(self.feed_policy(Event::Advised(advice))),
            None => self.bind_policy(),
        }
    }

    /// Tells the core which policy decides, if it is another one. Returns the time of that event.
    fn bind_policy(&mut self) -> Option<Timestamp> {
        if !self.is_started {
            return None;
        }
        let terms = self.policy.as_mut()?.new_terms()?;
        Some(self.feed_policy(Event::Bound(terms)))
    }

    fn feed_policy(&mut self, event: Event) -> Timestamp {
        let now = self.journal.begin(self.ctx.clock.now());
        self.handle(now, event);
        now
    }

    fn is_current(&self, generation: u64) -> bool {
        self.monitor
            .as_ref()
            .is_some_and(|(current, _)| *current == generation)
    }

    fn take_feed(&mut self) -> Timestamp {
        let feed = self.feed.borrow_and_update().clone();
        let now = self.journal.begin(self.ctx.clock.now());
        if let (Some(policy), Some(choice)) = (&mut self.policy, feed.choice) {
            policy.object(choice, &self.core, now);
            policy.show(&self.ctx, &self.slot);
        }
        if feed.endpoint_id != self.endpoint_id {
            self.endpoint_id.clone_from(&feed.endpoint_id);
            self.health.endpoint_assigned(now);
            let mut view = self.slot.lock();
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

    /// Lets the core decide and starts its requests. Returns the next deadline.
    fn drive(&mut self, arrived: Timestamp) -> Option<Timestamp> {
        if !self.is_started {
            return None;
        }
        let now = self.journal.step(self.ctx.clock.now(), &self.core);
        let output = self.decide(now);
        let deadline = output.deadline;
        self.note_decision(arrived, &output);
        // The journal has the decision before its requests are sent.
        self.journal.output(now, &output);
        for (id, action) in &output.started {
            self.launch(*id, action.clone());
        }
        self.after_decision();
        if let Some(policy) = &mut self.policy {
            policy.stepped(now, &self.core, &self.ctx, &mut self.journal);
        }
        deadline
    }

    /// Lets the core compute, and measures the time.
    fn decide(&mut self, now: Timestamp) -> Output {
        let began = self.ctx.clock.now();
        let output = Output::of(&mut self.core, now);
        let took = self.ctx.clock.now().since(began);
        self.ctx.metrics.deciding_s.inc_by(took.as_secs_f64());
        output
    }
}
