//! The policy of one VM: what it is asked, and when. The driver passes events, steps and answers
//! on. Nothing here reaches the core.

mod shown;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use policy_contract::Want;
use protocol::journal::{Answered, Bound, BoundLimits, Milli};
use protocol::permit::NamespacedName;
use protocol::policy::{Fault, Role};
use protocol::time::{Span, Timestamp};
use tokio::sync::{mpsc, watch};

use super::known::{Choice, Known, Policy};
use super::{End, PolicyRuntime, Question, Request, Said};
use crate::core::journal::Output;
use crate::core::questions::{Memory, Surroundings, answered, refused_units, samples, seconds};
use crate::core::{Core, Event};
use crate::shell::driver::Context;
use crate::shell::journal::JournalWriter;
use crate::shell::state::wall_of;

/// Shortest time between two questions about a VM.
const ASK_EVERY: Span = Span::from_secs(1);
/// Time after which the calendar time in questions follows a clock that was set.
const WALL_EVERY: Span = Span::from_secs(600);
/// Answers that wait. One question is open at a time.
const SAID_BOUND: usize = 2;
/// In this stage each policy is a candidate.
const ROLE: Role = Role::Shadow;

/// What a VM object says about its policy.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::shell) struct VmChoice {
    pub annotation: Option<String>,
    /// The first 32 labels.
    pub labels: BTreeMap<String, String>,
}

/// Something that the driver must take.
pub(in crate::shell) enum PolicyEvent {
    Said(SaidNow),
    Changed,
}

/// An answer on its way to the journal.
pub(in crate::shell) struct SaidNow(Said);

/// Policy of one VM.
pub(in crate::shell) struct VmPolicy {
    runtime: PolicyRuntime,
    namespace: String,
    /// Number of the VM in the worker.
    vm: u32,
    choice: VmChoice,
    known: watch::Receiver<Known>,
    active: Option<Active>,
    /// Chosen name that stands for no policy.
    unknown: Option<String>,
    was_bound: bool,
    samples: BTreeMap<String, f64>,
    said: mpsc::Receiver<Said>,
    said_tx: mpsc::Sender<Said>,
}

/// A policy in use.
struct Active {
    policy: Arc<Policy>,
    /// Worker that has the VM's past; 0 = none.
    generation: u64,
    memory: Memory,
    since: Timestamp,
    wall: u64,
    wall_at: Timestamp,
    open: Option<Open>,
    asked_at: Option<Timestamp>,
    /// The source is refused, or it ended the worker too often.
    is_set_aside: bool,
    /// Answer as last shown, and since when it is the same.
    last: Option<(Answered, Timestamp)>,
}

/// The open question.
struct Open {
    n: u64,
    at: Timestamp,
    checksum: u32,
    starved: Milli,
    vms: u32,
    builtin: u32,
}

/// The next event of a VM's policy. Without one it never comes.
pub(in crate::shell) async fn next_event(policy: &mut Option<VmPolicy>) -> PolicyEvent {
    let Some(policy) = policy else {
        return std::future::pending().await;
    };
    tokio::select! {
        Some(said) = policy.said.recv() => PolicyEvent::Said(SaidNow(said)),
        Ok(()) = policy.known.changed() => PolicyEvent::Changed,
        else => std::future::pending().await,
    }
}

impl VmPolicy {
    pub(in crate::shell) fn new(
        runtime: PolicyRuntime,
        vm: &NamespacedName,
        choice: VmChoice,
        core: &Core,
        now: Timestamp,
    ) -> Self {
        let (said_tx, said) = mpsc::channel(SAID_BOUND);
        let number = runtime.0.next_vm.fetch_add(1, Ordering::Relaxed);
        runtime.nodes().insert(number, None);
        let mut policy = Self {
            namespace: vm.namespace.clone(),
            vm: number,
            choice,
            known: runtime.0.known.subscribe(),
            active: None,
            unknown: None,
            was_bound: false,
            samples: BTreeMap::new(),
            said,
            said_tx,
            runtime,
        };
        policy.choose(core, now);
        policy
    }

    /// Takes the VM object's choice.
    pub(in crate::shell) fn object(&mut self, choice: VmChoice, core: &Core, now: Timestamp) {
        if choice != self.choice {
            self.choice = choice;
            self.choose(core, now);
        }
    }

    /// Chooses the policy by what is known now. The next step asks it.
    pub(in crate::shell) fn choose(&mut self, core: &Core, now: Timestamp) {
        let default = self.runtime.0.settings.default.as_deref();
        let annotation = self.choice.annotation.as_deref();
        let choice = self
            .known
            .borrow_and_update()
            .choose(&self.namespace, annotation, default);
        let unknown = match &choice {
            Choice::Unknown(name, _) => Some(name.clone()),
            Choice::Builtin | Choice::Policy(_) => None,
        };
        let change = i64::from(unknown.is_some()) - i64::from(self.unknown.is_some());
        self.runtime.0.metrics.unknown.inc_by(change);
        self.unknown = unknown;
        match choice {
            Choice::Policy(policy) => {
                let is_same = |active: &Active| active.policy == policy;
                if !self.active.as_ref().is_some_and(is_same) {
                    self.active = Some(Active::new(policy, core, now));
                    self.runtime.send(Request::Wanted);
                }
            }
            Choice::Builtin => self.active = None,
            Choice::Unknown(name, why) => {
                tracing::warn!(policy = name, why, "the VM's policy is unknown");
                self.active = None;
            }
        }
    }

    /// Takes an event before the core handles it.
    pub(in crate::shell) fn event(&mut self, now: Timestamp, event: &Event, core: &Core) {
        if let Some(units) = refused_units(event, core) {
            self.runtime.nodes().insert(self.vm, Some((now, units)));
        }
        if let Some(active) = &mut self.active {
            active.memory.event(now, event, core);
            self.samples = samples(event);
        }
    }

    /// Asks, if it is time, after the step at `now`.
    pub(in crate::shell) fn stepped(
        &mut self,
        now: Timestamp,
        (core, output): (&Core, &Output),
        ctx: &Context,
        journal: &mut JournalWriter,
    ) {
        let samples = std::mem::take(&mut self.samples);
        let Some(active) = &mut self.active else {
            if std::mem::take(&mut self.was_bound) {
                journal.bound(now, &Bound::default());
            }
            return;
        };
        self.was_bound = true;
        let runtime = &self.runtime;
        if !active.follow_worker(now, core, ctx, (runtime, self.vm)) {
            return;
        }
        journal.bound(now, &active.bound(&self.choice.labels));
        if !active.pass(now, samples, (runtime, self.vm)) {
            return;
        }
        let is_due = active.asked_at.is_none_or(|at| now.since(at) >= ASK_EVERY);
        if is_due && active.open.is_none() && !active.is_set_aside {
            self.ask(now, core, output);
        }
    }

    fn ask(&mut self, now: Timestamp, core: &Core, output: &Output) {
        let runtime = &self.runtime;
        let Some(active) = &mut self.active else {
            return;
        };
        let (vms, starved) = runtime.node_load(self.vm, now);
        let around = Surroundings {
            spec: &active.policy.spec,
            role: ROLE,
            labels: &self.choice.labels,
            wall: active.wall,
            vms,
            starved,
        };
        let Some(input) = active.memory.question(now, core, &around) else {
            return;
        };
        let n = runtime.0.next_question.fetch_add(1, Ordering::Relaxed);
        let open = Open {
            n,
            at: now,
            checksum: input.checksum(),
            starved,
            vms,
            builtin: output.decision.goal_units,
        };
        let is_sent = runtime.send(Request::Ask(Box::new(Question {
            generation: active.generation,
            n,
            vm: self.vm,
            at: seconds(now),
            policy: Arc::clone(&active.policy),
            input: Box::new(input),
            reply: self.said_tx.clone(),
        })));
        if is_sent {
            (active.open, active.asked_at) = (Some(open), Some(now));
        }
    }

    /// Records the end of the open question.
    pub(in crate::shell) fn said(
        &mut self,
        SaidNow(said): SaidNow,
        ctx: &Context,
        journal: &mut JournalWriter,
    ) {
        let Some(active) = &mut self.active else {
            return;
        };
        let Some(open) = active.open.take_if(|open| open.n == said.n) else {
            return;
        };
        let now = journal.between_steps(ctx.clock.now());
        let took = now.since(open.at);
        let plain = Answered {
            role: ROLE,
            cu: None,
            cut: None,
            dg: active.policy.digest.short(),
            fault: None,
            hold: false,
            r#in: open.checksum,
            note: None,
            r: None,
            s: open.starved,
            t: now.0,
            took: took.0,
            vm: 0,
            vms: open.vms,
            votes: BTreeMap::new(),
        };
        let policy = Arc::clone(&active.policy);
        let (name, metrics) = (&policy.name, &self.runtime.0.metrics);
        let record = match said.end {
            End::Lost => return,
            End::Answer(answer) => {
                let record = answered(plain, &answer);
                let reason = answer.reason.as_str();
                active.memory.accepted(ROLE, now, record.cu, reason);
                metrics.ended(name, ROLE, None, took);
                if let Want::Units(units) = answer.want {
                    metrics.compared(name, units, open.builtin);
                }
                record
            }
            End::Fault(fault, text) => {
                active.fault(fault, &text, &self.runtime);
                metrics.ended(name, ROLE, Some(fault), took);
                Answered {
                    fault: Some(fault),
                    ..plain
                }
            }
        };
        journal.answered(record.clone());
        let since = match active.last.take() {
            Some((last, since)) if last.says_as(&record) => since,
            _ => now,
        };
        active.last = Some((record, since));
    }
}

impl Drop for VmPolicy {
    fn drop(&mut self) {
        self.runtime.nodes().remove(&self.vm);
        if self.unknown.is_some() {
            self.runtime.0.metrics.unknown.dec();
        }
        let generation = self.runtime.generation();
        let vm = self.vm;
        self.runtime.send(Request::Forget { generation, vm });
    }
}

impl Active {
    fn new(policy: Arc<Policy>, core: &Core, now: Timestamp) -> Self {
        Self {
            policy,
            generation: 0,
            memory: Memory::new(now, core),
            since: now,
            wall: 0,
            wall_at: now,
            open: None,
            asked_at: None,
            is_set_aside: false,
            last: None,
        }
    }

    /// Begins the VM's past with a new worker. Returns whether there is a worker.
    fn follow_worker(
        &mut self,
        now: Timestamp,
        core: &Core,
        ctx: &Context,
        (runtime, vm): (&PolicyRuntime, u32),
    ) -> bool {
        let generation = runtime.generation();
        if generation == 0 {
            return false;
        }
        let is_new = generation != self.generation;
        if is_new {
            if !runtime.send(Request::Forget { generation, vm }) {
                return false;
            }
            self.generation = generation;
            (self.memory, self.since) = (Memory::new(now, core), now);
            // The supervisor ends open questions of the worker before.
            self.open = None;
        }
        if is_new || now.since(self.wall_at) >= WALL_EVERY {
            self.wall_at = now;
            let zero = wall_of(&ctx.clock, Timestamp(0)).0;
            self.wall = u64::try_from(zero).unwrap_or_default();
        }
        true
    }

    /// Passes the samples of a step to the worker. Returns whether it has the whole past.
    fn pass(
        &mut self,
        now: Timestamp,
        mut samples: BTreeMap<String, f64>,
        (runtime, vm): (&PolicyRuntime, u32),
    ) -> bool {
        samples.retain(|name, _| self.policy.spec.has_series(name));
        let generation = self.generation;
        let is_passed = samples.is_empty()
            || runtime.send(Request::Sample {
                generation,
                vm,
                at: seconds(now),
                samples,
            });
        if !is_passed {
            // The past has a gap now, so it begins anew.
            self.generation = 0;
        }
        is_passed
    }

    fn bound(&self, labels: &BTreeMap<String, String>) -> Bound {
        let limits = self.policy.limits;
        let feeds = self.policy.spec.feeds.iter();
        Bound {
            feeds: feeds.map(|feed| feed.name.clone()).collect(),
            labels: labels.clone(),
            limits: BoundLimits {
                fallback_after_seconds: limits.fallback_after_seconds,
                max_units: limits.max_units,
                shrink_units_per_minute: limits.shrink_units_per_minute,
                vms_shrunk_at_once_percent: limits.vms_shrunk_at_once_percent,
            },
            name: Some(self.policy.name.clone()),
            roles: [(ROLE, self.policy.digest.to_string())].into(),
            since: self.since.0,
            t: 0,
            vm: 0,
            wall: self.wall,
        }
    }

    fn fault(&mut self, fault: Fault, text: &str, runtime: &PolicyRuntime) {
        self.is_set_aside = runtime.set_aside(&self.policy.digest).is_some();
        let is_repeated = self
            .last
            .as_ref()
            .is_some_and(|(last, _)| last.fault == Some(fault));
        if !is_repeated {
            let (policy, fault) = (&self.policy.name, fault.word());
            tracing::warn!(policy, fault, text, "policy has no valid answer");
        }
    }
}
