//! The driver: the task that owns the core. It takes inputs, carries out actions and publishes
//! metrics and the state dump.

mod actions;
mod figures;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use daemon_kit::clock::Clock;
use daemon_kit::driver::{Settled, Shell, drive};
use protocol::core::Core as _;
use protocol::permit::PermitRefusal;
use protocol::time::{Span, Timestamp};
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::api::ApiClient;
use super::callers::Scope;
use super::metrics::Metrics;
use super::state_handle::StateHandle;
use crate::core::elect::Leave;
use crate::core::event::{
    Action, Event, ExtenderRequest, ExtenderResponse, ObjectKind, Permit, PermitRequest, RequestId,
    WatchProgress,
};
use crate::core::ledger::Anomalies;
use crate::core::pod_warnings::PodWarning;
use crate::core::{Core, PermitAnomalies};

/// Capacity of the driver's inbox. Senders wait while it is full.
pub(super) const INPUT_QUEUE: usize = 4096;
/// Inputs that are handled before metrics are updated again.
const BATCH: usize = 256;
/// API calls in flight at a time. The VMs of one node need far fewer.
const CALLS_AT_ONCE: usize = 256;
/// With more pods than this, the state dump is updated only after it was read.
const DUMPED_ALWAYS: usize = 2000;
/// How long a leader that retires waits for its watches to show its own last writes.
const OWN_WRITES_SEEN: Span = Span::from_millis(300);

/// An input of the driver.
pub(super) enum Input {
    /// An event of the core that the driver did not cause.
    Event(Event),
    /// The outcome of one of the driver's calls.
    CallEnded(Event),
    /// A list or a watch event.
    WatchUpdate(WatchUpdate),
    /// Begin no more calls. The driver responds once no call is in flight.
    Retire(oneshot::Sender<Leave>),
    /// A request of a kube-scheduler, and where the response goes.
    ExtenderRequest(ExtenderRequest, oneshot::Sender<ExtenderResponse>),
    /// A permit request of an authenticated caller.
    PermitRequest {
        request: PermitRequest,
        /// The pods that the caller may request permits for.
        scope: Scope,
        /// Where the response goes.
        responder: oneshot::Sender<PermitOutcome>,
    },
}

/// A list or a watch event, with the progress of its watch.
pub(super) struct WatchUpdate {
    /// The epoch of the watch. Updates of earlier epochs are dropped.
    pub(super) epoch: u64,
    /// `None` if the object could not be read.
    pub(super) event: Option<Event>,
    pub(super) kind: ObjectKind,
    /// `None`: a resource version was not a number.
    pub(super) progress: Option<WatchProgress>,
}

/// The outcome of a permit request, for the HTTP response.
pub(super) struct PermitOutcome {
    /// The pod's node, if the ledger has it.
    pub(super) node: Option<String>,
    pub(super) result: Result<Permit, PermitRefusal>,
}

pub(super) struct Driver {
    core: Core,
    api: ApiClient,
    clock: Clock,
    metrics: Metrics,
    state: StateHandle,
    node_labels: BTreeMap<String, String>,
    permit_responders: BTreeMap<RequestId, oneshot::Sender<PermitOutcome>>,
    extender_responders: BTreeMap<RequestId, oneshot::Sender<ExtenderResponse>>,
    last_request: RequestId,
    calls: JoinSet<()>,
    /// Calls without an outcome in the core.
    in_flight: usize,
    /// The runtime of API calls. The permit thread makes none.
    call_runtime: Handle,
    reports: JoinSet<()>,
    call_limit: Arc<Semaphore>,
    inputs: mpsc::Sender<Input>,
    inbox: mpsc::Receiver<Input>,
    anomalies: Option<(PermitAnomalies, Anomalies)>,
    warned_pods: Option<[usize; PodWarning::ALL.len()]>,
    /// Why this replica is on standby, and the kinds that are not listed, as last published.
    readiness: Option<(Option<&'static str>, Vec<&'static str>)>,
    /// The watch epoch whose updates are handled, if any.
    epoch: Option<u64>,
    last_epoch: u64,
    epochs: watch::Sender<Option<u64>>,
    /// Whether this replica led at the last check.
    leads: bool,
    is_retiring: bool,
    /// Where the hand-over goes, and how long it waits for watches.
    retired: Option<(oneshot::Sender<Leave>, Timestamp)>,
    changed: bool,
    dump_after: Instant,
    /// When metrics of nodes may be updated again.
    nodes_after: Instant,
}

impl Shell for Driver {
    type Core = Core;
    /// `None`: the state dump was read.
    type Input = Option<Input>;

    fn core(&mut self) -> &mut Core {
        &mut self.core
    }

    fn clock(&self) -> Clock {
        self.clock
    }

    async fn input(&mut self) -> Option<Option<Input>> {
        tokio::select! {
            input = self.inbox.recv() => input.map(Some),
            () = self.state.was_read() => Some(None),
        }
    }

    fn take(&mut self, input: Option<Input>) {
        let Some(input) = input else { return };
        self.handle(input);
        for _ in 1..BATCH {
            let Ok(input) = self.inbox.try_recv() else {
                break;
            };
            self.handle(input);
        }
    }

    fn act(&mut self, action: Action) {
        let is_response = matches!(
            action,
            Action::RespondPermit(_) | Action::RespondExtender { .. }
        );
        if !self.is_retiring || is_response {
            self.carry_out(action);
        }
    }

    fn settle(&mut self) -> Settled {
        self.follow_lead();
        self.publish();
        self.reap();
        if self.in_flight == 0 && self.inbox.is_empty() {
            self.retire();
        }
        Settled::Sleep
    }

    fn deadline(&self) -> Option<Instant> {
        let now = self.clock.now();
        let retirement = self.retired.as_ref().map(|(_, until)| *until);
        // After that time, only calls in flight delay the hand-over.
        let retirement = retirement.filter(|until| *until > now);
        let nodes = self.core.has_touched().then_some(self.nodes_after);
        let dump = self.is_dump_due().then_some(self.dump_after);
        let retirement = retirement.map(|at| self.clock.instant_of(at));
        [retirement, nodes, dump].into_iter().flatten().min()
    }
}

impl Driver {
    pub(super) fn new(
        core: Core,
        api: ApiClient,
        state: StateHandle,
        node_labels: BTreeMap<String, String>,
        (inputs, inbox): (mpsc::Sender<Input>, mpsc::Receiver<Input>),
        epochs: watch::Sender<Option<u64>>,
    ) -> Self {
        let first = *epochs.borrow();
        let (clock, metrics) = (api.context.clock, api.context.metrics.clone());
        Self {
            core,
            api,
            clock,
            metrics,
            state,
            node_labels,
            permit_responders: BTreeMap::new(),
            extender_responders: BTreeMap::new(),
            last_request: 0,
            calls: JoinSet::new(),
            in_flight: 0,
            call_runtime: Handle::current(),
            reports: JoinSet::new(),
            call_limit: Arc::new(Semaphore::new(CALLS_AT_ONCE)),
            inputs,
            inbox,
            anomalies: None,
            warned_pods: None,
            readiness: None,
            epoch: first,
            last_epoch: first.unwrap_or(0),
            epochs,
            leads: false,
            is_retiring: false,
            retired: None,
            changed: true,
            dump_after: clock.instant_of(Timestamp(0)),
            nodes_after: clock.instant_of(Timestamp(0)),
        }
    }

    /// Runs until `cancel`.
    pub(super) async fn run(mut self, cancel: CancellationToken) {
        drive(&mut self, &cancel).await;
    }

    fn is_large(&self) -> bool {
        self.core.ledger().pods().len() > DUMPED_ALWAYS
    }

    /// Removes tasks that have ended.
    fn reap(&mut self) {
        while self.calls.try_join_next().is_some() {}
        while self.reports.try_join_next().is_some() {}
    }

    fn handle(&mut self, input: Input) {
        self.changed = true;
        let now = self.clock.now();
        match input {
            Input::Event(event) => self.core.handle(now, event),
            Input::CallEnded(event) => {
                self.in_flight -= 1;
                self.core.handle(now, event);
            }
            Input::WatchUpdate(update) if Some(update.epoch) == self.epoch => {
                if let Some(event) = update.event {
                    self.core.handle(now, event);
                }
                let progress = Event::WatchProgress(update.kind, update.progress);
                self.core.handle(now, progress);
            }
            // Of an epoch that is over.
            Input::WatchUpdate(_) => {}
            Input::Retire(done) => {
                self.is_retiring = true;
                self.retired = Some((done, now + OWN_WRITES_SEEN));
            }
            Input::ExtenderRequest(_, responder) if responder.is_closed() => {}
            Input::ExtenderRequest(request, responder) => {
                self.last_request += 1;
                self.extender_responders
                    .insert(self.last_request, responder);
                let event = Event::ExtenderRequest(self.last_request, request);
                self.core.handle(now, event);
            }
            Input::PermitRequest {
                request,
                scope,
                responder,
            } => self.take_permit_request(now, request, &scope, responder),
        }
    }

    fn take_permit_request(
        &mut self,
        now: Timestamp,
        request: PermitRequest,
        scope: &Scope,
        responder: oneshot::Sender<PermitOutcome>,
    ) {
        // The agent has closed the connection. Its request is out of date and must not overtake a
        // newer one.
        if responder.is_closed() {
            return;
        }
        let node = self.node_of(&request);
        if let (Scope::Node(allowed), Some(is)) = (scope, &node)
            && **is != **allowed
        {
            tracing::warn!(pod = %request.pod, caller = &**allowed, "asked for a pod of another node");
            let result = Err(PermitRefusal::ForeignNode);
            let _sent = responder.send(PermitOutcome { node, result });
            return;
        }
        self.last_request += 1;
        self.permit_responders.insert(self.last_request, responder);
        let event = Event::PermitRequest(self.last_request, request);
        self.core.handle(now, event);
    }

    /// The node of a request's pod, if the ledger has both.
    fn node_of(&self, request: &PermitRequest) -> Option<String> {
        let pod = self.core.ledger().pod_named(&request.pod)?;
        pod.view.node.clone()
    }

    /// Logs changes of the lead. Ends the watches after a term, unless the standby cache needs
    /// them.
    fn follow_lead(&mut self) {
        let leads = self.core.may_act(self.clock.now());
        if self.leads != leads {
            self.leads = leads;
            tracing::info!(leads, "the lead changed");
        }
        if self.epoch.is_some() && !leads && !self.core.caches_on_standby() {
            self.epoch = None;
            self.epochs.send_replace(None);
        }
    }

    /// Sends the hand-over once no call is in flight. Waits a moment if the watches have not shown
    /// the core's own writes.
    fn retire(&mut self) {
        let now = self.clock.now();
        let Some((_, until)) = &self.retired else {
            return;
        };
        let leaves_marks = self.core.caches_on_standby() && self.core.is_ready();
        let marks = leaves_marks.then(|| self.core.version_marks()).flatten();
        let is_drained = self.core.is_drained();
        if leaves_marks && marks.is_none() && is_drained && now < *until {
            return;
        }
        if let Some((done, _)) = self.retired.take() {
            let handover = marks.map(|marks| marks.to_string());
            // The receiver may have timed out.
            let _sent = done.send(Leave {
                is_drained,
                handover,
            });
        }
    }
}
