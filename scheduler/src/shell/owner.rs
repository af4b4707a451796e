//! The one task that owns the core: takes commands, carries out actions, shows figures.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use daemon_kit::clock::Clock;
use protocol::permit::{AgentRequest, PermitRefusal, PluginResponse};
use protocol::time::{Span, Timestamp};
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::StateHandle;
use super::api::Caller;
use super::callers::Scope;
use super::metrics::Metrics;
use super::told;
use crate::core::decide::{Decision, Outcome};
use crate::core::elect::Leave;
use crate::core::event::{Action, Answer, CallOutcome, Event, RemovalCause, TicketId};
use crate::core::extend::{Ask, Told};
use crate::core::ledger::Anomalies;
use crate::core::ledger::Fit;
use crate::core::migrate::NodeNote;
use crate::core::remarks::Remark;
use crate::core::warm::{Kind, Reach};
use crate::core::{Core, Oddities};

/// Commands that may wait for the owner; senders wait when it is full.
pub(super) const COMMAND_QUEUE: usize = 4096;
/// Commands taken up before figures are shown again.
const BATCH: usize = 256;
/// API calls under way at a time, far above what one node's VMs need.
const CALLS_AT_ONCE: usize = 256;
/// Notes for people (events, conditions) under way at a time; more are dropped.
const NOTES_AT_ONCE: usize = 32;
/// With more pods than this the state is shown only when somebody looked at it since it was shown
/// last.
const SHOWN_ALWAYS: usize = 2000;
/// How long giving the lead up waits for watches to show what this replica bound last.
const SHOW_OWN: Span = Span::from_millis(300);
/// Showing the state may take this part of the owner's time at most.
const SHOWING_PART: u32 = 100;
/// How old the metrics of a node may be. They change with every grant, and nobody reads them so
/// often.
const NODES_SHOWN_EVERY: Duration = Duration::from_millis(100);

/// What the owner is told.
pub(super) enum Command {
    /// For the core.
    Happened(Event),
    /// For the core: how a call of the owner's ended.
    Called(Event),
    /// For the core, told by a watch of this round, and how far that watch has come with it.
    Told(u64, Option<Event>, (Kind, Option<Reach>)),
    /// Begin nothing any more; answered when nothing is under way, by whether everything that was
    /// begun has a known end, and with what the next leader has to know.
    Retire(oneshot::Sender<Leave>),
    /// A question of kube-scheduler and where its answer goes.
    Asked(Ask, oneshot::Sender<Told>),
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
    asking: BTreeMap<TicketId, oneshot::Sender<Told>>,
    last_ticket: TicketId,
    calls: JoinSet<()>,
    /// Calls whose outcome was not told yet.
    under_way: usize,
    /// Where calls are made: not on the thread that decides.
    elsewhere: Handle,
    notes: JoinSet<()>,
    gate: Arc<Semaphore>,
    commands: mpsc::Sender<Command>,
    oddities: Option<(Oddities, Anomalies)>,
    remarked: Option<[usize; Remark::ALL.len()]>,
    shown: Option<(Option<&'static str>, Vec<&'static str>)>,
    /// The round of watches that is heard, if any.
    round: Option<u64>,
    last_round: u64,
    rounds: watch::Sender<Option<u64>>,
    /// Whether this replica was seen to lead.
    leads: bool,
    is_retiring: bool,
    /// Who waits for the end of what is under way, and until when it waits for watches too.
    retired: Option<(oneshot::Sender<Leave>, Timestamp)>,
    changed: bool,
    show_after: Instant,
    /// When metrics of nodes may be set again.
    nodes_after: Instant,
}

impl Owner {
    pub(super) fn new(
        core: Core,
        caller: Caller,
        state: StateHandle,
        node_labels: BTreeMap<String, String>,
        commands: mpsc::Sender<Command>,
        rounds: watch::Sender<Option<u64>>,
    ) -> Self {
        let first = *rounds.borrow();
        let (clock, metrics) = (caller.means.clock, caller.means.metrics.clone());
        Self {
            core,
            caller,
            clock,
            metrics,
            state,
            node_labels,
            waiting: BTreeMap::new(),
            asking: BTreeMap::new(),
            last_ticket: 0,
            calls: JoinSet::new(),
            under_way: 0,
            elsewhere: Handle::current(),
            notes: JoinSet::new(),
            gate: Arc::new(Semaphore::new(CALLS_AT_ONCE)),
            commands,
            oddities: None,
            remarked: None,
            shown: None,
            round: first,
            last_round: first.unwrap_or(0),
            rounds,
            leads: false,
            is_retiring: false,
            retired: None,
            changed: true,
            show_after: clock.instant_of(Timestamp(0)),
            nodes_after: clock.instant_of(Timestamp(0)),
        }
    }

    /// Runs until `cancel`.
    pub(super) async fn run(
        mut self,
        mut inbox: mpsc::Receiver<Command>,
        cancel: CancellationToken,
    ) {
        let mut alarm = std::pin::pin!(tokio::time::sleep(Duration::ZERO));
        let looks = self.state.clone();
        loop {
            self.act();
            self.follow_lead();
            self.show();
            self.reap();
            if self.under_way == 0 && inbox.is_empty() {
                self.retire();
            }
            let wake = self.wake().map(tokio::time::Instant::from);
            if let Some(at) = wake
                && at != alarm.deadline()
            {
                alarm.as_mut().reset(at);
            }
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
                () = alarm.as_mut(), if wake.is_some() => {}
                () = looks.looked() => {}
            }
        }
    }

    /// When to go on even if nothing is told.
    fn wake(&self) -> Option<Instant> {
        let deadline = self.core.poll_deadline();
        let deadline = deadline.map(|at| self.clock.instant_of(at));
        let is_due = is_due(self.changed, self.is_large(), self.state.is_wanted());
        let shows = is_due.then_some(self.show_after);
        let nodes = self.core.has_touched().then_some(self.nodes_after);
        let now = self.clock.now();
        let retires = self.retired.as_ref().map(|(_, until)| *until);
        // After that only what is under way is waited for.
        let retires = retires.filter(|until| *until > now);
        let retires = retires.map(|until| self.clock.instant_of(until));
        let looks = shows.into_iter().chain(nodes).chain(retires);
        deadline.into_iter().chain(looks).min()
    }

    fn is_large(&self) -> bool {
        self.core.ledger().pods().len() > SHOWN_ALWAYS
    }

    /// Lets go of tasks that have ended.
    fn reap(&mut self) {
        while self.calls.try_join_next().is_some() {}
        while self.notes.try_join_next().is_some() {}
    }

    fn take(&mut self, command: Command) {
        self.changed = true;
        let now = self.clock.now();
        match command {
            Command::Happened(event) => self.core.handle(now, event),
            Command::Called(event) => {
                self.under_way -= 1;
                self.core.handle(now, event);
            }
            Command::Told(round, event, (kind, reach)) if Some(round) == self.round => {
                if let Some(event) = event {
                    self.core.handle(now, event);
                }
                self.core.handle(now, Event::Reached(kind, reach));
            }
            // Of a round that is over.
            Command::Told(..) => {}
            Command::Retire(done) => {
                self.is_retiring = true;
                self.retired = Some((done, now + SHOW_OWN));
            }
            Command::Asked(_, reply) if reply.is_closed() => {}
            Command::Asked(ask, reply) => {
                self.last_ticket += 1;
                self.asking.insert(self.last_ticket, reply);
                self.core.handle(now, Event::Asked(self.last_ticket, ask));
            }
            // Whoever hung up has moved on: its request says what was, and must not overtake what
            // is.
            Command::Permit(_, _, reply) if reply.is_closed() => {}
            Command::Permit(request, Scope::Node(node), reply)
                if self.node_of(&request).is_some_and(|is| *is != *node) =>
            {
                tracing::warn!(pod = %request.pod, caller = &*node, "asked for a pod of another node");
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
            let is_answer = matches!(action, Action::Answer(_) | Action::Tell { .. });
            if self.is_retiring && !is_answer {
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
                    self.count_overfull(&uid, &node);
                    let caller = self.bounded();
                    self.call(async move {
                        let outcome = caller.bind(&pod, &uid, &node).await;
                        tracing::info!(%pod, node, ?outcome, "bound a pod");
                        Event::BindDone(id, outcome)
                    });
                }
                Action::ReadPod { id, pod } => {
                    let caller = self.bounded();
                    self.call(async move { Event::PodRead(id, caller.read_pod(&pod).await) });
                }
                Action::Tell { ticket, told } => {
                    if let Told::Bound(Err(why)) = &told {
                        tracing::warn!(%why, "a binding that kube-scheduler asked for failed");
                    }
                    if let Some(reply) = self.asking.remove(&ticket) {
                        // Whoever asked may have hung up; it asks again.
                        let _sent = reply.send(told);
                    }
                }
                Action::Unschedulable { pod, uid, message } => {
                    tracing::info!(%pod, why = message, "no node for a pod");
                    let caller = self.caller.clone();
                    self.note(async move { caller.unschedulable(&pod, &uid, &message).await });
                }
                Action::RoomAppeared { pod, uid, node } => {
                    tracing::info!(%pod, node, "a waiting pod has room now");
                    let caller = self.caller.clone();
                    self.note(async move { caller.room_appeared(&pod, &uid, &node).await });
                }
                Action::List => {
                    self.last_round += 1;
                    self.round = Some(self.last_round);
                    self.rounds.send_replace(self.round);
                    tracing::info!("everything is listed anew");
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
                migration => self.act_on_migration(migration),
            }
        }
    }

    /// Counts a binding that the configuration wants although the node has no room any more.
    fn count_overfull(&self, uid: &str, node: &str) {
        let ledger = self.core.ledger();
        let Some(pod) = ledger.pod(uid).map(|entry| &entry.view) else {
            return;
        };
        if let (Fit::NoRoom(_), Some(node)) = (ledger.fits(pod, node), ledger.node(node)) {
            let is_ignored = ledger
                .rules()
                .ignored_namespaces
                .contains(&pod.key.namespace);
            self.metrics
                .reserve_should_deny(node, &self.node_labels, is_ignored);
        }
    }

    /// Carries out what has to do with migrations.
    fn act_on_migration(&mut self, action: Action) {
        match action {
            Action::CreateMigration { id, migration } => {
                let caller = self.bounded();
                self.call(async move {
                    let outcome = caller.create_migration(&migration).await;
                    tracing::info!(migration = %migration.key, vm = migration.vm, ?outcome, "created a migration");
                    Event::MigrationDone(id, outcome)
                });
            }
            Action::DeleteMigration {
                id,
                migration,
                uid,
                cause,
            } => {
                self.metrics.migration_removed(cause);
                let caller = self.bounded();
                self.call(async move {
                    let outcome = caller.delete_migration(&migration, &uid).await;
                    let cause = cause.as_str();
                    if cause == RemovalCause::Succeeded.as_str() {
                        tracing::info!(%migration, cause, ?outcome, "deleted a migration");
                    } else {
                        tracing::warn!(%migration, cause, ?outcome, "deleted a migration");
                    }
                    Event::MigrationDone(id, outcome)
                });
            }
            Action::MigrationTriggered {
                vm_uid,
                node,
                pressure,
                picked,
            } => {
                self.metrics.migration_begun(&node);
                let message = told::migration(&node, &pressure, &picked);
                tracing::info!(vm = %picked.vm, pod = %picked.pod, node, message, "a VM is moved");
                if let Some(uid) = vm_uid {
                    let caller = self.caller.clone();
                    self.note(async move {
                        caller.migration_triggered(&picked.vm, &uid, message).await;
                    });
                }
            }
            Action::NodeNote { node, note } => {
                let message = told::node(&note);
                tracing::warn!(node, message, "a node to know about");
                if let NodeNote::OverBudget(_) = note {
                    let caller = self.caller.clone();
                    self.note(async move { caller.node_over_budget(&node, message).await });
                }
            }
            _ => {}
        }
    }

    /// A caller whose calls end before the lead does.
    fn bounded(&self) -> Caller {
        let now = self.clock.now();
        Caller {
            means: Arc::clone(&self.caller.means),
            until: self.core.call_bound(now).map(|left| now + left),
        }
    }

    /// Says when the lead comes and goes, and ends the watches of a term that is over unless they
    /// are of use to the next one.
    fn follow_lead(&mut self) {
        let leads = self.core.may_act(self.clock.now());
        if self.leads != leads {
            self.leads = leads;
            tracing::info!(leads, "the lead changed");
        }
        if self.round.is_some() && !leads && !self.core.keeps_warm() {
            self.round = None;
            self.rounds.send_replace(None);
        }
    }

    /// Tells whoever waits for the end of what is under way; if the core's own watches are behind
    /// what it did, a little later.
    fn retire(&mut self) {
        let now = self.clock.now();
        let Some((_, until)) = &self.retired else {
            return;
        };
        let leaves_marks = self.core.keeps_warm() && self.core.is_ready();
        let marks = leaves_marks.then(|| self.core.marks()).flatten();
        let is_drained = self.core.is_drained();
        if leaves_marks && marks.is_none() && is_drained && now < *until {
            return;
        }
        if let Some((done, _)) = self.retired.take() {
            let note = marks.map(|marks| marks.to_string());
            // Whoever asked waits no longer than it wants to.
            let _sent = done.send(Leave { is_drained, note });
        }
    }

    fn call(&mut self, call: impl Future<Output = Event> + Send + 'static) {
        let (gate, commands) = (Arc::clone(&self.gate), self.commands.clone());
        self.under_way += 1;
        let call = async move {
            let permit = gate.acquire_owned().await;
            let event = call.await;
            drop(permit);
            // The owner has gone only when everything ends.
            let _sent = commands.send(Command::Called(event)).await;
        };
        self.calls.spawn_on(call, &self.elsewhere);
    }

    fn note(&mut self, note: impl Future<Output = ()> + Send + 'static) {
        if self.notes.len() < NOTES_AT_ONCE {
            self.notes.spawn_on(note, &self.elsewhere);
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

    /// Shows how this replica stands at once, metrics soon and the state dump as often as its cost
    /// allows.
    fn show(&mut self) {
        // Time changes nodes too.
        self.changed |= self.core.has_touched();
        self.show_nodes();
        let oddities = (self.core.oddities(), self.core.ledger().anomalies());
        if self.oddities != Some(oddities) {
            self.oddities = Some(oddities);
            self.metrics.oddities(oddities.0, oddities.1);
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
        self.show_state();
    }

    /// Sets the metrics of nodes that changed, if that is not too soon.
    fn show_nodes(&mut self) {
        if !self.core.has_touched() {
            return;
        }
        let now = self.clock.instant_of(self.clock.now());
        if now < self.nodes_after {
            return;
        }
        for node in self.core.take_touched() {
            self.metrics.node(&self.core, &node, &self.node_labels);
        }
        self.nodes_after = now + NODES_SHOWN_EVERY;
    }

    /// Shows the state dump, if it is due and that does not take too much of the time.
    fn show_state(&mut self) {
        if !is_due(self.changed, self.is_large(), self.state.is_wanted()) {
            return;
        }
        let began = self.clock.instant_of(self.clock.now());
        if began < self.show_after {
            return;
        }
        self.state.publish(&self.core.snapshot(self.clock.now()));
        self.changed = false;
        let ended = self.clock.instant_of(self.clock.now());
        self.show_after = ended + (ended - began) * SHOWING_PART;
    }
}

/// Whether the state is to be shown anew. What is not due must not wake the owner either, or it
/// would turn without end.
const fn is_due(changed: bool, is_large: bool, is_wanted: bool) -> bool {
    changed && (!is_large || is_wanted)
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
        tracing::warn!(vm = %decision.vm, pod = %decision.pod, "last permit is above what is approved and in use");
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

#[cfg(test)]
mod tests {
    use super::is_due;

    /// It was due for as long as nobody looked, so that a large state once changed kept a processor
    /// busy for ever.
    #[test]
    fn a_large_state_that_nobody_looks_at_wakes_nobody() {
        assert!(!is_due(true, true, false));
        assert!(is_due(true, true, true) && is_due(true, false, false));
        assert!(!is_due(false, true, true) && !is_due(false, false, true));
    }
}
