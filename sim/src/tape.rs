//! The decision journal of every task of the agents, as the shipped recorder writes it, kept in
//! memory: what is recorded in a storm must decide again to the same bytes.
//!
//! A task that ends by itself writes out what it gathered; one that dies with its process does not.

use agent::core::journal::{Output, Recorder, settings};
use agent::core::{Action, Event, RequestId};
use protocol::journal::{FORMAT, Head, NodeState, Record};
use protocol::time::{Span, Timestamp};

use crate::agent::{Desk, config};
use crate::world::{UNIT, World};

/// Steps of a task between two checkpoints, besides the one it begins with.
const CHECKPOINT_EVERY: u64 = 150;

/// One task's place on the tape.
pub(crate) struct Scribe {
    recorder: Recorder,
    last: Timestamp,
    steps: u64,
}

impl Scribe {
    /// Records what a core is about to be fed, and returns the time at which it is: no two steps
    /// have the same.
    fn event(&mut self, now: Timestamp, event: &Event, desk: &Desk, out: &mut Vec<Record>) {
        if self.steps.is_multiple_of(CHECKPOINT_EVERY) {
            self.recorder.checkpoint(now, &desk.core, out);
        }
        self.steps += 1;
        self.recorder.event(now, event, &desk.core, None, out);
    }
}

impl World {
    /// Keeps the journals of all tasks that begin from now on.
    pub fn record(&mut self) {
        let now = self.now.0;
        let head = Head {
            build: "sim".into(),
            cu: UNIT.into(),
            node: "all".into(),
            part: "agent".into(),
            prev: None,
            run: self.options.seed,
            seq: 1,
            t: now,
            v: FORMAT,
            wall: 0,
        };
        let node = NodeState {
            core: Some(settings(&config(Span(0)))),
            scheduler: None,
            t: now,
        };
        self.tape = Some(vec![Record::Head(head), Record::Node(node)]);
    }

    /// What was recorded.
    pub fn recorded(&mut self) -> Vec<Record> {
        for vm in 0..self.vms.len() {
            self.end_recording(vm);
        }
        self.tape.take().unwrap_or_default()
    }

    /// A task's pen, if its journal is kept.
    pub(crate) fn scribe(&self, desk: u64) -> Option<Scribe> {
        self.tape.as_ref()?;
        let number = u32::try_from(desk).unwrap_or(u32::MAX);
        Some(Scribe {
            recorder: Recorder::new(number, UNIT),
            last: Timestamp::default(),
            steps: 0,
        })
    }

    /// Records what the core of a VM is about to be fed; returns the time of this step.
    pub(crate) fn record_event(&mut self, vm: usize, event: &Event) -> Timestamp {
        let now = self.now;
        let (Some(tape), Some(desk)) = (&mut self.tape, self.vms[vm].desk.as_mut()) else {
            return now;
        };
        let Some(mut scribe) = desk.scribe.take() else {
            return now;
        };
        let now = now.max(scribe.last + Span(1));
        scribe.last = now;
        scribe.event(now, event, desk, tape);
        desk.scribe = Some(scribe);
        now
    }

    /// Records what the step gave.
    pub(crate) fn record_output(&mut self, vm: usize, output: &Output) {
        let (Some(tape), Some(desk)) = (&mut self.tape, self.vms[vm].desk.as_mut()) else {
            return;
        };
        if let Some(scribe) = &mut desk.scribe {
            scribe.recorder.output(scribe.last, output, tape);
        }
    }

    /// A task ends by itself.
    pub(crate) fn end_recording(&mut self, vm: usize) {
        let (Some(tape), Some(desk)) = (&mut self.tape, self.vms[vm].desk.as_mut()) else {
            return;
        };
        if let Some(mut scribe) = desk.scribe.take() {
            scribe.recorder.flush(tape);
        }
    }
}

/// What a step of a core gave; `started` as it was handed out.
pub(crate) fn output_of(
    desk: &Desk,
    first: &agent::core::Evaluation,
    started: Vec<(RequestId, Action)>,
) -> Output {
    Output {
        decision: first.decision,
        warnings: first.warnings,
        started,
        deadline: desk.core.poll_deadline(),
        faults: desk.core.faults().total(),
    }
}
