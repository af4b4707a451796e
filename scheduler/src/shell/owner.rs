//! The one task that owns the core: takes commands, carries out actions, shows figures.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use protocol::permit::{AgentRequest, PermitRefusal, PluginResponse};
use protocol::time::Timestamp;
use telemetry::clock::Clock;
use tokio::sync::{Semaphore, mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::StateHandle;
use super::api::Caller;
use super::callers::Scope;
use super::metrics::Metrics;
use crate::core::decide::{Decision, Outcome};
use crate::core::event::{Action, Answer, CallOutcome, Event, TicketId};
use crate::core::remarks::Remark;
use crate::core::{Core, Oddities};

/// Commands that may wait for the owner; senders wait when it is full.
pub(super) const COMMAND_QUEUE: usize = 4096;
/// Commands taken up before figures are shown again.
const BATCH: usize = 256;
/// API calls under way at a time, far above what one node's VMs need.
const CALLS_AT_ONCE: usize = 256;
/// Notes for people (events, conditions) under way at a time; more are dropped.
const NOTES_AT_ONCE: usize = 32;
/// With more pods than this the state is shown only when somebody looked at it since it was shown last.
const SHOWN_ALWAYS: usize = 2000;
/// Showing the state may take this part of the owner's time at most.
const SHOWING_PART: u32 = 20;

/// What the owner is told.
pub(super) enum Command {
    /// For the core.
    Happened(Event),
    /// For the core, told by a watch of this term.
    Told(u64, Event),
    /// Begin nothing any more; answered when nothing is under way, by whether everything that was begun has a known end.
    Retire(oneshot::Sender<bool>),
    /// A permit request, what its caller may ask for, and where its answer goes.
    Permit(AgentRequest, Scope, oneshot::Sender<Reply>),
}

/// An answer to a permit request.
pub(super) struct Reply {
    pub(super) node: Option<String>,
    pub(super) result: Result<PluginResponse, PermitRefusal>,
}

pub(super) struct Owner {
    pub(super) core: Core,
    pub(super) caller: Caller,
    pub(super) clock: Clock,
    pub(super) metrics: Metrics,
    pub(super) state: StateHandle,
    pub(super) node_labels: BTreeMap<String, String>,
    waiting: BTreeMap<TicketId, oneshot::Sender<Reply>>,
    last_ticket: TicketId,
    calls: JoinSet<()>,
    notes: JoinSet<()>,
    gate: Arc<Semaphore>,
    commands: mpsc::Sender<Command>,
    oddities: Option<Oddities>,
    remarked: Option<[usize; Remark::ALL.len()]>,
    shown: Option<(Option<&'static str>, Vec<&'static str>)>,
    /// The term whose watches are heard; none while another leads.
    term: Option<u64>,
    last_term: u64,
    terms: watch::Sender<Option<u64>>,
    is_retiring: bool,
    retired: Option<oneshot::Sender<bool>>,
    changed: bool,
    show_after: Instant,
}

impl Owner {
    pub(super) fn new(
        core: Core,
        caller: Caller,
        state: StateHandle,
        node_labels: BTreeMap<String, String>,
        commands: mpsc::Sender<Command>,
        terms: watch::Sender<Option<u64>>,
    ) -> Self {
        let first = *terms.borrow();
        let (clock, metrics) = (caller.clock, caller.metrics.clone());
        Self {
            core,
            caller,
            clock,
            metrics,
            state,
            node_labels,
            waiting: BTreeMap::new(),
            last_ticket: 0,
            calls: JoinSet::new(),
            notes: JoinSet::new(),
            gate: Arc::new(Semaphore::new(CALLS_AT_ONCE)),
            commands,
            oddities: None,
            remarked: None,
            shown: None,
            term: first,
            last_term: first.unwrap_or(0),
            terms,
            is_retiring: false,
            retired: None,
            changed: true,
            show_after: clock.instant_of(Timestamp(0)),
        }
    }

    /// Runs until `cancel`.
    pub(super) async fn run(
        mut self,
        mut inbox: mpsc::Receiver<Command>,
        cancel: CancellationToken,
    ) {
        loop {
            self.act();
            self.keep_term();
            self.show();
            if self.calls.is_empty() && inbox.is_empty() {
                self.retire();
            }
            let wake = self
                .core
                .poll_deadline()
                .map(|at| self.clock.instant_of(at));
            let wake = if self.changed {
                wake.into_iter().chain([self.show_after]).min()
            } else {
                wake
            };
            let sleep = async {
                match wake {
                    Some(at) => tokio::time::sleep_until(at.into()).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = cancel.cancelled() => return,
                command = inbox.recv() => {
                    let Some(command) = command else { return };
                    self.take(command);
                    for _ in 1..BATCH {
                        let Ok(command) = inbox.try_recv() else { break };
                        self.take(command);
                    }
                }
                Some(_) = self.calls.join_next() => {}
                Some(_) = self.notes.join_next() => {}
                () = sleep => {}
            }
        }
    }

    fn take(&mut self, command: Command) {
        self.changed = true;
        let now = self.clock.now();
        match command {
            Command::Happened(event) => self.core.handle(now, event),
            Command::Told(term, event) if Some(term) == self.term => self.core.handle(now, event),
            // Of a term that is over.
            Command::Told(..) => {}
            Command::Retire(done) => {
                self.is_retiring = true;
                self.retired = Some(done);
            }
            // Whoever hung up has moved on: its request says what was, and must not overtake what is.
            Command::Permit(_, _, reply) if reply.is_closed() => {}
            Command::Permit(request, Scope::Node(node), reply)
                if self.node_of(&request).is_some_and(|is| is != node) =>
            {
                tracing::warn!(pod = %request.pod, caller = node, "asked for a pod of another node");
                let (node, result) = (self.node_of(&request), Err(PermitRefusal::ForeignNode));
                let _sent = reply.send(Reply { node, result });
            }
            Command::Permit(request, _, reply) => {
                self.last_ticket += 1;
                self.waiting.insert(self.last_ticket, reply);
                self.core
                    .handle(now, Event::Permit(self.last_ticket, request));
            }
        }
    }

    /// The node that a request's pod is bound to, if both are known.
    fn node_of(&self, request: &AgentRequest) -> Option<String> {
        let pod = self.core.ledger().pod_named(&request.pod)?;
        pod.view.node.clone()
    }

    /// Carries out everything the core asks for.
    fn act(&mut self) {
        while let Some(action) = self.core.poll_action(self.clock.now()) {
            if self.is_retiring && !matches!(action, Action::Answer(_)) {
                continue;
            }
            match action {
                Action::Answer(answer) => self.answer(answer),
                Action::WriteVm(write) => {
                    let caller = self.bounded();
                    self.call(async move {
                        let outcome = caller.write_vm(&write).await;
                        if let CallOutcome::Refused(error) | CallOutcome::Unclear(error) = &outcome
                        {
                            tracing::warn!(vm = %write.vm, error, "write of the VM failed");
                        }
                        Event::WriteDone(write.id, outcome)
                    });
                }
                Action::ReadVm { id, vm } => {
                    let caller = self.bounded();
                    self.call(async move { Event::ReadDone(id, caller.read_vm(&vm).await) });
                }
                Action::Bind { id, pod, uid, node } => {
                    let caller = self.bounded();
                    self.call(async move {
                        let outcome = caller.bind(&pod, &uid, &node).await;
                        tracing::info!(%pod, node, ?outcome, "bound a pod");
                        Event::BindDone(id, outcome)
                    });
                }
                Action::Unschedulable { pod, uid, message } => {
                    tracing::info!(%pod, why = message, "no node for a pod");
                    let caller = self.caller.clone();
                    self.note(async move { caller.unschedulable(&pod, &uid, &message).await });
                }
                Action::List => {
                    self.last_term += 1;
                    self.term = Some(self.last_term);
                    self.terms.send_replace(self.term);
                    tracing::info!("leads; everything is listed anew");
                }
                Action::Remark { pod, uid, remark } => {
                    tracing::warn!(%pod, remark = remark.as_str(), "a pod to know about");
                    let caller = self.caller.clone();
                    self.note(async move { caller.remark(&pod, &uid, remark).await });
                }
                Action::ScaleUpDenied { uid, decision } => {
                    let caller = self.caller.clone();
                    self.note(async move { caller.scale_up_denied(&uid, &decision).await });
                }
            }
        }
    }

    /// A caller whose calls end before the lead does.
    fn bounded(&self) -> Caller {
        let now = self.clock.now();
        Caller {
            until: self.core.call_bound(now).map(|left| now + left),
            ..self.caller.clone()
        }
    }

    /// Ends the watches of a term that is over.
    fn keep_term(&mut self) {
        if self.term.is_some() && !self.core.may_act(self.clock.now()) {
            self.term = None;
            self.terms.send_replace(None);
            tracing::info!("leads no more");
        }
    }

    fn retire(&mut self) {
        if let Some(done) = self.retired.take() {
            // Whoever asked waits no longer than it wants to.
            let _sent = done.send(self.core.is_drained());
        }
    }

    fn call(&mut self, call: impl Future<Output = Event> + Send + 'static) {
        let (gate, commands) = (Arc::clone(&self.gate), self.commands.clone());
        self.calls.spawn(async move {
            let permit = gate.acquire_owned().await;
            let event = call.await;
            drop(permit);
            // The owner has gone only when everything ends.
            let _sent = commands.send(Command::Happened(event)).await;
        });
    }

    fn note(&mut self, note: impl Future<Output = ()> + Send + 'static) {
        if self.notes.len() < NOTES_AT_ONCE {
            self.notes.spawn(note);
        }
    }

    fn answer(&mut self, answer: Answer) {
        if let Some(decision) = &answer.decision {
            self.count(decision);
        }
        log(&answer);
        let Answer {
            ticket,
            node,
            result,
            ..
        } = answer;
        if let Some(reply) = self.waiting.remove(&ticket) {
            // The agent may have hung up; its next request tells the same.
            let _sent = reply.send(Reply { node, result });
        }
    }

    fn count(&self, decision: &Decision) {
        for resource in crate::core::amount::Resource::ALL {
            let verdict = decision.verdicts.get(resource);
            let word = match verdict.outcome {
                Outcome::Accepted => continue,
                Outcome::Granted => "granted",
                Outcome::Partial(_) => "partial",
                Outcome::Denied(_) => "denied",
            };
            let limit = verdict
                .outcome
                .limit()
                .map(crate::core::decide::Limit::as_str);
            self.metrics.decided(resource, word, limit);
        }
    }

    /// Shows metrics at once and the state dump as often as its cost allows.
    fn show(&mut self) {
        for node in self.core.take_touched() {
            self.metrics.node(&self.core, &node, &self.node_labels);
        }
        let oddities = self.core.oddities();
        if self.oddities != Some(oddities) {
            self.oddities = Some(oddities);
            self.metrics.oddities(oddities);
        }
        let remarked = Remark::ALL.map(|remark| self.core.remarked(remark));
        if self.remarked != Some(remarked) {
            self.remarked = Some(remarked);
            for (remark, count) in Remark::ALL.into_iter().zip(remarked) {
                self.metrics.remarked(remark, count);
            }
        }
        let standby = self.core.standby(self.clock.now());
        let shown = Some((standby, self.core.waiting_for()));
        if self.shown != shown {
            self.metrics.leads(standby.is_none());
            let waiting_for = self.core.waiting_for();
            self.state.set_waiting_for(standby, waiting_for);
            self.shown = shown;
        }
        let began = self.clock.instant_of(self.clock.now());
        let large = self.core.ledger().pods().len() > SHOWN_ALWAYS;
        if !self.changed || began < self.show_after || (large && !self.state.take_wanted()) {
            return;
        }
        self.state.publish(&self.core.snapshot(self.clock.now()));
        self.changed = false;
        let ended = self.clock.instant_of(self.clock.now());
        self.show_after = ended + (ended - began) * SHOWING_PART;
    }
}

fn log(answer: &Answer) {
    let Some(decision) = &answer.decision else {
        match &answer.result {
            Err(refusal) if refusal.status() == 500 => {
                tracing::warn!(status = 500, %refusal, node = answer.node, "permit refused");
            }
            Err(refusal) => {
                tracing::debug!(status = refusal.status(), %refusal, "permit refused");
            }
            Ok(_) => {}
        }
        return;
    };
    let cpu = decision.verdicts.cpu;
    let mem = decision.verdicts.mem;
    let limits: Vec<String> = decision
        .limits()
        .into_iter()
        .map(|(resource, limit)| format!("{}:{}", resource.as_str(), limit.as_str()))
        .collect();
    if decision.overclaimed {
        tracing::warn!(vm = %decision.vm, pod = %decision.pod, "last permit is above what is approved");
    }
    if answer.news {
        tracing::info!(
            vm = %decision.vm, pod = %decision.pod, node = decision.node, permit = %decision.permit,
            asked_cpu_milli = cpu.asked, held_cpu_milli = cpu.held, room_cpu_milli = cpu.room,
            asked_mem_bytes = mem.asked, held_mem_bytes = mem.held, room_mem_bytes = mem.room,
            limits = limits.join(","), granted = limits.is_empty(), "increase decided"
        );
    } else {
        tracing::debug!(vm = %decision.vm, permit = %decision.permit, limits = limits.join(","), "permit");
    }
}
