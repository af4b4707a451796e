//! Times of a resize as the controller measures them: from the watch event to the order, the
//! runner's stages, and from its report to the written status.

use std::collections::VecDeque;

use protocol::runner::RunnerState;
use protocol::time::Timestamp;
use protocol::trace::{Stage, StageRecord, TraceId};
use protocol::units::Resources;

use super::moment::Moment;

/// Resizes followed at once: the newest, and one whose status is being written while the next is
/// already ordered.
const FOLLOWED: usize = 2;

/// Records when each stage of the newest resizes ended.
#[derive(Debug, Clone, Default)]
pub struct StageWatch {
    wanted: Option<(Resources, Moment)>,
    sent: VecDeque<Sent>,
    done: Vec<StageRecord>,
}

#[derive(Debug, Clone)]
struct Sent {
    trace: TraceId,
    change: String,
    reported: Option<Moment>,
}

impl Sent {
    fn record(&self, stage: Stage, start_unix_us: i64, duration_us: u64) -> StageRecord {
        let (trace, change) = (self.trace.clone(), self.change.clone());
        StageRecord {
            trace,
            stage,
            start_unix_us,
            duration_us,
            change,
        }
    }
}

impl StageWatch {
    /// Records the size in the spec of an object that arrived at `received`.
    pub fn wanted(&mut self, size: Resources, received: Moment) {
        if self.wanted.is_none_or(|(old, _)| old != size) {
            self.wanted = Some((size, received));
        }
    }

    /// When the newest size arrived; zero before the first.
    #[must_use]
    pub fn wanted_since(&self) -> Timestamp {
        self.wanted.map_or(Timestamp(0), |(_, at)| at.now)
    }

    /// The order was given at `at` to a runner that had `before`.
    pub fn sent(&mut self, trace: &TraceId, to: Resources, before: Resources, at: Moment) {
        if self.sent.iter().any(|sent| sent.trace == *trace) {
            return;
        }
        let change = format!("{before} -> {to}");
        let sent = Sent {
            trace: trace.clone(),
            change,
            reported: None,
        };
        if let Some((_, received)) = self.wanted.filter(|(size, _)| *size == to) {
            let took = at.now.since(received.now);
            self.done
                .push(sent.record(Stage::Controller, received.wall.0, took.0));
        }
        if self.sent.len() == FOLLOWED {
            self.sent.pop_front();
        }
        self.sent.push_back(sent);
    }

    /// The runner reported at `at`.
    pub fn reported(&mut self, state: &RunnerState, at: Moment) {
        let Some(report) = state.resize.as_ref().filter(|report| report.done) else {
            return;
        };
        let found = self
            .sent
            .iter_mut()
            .find(|sent| sent.trace == report.order.trace);
        let Some(sent) = found.filter(|sent| sent.reported.is_none()) else {
            return;
        };
        sent.reported = Some(at);
        for stamp in &report.stages {
            self.done
                .push(sent.record(stamp.stage, stamp.start_unix_us, stamp.duration_us));
        }
    }

    /// A status with this revision was written at `at`; 0 is a resize without a revision.
    pub fn written(&mut self, revision: i64, at: Moment) {
        let found = self
            .sent
            .iter()
            .position(|sent| sent.trace.revision == revision);
        let Some((index, reported)) = found.and_then(|i| Some((i, self.sent[i].reported?))) else {
            return;
        };
        if let Some(sent) = self.sent.remove(index) {
            let took = at.now.since(reported.now);
            self.done
                .push(sent.record(Stage::Status, reported.wall.0, took.0));
        }
    }

    /// Removes and returns the finished records.
    pub fn take(&mut self) -> Vec<StageRecord> {
        std::mem::take(&mut self.done)
    }
}
