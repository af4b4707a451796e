//! Settings of the streams, as the agent's configuration gives them.

use std::path::PathBuf;
use std::time::Duration;

use daemon_kit::clock::Clock;
use daemon_kit::state_folder::{self, FolderLock};
use protocol::units::Resources;
use serde_json::Value;

use super::clients;
use super::stream::EventsError;
use crate::core::scaling_events::Reporting;

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

impl Settings {
    /// Locks the folder and waits for another process that writes it, up to `patience`. `None` if
    /// no stream has a receiver: then nothing is written.
    ///
    /// # Errors
    /// [`EventsError::Locked`].
    pub async fn lock(&self, patience: Duration) -> Result<Option<FolderLock>, EventsError> {
        let mut clients = [&self.billing.clients, &self.scaling.clients].into_iter();
        let is_written = clients.any(|clients| !clients::receivers(clients).is_empty());
        match &self.folder {
            Some(folder) if is_written => {
                Ok(Some(state_folder::lock_within(folder, patience).await?))
            }
            _ => Ok(None),
        }
    }
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
