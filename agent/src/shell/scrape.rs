//! The metrics loops: scrape a guest's endpoint periodically and pass on good samples. A slow,
//! malformed or endless page only delays the next sample. Source: docs/compatibility/agent.md §2.1.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use daemon_kit::clock::Clock;
use protocol::exposition::Page;
use rand::Rng;
use tokio::sync::mpsc;

use super::config::MetricsSource;
use super::endpoint::{Endpoint, ScrapeError};
use super::input::{Input, InputKind};
use super::metrics::ScrapeFailures;
use super::pushed::Pushed;

/// Kind of the metrics that a loop scrapes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    System,
    Lfc,
}

impl Source {
    fn as_str(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::Lfc => "lfc",
        }
    }
}

/// One metrics loop of one VM.
pub(super) struct Scraper {
    pub source: Source,
    pub config: MetricsSource,
    pub pod_ip: String,
    pub clock: Clock,
    /// Whether to scrape; read before each request.
    pub is_active: Arc<AtomicBool>,
    /// Pushed metrics, which replace scrapes while they are fresh.
    pub pushed: Pushed,
    pub failures: ScrapeFailures,
    pub inputs: mpsc::Sender<Input>,
}

impl Scraper {
    /// Runs until the VM's driver is gone. The first scrape waits for a random part of the period,
    /// so that the scrapes of a node are spread.
    pub(super) async fn run(self) {
        let period = self.config.between_requests;
        let first = rand::rng().random_range(0..period.0.max(1));
        tokio::time::sleep(Duration::from_secs(first)).await;
        let mut is_failing = false;
        let mut endpoint = Endpoint::new(&self.pod_ip, self.config.port);
        loop {
            let is_pushed = self.pushed.is_fresh(self.clock.now(), period.span());
            if self.is_active.load(Ordering::Relaxed) && !is_pushed {
                // Boxed, because its state is needed only for a few milliseconds of each period.
                match Box::pin(self.once(&mut endpoint)).await {
                    Ok(kind) => {
                        if std::mem::take(&mut is_failing) {
                            tracing::info!(source = self.source.as_str(), "metrics are back");
                        }
                        let input = Input::new(self.clock.now(), kind);
                        if self.inputs.send(input).await.is_err() {
                            return;
                        }
                    }
                    Err(error) => {
                        let (source, cause) = (self.source.as_str(), error.cause());
                        self.failures.count(source, cause);
                        let error = daemon_kit::chain(&error);
                        if std::mem::replace(&mut is_failing, true) {
                            tracing::debug!(source, error, "no metrics");
                        } else {
                            tracing::warn!(source, error, "metrics stopped");
                        }
                    }
                }
            }
            tokio::time::sleep(period.duration()).await;
        }
    }

    async fn once(&self, endpoint: &mut Endpoint) -> Result<InputKind, ScrapeError> {
        let page = endpoint.get(match self.source {
            Source::System => Page::system,
            Source::Lfc => Page::lfc,
        });
        let page = tokio::time::timeout(self.config.request_timeout.duration(), page)
            .await
            .map_err(|_| ScrapeError::TimedOut)??;
        match self.source {
            Source::System => page
                .into_system()
                .map(|read| InputKind::System(read.into())),
            Source::Lfc => page.into_lfc().map(|read| InputKind::Lfc(read.into())),
        }
        .map_err(ScrapeError::Page)
    }
}
