//! Decision journal of every agent task, as the shipped recorder writes it, in memory. A replay of
//! records from a fault phase must decide to the same bytes.
//!
//! A task that ends by itself writes out what it gathered; one that dies with its process does not.

mod steps;

use agent::core::journal::{Output, Recorder};
use agent::core::{Action, Core, Evaluation, Event, RequestId};
use protocol::journal::Record;
use protocol::time::Timestamp;

/// Steps of a task between two checkpoints, besides the one it begins with.
const CHECKPOINT_EVERY: u64 = 150;

/// Recorder of one task.
pub(crate) struct TaskRecorder {
    inner: Recorder,
    last: Timestamp,
    steps: u64,
}

impl TaskRecorder {
    /// Records what a core is about to be fed, and returns the time at which it is: no two steps
    /// have the same.
    fn event(&mut self, now: Timestamp, event: &Event, core: &Core, out: &mut Vec<Record>) {
        if self.steps.is_multiple_of(CHECKPOINT_EVERY) {
            self.inner.checkpoint(now, core, out);
        }
        self.steps += 1;
        self.inner.event(now, event, core, None, out);
    }
}

/// What a step of a core gave; `started` as it was handed out.
pub(crate) fn output_of(
    core: &Core,
    first: &Evaluation,
    started: Vec<(RequestId, Action)>,
    deadline: Option<Timestamp>,
) -> Output {
    Output {
        decision: first.decision,
        warnings: first.warnings,
        started,
        deadline,
        faults: core.faults().total(),
    }
}
