//! The link to a runner: HTTP/1 over the unix socket in its directory (types: `protocol::runner`).

use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1::SendRequest;
use hyper::{Method, Request, StatusCode, header};
use hyper_util::rt::TokioIo;
use protocol::runner::{RunnerState, SizeOrder};
use telemetry::chain;
use telemetry::clock::Clock;
use tokio::net::UnixStream;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::mailbox::Mailbox;
use super::{moment, pause};
use crate::core::Event;

/// How long a runner may hold a question for news.
const LONG_POLL: Duration = Duration::from_secs(20);
/// How long past that an answer may take.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// First and longest pause between attempts to reach a runner. A refused connection to a unix socket costs
/// microseconds, and a runner that has just come up should be found at once.
const RETRY_FIRST: Duration = Duration::from_millis(10);
const RETRY_CAP: Duration = Duration::from_millis(250);
/// Longest answer read, bytes.
const ANSWER_LIMIT: usize = 1 << 20;
/// Paths of unix sockets longer than this are reached through their directory.
const SOCKET_PATH_LIMIT: usize = 100;

/// Why a runner gave no answer.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// No connection.
    #[error("could not connect to {}", path.display())]
    Connect {
        /// The socket.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The connection broke.
    #[error("could not talk HTTP to the runner")]
    Http(#[source] hyper::Error),
    /// It took too long.
    #[error("no answer within {0:?}")]
    Timeout(Duration),
    /// The body was too long or broke off.
    #[error("could not read the answer: {0}")]
    Body(String),
    /// The runner refused.
    #[error("the runner answered {status}: {text}")]
    Refused {
        /// HTTP status.
        status: StatusCode,
        /// Its words.
        text: String,
    },
    /// The answer is not a state.
    #[error("the runner's answer is not a state")]
    Decode(#[source] serde_json::Error),
}

impl LinkError {
    /// Whether the same request can never work.
    #[must_use]
    pub fn is_permanent(&self) -> bool {
        matches!(self, Self::Refused { status, .. } if status.is_client_error())
    }
}

/// One connection to one runner, made again when it broke. One request at a time.
#[derive(Debug)]
pub struct RunnerLink {
    path: PathBuf,
    connection: Option<SendRequest<Full<Bytes>>>,
}

impl RunnerLink {
    /// A link over the socket at `path`; nothing is opened yet.
    #[must_use]
    pub fn new(path: PathBuf) -> Self {
        Self {
            path,
            connection: None,
        }
    }

    /// The control socket of a pod's runner.
    #[must_use]
    pub fn socket(state_dir: &Path, namespace: &str, pod: &str) -> PathBuf {
        state_dir
            .join("vms")
            .join(format!("{namespace}_{pod}"))
            .join("control.sock")
    }

    /// Asks for the state; with `after`, waits until its generation is above, or for [`LONG_POLL`].
    ///
    /// # Errors
    /// [`LinkError`]; the next call connects anew.
    pub async fn state(&mut self, after: Option<u64>) -> Result<RunnerState, LinkError> {
        let (uri, wait) = match after {
            None => ("/v1/state".to_owned(), Duration::ZERO),
            Some(generation) => {
                let ms = LONG_POLL.as_millis();
                (
                    format!("/v1/state?after={generation}&wait_ms={ms}"),
                    LONG_POLL,
                )
            }
        };
        self.exchange(Method::GET, &uri, Bytes::new(), wait + ANSWER_TIMEOUT)
            .await
    }

    /// Gives an order; returns the state in which it is held.
    ///
    /// # Errors
    /// [`LinkError`]; the runner may or may not hold the order, giving it again does no harm.
    pub async fn put_size(&mut self, order: &SizeOrder) -> Result<RunnerState, LinkError> {
        let body = serde_json::to_vec(order).map_err(LinkError::Decode)?;
        self.exchange(Method::PUT, "/v1/size", body.into(), ANSWER_TIMEOUT)
            .await
    }

    /// Sees that there is a connection.
    ///
    /// # Errors
    /// [`LinkError::Connect`] or [`LinkError::Http`].
    pub async fn connect(&mut self) -> Result<(), LinkError> {
        if self
            .connection
            .as_ref()
            .is_some_and(|open| open.is_ready() && !open.is_closed())
        {
            return Ok(());
        }
        self.connection = None;
        let stream = open(&self.path)
            .await
            .map_err(|source| LinkError::Connect {
                path: self.path.clone(),
                source,
            })?;
        let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .map_err(LinkError::Http)?;
        // Ends by itself once the sender is dropped or the peer closes.
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(error = chain(&error), "runner link closed");
            }
        });
        self.connection = Some(sender);
        Ok(())
    }

    async fn exchange(
        &mut self,
        method: Method,
        uri: &str,
        body: Bytes,
        limit: Duration,
    ) -> Result<RunnerState, LinkError> {
        let answer = timeout(limit, self.exchange_unbounded(method, uri, body)).await;
        let answer = answer.unwrap_or(Err(LinkError::Timeout(limit)));
        if answer.is_err() {
            // What is left on a connection that failed half-way belongs to nobody.
            self.connection = None;
        }
        answer
    }

    async fn exchange_unbounded(
        &mut self,
        method: Method,
        uri: &str,
        body: Bytes,
    ) -> Result<RunnerState, LinkError> {
        self.connect().await?;
        let request = Request::builder()
            .method(method)
            .uri(uri)
            .header(header::HOST, "runner")
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::new(body))
            .expect("method, path and headers are well formed");
        let Some(connection) = self.connection.as_mut() else {
            return Err(LinkError::Timeout(Duration::ZERO));
        };
        let response = connection
            .send_request(request)
            .await
            .map_err(LinkError::Http)?;
        let status = response.status();
        let body = Limited::new(response.into_body(), ANSWER_LIMIT)
            .collect()
            .await
            .map_err(|error| LinkError::Body(error.to_string()))?
            .to_bytes();
        if !status.is_success() {
            let text = crate::core::problem::peer_text(&String::from_utf8_lossy(&body));
            return Err(LinkError::Refused { status, text });
        }
        serde_json::from_slice(&body).map_err(LinkError::Decode)
    }
}

/// Opens a unix socket whose path may be longer than the 107 bytes an address holds.
async fn open(path: &Path) -> std::io::Result<UnixStream> {
    let (Some(directory), Some(name)) = (path.parent(), path.file_name()) else {
        return UnixStream::connect(path).await;
    };
    if path.as_os_str().len() <= SOCKET_PATH_LIMIT {
        return UnixStream::connect(path).await;
    }
    let directory = std::fs::File::open(directory)?;
    let short = Path::new("/proc/self/fd")
        .join(directory.as_raw_fd().to_string())
        .join(name);
    UnixStream::connect(short).await
}

/// Keeps a question open at the runner of `pod` and puts every answer, and the first of every silence, into `mailbox`.
pub(super) async fn follow(
    mut link: RunnerLink,
    pod: String,
    mailbox: Mailbox,
    clock: Clock,
    cancel: CancellationToken,
) {
    let mut after = None;
    let mut retry = RETRY_FIRST;
    loop {
        let answer = tokio::select! {
            () = cancel.cancelled() => return,
            answer = link.state(after) => answer,
        };
        match answer {
            Ok(state) => {
                retry = RETRY_FIRST;
                // A lower generation is a new runner's: its state is news all the same.
                if after != Some(state.generation) {
                    after = Some(state.generation);
                    let event = Event::Runner {
                        pod: pod.clone(),
                        state: Box::new(state),
                    };
                    mailbox.put(moment(&clock), event);
                }
            }
            Err(error) => {
                after = None;
                let event = Event::RunnerSilent {
                    pod: pod.clone(),
                    error: chain(&error),
                };
                mailbox.put(moment(&clock), event);
                tokio::select! {
                    () = cancel.cancelled() => return,
                    () = pause(retry) => {}
                }
                retry = (retry * 2).min(RETRY_CAP);
            }
        }
    }
}
