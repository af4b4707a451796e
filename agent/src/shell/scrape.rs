//! The metrics loops: ask a guest's endpoint on a period, hand good samples on. A slow, garbled or endless endpoint only delays.
//! Source: spec/agent.md §2.1.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http_body_util::{BodyExt, Empty};
use hyper::body::Bytes;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use rand::Rng;
use telemetry::clock::Clock;
use tokio::sync::mpsc;

use super::config::MetricsSource;
use super::exposition::{Page, PageError};
use super::input::{Input, InputKind};

/// Largest page read, bytes; node_exporter with everything on writes about 200 KB.
const PAGE_LIMIT_BYTES: usize = 1 << 20;
/// Idle connections kept per guest.
const IDLE_CONNECTIONS: usize = 1;

/// Client for all metrics endpoints and all permit requests.
pub(super) type HttpClient<B> = Client<HttpConnector, B>;

/// A client that keeps one idle connection per peer.
pub(super) fn http_client<B>() -> HttpClient<B>
where
    B: hyper::body::Body + Send + 'static + Unpin,
    B::Data: Send,
{
    let mut connector = HttpConnector::new();
    connector.set_nodelay(true);
    Client::builder(TokioExecutor::new())
        .pool_max_idle_per_host(IDLE_CONNECTIONS)
        .pool_idle_timeout(Duration::from_secs(60))
        .build(connector)
}

/// Why a scrape gave nothing.
#[derive(Debug, thiserror::Error)]
pub(super) enum ScrapeError {
    /// The address cannot be asked.
    #[error("{0:?} is no address")]
    Address(String),
    /// No connection, or it broke.
    #[error("could not ask for the page")]
    Request(#[source] hyper_util::client::legacy::Error),
    /// The body broke.
    #[error("could not read the page")]
    Body(#[source] hyper::Error),
    /// Another status than 200.
    #[error("status {0}")]
    Status(u16),
    /// Not done in time.
    #[error("no whole page in time")]
    TimedOut,
    /// The page is larger than the bound.
    #[error("the page is larger than {PAGE_LIMIT_BYTES} bytes")]
    TooLarge,
    /// What was read is useless.
    #[error("the page cannot be used")]
    Page(#[source] PageError),
}

/// Reads one page.
async fn fetch(
    client: &HttpClient<Empty<Bytes>>,
    address: &str,
    mut page: Page,
) -> Result<Page, ScrapeError> {
    let url: hyper::Uri = address
        .parse()
        .map_err(|_| ScrapeError::Address(address.to_owned()))?;
    let response = client.get(url).await.map_err(ScrapeError::Request)?;
    if response.status() != hyper::StatusCode::OK {
        return Err(ScrapeError::Status(response.status().as_u16()));
    }
    let mut body = response.into_body();
    let mut read = 0_usize;
    while let Some(frame) = body.frame().await {
        if let Ok(data) = frame.map_err(ScrapeError::Body)?.into_data() {
            read += data.len();
            if read > PAGE_LIMIT_BYTES {
                return Err(ScrapeError::TooLarge);
            }
            page.feed(&data);
        }
    }
    Ok(page)
}

/// Which of the two loops.
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

/// One loop of one VM.
pub(super) struct Scraper {
    pub client: HttpClient<Empty<Bytes>>,
    pub source: Source,
    pub config: MetricsSource,
    pub pod_ip: String,
    pub clock: Clock,
    /// Whether to ask at all, looked at before each request.
    pub is_active: Arc<AtomicBool>,
    pub inputs: mpsc::Sender<Input>,
}

impl Scraper {
    /// Runs until the VM's task is gone. The first request waits a random part of the period, so that the VMs of a node do not
    /// all ask at once.
    pub(super) async fn run(self) {
        let period = self.config.between_requests;
        let first = rand::rng().random_range(0..period.0.max(1));
        tokio::time::sleep(Duration::from_secs(first)).await;
        let mut is_failing = false;
        loop {
            if self.is_active.load(Ordering::Relaxed) {
                match self.once().await {
                    Ok(kind) => {
                        if std::mem::take(&mut is_failing) {
                            tracing::info!(source = self.source.as_str(), "metrics are back");
                        }
                        let input = Input {
                            arrived: self.clock.now(),
                            kind,
                        };
                        if self.inputs.send(input).await.is_err() {
                            return;
                        }
                    }
                    Err(error) if is_failing => {
                        let error = telemetry::chain(&error);
                        tracing::debug!(source = self.source.as_str(), error, "no metrics");
                    }
                    Err(error) => {
                        is_failing = true;
                        let error = telemetry::chain(&error);
                        tracing::warn!(source = self.source.as_str(), error, "metrics stopped");
                    }
                }
            }
            tokio::time::sleep(period.duration()).await;
        }
    }

    async fn once(&self) -> Result<InputKind, ScrapeError> {
        let address = format!("http://{}:{}/metrics", self.pod_ip, self.config.port);
        let page = match self.source {
            Source::System => Page::system(),
            Source::Lfc => Page::lfc(),
        };
        let fetched = fetch(&self.client, &address, page);
        let page = tokio::time::timeout(self.config.request_timeout.duration(), fetched)
            .await
            .map_err(|_| ScrapeError::TimedOut)??;
        match self.source {
            Source::System => page.into_system().map(InputKind::System),
            Source::Lfc => page.into_lfc().map(InputKind::Lfc),
        }
        .map_err(ScrapeError::Page)
    }
}
