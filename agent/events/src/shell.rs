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
mod settings;
mod stream;
#[cfg(test)]
mod tests;

use prometheus_client::registry::Registry;
use tokio::task::{JoinError, JoinSet};
use tokio_util::sync::CancellationToken;

pub use billing::UsageMeter;
pub use metrics::Unsent;
pub use scaling::{Goal, ScalingSender};
pub use settings::{BillingSettings, ScalingSettings, Settings};
pub use stream::{EventLogError, EventReceiverError, EventsError};

use billing::Biller;
use metrics::EventMetrics;
use stream::{BILLING, SCALING, Stream};

/// Both streams of events with their running tasks.
#[derive(Debug)]
pub struct Events {
    /// Takes the VMs as the watch shows them.
    pub usage: UsageMeter,
    /// Takes changes of size and goals.
    pub scaling: ScalingSender,
    /// Events that receivers refused last.
    pub unsent: Unsent,
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
        let unsent = metrics.unsent.clone();
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
            unsent,
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
