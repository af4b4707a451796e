//! The scrapers' port: `/metrics`, `/healthz`, `/readyz`, `/debug/state`.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use transport::Listener;

use super::accept;
use super::config::Config;
use super::inbox::Inbox;
use super::memory::Source;
use super::process::ThisProcess;
use super::{render, render_pressure};
use crate::core::StateDump;
use crate::core::decision::Watched;
use crate::core::files::ReadFailure;
use crate::core::runnable::RunnableLoad;

/// Scrapers at once. Each VM has one agent and perhaps a Prometheus. One more takes the place of
/// the one that has asked least recently, so that connections on which nobody asks keep the agent
/// from nothing.
const CONNECTIONS_AT_ONCE: usize = 16;
/// An idle connection, or a request that does not end, is closed after this.
const IDLE_LIMIT: Duration = Duration::from_secs(60);
/// How long the owner may take to show its state.
const DUMP_LIMIT: Duration = Duration::from_secs(1);

const TEXT: HeaderValue = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// What the pages are made from.
#[derive(Debug, Clone)]
pub struct Admin {
    inbox: mpsc::Sender<Inbox>,
    proc_root: PathBuf,
    watched: Watched,
    cgroup: Option<PathBuf>,
    runnable: watch::Receiver<RunnableLoad>,
    process: ThisProcess,
}

impl Admin {
    /// Pages on the monitor behind `inbox`.
    #[must_use]
    pub fn new(
        config: &Config,
        inbox: mpsc::Sender<Inbox>,
        runnable: watch::Receiver<RunnableLoad>,
        process: ThisProcess,
    ) -> Self {
        Self {
            inbox,
            runnable,
            process,
            proc_root: config.proc_root.clone(),
            watched: config.watched,
            cgroup: config.cgroup.clone(),
        }
    }

    async fn dump(&self) -> Option<StateDump> {
        let (to, from) = oneshot::channel();
        let asked = async {
            self.inbox.send(Inbox::Dump(to)).await.ok()?;
            from.await.ok()
        };
        timeout(DUMP_LIMIT, asked).await.ok()?
    }

    /// Why memory use cannot be read now, if so. Readings of the core's own are made only while
    /// there is an agent.
    fn memory_failure(&self) -> Option<ReadFailure> {
        if self.watched == Watched::Nothing {
            return None;
        }
        let mut source = Source::new(self.watched, self.cgroup.as_deref(), &self.proc_root);
        source.sample().err()
    }

    async fn page(&self, request: &Request<Incoming>) -> Response<Full<Bytes>> {
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            return page(StatusCode::METHOD_NOT_ALLOWED, TEXT, "GET only\n".into());
        }
        let unavailable = StatusCode::SERVICE_UNAVAILABLE;
        match request.uri().path() {
            "/healthz" => page(StatusCode::OK, TEXT, "ok\n".into()),
            "/metrics" => {
                // The machine's figures are worth having even if the owner is stuck.
                let dump = self.dump().await;
                let runnable = self.runnable.borrow().clone();
                let group = self.cgroup.as_deref();
                let mut text = render::metrics(&self.proc_root, group, &runnable, dump.as_ref());
                if let Some(dump) = &dump {
                    render_pressure::append(&mut text, dump);
                }
                self.process.append_metrics(&mut text);
                page(StatusCode::OK, TEXT, text)
            }
            "/readyz" => match (self.memory_failure(), self.dump().await) {
                (Some(failure), _) => page(unavailable, TEXT, format!("{failure}\n")),
                (None, None) => page(unavailable, TEXT, "no answer\n".into()),
                (None, Some(_)) => page(StatusCode::OK, TEXT, "ready\n".into()),
            },
            "/debug/state" => match self.dump().await {
                None => page(unavailable, TEXT, "no answer\n".into()),
                Some(dump) => {
                    let text = serde_json::to_string_pretty(&dump);
                    page(StatusCode::OK, JSON, text.unwrap_or_default())
                }
            },
            _ => page(StatusCode::NOT_FOUND, TEXT, "not found\n".into()),
        }
    }
}

fn page(status: StatusCode, kind: HeaderValue, text: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(text)));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}

/// Open connections by number, the one that has asked least recently first, and how to close each.
#[derive(Debug, Clone, Default)]
struct Scrapers(Arc<Mutex<Vec<(u64, CancellationToken)>>>);

impl Scrapers {
    fn open(&self) -> MutexGuard<'_, Vec<(u64, CancellationToken)>> {
        // Only whole entries are moved, so a panic elsewhere leaves nothing half done.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Admits a connection; the result is cancelled when it has to close.
    fn admit(&self, id: u64) -> CancellationToken {
        let (mut open, closing) = (self.open(), CancellationToken::new());
        if open.len() >= CONNECTIONS_AT_ONCE {
            open.remove(0).1.cancel();
        }
        open.push((id, closing.clone()));
        closing
    }

    /// The connection asks something.
    fn asks(&self, id: u64) {
        let mut open = self.open();
        if let Some(at) = open.iter().position(|(other, _)| *other == id) {
            let entry = open.remove(at);
            open.push(entry);
        }
    }

    fn leave(&self, id: u64) {
        self.open().retain(|(other, _)| *other != id);
    }
}

/// Accepts scrapers until cancelled.
pub async fn serve(listener: TcpListener, admin: Admin, cancel: CancellationToken) {
    let (scrapers, mut next) = (Scrapers::default(), 0);
    let listener = Listener::Tcp(listener);
    while let Some(stream) = accept::next(&listener, &cancel).await {
        next += 1;
        let (id, closing) = (next, scrapers.admit(next));
        let (admin, scrapers, cancel) = (admin.clone(), scrapers.clone(), cancel.clone());
        tokio::spawn(async move {
            let asked = scrapers.clone();
            let service = hyper::service::service_fn(move |request| {
                asked.asks(id);
                let admin = admin.clone();
                async move { Ok::<_, std::convert::Infallible>(admin.page(&request).await) }
            });
            let served = hyper::server::conn::http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(IDLE_LIMIT)
                .max_buf_size(8 * 1024)
                .serve_connection(TokioIo::new(stream), service);
            tokio::select! {
                () = cancel.cancelled() => {}
                () = closing.cancelled() => {}
                // Scrapers come and go as they like.
                _ = served => {}
            }
            scrapers.leave(id);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scraper_that_asks_outlives_connections_on_which_nobody_asks() {
        let scrapers = Scrapers::default();
        let agent = scrapers.admit(0);
        let mut idle = Vec::new();
        for id in 1..200 {
            idle.push(scrapers.admit(id));
            scrapers.asks(0);
        }
        assert!(!agent.is_cancelled());
        let open = idle.iter().filter(|idle| !idle.is_cancelled()).count();
        assert_eq!(open, CONNECTIONS_AT_ONCE - 1);
        scrapers.leave(0);
        scrapers.leave(0);
        assert_eq!(scrapers.open().len(), open);
    }
}
