//! A small HTTP/1.1 client over any stream, for neonvmd and for runners' control sockets.

use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::{Method, Request, StatusCode, header};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixStream;

/// Longest response in bytes: a state is a few kilobytes.
const MAX_ANSWER_BYTES: usize = 1 << 20;

/// Errors of a request to neonvmd or a runner.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    /// The connection could not be made.
    #[error("cannot connect")]
    Connect(#[source] std::io::Error),
    /// The connection failed, or the peer does not speak HTTP.
    #[error("the connection failed")]
    Broken(#[source] hyper::Error),
    /// The response is too large or incomplete.
    #[error("the response cannot be read: {0}")]
    Answer(String),
    /// No response arrived within this time.
    #[error("no response within {} ms", .0.as_millis())]
    Late(Duration),
    /// The response has this status, which is not a success.
    #[error("{0}: {1}")]
    Status(StatusCode, String),
    /// The response is not the expected JSON.
    #[error("the response is malformed")]
    Malformed(#[source] serde_json::Error),
}

/// One HTTP connection with sequential requests.
#[derive(Debug)]
pub struct Link {
    sender: SendRequest<Full<Bytes>>,
    host: String,
    authorization: Option<header::HeaderValue>,
}

impl Link {
    /// Starts HTTP on a connected stream.
    ///
    /// # Errors
    /// [`HttpError::Broken`].
    pub async fn over<S>(stream: S, host: &str) -> Result<Self, HttpError>
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let (sender, connection) = handshake(TokioIo::new(stream))
            .await
            .map_err(HttpError::Broken)?;
        // The next request reports its end.
        tokio::spawn(async move { drop(connection.await) });
        Ok(Self {
            sender,
            host: host.to_owned(),
            authorization: None,
        })
    }

    /// Adds `token` to each request from now on.
    #[must_use]
    pub fn with_bearer(mut self, token: &str) -> Self {
        let value = header::HeaderValue::try_from(format!("Bearer {token}")).ok();
        self.authorization = value.map(|mut value| {
            value.set_sensitive(true);
            value
        });
        self
    }

    /// Sends a request and reads the whole response, which must be a success.
    ///
    /// # Errors
    /// [`HttpError`]; after anything but [`HttpError::Status`] the link cannot be used again.
    pub async fn send(
        &mut self,
        method: Method,
        path: &str,
        body: impl Into<Bytes>,
        limit: Duration,
    ) -> Result<Bytes, HttpError> {
        let mut request = Request::new(Full::new(body.into()));
        *request.method_mut() = method;
        // Paths are constants of this crate; an invalid one gets 404.
        *request.uri_mut() = path.parse().unwrap_or_default();
        if let Ok(host) = self.host.parse() {
            request.headers_mut().insert(header::HOST, host);
        }
        if let Some(shown) = &self.authorization {
            request
                .headers_mut()
                .insert(header::AUTHORIZATION, shown.clone());
        }
        let json = header::HeaderValue::from_static("application/json");
        request.headers_mut().insert(header::CONTENT_TYPE, json);
        let exchange = async {
            self.sender.ready().await.map_err(HttpError::Broken)?;
            let response = self
                .sender
                .send_request(request)
                .await
                .map_err(HttpError::Broken)?;
            let status = response.status();
            let body = Limited::new(response.into_body(), MAX_ANSWER_BYTES)
                .collect()
                .await
                .map_err(|error| HttpError::Answer(error.to_string()))?
                .to_bytes();
            if status.is_success() {
                return Ok(body);
            }
            let text = String::from_utf8_lossy(&body);
            Err(HttpError::Status(
                status,
                text.trim().chars().take(500).collect(),
            ))
        };
        tokio::time::timeout(limit, exchange)
            .await
            .map_err(|_| HttpError::Late(limit))?
    }
}

/// Sends one request over a new connection to a unix socket.
///
/// # Errors
/// [`HttpError`].
pub async fn over_unix(
    socket: &Path,
    method: Method,
    path: &str,
    body: impl Into<Bytes>,
    limit: Duration,
) -> Result<Bytes, HttpError> {
    let stream = UnixStream::connect(socket)
        .await
        .map_err(HttpError::Connect)?;
    Link::over(stream, "runner")
        .await?
        .send(method, path, body, limit)
        .await
}
