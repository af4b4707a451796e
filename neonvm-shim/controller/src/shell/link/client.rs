//! A connection to a runner, for one request at a time.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use daemon_kit::http_client::HttpClient;
use daemon_kit::unix_socket;
use hyper::{Method, StatusCode, Uri};
use protocol::migration::{IncomingOrder, OutgoingOrder};
use protocol::runner::{CpusAhead, RunnerState, SizeOrder, control_socket};
use rustls::Error as TlsError;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;

use super::address::RunnerAddress;
use super::error::LinkError;
use super::transport::{dial, is_not_tls, responds_in_the_clear, shake_hands, tls_error};
use crate::core::observe::PodRunner;
use crate::core::problem::peer_text;
use crate::shell::runner_key::{Credentials, RunnerKey};

/// How long a runner may hold a request for its next state.
const POLL_TIME: Duration = Duration::from_secs(20);
/// How long a response may take beyond that.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(5);
/// The same two on a socket of this machine, where asking costs little: a runner that stands still
/// is noticed after both, and reported [`SILENCE_REPORTED`](crate::core::phases::SILENCE_REPORTED)
/// later.
const LOCAL_POLL_TIME: Duration = Duration::from_secs(2);
const LOCAL_RESPONSE_TIMEOUT: Duration = Duration::from_secs(2);
/// Longest response body in bytes.
const RESPONSE_LIMIT: usize = 1 << 20;

/// One connection to one runner, made again when it broke. One request at a time.
#[derive(Debug)]
pub struct RunnerLink {
    peer: RunnerAddress,
    key: Option<Arc<RunnerKey>>,
    connection: Option<Connection>,
}

/// A connection with the credentials by which it was opened.
#[derive(Debug)]
struct Connection {
    client: HttpClient,
    credentials: Credentials,
}

impl RunnerLink {
    /// Makes a link. The first request connects it.
    #[must_use]
    pub fn new(peer: RunnerAddress) -> Self {
        Self {
            peer,
            key: None,
            connection: None,
        }
    }

    /// Makes a link with credentials if the runner's port is open to others.
    pub(crate) fn with_key(peer: RunnerAddress, key: &Arc<RunnerKey>) -> Self {
        let needs_key = matches!(peer, RunnerAddress::Pod(_));
        Self {
            key: needs_key.then(|| Arc::clone(key)),
            ..Self::new(peer)
        }
    }

    /// The control socket of a pod's runner.
    #[must_use]
    pub fn socket(state_dir: &Path, namespace: &str, pod: &str) -> PathBuf {
        control_socket(state_dir, namespace, pod)
    }

    /// Reads the state. With `after`, waits until its generation is above that, or for
    /// [`POLL_TIME`] ([`LOCAL_POLL_TIME`]).
    ///
    /// # Errors
    /// [`LinkError`]; the next call connects again.
    pub async fn state(&mut self, after: Option<u64>) -> Result<RunnerState, LinkError> {
        let is_local = matches!(self.peer, RunnerAddress::Socket(_));
        let (uri, wait) = match after {
            None => ("/v1/state".to_owned(), Duration::ZERO),
            Some(generation) => {
                let wait = if is_local { LOCAL_POLL_TIME } else { POLL_TIME };
                let ms = wait.as_millis();
                (format!("/v1/state?after={generation}&wait_ms={ms}"), wait)
            }
        };
        let response = match after {
            Some(_) if is_local => LOCAL_RESPONSE_TIMEOUT,
            _ => RESPONSE_TIMEOUT,
        };
        self.exchange(Method::GET, &uri, Bytes::new(), wait + response)
            .await
    }

    /// Sends an order that was decided when `over` orders had been taken up. Returns the state with
    /// the order.
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
        self.exchange(Method::PUT, &uri, body.into(), RESPONSE_TIMEOUT)
            .await
    }

    /// Has CPUs plugged ahead of an order; returns the state in which that is held.
    ///
    /// # Errors
    /// [`LinkError`]; asking again does no harm.
    pub async fn put_ahead(&mut self, cpus: CpusAhead) -> Result<RunnerState, LinkError> {
        let body = serde_json::to_vec(&cpus).map_err(LinkError::Decode)?;
        self.exchange(Method::PUT, "/v1/ahead", body.into(), RESPONSE_TIMEOUT)
            .await
    }

    /// Has the guest held still or sent.
    ///
    /// # Errors
    /// [`LinkError`]; giving the order again does no harm. So it is with those below.
    pub async fn send_guest(&mut self, order: &OutgoingOrder) -> Result<RunnerState, LinkError> {
        let body = serde_json::to_vec(order).map_err(LinkError::Decode)?;
        self.exchange(Method::PUT, "/v1/outgoing", body.into(), RESPONSE_TIMEOUT)
            .await
    }

    /// Has it kept.
    ///
    /// # Errors
    /// [`LinkError`].
    pub async fn recall_guest(&mut self, id: &str) -> Result<RunnerState, LinkError> {
        let uri = format!("/v1/outgoing/{id}");
        self.exchange(Method::DELETE, &uri, Bytes::new(), RESPONSE_TIMEOUT)
            .await
    }

    /// Has the QEMU end that it has left.
    ///
    /// # Errors
    /// [`LinkError`].
    pub async fn quit(&mut self, id: &str) -> Result<RunnerState, LinkError> {
        let uri = format!("/v1/outgoing/{id}/done");
        self.exchange(Method::POST, &uri, Bytes::new(), RESPONSE_TIMEOUT)
            .await
    }

    /// Has a guest waited for.
    ///
    /// # Errors
    /// [`LinkError`].
    pub async fn receive_guest(&mut self, order: &IncomingOrder) -> Result<RunnerState, LinkError> {
        let body = serde_json::to_vec(order).map_err(LinkError::Decode)?;
        // The response comes when there is a disk and a QEMU.
        let limit = POLL_TIME + RESPONSE_TIMEOUT;
        self.exchange(Method::PUT, "/v1/incoming", body.into(), limit)
            .await
    }

    /// Has the guest run that has come.
    ///
    /// # Errors
    /// [`LinkError`].
    pub async fn begin_guest(&mut self, id: &str) -> Result<RunnerState, LinkError> {
        let uri = format!("/v1/incoming/{id}/begin");
        self.exchange(Method::POST, &uri, Bytes::new(), RESPONSE_TIMEOUT)
            .await
    }

    /// Connects if there is no connection, within the time of a response.
    ///
    /// # Errors
    /// All of [`LinkError`] but [`LinkError::Refused`] and [`LinkError::Decode`]; the next call
    /// tries again.
    pub async fn connect(&mut self) -> Result<(), LinkError> {
        let connected = timeout(RESPONSE_TIMEOUT, self.connect_unbounded()).await;
        connected.unwrap_or(Err(LinkError::Timeout(RESPONSE_TIMEOUT)))
    }

    async fn connect_unbounded(&mut self) -> Result<(), LinkError> {
        if self
            .connection
            .as_ref()
            .is_some_and(|open| open.client.is_usable())
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
                let stream = unix_socket::connect(path).await.map_err(refused)?;
                self.begin(stream, Credentials::default()).await
            }
            RunnerAddress::Pod(runner) => self.connect_to_pod(*runner).await,
        }
    }

    /// Connects by TLS if the VM's secret has a certificate. A runner that may be too old for TLS
    /// is connected in the clear if the handshake fails.
    async fn connect_to_pod(&mut self, runner: PodRunner) -> Result<(), LinkError> {
        let credentials = match &self.key {
            Some(key) => key.credentials().await?,
            None => Credentials::default(),
        };
        let peer = || RunnerAddress::Pod(runner);
        let Some(config) = credentials.certificate.clone() else {
            // There may be one by now.
            self.invalidate(&credentials);
            if runner.by_tls {
                return Err(LinkError::NoCertificate { peer: peer() });
            }
            return self.begin(dial(runner).await?, credentials).await;
        };
        match shake_hands(config, dial(runner).await?).await {
            Ok(stream) => self.begin(stream, credentials).await,
            Err(error) if !runner.by_tls && is_not_tls(&error) => {
                self.begin(dial(runner).await?, credentials).await
            }
            Err(error) if responds_in_the_clear(&error) => Err(LinkError::Clear { peer: peer() }),
            Err(source) => {
                if matches!(tls_error(&source), Some(TlsError::InvalidCertificate(_))) {
                    // The secret may have been replaced.
                    self.invalidate(&credentials);
                }
                Err(LinkError::Tls {
                    peer: peer(),
                    source,
                })
            }
        }
    }

    fn invalidate(&self, used: &Credentials) {
        if let Some(key) = &self.key {
            key.invalidate(used);
        }
    }

    async fn begin<S>(&mut self, stream: S, credentials: Credentials) -> Result<(), LinkError>
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let client = HttpClient::over(stream, "runner")
            .await
            .map_err(LinkError::Http)?
            .with_authorization(credentials.token.clone())
            .with_body_limit(RESPONSE_LIMIT);
        self.connection = Some(Connection {
            client,
            credentials,
        });
        Ok(())
    }

    async fn exchange(
        &mut self,
        method: Method,
        uri: &str,
        body: Bytes,
        limit: Duration,
    ) -> Result<RunnerState, LinkError> {
        let response = timeout(limit, self.exchange_unbounded(method, uri, body)).await;
        let response = response.unwrap_or(Err(LinkError::Timeout(limit)));
        if response.is_err() {
            // A connection that failed half-way may hold the rest of a response.
            self.connection = None;
        }
        response
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
        let credentials = connection.credentials.clone();
        let uri: Uri = uri.parse().expect("the path is well formed");
        let response = connection
            .client
            .exchange(method, uri, body)
            .await
            .map_err(LinkError::Http)?;
        let (status, body) = (response.status(), response.into_body());
        if status == StatusCode::UNAUTHORIZED {
            self.invalidate(&credentials);
        }
        if !status.is_success() {
            let text = peer_text(&String::from_utf8_lossy(&body));
            return Err(LinkError::Refused { status, text });
        }
        serde_json::from_slice(&body).map_err(LinkError::Decode)
    }
}
