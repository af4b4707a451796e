//! The policy of one VM: what its versions are asked, and when. The driver passes events, steps and
//! answers on. The answers of the version that decides reach the core; those of a shadow do not.
//!
//! A step asks, at most once a second. News that came within that second, and a VM without a step,
//! are asked about between the steps ([`VmPolicy::due`]).

mod active;
mod asked;
mod choice;
mod fallback;
mod fed;
mod pace;
mod shown;
mod tallied;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use daemon_kit::clock::Clock;
use daemon_kit::driver::sleep_until;
use policy_contract::Want;
use protocol::journal::Cut;
use protocol::policy::Role;
use protocol::time::{Span, Timestamp};
use tokio::sync::watch;

use self::active::{Active, Open};
use self::asked::AskedVersions;
pub(in crate::shell) use self::choice::VmChoice;
pub(in crate::shell) use self::fallback::create as create_event;
use super::feeds::{FeedReader, next_values, sources_of};
use super::known::{Choice, Known, Versions};
use super::{End, PolicyRuntime, Question, Replies, Request, Said};
use crate::core::advice::{self, Advice, Terms};
use crate::core::questions::{Surroundings, answered, is_news, refused_units, samples, seconds};
use crate::core::{Core, Event};
use crate::shell::context::{Context, Subject};
use crate::shell::journal::JournalWriter;

/// Something that the driver must take.
pub(in crate::shell) enum PolicyEvent {
    Said(SaidNow),
    Changed,
    /// Values of the feeds were read.
    Fed(Vec<Option<f64>>),
    /// It is time for a question.
    Due,
}

/// An answer on its way to the journal.
pub(in crate::shell) struct SaidNow(Said);

/// Policy of one VM.
pub(in crate::shell) struct VmPolicy {
    runtime: PolicyRuntime,
    subject: Arc<Subject>,
    /// Number of the VM in the worker.
    vm: u32,
    choice: Arc<VmChoice>,
    known: watch::Receiver<Known>,
    asked: AskedVersions,
    /// Present while a version has feeds.
    feeds: Option<Box<FeedReader>>,
    /// Period of the feeds in the last record.
    feed_every: Span,
    /// The version that decides is a candidate in canary.
    is_canary: bool,
    /// Chosen name that stands for no policy.
    unknown: Option<String>,
    /// Versions were asked until the name became unknown, and no event says so.
    was_lost: bool,
    /// Name of the policy from which the built-in goal has taken over.
    fallen: Option<String>,
    /// Terms that the core has.
    terms: Option<Terms>,
    was_bound: bool,
    samples: BTreeMap<String, f64>,
    /// Present from the first question on.
    said: Option<Replies>,
}

/// The next event of a VM's policy. Without one it never comes.
pub(in crate::shell) async fn next_event(
    policy: &mut Option<Box<VmPolicy>>,
    clock: Clock,
) -> PolicyEvent {
    let Some(policy) = policy else {
        return std::future::pending().await;
    };
    let due_at = policy.asked.all().filter_map(Active::due_at).min();
    tokio::select! {
        said = next_said(policy.said.as_ref()) => PolicyEvent::Said(SaidNow(said)),
        Ok(()) = policy.known.changed() => PolicyEvent::Changed,
        values = next_values(&mut policy.feeds) => PolicyEvent::Fed(values),
        () = sleep_until(clock, due_at) => PolicyEvent::Due,
    }
}

async fn next_said(said: Option<&Replies>) -> Said {
    match said {
        Some(said) => said.next().await,
        None => std::future::pending().await,
    }
}

impl VmPolicy {
    pub(in crate::shell) fn new(
        runtime: PolicyRuntime,
        subject: Arc<Subject>,
        choice: Arc<VmChoice>,
        core: &Core,
        now: Timestamp,
    ) -> Self {
        let number = runtime.0.next_vm.fetch_add(1, Ordering::Relaxed);
        runtime.nodes().insert(number, None);
        let mut policy = Self {
            subject,
            vm: number,
            choice,
            known: runtime.0.known.subscribe(),
            asked: AskedVersions::default(),
            feeds: None,
            feed_every: Span(0),
            is_canary: false,
            unknown: None,
            was_lost: false,
            fallen: None,
            terms: None,
            was_bound: false,
            samples: BTreeMap::new(),
            said: None,
            runtime,
        };
        policy.choose(core, now);
        policy
    }

    /// Takes the VM object's choice.
    pub(in crate::shell) fn object(&mut self, choice: Arc<VmChoice>, core: &Core, now: Timestamp) {
        let before = std::mem::replace(&mut self.choice, choice);
        if before != self.choice {
            self.choose(core, now);
        }
    }

    /// Chooses the policy by what is known now. The next step asks it.
    pub(in crate::shell) fn choose(&mut self, core: &Core, now: Timestamp) {
        let default = self.runtime.0.settings.default.as_deref();
        let annotation = self.choice.annotation.as_deref();
        let choice =
            self.known
                .borrow_and_update()
                .choose(&self.subject.vm.namespace, annotation, default);
        let unknown = match &choice {
            Choice::Unknown(name, _) => Some(name.clone()),
            Choice::Builtin | Choice::Policy(_) => None,
        };
        let change = i64::from(unknown.is_some()) - i64::from(self.unknown.is_some());
        self.runtime.0.metrics.unknown.inc_by(change);
        self.was_lost |= change > 0 && !self.asked.is_empty();
        self.unknown = unknown;
        let versions = match choice {
            Choice::Policy(versions) => versions,
            Choice::Builtin => Versions::default(),
            Choice::Unknown(name, why) => {
                tracing::warn!(policy = name, why, "the VM's policy is unknown");
                Versions::default()
            }
        };
        let there = (&self.runtime, self.vm);
        self.is_canary = versions.is_canary(&self.subject.uid);
        let roles = versions.roles(&self.subject.uid);
        self.asked.assign(roles, core, now, there);
        self.runtime.tallies().left(now, self.vm);
        let live = self.asked.get(Role::Live);
        let deciding = live.map(|active| active.policy.name.as_str());
        self.runtime.quota().decides(self.vm, deciding);
    }

    /// Terms of the version that decides, if the core has others. It must get them then.
    pub(in crate::shell) fn new_terms(&mut self) -> Option<Option<Terms>> {
        let terms = self.asked.get(Role::Live).and_then(Active::terms);
        let is_other = terms != std::mem::replace(&mut self.terms, terms);
        is_other.then_some(terms)
    }

    /// Takes an event before the core handles it.
    pub(in crate::shell) fn event(&mut self, now: Timestamp, event: &Event, core: &Core) {
        if let Some(live) = self.asked.get(Role::Live) {
            tallied::event((&self.runtime, self.vm), live, event);
        }
        let refused = refused_units(event, core);
        if let Some(units) = refused {
            self.runtime.nodes().insert(self.vm, Some((now, units)));
        }
        let is_cut = refused.is_some_and(|units| units.0 > 0);
        for active in self.asked.all_mut() {
            active.memory.event(now, event, core);
            active.pace.news(is_cut || is_news(event));
        }
        if !self.asked.is_empty() {
            self.samples = samples(event);
        }
    }

    /// Asks, if it is time, after the step at `now`.
    pub(in crate::shell) fn stepped(
        &mut self,
        now: Timestamp,
        core: &Core,
        ctx: &Context,
        journal: &mut JournalWriter,
    ) {
        let samples = std::mem::take(&mut self.samples);
        if !self.asked.is_empty() {
            self.asked.begin(now, core, ctx);
        }
        // An empty record is the end of a policy.
        let had_policy = std::mem::replace(&mut self.was_bound, !self.asked.is_empty());
        if had_policy || self.was_bound {
            self.feed_every = self.follow_feeds(ctx);
            let sources = sources_of(self.feeds.as_deref());
            let bound = self
                .asked
                .bound(self.choice.labels(), (self.feed_every, sources));
            journal.bound(now, &bound);
        }
        let there = (&self.runtime, self.vm);
        for active in self.asked.all_mut() {
            active.record(now, samples.clone(), there);
        }
        self.ask_all(now, core, |active| active.may_ask(now));
    }

    /// Asks between two steps. The core is as it was after the last one.
    pub(in crate::shell) fn due(
        &mut self,
        core: &Core,
        ctx: &Context,
        journal: &mut JournalWriter,
    ) {
        let now = journal.between_steps(ctx.clock.now());
        self.ask_all(now, core, |active| active.is_due(now));
    }

    fn ask_all(&mut self, now: Timestamp, core: &Core, is_asked: impl Fn(&Active) -> bool) {
        for role in [Role::Live, Role::Shadow] {
            if self.asked.get(role).is_some_and(&is_asked) {
                self.ask(role, now, core);
            }
        }
    }

    fn ask(&mut self, role: Role, now: Timestamp, core: &Core) {
        let (runtime, wall) = (&self.runtime, self.asked.wall());
        let feed_every = self.feed_every;
        let Some(active) = self.asked.get_mut(role) else {
            return;
        };
        if !active.follow_worker((runtime, self.vm)) {
            active.pace.waits(now);
            return;
        }
        let (vms, starved) = runtime.node_load(self.vm, now);
        let labels = self.choice.labels();
        let around = Surroundings {
            spec: &active.policy.spec,
            labels: &labels,
            wall,
            feed_every,
            vms,
            starved,
        };
        let Some(input) = active.memory.question(now, core, &around) else {
            active.pace.has_no_question(now);
            return;
        };
        let n = runtime.0.next_question.fetch_add(1, Ordering::Relaxed);
        let open = Open {
            n,
            at: now,
            checksum: input.checksum(),
            starved,
            vms,
            builtin: input.builtin.cu,
        };
        let reply = self.said.get_or_insert_default();
        let is_sent = runtime.link(role).send(Request::Ask(Box::new(Question {
            generation: active.generation(),
            n,
            vm: self.vm,
            at: seconds(now),
            policy: Arc::clone(&active.policy),
            input: Box::new(input),
            checksum: open.checksum,
            first: None,
            reply: reply.clone(),
        })));
        if is_sent {
            active.pace.asks(now);
            active.open = Some(open);
        } else {
            active.pace.waits(now);
        }
    }

    /// Records the end of an open question. Returns what the core is advised, if the version
    /// decides.
    pub(in crate::shell) fn said(
        &mut self,
        SaidNow(said): SaidNow,
        core: &Core,
        ctx: &Context,
        journal: &mut JournalWriter,
    ) -> Option<Advice> {
        let has_live = self.asked.get(Role::Live).is_some();
        let there = (&self.runtime, self.vm);
        let (active, open) = self.asked.close(said.n)?;
        let now = journal.between_steps(ctx.clock.now());
        let terms = active.terms();
        let (record, advice) = match said.end {
            End::Lost => {
                active.pace.waits(now);
                return None;
            }
            End::Answer(answer) => {
                let mut record = answered(active.plain_record(&open, now), &answer);
                let mut advice = terms.map(|terms| advice::advice(&terms, Ok(&answer)));
                if active.is_over_quota(record.cu, now, core, there) {
                    record.cut = Some(Cut::Quota);
                    advice.iter_mut().for_each(|a| a.said = advice::Said::Hold);
                }
                let reason = answer.reason.as_str();
                active.memory.accepted(now, record.cu, reason);
                active.faults_in_a_row = 0;
                // One comparison for each VM: beside a live version the shadow's does not count.
                if let Want::Units(units) = answer.want
                    && (active.role == Role::Live || !has_live)
                {
                    let metrics = &self.runtime.0.metrics;
                    metrics.compared(&active.policy.name, units, open.builtin);
                }
                (record, advice)
            }
            End::Aside(fault, _) => {
                // There is no record of a question that was not asked.
                active.is_set_aside = true;
                let record = active.fault_record(fault, &open, now);
                active.shows(&record, now);
                return terms.map(|terms| advice::advice(&terms, Err(fault)));
            }
            End::Fault(fault, text) => {
                active.fault(fault, &text, &self.runtime);
                let record = active.fault_record(fault, &open, now);
                let advice = terms.map(|terms| advice::advice(&terms, Err(fault)));
                (record, advice)
            }
        };
        tallied::ended(there, &self.subject.vm, active, &record, core);
        let (name, took) = (&active.policy.name, now.since(open.at));
        let metrics = &self.runtime.0.metrics;
        metrics.ended(name, active.role, record.fault, took);
        active.shows(&record, now);
        journal.answered(record);
        advice
    }
}

impl Drop for VmPolicy {
    fn drop(&mut self) {
        self.runtime.nodes().remove(&self.vm);
        self.runtime.quota().decides(self.vm, None);
        let now = self.runtime.moment().now;
        self.runtime.tallies().left(now, self.vm);
        if self.unknown.is_some() {
            self.runtime.0.metrics.unknown.dec();
        }
        if let Some(name) = &self.fallen {
            self.runtime.0.metrics.fell_back(name, -1);
        }
        let vm = self.vm;
        for role in [Role::Live, Role::Shadow] {
            let link = self.runtime.link(role);
            let generation = link.generation();
            link.send(Request::Forget { generation, vm });
        }
    }
}

#[cfg(test)]
mod tests;
