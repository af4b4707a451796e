//! Scaling events on their way from the VMs' tasks to the log.

use std::sync::Arc;

use daemon_kit::clock::Clock;
use protocol::units::Resources;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::metrics::EventMetrics;
use super::settings::ScalingSettings;
use super::stream::Stream;
use crate::core::scaling_events::{GoalComponents, LastReported, Reporting, ScalingEvent};

/// Largest number of events that wait for the disk. Each VM makes at most one every few seconds.
const QUEUE: usize = 4096;

/// A goal that the agent computed with all metrics.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Goal {
    /// Size that the VM has.
    pub current: Resources,
    /// Goal before bounds, compute units.
    pub units: u32,
    /// Parts of the goal, compute units.
    pub components: GoalComponents,
}

/// Takes scaling events of all VMs. Clones share one queue; a full queue drops the event.
#[derive(Debug, Clone)]
pub struct ScalingSender {
    to: Option<mpsc::Sender<ScalingEvent>>,
    reporting: Arc<Reporting>,
    unit: Resources,
    metrics: EventMetrics,
    clock: Clock,
}

/// Where the task that writes the log runs, and until when.
pub(super) struct Writer<'a> {
    pub tasks: &'a mut JoinSet<()>,
    pub cancel: &'a CancellationToken,
}

impl ScalingSender {
    /// Starts the task that writes the log. Without a stream, events are only counted.
    pub(super) fn start(
        stream: Option<Stream>,
        settings: ScalingSettings,
        metrics: EventMetrics,
        clock: Clock,
        writer: Writer<'_>,
    ) -> Self {
        let to = stream.map(|stream| {
            let (to, from) = mpsc::channel(QUEUE);
            let cancel = writer.cancel.clone();
            writer
                .tasks
                .spawn(write(stream, from, metrics.clone(), cancel));
            to
        });
        Self {
            to,
            reporting: Arc::new(settings.reporting),
            unit: settings.compute_unit,
            metrics,
            clock,
        }
    }

    /// Reports that a change of size begins. Sizes that are no whole compute units are left out.
    pub fn actual(&self, endpoint_id: &str, current: Resources, target: Resources) {
        let units = (
            current.exact_multiple_of(self.unit),
            target.exact_multiple_of(self.unit),
        );
        if let (Some(current), Some(target)) = units {
            let wall = self.clock.wall();
            self.send(
                "actual",
                self.reporting.actual(wall, endpoint_id, current, target),
            );
        }
    }

    /// Reports a goal, unless it is close to the last one reported for the VM.
    pub fn hypothetical(&self, last: &mut LastReported, endpoint_id: &str, goal: &Goal) {
        let Some(current) = goal.current.exact_multiple_of(self.unit) else {
            return;
        };
        let (wall, units) = (self.clock.wall(), (current, goal.units));
        let event = last.hypothetical(&self.reporting, wall, endpoint_id, units, goal.components);
        if let Some(event) = event {
            self.send("hypothetical", event);
        }
    }

    fn send(&self, kind: &'static str, event: ScalingEvent) {
        self.metrics.scaling_event(kind);
        let is_lost = |to: &mpsc::Sender<ScalingEvent>| to.try_send(event).is_err();
        if self.to.as_ref().is_some_and(is_lost) {
            self.metrics.scaling_lost(1);
        }
    }
}

/// Writes events into the log. After `cancel` it writes those that are still in the queue.
async fn write(
    stream: Stream,
    mut from: mpsc::Receiver<ScalingEvent>,
    metrics: EventMetrics,
    cancel: CancellationToken,
) {
    let mut events = Vec::new();
    loop {
        let is_over = tokio::select! {
            count = from.recv_many(&mut events, QUEUE) => count == 0,
            () = cancel.cancelled() => {
                while let Ok(event) = from.try_recv() {
                    events.push(event);
                }
                true
            }
        };
        let lines: Vec<String> = events
            .drain(..)
            .filter_map(|event| serde_json::to_string(&event).ok())
            .collect();
        let count = lines.len() as u64;
        if count > 0
            && let Err(error) = stream.append(lines, None).await
        {
            let error = daemon_kit::chain(&error);
            tracing::error!(error, count, "scaling events are lost");
            metrics.scaling_lost(count);
        }
        if is_over {
            return;
        }
    }
}
