//! Reads the feeds of one VM: pages of its own programs, at the VM's pod address, on the period of
//! the metrics. A page that is missing, late, too large or malformed gives no value. Redirects are
//! not followed. Metrics are scraped by another task, which never waits for this one.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use policy_contract::FeedSource;
use protocol::exposition::Page;
use rand::Rng as _;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::shell::config::MetricsSource;
use crate::shell::endpoint::{Endpoint, ScrapeError};
use crate::shell::metrics::ScrapeFailures;

/// Values that wait for the driver.
const FED_BOUND: usize = 1;
/// Label of the counter of failed scrapes.
const SOURCE: &str = "feed";

/// The task that reads the feeds of a VM. It ends when this is dropped.
pub(super) struct FeedReader {
    sources: Arc<[FeedSource]>,
    fed: mpsc::Receiver<Vec<Option<f64>>>,
    task: JoinSet<()>,
}

/// What a reader reads. Without a reader that is nothing.
pub(super) fn sources_of(reader: Option<&FeedReader>) -> &[FeedSource] {
    reader.map_or(&[], |reader| &reader.sources)
}

/// The next values of the feeds, in the order of their sources. Without a reader they never come.
pub(super) async fn next_values(reader: &mut Option<Box<FeedReader>>) -> Vec<Option<f64>> {
    let Some(reader) = reader else {
        return std::future::pending().await;
    };
    tokio::select! {
        Some(values) = reader.fed.recv() => values,
        Some(ended) = reader.task.join_next() => {
            if let Err(error) = ended && error.is_panic() {
                std::panic::resume_unwind(error.into_panic());
            }
            std::future::pending().await
        }
    }
}

impl FeedReader {
    pub(super) fn start(
        sources: Vec<FeedSource>,
        pod_ip: &str,
        metrics: &MetricsSource,
        failures: ScrapeFailures,
    ) -> Self {
        let (fed_tx, fed) = mpsc::channel(FED_BOUND);
        let sources: Arc<[FeedSource]> = sources.into();
        let pages = Pages::new(pod_ip, &sources, failures);
        let (period, limit) = (metrics.between_requests, metrics.request_timeout.duration());
        let mut task = JoinSet::new();
        let wanted = Arc::clone(&sources);
        task.spawn(async move {
            let mut pages = pages;
            let first = rand::rng().random_range(0..period.0.max(1));
            tokio::time::sleep(Duration::from_secs(first)).await;
            loop {
                let values = pages.read(&wanted, limit).await;
                if fed_tx.send(values).await.is_err() {
                    return;
                }
                tokio::time::sleep(period.duration()).await;
            }
        });
        Self { sources, fed, task }
    }
}

/// The pages of a guest, by port.
struct Pages {
    ports: BTreeMap<u16, (Endpoint, Arc<[String]>)>,
    failures: ScrapeFailures,
}

impl Pages {
    fn new(pod_ip: &str, sources: &[FeedSource], failures: ScrapeFailures) -> Self {
        let mut names: BTreeMap<u16, Vec<String>> = BTreeMap::new();
        for source in sources {
            let of_port = names.entry(source.port).or_default();
            if !of_port.contains(&source.metric) {
                of_port.push(source.metric.clone());
            }
        }
        let ports = names.into_iter().map(|(port, names)| {
            let endpoint = Endpoint::new(pod_ip, port);
            (port, (endpoint, names.into()))
        });
        Self {
            ports: ports.collect(),
            failures,
        }
    }

    /// Reads all pages at the same time, each within the limit.
    async fn read(&mut self, sources: &[FeedSource], limit: Duration) -> Vec<Option<f64>> {
        let reads = self.ports.iter_mut().map(|(port, (endpoint, names))| {
            let page = endpoint.get(|| Page::wanted(Arc::clone(names)));
            let names = Arc::clone(names);
            async move {
                let page = tokio::time::timeout(limit, page).await;
                let page = page.unwrap_or(Err(ScrapeError::TimedOut))?;
                let named = names.iter().cloned().zip(page.into_values());
                Ok::<_, ScrapeError>((*port, named.collect::<BTreeMap<_, _>>()))
            }
        });
        let mut read = BTreeMap::new();
        for page in join_all(reads).await {
            match page {
                Ok((port, values)) => drop(read.insert(port, values)),
                Err(error) => self.failures.count(SOURCE, error.cause()),
            }
        }
        let value = |source: &FeedSource| *read.get(&source.port)?.get(&source.metric)?;
        sources.iter().map(value).collect()
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;

    /// Limit of a read in these tests.
    const LIMIT: Duration = Duration::from_secs(20);

    fn source(name: &str, port: u16) -> FeedSource {
        FeedSource {
            metric: format!("ci_{name}"),
            name: name.to_owned(),
            port,
        }
    }

    /// Serves each connection these bytes, `repeats` times. `None`: nothing, for ever.
    async fn serve(response: Option<&'static [u8]>, repeats: usize) -> u16 {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("listens");
        let port = listener.local_addr().expect("an address").port();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let _ = stream.read(&mut [0; 1024]).await;
                    let Some(response) = response else {
                        return std::future::pending().await;
                    };
                    for _ in 0..repeats {
                        if stream.write_all(response).await.is_err() {
                            return;
                        }
                    }
                });
            }
        });
        port
    }

    async fn read(sources: &[FeedSource], limit: Duration) -> Vec<Option<f64>> {
        let failures = ScrapeFailures::default();
        let mut pages = Pages::new("127.0.0.1", sources, failures);
        pages.read(sources, limit).await
    }

    /// Requirement: V10
    #[tokio::test]
    async fn v10_wanted_names_are_read_and_nothing_else() {
        let page =
            b"HTTP/1.0 200 OK\r\n\r\n# TYPE ci_jobs gauge\nci_jobs 3\nother 7\nci_queue 4.5\n";
        let port = serve(Some(page), 1).await;
        let twice = FeedSource {
            name: "again".into(),
            ..source("jobs", port)
        };
        let wanted = [
            source("queue", port),
            source("jobs", port),
            twice,
            source("gone", port),
        ];
        let values = read(&wanted, LIMIT).await;
        assert_eq!(values, [Some(4.5), Some(3.0), Some(3.0), None]);
    }

    /// Requirement: V10
    #[tokio::test]
    async fn v10_bad_page_gives_no_value() {
        const HTML: &[u8] = b"HTTP/1.0 200 OK\r\n\r\n<html><body>ci_jobs 3</body></html>";
        const NONE: &[u8] = b"HTTP/1.0 200 OK\r\n\r\n";
        const ERROR: &[u8] = b"HTTP/1.0 500 Oops\r\n\r\nci_jobs 3\n";
        const MOVED: &[u8] =
            b"HTTP/1.0 302 Found\r\nlocation: http://127.0.0.1/\r\n\r\nci_jobs 3\n";
        const TWICE: &[u8] = b"HTTP/1.0 200 OK\r\n\r\nci_jobs{a=\"1\"} 3\nci_jobs{a=\"2\"} 3\n";
        const NAN: &[u8] = b"HTTP/1.0 200 OK\r\n\r\nci_jobs NaN\n";
        const BINARY: &[u8] = b"\xff\x00\xff\x00";
        for response in [HTML, NONE, ERROR, MOVED, TWICE, NAN, BINARY] {
            let port = serve(Some(response), 1).await;
            let values = read(&[source("jobs", port)], LIMIT).await;
            assert_eq!(values, [None], "{}", response.escape_ascii());
        }
        // No one listens.
        assert_eq!(read(&[source("jobs", 1)], LIMIT).await, [None]);
    }

    /// Requirement: V10
    #[tokio::test]
    async fn v10_page_without_end_is_cut() {
        const BLOCK: &[u8] = &[b'x'; 64 << 10];
        const HEAD: &[u8] = b"HTTP/1.0 200 OK\r\n\r\nci_jobs 3\n";
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("listens");
        let port = listener.local_addr().expect("an address").port();
        let server = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.expect("a peer");
            let mut sent = 0_u64;
            let mut next = HEAD;
            // 1 GiB, unless the reader ends the connection before.
            while sent < 1 << 30 && stream.write_all(next).await.is_ok() {
                sent += next.len() as u64;
                next = BLOCK;
            }
            sent
        });
        assert_eq!(read(&[source("jobs", port)], LIMIT).await, [None]);
        let sent = server.await.expect("it ends");
        assert!(sent < 64 << 20, "{sent} bytes");
    }

    /// Requirement: V10
    #[tokio::test]
    async fn v10_page_that_never_comes_holds_up_no_other() {
        let silent = serve(None, 1).await;
        let good = serve(Some(b"HTTP/1.0 200 OK\r\n\r\nci_queue 2\n"), 1).await;
        let wanted = [source("jobs", silent), source("queue", good)];
        let values = read(&wanted, Duration::from_secs(2)).await;
        assert_eq!(values, [None, Some(2.0)]);
    }
}
