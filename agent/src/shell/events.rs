//! Events for others: what VMs used (billing) and how they scale.
//!
//! ```text
//!   VM watch -> billing meter --every period--> log on disk --+--> batches --> HTTP endpoint
//!   VM tasks --mpsc(4096)--> scaling writer --> log on disk --+--> batches --> bucket, blob container
//! ```
//!
//! Each stream has one log and one delivery per receiver. Source: docs/compatibility/agent.md §4.6,
//! §4.7.

mod billing;
mod config;
mod delivery;
mod log;
mod metrics;
mod names;
mod receiver;
mod scaling;
#[cfg(test)]
mod tests;

use std::path::Path;

use daemon_kit::clock::Clock;
use prometheus_client::registry::Registry;
use serde_json::Value;
use tokio::sync::watch;
use tokio::task::{JoinError, JoinSet};
use tokio_util::sync::CancellationToken;

pub(super) use billing::Book;
pub(super) use scaling::ScalingSender;

use super::config::Config;
use crate::core::scaling_events::Reporting;
use billing::Biller;
use config::ReceiverConfig;
use delivery::{Delivery, Shared};
use log::{EventLog, LogError};
use metrics::{EventMetrics, ReceiverMetrics};
use names::Naming;
use receiver::{Receiver, ReceiverError};

/// Events cannot be sent as configured.
#[derive(Debug, thiserror::Error)]
pub enum EventsError {
    /// Receivers are configured and there is no folder to keep events in.
    #[error(
        "event clients are configured, so events need a folder to be kept in until they are received"
    )]
    NoFolder,
    /// The folder cannot be used.
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

/// A log of events could not be read or written.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct EventLogError(#[from] LogError);

/// A receiver of events could not be set up.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct EventReceiverError(#[from] ReceiverError);

/// All that has to do with events, started.
pub(super) struct Events {
    /// What VMs use.
    pub book: Book,
    /// How they scale.
    pub scaling: ScalingSender,
    tasks: JoinSet<()>,
}

impl Events {
    /// Opens the logs and starts writers and deliveries, which end after `cancel`, when everything
    /// is told once.
    ///
    /// # Errors
    /// [`EventsError`]: nothing was sent.
    pub(super) fn start(
        config: &Config,
        folder: Option<&Path>,
        clock: Clock,
        registry: &mut Registry,
        cancel: &CancellationToken,
    ) -> Result<Self, EventsError> {
        let metrics = EventMetrics::new(registry);
        let mut tasks = JoinSet::new();
        let (billing, events) = (&config.billing, &config.scaling_events);
        let stream = Stream::start(
            BILLING,
            folder,
            &billing.clients,
            &metrics.billing,
            clock,
            &mut tasks,
        )?;
        let book = Book::new(clock, stream.as_ref());
        let biller = Biller::new(book.clone(), stream, metrics.clone(), billing);
        let reporting = Reporting {
            region: events.region_name.clone(),
            multiplier: events.cu_multiplier,
            threshold: events.rereport_threshold,
        };
        let scaling = ScalingSender::start(
            folder,
            &events.clients,
            (reporting, config.scaling.compute_unit),
            metrics,
            clock,
            (&mut tasks, cancel),
        )?;
        tasks.spawn(biller.run(billing.clone(), cancel.clone()));
        Ok(Self {
            book,
            scaling,
            tasks,
        })
    }

    /// Waits until all is told.
    ///
    /// # Errors
    /// When a part crashed.
    pub(super) async fn ended(mut tasks: JoinSet<()>) -> Result<(), JoinError> {
        while let Some(ended) = tasks.join_next().await {
            ended?;
        }
        Ok(())
    }

    /// Parts for the VMs' tasks, and the tasks to wait for.
    pub(super) fn split(self) -> (Book, ScalingSender, JoinSet<()>) {
        (self.book, self.scaling, self.tasks)
    }
}

/// One stream of events: its log and the ways out of it.
pub(super) struct Stream {
    log: Shared,
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
        let receivers = config::receivers(clients);
        if receivers.is_empty() {
            return Ok(None);
        }
        let folder = folder.ok_or(EventsError::NoFolder)?.join(section);
        let log = EventLog::open(&folder).map_err(EventLogError)?;
        let (end, _) = watch::channel(log.end());
        let checkpoint = log.checkpoint().map(str::to_owned);
        let log = Shared::new(log);
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

    /// What the writer of the last group of an earlier process knew.
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
        (config::Kind::Http(_), _) => Naming::Trace,
        (_, BILLING) => Naming::Billing(folder),
        _ => Naming::Scaling(folder),
    }
}
