//! From the steps of a core to records of the journal. In a step the core handles one event and
//! computes until it has no further request. [`Output`] is the result of a step. [`Recorder`] turns
//! events and outputs into records.
//!
//! * `S` packs routine events: metrics, deadlines, a permit renewed without change, an unchanged
//!   object, advice of the policy that decides and its limits. Other events are `V` and `O` lines.
//!   Together they are the input of the core in the order of time; no two steps of a VM have the
//!   same time.
//! * `T` holds a checksum over the outputs of all steps since the last `T` ([`Output::fold`]).
//! * `D` holds one output. It is written when target, reason or bounds change, before every patch,
//!   and once a minute. Before a `D` that changes the target, its input is written: `S`, then `T`.
//! * `B` names the policies of the VM. `P` is an answer of one. An answer like the last of its role
//!   is packed into `S`. None of them is a step of the core: advice is, so replay needs no policy.
//! * `K` holds the whole state. Replay can start there.

mod policies;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use protocol::core::Core as _;
use protocol::journal::{
    self, Amount, Block, LinkEvent, MAX_STEPS, Milli, Outcome, Record, RequestEnd, RequestKind,
    Sampled, Started, Stated, Step, Tick, VmObject, Wished,
};
use protocol::time::{Span, Timestamp};
use protocol::units::Resources;

use super::actions::{Action, RequestId};
use super::checkpoint::{
    lfc_record, object_record, stamped, system_record, upscale_request_record,
};
use super::decision::Decision;
use super::event::{DownscaleResponse, Event, Failure, Refusal, VmUpdate};
use super::machine::Core;
use super::warnings::Warnings;

pub use super::checkpoint::settings;

/// Longest time between two `D` records.
const DECISION_EVERY: Span = Span::from_secs(60);

/// Result of one step.
#[derive(Debug, Clone, PartialEq)]
pub struct Output {
    /// Decision of the first computation.
    pub decision: Decision,
    /// Abnormal conditions of the first computation.
    pub warnings: Warnings,
    /// Requests to start now, in this order.
    pub started: Vec<(RequestId, Action)>,
    /// When a tick is due; `None` = no deadline.
    pub deadline: Option<Timestamp>,
    /// Violated invariants since the core was made or restored.
    pub faults: u64,
}

impl Output {
    /// Lets the core compute until it has no further request, and marks each request as started.
    pub fn of(core: &mut Core, now: Timestamp) -> Self {
        let first = core.next_actions(now);
        let mut next = first.actions.first();
        let mut started = Vec::new();
        while let Some(action) = next {
            started.push((core.start(now, &action), action));
            next = core.next_actions(now).actions.first();
        }
        Self {
            decision: first.decision,
            warnings: first.warnings,
            started,
            deadline: core.poll_deadline(),
            faults: core.faults().total(),
        }
    }

    /// Continues a checksum with this output: decision, warnings, faults, each request with its id,
    /// target and revision, and the deadline. Votes count in thousandths. Every number has eight
    /// bytes, lowest first.
    #[must_use]
    pub fn fold(&self, hash: u32) -> u32 {
        let decision = &self.decision;
        let mut bytes = Bytes::default();
        bytes.size(decision.current);
        bytes.size(decision.target);
        bytes.number(u64::from(decision.goal_units));
        bytes.number(decision.reason as u64);
        for vote in [
            decision.votes.cpu,
            decision.votes.memory,
            decision.votes.working_set,
        ] {
            bytes.number(vote.map_or(u64::MAX, |vote| Milli::of(vote).0.cast_unsigned()));
        }
        // These votes are newer than the format. Without them the checksum is the old one.
        for (number, vote) in [
            (1, decision.votes.monitor_estimate),
            (2, decision.votes.memory_pressure),
            (3, decision.votes.policy),
        ] {
            if let Some(vote) = vote {
                bytes.number(number);
                bytes.number(Milli::of(vote).0.cast_unsigned());
            }
        }
        bytes.number(u64::from(decision.bounded_by.0));
        bytes.number(decision.revision.value.cast_unsigned());
        bytes.number(decision.revision.flags);
        bytes.number(u64::from(decision.has_all_metrics));
        bytes.number(u64::from(self.warnings.0));
        bytes.number(self.faults);
        for (id, action) in &self.started {
            let (kind, target, revision) = parts(action);
            bytes.number(kind as u64);
            bytes.number(id.0);
            bytes.size(target);
            bytes.number(revision.cast_unsigned());
        }
        bytes.number(self.deadline.map_or(u64::MAX, |at| at.0));
        journal::crc(hash, &bytes.0)
    }

    /// The `D` record of this output, with sizes in multiples of `unit`.
    #[must_use]
    pub fn record(&self, vm: u32, now: Timestamp, unit: Resources) -> journal::Decision {
        let decision = &self.decision;
        let votes = [
            ("cpu", decision.votes.cpu),
            ("memory", decision.votes.memory),
            ("working_set", decision.votes.working_set),
            ("monitor_estimate", decision.votes.monitor_estimate),
            ("memory_pressure", decision.votes.memory_pressure),
            ("policy", decision.votes.policy),
        ];
        let mut started = Started::default();
        for (_, action) in &self.started {
            let (kind, target, _) = parts(action);
            let slot = match kind {
                RequestKind::Permit => &mut started.permit,
                RequestKind::Patch => &mut started.patch,
                RequestKind::Up => &mut started.up,
                RequestKind::Down | RequestKind::Verified => &mut started.down,
            };
            *slot = Some(Amount::of(target, unit));
        }
        let is_other = decision.target != decision.current;
        journal::Decision {
            by: decision
                .bounded_by
                .iter()
                .map(|bound| bound.as_str().to_owned())
                .collect(),
            cu: Amount::of(decision.current, unit),
            started,
            fault: self.faults,
            r: decision.reason.as_str().to_owned(),
            rev: decision.revision.value,
            t: now.0,
            to: is_other.then(|| Amount::of(decision.target, unit)),
            vm,
            votes: votes
                .into_iter()
                .filter_map(|(name, vote)| Some((name.to_owned(), Milli::of(vote?))))
                .collect::<BTreeMap<_, _>>(),
            want: decision.goal_units,
            warn: self
                .warnings
                .iter()
                .map(|warning| warning.as_str().to_owned())
                .collect(),
        }
    }

    fn has_patch(&self) -> bool {
        self.started
            .iter()
            .any(|(_, action)| matches!(action, Action::VmPatch(_)))
    }
}

fn parts(action: &Action) -> (RequestKind, Resources, i64) {
    match action {
        Action::Permit(r) => (RequestKind::Permit, r.target, r.revision.value),
        Action::VmPatch(r) => (RequestKind::Patch, r.target, r.revision.value),
        Action::MonitorUpscale(r) => (RequestKind::Up, r.target, r.revision.value),
        Action::MonitorDownscale(r) => (RequestKind::Down, r.target, r.revision.value),
    }
}

#[derive(Default)]
struct Bytes(Vec<u8>);

impl Bytes {
    fn number(&mut self, number: u64) {
        self.0.extend(number.to_le_bytes());
    }

    fn size(&mut self, size: Resources) {
        self.number(u64::from(size.cpu.0));
        self.number(size.mem.0);
    }
}

/// Form of an event in the journal.
enum Recorded {
    Step(Step),
    Line(Record),
}

/// Turns the steps of one VM into records.
#[derive(Debug)]
pub struct Recorder {
    vm: u32,
    unit: Resources,
    block: Vec<(u64, Step)>,
    hash: u32,
    steps: u32,
    last_step: Timestamp,
    object: Option<VmObject>,
    decided: Option<(Timestamp, Decision)>,
    /// Text of the last `B`, without its time. It is smaller than the record.
    bound: Option<Box<[u8]>>,
    /// Text of what the last `P` of each role says.
    answers: [Option<Box<[u8]>>; 2],
}

impl Recorder {
    /// A recorder for VM number `vm`. Call [`Self::checkpoint`] first.
    #[must_use]
    pub fn new(vm: u32, unit: Resources) -> Self {
        Self {
            vm,
            unit,
            block: Vec::new(),
            hash: 0,
            steps: 0,
            last_step: Timestamp::default(),
            object: None,
            decided: None,
            bound: None,
            answers: [None, None],
        }
    }

    /// Number of the VM in the journal.
    #[must_use]
    pub fn vm(&self) -> u32 {
        self.vm
    }

    /// Drops unwritten records. The next one must be a checkpoint.
    pub fn reset(&mut self) {
        self.block.clear();
        (self.hash, self.steps, self.object, self.decided) = (0, 0, None, None);
        self.bound = None;
        self.answers = [None, None];
    }

    /// Records the state before the step at `now`.
    pub fn checkpoint(&mut self, now: Timestamp, core: &Core, out: &mut Vec<Record>) {
        self.flush(out);
        self.reset();
        let before = Timestamp(now.0.saturating_sub(1));
        let checkpoint = core.checkpoint(self.vm, before);
        out.push(Record::Checkpoint(Box::new(checkpoint)));
    }

    /// Records the next event of the core. `took` is the duration of the request that it ends.
    pub fn event(
        &mut self,
        now: Timestamp,
        event: &Event,
        core: &Core,
        took: Option<Span>,
        out: &mut Vec<Record>,
    ) {
        match self.recorded(now, event, core, took) {
            Recorded::Step(step) => self.block.push((now.0, step)),
            Recorded::Line(record) => out.push(record),
        }
        self.steps += 1;
        self.last_step = now;
    }

    /// Records the output of a step, before its requests start. Returns whether a patch is among
    /// them, which must wait for the record.
    pub fn output(&mut self, now: Timestamp, output: &Output, out: &mut Vec<Record>) -> bool {
        self.hash = output.fold(self.hash);
        let decision = output.decision;
        let last = self.decided;
        let is_other = last.is_none_or(|(_, last)| decision.differs_from(&last));
        let is_moving =
            output.has_patch() || last.is_none_or(|(_, last)| decision.moves_from(&last));
        let is_due = last.is_none_or(|(at, _)| now.since(at) >= DECISION_EVERY);
        if is_moving || self.block.len() >= MAX_STEPS || self.steps as usize >= MAX_STEPS {
            self.flush(out);
        }
        if is_moving || is_other || is_due {
            let record = output.record(self.vm, now, self.unit);
            out.push(Record::Decision(Box::new(record)));
            self.decided = Some((now, decision));
        }
        output.has_patch()
    }

    /// Writes the events and the checksum gathered so far.
    pub fn flush(&mut self, out: &mut Vec<Record>) {
        if !self.block.is_empty() {
            let block = Block(std::mem::take(&mut self.block));
            out.push(Record::Sampled(Sampled { vm: self.vm, block }));
        }
        if self.steps > 0 {
            out.push(Record::Tick(Tick {
                h: self.hash,
                n: self.steps,
                t: self.last_step.0,
                vm: self.vm,
            }));
            (self.hash, self.steps) = (0, 0);
        }
    }

    fn recorded(
        &mut self,
        now: Timestamp,
        event: &Event,
        core: &Core,
        took: Option<Span>,
    ) -> Recorded {
        let link = |event, details| {
            Recorded::Line(Record::Vm(Box::new(Stated {
                monitor: Some(event),
                obj: None,
                t: now.0,
                vm: self.vm,
                wish: details,
            })))
        };
        match event {
            Event::Tick => Recorded::Step(Step::Tick),
            Event::SystemMetrics(metrics) => Recorded::Step(Step::System(system_record(metrics))),
            Event::LfcMetrics(metrics) => Recorded::Step(Step::Lfc(lfc_record(metrics))),
            Event::Advised(advice) => Recorded::Step(Step::Advice(*advice)),
            Event::Bound(terms) => Recorded::Step(Step::Terms(*terms)),
            Event::VmUpdated(update) => self.object_update(now, update, core),
            Event::MonitorActive => link(LinkEvent::Up, Wished::default()),
            Event::MonitorReset => link(LinkEvent::Down, Wished::default()),
            Event::MonitorUpscaleRequested(request) => {
                link(LinkEvent::Wish, upscale_request_record(*request))
            }
            Event::PermitDone(id, Ok(response))
                if core.scheduler.ongoing == Some(*id)
                    && response.migrate.is_none()
                    && core.last_request() == Some(response.permit)
                    && core.permit() == Some(response.permit) =>
            {
                Recorded::Step(Step::Renewed)
            }
            Event::PermitDone(..)
            | Event::VmPatchDone(..)
            | Event::MonitorUpscaleDone(..)
            | Event::MonitorDownscaleDone(..) => {
                let mut outcome = outcome_of(event, core);
                (outcome.t, outcome.vm) = (now.0, self.vm);
                outcome.ms = took
                    .map(|took| (stage_name(outcome.what).to_owned(), took.as_millis()))
                    .into_iter()
                    .collect();
                Recorded::Line(Record::Outcome(Box::new(outcome)))
            }
        }
    }

    fn object_update(&mut self, now: Timestamp, update: &VmUpdate, core: &Core) -> Recorded {
        let default = &core.config.default_scaling;
        let object = object_record(
            &update.info,
            default,
            update.current_revision,
            update.is_pre_migrating,
        );
        // No decision uses the time of a revision. A new version alone fits into the step.
        let mut timeless = object.clone();
        timeless.version = None;
        timeless.reached = update.current_revision.map(|reached| {
            let mut reached = stamped(reached);
            reached.2 = 0;
            reached
        });
        if self.object.as_ref() == Some(&timeless) {
            return Recorded::Step(Step::Again(object.version));
        }
        self.object = Some(timeless);
        Recorded::Line(Record::Vm(Box::new(Stated {
            monitor: None,
            obj: Some(object),
            t: now.0,
            vm: self.vm,
            wish: Wished::default(),
        })))
    }
}

/// Record of the end of a request; the caller adds time, VM and duration.
fn outcome_of(event: &Event, core: &Core) -> Outcome {
    let monitor_rev = core
        .monitor_under_way()
        .map_or(0, |(revision, ..)| revision);
    let (permit_rev, patch_rev) = (core.permit_revision(), core.patch_under_way().0);
    let done = |result: &Result<(), Failure>| result.map_or_else(reply, |()| RequestEnd::Done);
    let version = match event {
        Event::VmPatchDone(_, Ok(version)) => *version,
        _ => None,
    };
    let response = match event {
        Event::PermitDone(_, Ok(response)) => Some(response),
        _ => None,
    };
    let (what, id, rev, end) = match event {
        Event::PermitDone(id, result) => {
            let end = result
                .as_ref()
                .map_or_else(|failure| reply(*failure), |_| RequestEnd::Done);
            (RequestKind::Permit, id.0, permit_rev, end)
        }
        Event::VmPatchDone(id, result) => {
            let end = done(&result.map(|_| ()));
            (RequestKind::Patch, id.0, patch_rev, end)
        }
        Event::MonitorUpscaleDone(id, result) => (RequestKind::Up, id.0, monitor_rev, done(result)),
        Event::MonitorDownscaleDone(id, result) => {
            let end = result.map_or_else(reply, |answer| match answer {
                DownscaleResponse::Allowed => RequestEnd::Done,
                DownscaleResponse::Denied(_) => RequestEnd::Refused,
            });
            (RequestKind::Down, id.0, monitor_rev, end)
        }
        _ => (RequestKind::Verified, 0, 0, RequestEnd::Done),
    };
    let refusal = match event {
        Event::MonitorDownscaleDone(_, Ok(DownscaleResponse::Denied(refusal))) => *refusal,
        _ => Refusal::default(),
    };
    Outcome {
        again: refusal.again.map(|again| again.0),
        end,
        least: refusal.smallest.map(Into::into),
        got: response.map(|response| response.permit.into()),
        id,
        migrate: response.is_some_and(|response| response.migrate.is_some()),
        ms: BTreeMap::new(),
        rev,
        t: 0,
        version,
        vm: 0,
        what,
    }
}

fn reply(failure: Failure) -> RequestEnd {
    match failure {
        Failure::NotApplied => RequestEnd::NotApplied,
        Failure::Unknown => RequestEnd::Unknown,
    }
}

pub(super) fn failure(reply: RequestEnd) -> Failure {
    match reply {
        RequestEnd::NotApplied => Failure::NotApplied,
        RequestEnd::Done | RequestEnd::Refused | RequestEnd::Unknown => Failure::Unknown,
    }
}

fn stage_name(what: RequestKind) -> &'static str {
    match what {
        RequestKind::Permit => "permit",
        RequestKind::Patch => "patch",
        RequestKind::Up => "monitor_up",
        RequestKind::Down => "monitor",
        RequestKind::Verified => "verified",
    }
}
