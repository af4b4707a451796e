//! Scaling events on their way from the VMs' tasks to the log.

use std::path::Path;
use std::sync::Arc;

use daemon_kit::clock::Clock;
use protocol::units::Resources;
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::metrics::EventMetrics;
use super::{EventsError, SCALING, Stream};
use crate::core::Decision;
use crate::core::scaling_events::{GoalComponents, Reporting, ScalingEvent, Told};

/// Events that wait for the disk at most; each VM makes one every few seconds at the very most.
const QUEUE: usize = 4096;

/// Takes scaling events of all VMs. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct ScalingSender {
    to: Option<mpsc::Sender<ScalingEvent>>,
    reporting: Arc<Reporting>,
    unit: Resources,
    metrics: EventMetrics,
    clock: Clock,
}

impl ScalingSender {
    /// Starts the writer if there is a receiver; without one events are only counted.
    ///
    /// # Errors
    /// [`EventsError`].
    pub(crate) fn start(
        folder: Option<&Path>,
        clients: &Value,
        (reporting, unit): (Reporting, Resources),
        metrics: EventMetrics,
        clock: Clock,
        (tasks, cancel): (&mut JoinSet<()>, &CancellationToken),
    ) -> Result<Self, EventsError> {
        let stream = Stream::start(SCALING, folder, clients, &metrics.scaling, clock, tasks)?;
        let to = stream.map(|stream| {
            let (to, from) = mpsc::channel(QUEUE);
            tasks.spawn(write(stream, from, metrics.clone(), cancel.clone()));
            to
        });
        Ok(Self {
            to,
            reporting: Arc::new(reporting),
            unit,
            metrics,
            clock,
        })
    }

    /// A change of size begins.
    pub(crate) fn actual(&self, endpoint_id: &str, current: Resources, target: Resources) {
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

    /// A decision was made with all metrics.
    pub(crate) fn hypothetical(&self, told: &mut Told, endpoint_id: &str, decision: &Decision) {
        let Some(current) = decision.current.exact_multiple_of(self.unit) else {
            return;
        };
        let parts = GoalComponents {
            cpu: decision.votes.cpu,
            mem: decision.votes.memory,
            lfc: decision.votes.working_set,
        };
        let (wall, units) = (self.clock.wall(), (current, decision.goal_units));
        let event = told.hypothetical(&self.reporting, wall, endpoint_id, units, parts);
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

/// Writes what comes until the process ends, and then what has come.
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
