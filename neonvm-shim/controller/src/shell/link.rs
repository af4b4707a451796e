//! The link to a runner: HTTP/1 over the unix socket in its directory, or by TLS to its pod's
//! address (types: `protocol::runner`).

use std::io::ErrorKind;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use daemon_kit::chain;
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1::SendRequest;
use hyper::{Method, Request, StatusCode, header};
use hyper_util::rt::TokioIo;
use protocol::migration::{IncomingOrder, OutgoingOrder};
use protocol::runner::{CpusAhead, ORDERS_NAME, RunnerState, SizeOrder};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, Error as TlsError};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_util::sync::CancellationToken;

use super::api::ApiError;
use super::pause;
use super::runner_key::{Credentials, RunnerKey};
use crate::core::observe::PodRunner;

/// How long a runner may hold a question for news.
const LONG_POLL: Duration = Duration::from_secs(20);
/// How long past that an answer may take.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// The same two on a socket of this machine, where asking costs little: a runner that stands still
/// is noticed after both, and reported [`SILENCE_REPORTED`](crate::core::phases::SILENCE_REPORTED)
/// later.
const LOCAL_POLL: Duration = Duration::from_secs(2);
const LOCAL_ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a connection to a pod may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// First and longest pause between attempts to reach a runner. A refused connection to a unix
/// socket costs microseconds, and a runner that has just come up should be found at once.
const RETRY_FIRST: Duration = Duration::from_millis(10);
const RETRY_CAP: Duration = Duration::from_millis(250);
/// Longest response body in bytes.
const ANSWER_LIMIT: usize = 1 << 20;
/// Paths of unix sockets longer than this are reached through their directory.
const SOCKET_PATH_LIMIT: usize = 100;

/// Why a runner gave no answer.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The runner's socket or port did not accept a connection.
    #[error("could not connect to {peer}")]
    Connect {
        /// Address of the runner.
        peer: RunnerAddress,
        /// Error of the connection attempt.
        #[source]
        source: std::io::Error,
    },
    /// The HTTP connection failed.
    #[error("could not talk HTTP to the runner")]
    Http(#[source] hyper::Error),
    /// The runner did not answer within this time.
    #[error("no answer within {0:?}")]
    Timeout(Duration),
    /// The body was too long or broke off.
    #[error("could not read the answer: {0}")]
    Body(String),
    /// The runner refused the order.
    #[error("the runner answered {status}: {text}")]
    Refused {
        /// Status of the answer; any but a success.
        status: StatusCode,
        /// Body of the answer, which says what the runner refuses.
        text: String,
    },
    /// The answer is not a state.
    #[error("the runner's answer is not a state")]
    Decode(#[source] serde_json::Error),
    /// What it would be known by, and we, is not to be had.
    #[error("could not read the secret of the VM's runners")]
    Token(#[source] Box<ApiError>),
    /// It did not show what it should be known by.
    #[error("no TLS with the runner at {peer}")]
    Tls {
        /// Address of the runner.
        peer: RunnerAddress,
        /// Error of the TLS handshake.
        #[source]
        source: std::io::Error,
    },
    /// It answers in the clear, and is not to be spoken to so.
    #[error(
        "the runner at {peer} does not speak TLS: its image is older than this controller, or somebody else answers"
    )]
    Clear {
        /// Address of the runner.
        peer: RunnerAddress,
    },
    /// There is nothing to know it by, and it is not to be spoken to in the clear.
    #[error(
        "nothing to know the runner at {peer} by: its VM's secret is not there, or has no certificate"
    )]
    NoCertificate {
        /// Address of the runner.
        peer: RunnerAddress,
    },
}

impl LinkError {
    /// Whether the same request can never work.
    #[must_use]
    pub fn is_permanent(&self) -> bool {
        // A token may have been made, or made anew; and an order that was overtaken is decided
        // anew.
        let passing = [StatusCode::UNAUTHORIZED, StatusCode::PRECONDITION_FAILED];
        matches!(self, Self::Refused { status, .. }
            if status.is_client_error() && !passing.contains(status))
    }
}

/// Address of a runner's HTTP server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RunnerAddress {
    /// On a socket of this machine.
    Socket(PathBuf),
    /// TLS port at the pod's address.
    Pod(PodRunner),
}

impl std::fmt::Display for RunnerAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Socket(path) => path.display().fmt(f),
            Self::Pod(runner) => runner.fmt(f),
        }
    }
}

/// One connection to one runner, made again when it broke. One request at a time.
#[derive(Debug)]
pub struct RunnerLink {
    peer: RunnerAddress,
    key: Option<Arc<RunnerKey>>,
    connection: Option<Connection>,
}

/// What is said on a connection goes with what its other end was known by.
#[derive(Debug)]
struct Connection {
    sender: SendRequest<Full<Bytes>>,
    known: Credentials,
}

impl RunnerLink {
    /// A link; nothing is opened yet.
    #[must_use]
    pub fn new(peer: RunnerAddress) -> Self {
        Self {
            peer,
            key: None,
            connection: None,
        }
    }

    /// A link that says who it is where the runner's port is open to others.
    pub(super) fn with_key(peer: RunnerAddress, key: &Arc<RunnerKey>) -> Self {
        let asked = matches!(peer, RunnerAddress::Pod(_));
        Self {
            key: asked.then(|| Arc::clone(key)),
            ..Self::new(peer)
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

    /// Asks for the state; with `after`, waits until its generation is above, or for [`LONG_POLL`]
    /// ([`LOCAL_POLL`]).
    ///
    /// # Errors
    /// [`LinkError`]; the next call connects anew.
    pub async fn state(&mut self, after: Option<u64>) -> Result<RunnerState, LinkError> {
        let is_local = matches!(self.peer, RunnerAddress::Socket(_));
        let (uri, wait) = match after {
            None => ("/v1/state".to_owned(), Duration::ZERO),
            Some(generation) => {
                let wait = if is_local { LOCAL_POLL } else { LONG_POLL };
                let ms = wait.as_millis();
                (format!("/v1/state?after={generation}&wait_ms={ms}"), wait)
            }
        };
        let answer = match after {
            Some(_) if is_local => LOCAL_ANSWER_TIMEOUT,
            _ => ANSWER_TIMEOUT,
        };
        self.exchange(Method::GET, &uri, Bytes::new(), wait + answer)
            .await
    }

    /// Gives an order, decided when `over` so many had been taken up; returns the state in which it
    /// is held.
    ///
    /// # Errors
    /// [`LinkError`], status 412 where there are more by now; else the runner may or may not hold
    /// the order, or may come to: giving it again does no harm.
    pub async fn put_size(
        &mut self,
        order: &SizeOrder,
        over: Option<u64>,
    ) -> Result<RunnerState, LinkError> {
        let body = serde_json::to_vec(order).map_err(LinkError::Decode)?;
        let uri = over.map_or("/v1/size".to_owned(), |over| {
            format!("/v1/size?over={over}")
        });
        self.exchange(Method::PUT, &uri, body.into(), ANSWER_TIMEOUT)
            .await
    }

    /// Has CPUs plugged ahead of an order; returns the state in which that is held.
    ///
    /// # Errors
    /// [`LinkError`]; asking again does no harm.
    pub async fn put_ahead(&mut self, wish: CpusAhead) -> Result<RunnerState, LinkError> {
        let body = serde_json::to_vec(&wish).map_err(LinkError::Decode)?;
        self.exchange(Method::PUT, "/v1/ahead", body.into(), ANSWER_TIMEOUT)
            .await
    }

    /// Has the guest held still or sent.
    ///
    /// # Errors
    /// [`LinkError`]; giving the order again does no harm. So it is with those below.
    pub async fn send_guest(&mut self, order: &OutgoingOrder) -> Result<RunnerState, LinkError> {
        let body = serde_json::to_vec(order).map_err(LinkError::Decode)?;
        self.exchange(Method::PUT, "/v1/outgoing", body.into(), ANSWER_TIMEOUT)
            .await
    }

    /// Has it kept.
    ///
    /// # Errors
    /// [`LinkError`].
    pub async fn recall_guest(&mut self, id: &str) -> Result<RunnerState, LinkError> {
        let uri = format!("/v1/outgoing/{id}");
        self.exchange(Method::DELETE, &uri, Bytes::new(), ANSWER_TIMEOUT)
            .await
    }

    /// Has the QEMU end that it has left.
    ///
    /// # Errors
    /// [`LinkError`].
    pub async fn quit(&mut self, id: &str) -> Result<RunnerState, LinkError> {
        let uri = format!("/v1/outgoing/{id}/done");
        self.exchange(Method::POST, &uri, Bytes::new(), ANSWER_TIMEOUT)
            .await
    }

    /// Has a guest waited for.
    ///
    /// # Errors
    /// [`LinkError`].
    pub async fn receive_guest(&mut self, order: &IncomingOrder) -> Result<RunnerState, LinkError> {
        let body = serde_json::to_vec(order).map_err(LinkError::Decode)?;
        // The answer comes when there is a disk and a QEMU.
        let limit = LONG_POLL + ANSWER_TIMEOUT;
        self.exchange(Method::PUT, "/v1/incoming", body.into(), limit)
            .await
    }

    /// Has the guest run that has come.
    ///
    /// # Errors
    /// [`LinkError`].
    pub async fn begin_guest(&mut self, id: &str) -> Result<RunnerState, LinkError> {
        let uri = format!("/v1/incoming/{id}/begin");
        self.exchange(Method::POST, &uri, Bytes::new(), ANSWER_TIMEOUT)
            .await
    }

    /// Sees that there is a connection, within the time that an answer may take.
    ///
    /// # Errors
    /// All of [`LinkError`] but [`LinkError::Refused`], [`LinkError::Body`] and
    /// [`LinkError::Decode`]; the next call begins anew.
    pub async fn connect(&mut self) -> Result<(), LinkError> {
        let connected = timeout(ANSWER_TIMEOUT, self.connect_unbounded()).await;
        connected.unwrap_or(Err(LinkError::Timeout(ANSWER_TIMEOUT)))
    }

    async fn connect_unbounded(&mut self) -> Result<(), LinkError> {
        if self
            .connection
            .as_ref()
            .is_some_and(|open| open.sender.is_ready() && !open.sender.is_closed())
        {
            return Ok(());
        }
        self.connection = None;
        let refused = |source| LinkError::Connect {
            peer: self.peer.clone(),
            source,
        };
        match &self.peer {
            RunnerAddress::Socket(path) => {
                let stream = open(path).await.map_err(refused)?;
                self.begin(stream, Credentials::default()).await
            }
            RunnerAddress::Pod(runner) => self.connect_to_pod(*runner).await,
        }
    }

    /// By TLS, where the VM's secret has a certificate. A runner of which nobody knows that it
    /// speaks TLS is spoken to in the clear if it does not.
    async fn connect_to_pod(&mut self, runner: PodRunner) -> Result<(), LinkError> {
        let known = match &self.key {
            Some(key) => key.credentials().await?,
            None => Credentials::default(),
        };
        let peer = || RunnerAddress::Pod(runner);
        let Some(config) = known.certificate.clone() else {
            // There may be one by now.
            self.doubt(&known);
            if runner.by_tls {
                return Err(LinkError::NoCertificate { peer: peer() });
            }
            return self.begin(dial(runner).await?, known).await;
        };
        match shake_hands(config, dial(runner).await?).await {
            Ok(stream) => self.begin(stream, known).await,
            Err(error) if !runner.by_tls && is_not_tls(&error) => {
                self.begin(dial(runner).await?, known).await
            }
            Err(error) if answers_in_the_clear(&error) => Err(LinkError::Clear { peer: peer() }),
            Err(source) => {
                if matches!(tls_error(&source), Some(TlsError::InvalidCertificate(_))) {
                    // The secret may have been made anew.
                    self.doubt(&known);
                }
                Err(LinkError::Tls {
                    peer: peer(),
                    source,
                })
            }
        }
    }

    fn doubt(&self, used: &Credentials) {
        if let Some(key) = &self.key {
            key.doubt(used);
        }
    }

    async fn begin<S>(&mut self, stream: S, known: Credentials) -> Result<(), LinkError>
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .map_err(LinkError::Http)?;
        // Ends by itself once the sender is dropped or the peer closes.
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(error = chain(&error), "runner link closed");
            }
        });
        self.connection = Some(Connection { sender, known });
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
        let Some(connection) = self.connection.as_mut() else {
            return Err(LinkError::Timeout(Duration::ZERO));
        };
        let known = connection.known.clone();
        let mut request = Request::builder()
            .method(method)
            .uri(uri)
            .header(header::HOST, "runner")
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::new(body))
            .expect("method, path and headers are well formed");
        if let Some(token) = known.token.clone() {
            request.headers_mut().insert(header::AUTHORIZATION, token);
        }
        let response = connection
            .sender
            .send_request(request)
            .await
            .map_err(LinkError::Http)?;
        let status = response.status();
        let body = Limited::new(response.into_body(), ANSWER_LIMIT)
            .collect()
            .await
            .map_err(|error| LinkError::Body(error.to_string()))?
            .to_bytes();
        if status == StatusCode::UNAUTHORIZED {
            self.doubt(&known);
        }
        if !status.is_success() {
            let text = crate::core::problem::peer_text(&String::from_utf8_lossy(&body));
            return Err(LinkError::Refused { status, text });
        }
        serde_json::from_slice(&body).map_err(LinkError::Decode)
    }
}

async fn dial(runner: PodRunner) -> Result<TcpStream, LinkError> {
    let connecting = timeout(CONNECT_TIMEOUT, TcpStream::connect(runner.at)).await;
    let connected = connecting.unwrap_or_else(|_| Err(ErrorKind::TimedOut.into()));
    let stream = connected.map_err(|source| LinkError::Connect {
        peer: RunnerAddress::Pod(runner),
        source,
    })?;
    // An order is one small packet that should not wait for another.
    let _ = stream.set_nodelay(true);
    Ok(stream)
}

async fn shake_hands(
    config: Arc<ClientConfig>,
    stream: TcpStream,
) -> std::io::Result<TlsStream<TcpStream>> {
    let name = ServerName::try_from(ORDERS_NAME).expect("a name that a certificate can hold");
    let shaking = TlsConnector::from(config).connect(name, stream);
    let shaken = timeout(CONNECT_TIMEOUT, shaking).await;
    shaken.unwrap_or_else(|_| Err(ErrorKind::TimedOut.into()))
}

fn tls_error(error: &std::io::Error) -> Option<&TlsError> {
    error.get_ref()?.downcast_ref()
}

/// Whether an error of a handshake is that of a peer that said something else than TLS.
fn answers_in_the_clear(error: &std::io::Error) -> bool {
    matches!(tls_error(error), Some(TlsError::InvalidMessage(_)))
}

/// Whether an error of a handshake is that of a peer that does not know TLS: it answered in words,
/// or hung up.
fn is_not_tls(error: &std::io::Error) -> bool {
    let hung_up = [
        ErrorKind::UnexpectedEof,
        ErrorKind::ConnectionReset,
        ErrorKind::BrokenPipe,
    ];
    answers_in_the_clear(error) || tls_error(error).is_none() && hung_up.contains(&error.kind())
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

/// Keeps a question open at a runner and tells of every answer and every silence, until `cancel`.
pub(super) async fn follow(
    mut link: RunnerLink,
    tell: impl Fn(Result<RunnerState, String>) + Send,
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
                    tell(Ok(state));
                }
            }
            Err(error) => {
                after = None;
                tell(Err(chain(&error)));
                tokio::select! {
                    () = cancel.cancelled() => return,
                    () = pause(retry) => {}
                }
                retry = (retry * 2).min(RETRY_CAP);
            }
        }
    }
}

#[cfg(test)]
mod tests;
