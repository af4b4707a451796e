//! Streams of events. Each has one log on disk and one delivery per receiver.
//!
//! ```text
//!   VM watch -> billing meter --every period--> log on disk --+--> batches --> HTTP endpoint
//!   VM tasks --mpsc(4096)--> scaling writer --> log on disk --+--> batches --> bucket, blob container
//! ```
//!
//! Source: docs/compatibility/agent.md §4.6, §4.7.

mod billing;
mod clients;
mod delivery;
mod log;
mod metrics;
mod naming;
mod receiver;
mod scaling;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::time::Duration;

use daemon_kit::clock::Clock;
use prometheus_client::registry::Registry;
use protocol::units::Resources;
use serde_json::Value;
use tokio::sync::watch;
use tokio::task::{JoinError, JoinSet};
use tokio_util::sync::CancellationToken;

pub use billing::UsageMeter;
pub use scaling::{Goal, ScalingSender};

use crate::core::scaling_events::Reporting;
use billing::Biller;
use clients::ReceiverConfig;
use delivery::{Delivery, SharedLog};
use log::{EventLog, LogError};
use metrics::{EventMetrics, ReceiverMetrics};
use naming::Naming;
use receiver::{Receiver, ReceiverError};

/// Why events cannot be sent as configured.
#[derive(Debug, thiserror::Error)]
pub enum EventsError {
    /// Receivers are configured, but no folder for the events.
    #[error(
        "event clients are configured, so events need a folder to be kept in until they are received"
    )]
    NoFolder,
    /// The log in the folder cannot be opened.
    #[error(transparent)]
    Log(#[from] EventLogError),
    /// A receiver cannot be set up.
    #[error("the event client {client} cannot be used")]
    Receiver {
        /// Key of the client in the configuration, for example `billing.clients.http`.
        client: String,
        /// Reason why the receiver refuses its settings.
        #[source]
        source: EventReceiverError,
    },
}

/// Failure to read or write a log of events.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct EventLogError(#[from] LogError);

/// Failure to set up a receiver of events.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct EventReceiverError(#[from] ReceiverError);

/// Where events are kept, what they hold and who receives them.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Folder of the logs; required as soon as a stream has a receiver.
    pub folder: Option<PathBuf>,
    /// Clock of the process.
    pub clock: Clock,
    /// Usage events, section `billing` of the agent's configuration.
    pub billing: BillingSettings,
    /// Events of size changes, section `scalingEvents`.
    pub scaling: ScalingSettings,
}

/// Names and periods of usage events.
#[derive(Debug, Clone, PartialEq)]
pub struct BillingSettings {
    /// Value of `metric` in events that count CPU-seconds.
    pub cpu_metric_name: String,
    /// Value of `metric` in events that count seconds in which a VM ran.
    pub active_time_metric_name: String,
    /// Time between two updates of the gauges and of the checkpoint on disk.
    pub collect_every: Duration,
    /// Length of a billing period: its events are written at its end.
    pub accumulate_every: Duration,
    /// Receivers, `billing.clients` of a checked configuration.
    pub clients: Value,
}

/// Content of scaling events.
#[derive(Debug, Clone, PartialEq)]
pub struct ScalingSettings {
    /// Region, multiplier and threshold.
    pub reporting: Reporting,
    /// Size that compute units in events are multiples of.
    pub compute_unit: Resources,
    /// Receivers, `scalingEvents.clients` of a checked configuration.
    pub clients: Value,
}

/// Both streams of events with their running tasks.
#[derive(Debug)]
pub struct Events {
    /// Takes the VMs as the watch shows them.
    pub usage: UsageMeter,
    /// Takes changes of size and goals.
    pub scaling: ScalingSender,
    /// Writers and deliveries. Each ends after the cancellation, when it has tried once to send
    /// what is left.
    pub tasks: JoinSet<()>,
}

impl Events {
    /// Opens the logs and starts writers and deliveries, which run until `cancel`.
    ///
    /// # Errors
    /// [`EventsError`]: nothing was sent.
    pub fn start(
        settings: Settings,
        registry: &mut Registry,
        cancel: &CancellationToken,
    ) -> Result<Self, EventsError> {
        let metrics = EventMetrics::new(registry);
        let mut tasks = JoinSet::new();
        let Settings {
            folder,
            clock,
            billing,
            scaling,
        } = settings;
        let stream = Stream::start(
            BILLING,
            folder.as_deref(),
            &billing.clients,
            &metrics.billing,
            clock,
            &mut tasks,
        )?;
        let usage = UsageMeter::new(clock, stream.as_ref());
        let biller = Biller::new(usage.clone(), stream, metrics.clone(), &billing);
        let stream = Stream::start(
            SCALING,
            folder.as_deref(),
            &scaling.clients,
            &metrics.scaling,
            clock,
            &mut tasks,
        )?;
        let writer = scaling::Writer {
            tasks: &mut tasks,
            cancel,
        };
        let scaling = ScalingSender::start(stream, scaling, metrics, clock, writer);
        tasks.spawn(biller.run(billing, cancel.clone()));
        Ok(Self {
            usage,
            scaling,
            tasks,
        })
    }
}

/// Waits until all tasks of [`Events`] have ended.
///
/// # Errors
/// When a task panicked.
pub async fn join(mut tasks: JoinSet<()>) -> Result<(), JoinError> {
    while let Some(ended) = tasks.join_next().await {
        ended?;
    }
    Ok(())
}

/// One stream of events: its log, and the deliveries that read it.
struct Stream {
    log: SharedLog,
    end: watch::Sender<u64>,
    checkpoint: Option<String>,
}

impl Stream {
    /// Opens the log of a stream and starts its deliveries, which end when the stream is dropped.
    /// `None` without receivers.
    fn start(
        section: &str,
        folder: Option<&Path>,
        clients: &Value,
        metrics: &ReceiverMetrics,
        clock: Clock,
        tasks: &mut JoinSet<()>,
    ) -> Result<Option<Self>, EventsError> {
        let receivers = clients::receivers(clients);
        if receivers.is_empty() {
            return Ok(None);
        }
        let folder = folder.ok_or(EventsError::NoFolder)?.join(section);
        let file = EventLog::open(&folder).map_err(EventLogError)?;
        let (end, _) = watch::channel(file.end());
        let checkpoint = file.checkpoint().map(str::to_owned);
        let log = SharedLog::new(file);
        for config in receivers {
            let receiver = Receiver::new(&config).map_err(|source| EventsError::Receiver {
                client: format!("{section}.clients.{}", config.kind.name()),
                source: source.into(),
            })?;
            let naming = naming(section, &config);
            let delivery = Delivery::new(&log, config, receiver, naming, metrics.clone(), clock);
            tasks.spawn(delivery.map_err(EventLogError)?.run(end.subscribe()));
        }
        Ok(Some(Self {
            log,
            end,
            checkpoint,
        }))
    }

    /// Checkpoint that an earlier process wrote with its last group.
    fn checkpoint(&self) -> Option<&str> {
        self.checkpoint.as_deref()
    }

    /// Adds a group of events; they are on disk when this returns.
    ///
    /// # Errors
    /// [`EventLogError`]; then none of them is.
    async fn append(
        &self,
        events: Vec<String>,
        checkpoint: Option<String>,
    ) -> Result<(), EventLogError> {
        let work = move |log: &mut EventLog| log.append(&events, checkpoint.as_deref());
        let end = self.log.with(work).await?;
        self.end.send_replace(end);
        Ok(())
    }
}

const BILLING: &str = "billing";
const SCALING: &str = "scalingEvents";

fn naming(section: &str, config: &ReceiverConfig) -> Naming {
    let folder = config.kind.prefix().to_owned();
    match (&config.kind, section) {
        (clients::Kind::Http(_), _) => Naming::Trace,
        (_, BILLING) => Naming::Billing(folder),
        _ => Naming::Scaling(folder),
    }
}
