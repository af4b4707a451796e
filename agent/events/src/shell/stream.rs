//! One stream of events: its log on disk, and the deliveries that read the log.

use std::path::Path;

use daemon_kit::clock::Clock;
use daemon_kit::state_folder::LockError;
use serde_json::Value;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::clients::{self, ReceiverConfig};
use super::delivery::{Delivery, SharedLog};
use super::log::{EventLog, LogError};
use super::metrics::ReceiverMetrics;
use super::naming::Naming;
use super::receiver::{Receiver, ReceiverError};

/// Section of usage events in the configuration; also the folder of their log.
pub(super) const BILLING: &str = "billing";
/// Section of scaling events in the configuration; also the folder of their log.
pub(super) const SCALING: &str = "scalingEvents";

/// Why events cannot be sent as configured.
#[derive(Debug, thiserror::Error)]
pub enum EventsError {
    /// Receivers are configured, but no folder for the events.
    #[error(
        "event clients are configured, so events need a folder to be kept in until they are received"
    )]
    NoFolder,
    /// Another process writes the folder, or it cannot be locked.
    #[error(transparent)]
    Locked(#[from] LockError),
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

/// One stream of events: its log, and the deliveries that read it.
pub(super) struct Stream {
    log: SharedLog,
    end: watch::Sender<u64>,
    checkpoint: Option<String>,
}

impl Stream {
    /// Opens the log of a stream and starts its deliveries, which end when the stream is dropped.
    /// `None` without receivers.
    pub(super) fn start(
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
    pub(super) fn checkpoint(&self) -> Option<&str> {
        self.checkpoint.as_deref()
    }

    /// Adds a group of events; they are on disk when this returns.
    ///
    /// # Errors
    /// [`EventLogError`]; then none of them is.
    pub(super) async fn append(
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

fn naming(section: &str, config: &ReceiverConfig) -> Naming {
    let folder = config.kind.prefix().to_owned();
    match (&config.kind, section) {
        (clients::Kind::Http(_), _) => Naming::Trace,
        (_, BILLING) => Naming::Billing(folder),
        _ => Naming::Scaling(folder),
    }
}
