//! Where the time of a resize goes, as far as the controller sees it: from the watch event to the order, what the runner
//! stamped, and from its report to the status written.

use protocol::runner::RunnerState;
use protocol::time::Span;
use protocol::trace::{Stage, StageRecord, TraceId};
use protocol::units::Resources;

use super::observe::ordered;
use super::plan::Moment;

/// Follows the newest resize.
#[derive(Debug, Clone, Default)]
pub struct StageWatch {
    wanted: Option<(Resources, Moment)>,
    sent: Option<Sent>,
    done: Vec<StageRecord>,
}

#[derive(Debug, Clone)]
struct Sent {
    trace: TraceId,
    change: String,
    reported: Option<Moment>,
    written: bool,
}

impl StageWatch {
    /// The wish as an object that arrived at `received` states it.
    pub fn wanted(&mut self, size: Resources, received: Moment) {
        if self.wanted.is_none_or(|(old, _)| old != size) {
            self.wanted = Some((size, received));
        }
    }

    /// The order was given at `at` to a runner that had `before`.
    pub fn sent(&mut self, trace: &TraceId, to: Resources, before: Resources, at: Moment) {
        if self.sent.as_ref().is_some_and(|sent| sent.trace == *trace) {
            return;
        }
        let change = format!("{before} -> {to}");
        if let Some((size, received)) = self.wanted.filter(|(size, _)| *size == to) {
            debug_assert_eq!(size, to);
            self.push(
                trace,
                Stage::Controller,
                received,
                at.now.since(received.now),
                &change,
            );
        }
        let trace = trace.clone();
        self.sent = Some(Sent {
            trace,
            change,
            reported: None,
            written: false,
        });
    }

    /// The runner reported at `at`.
    pub fn reported(&mut self, state: &RunnerState, at: Moment) {
        let Some(report) = state.resize.as_ref().filter(|report| report.done) else {
            return;
        };
        let Some(sent) = self.sent.as_mut() else {
            return;
        };
        if sent.trace != report.order.trace || sent.reported.is_some() {
            return;
        }
        sent.reported = Some(at);
        let change = sent.change.clone();
        for stamp in &report.stages {
            self.done.push(StageRecord {
                trace: report.order.trace.clone(),
                stage: stamp.stage,
                start_unix_us: stamp.start_unix_us,
                duration_us: stamp.duration_us,
                change: change.clone(),
            });
        }
        if self
            .wanted
            .is_some_and(|(size, _)| size != ordered(&report.order))
        {
            tracing::debug!(
                revision = report.order.trace.revision,
                "done, and already superseded"
            );
        }
    }

    /// A status that says "this size is reached" was written at `at`.
    pub fn written(&mut self, at: Moment) {
        let Some(sent) = self.sent.as_mut() else {
            return;
        };
        let Some(reported) = sent.reported.filter(|_| !sent.written) else {
            return;
        };
        sent.written = true;
        let (trace, change) = (sent.trace.clone(), sent.change.clone());
        self.push(
            &trace,
            Stage::Status,
            reported,
            at.now.since(reported.now),
            &change,
        );
    }

    /// Hands out finished records.
    pub fn take(&mut self) -> Vec<StageRecord> {
        std::mem::take(&mut self.done)
    }

    fn push(&mut self, trace: &TraceId, stage: Stage, start: Moment, took: Span, change: &str) {
        self.done.push(StageRecord {
            trace: trace.clone(),
            stage,
            start_unix_us: start.wall.0,
            duration_us: took.0,
            change: change.to_owned(),
        });
    }
}
