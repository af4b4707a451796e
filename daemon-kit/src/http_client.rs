//! HTTP/1.1 client over any stream, with limits of size and time. A connection carries one request
//! at a time.

use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue};
use hyper::{Method, Request, Response, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::unix_socket;

/// Longest response body in bytes, unless [`HttpClient::with_body_limit`] sets another limit. The
/// state of a runner is a few kilobytes.
const BODY_LIMIT_BYTES: usize = 1 << 20;
/// Most characters of a refusal that [`HttpError::Status`] holds.
const REFUSAL_CHARS: usize = 500;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    /// The connection could not be made.
    #[error("cannot connect")]
    Connect(#[source] std::io::Error),
    /// The connection failed, or the peer does not speak HTTP.
    #[error("the connection ended before the answer was whole")]
    Broken(#[source] BoxError),
    /// The body of the response is longer than this number of bytes.
    #[error("the answer is longer than {0} bytes")]
    TooLong(usize),
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

fn broken(error: impl Into<BoxError>) -> HttpError {
    HttpError::Broken(error.into())
}

/// A client's HTTP connection. Its requests have the content type JSON.
#[derive(Debug)]
pub struct HttpClient {
    sender: SendRequest<Full<Bytes>>,
    host: &'static str,
    authorization: Option<HeaderValue>,
    body_limit: usize,
}

impl HttpClient {
    /// Starts HTTP on a connected stream. Requests name `host`.
    ///
    /// # Errors
    /// [`HttpError::Broken`].
    pub async fn over<S>(stream: S, host: &'static str) -> Result<Self, HttpError>
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let (sender, connection) = handshake(TokioIo::new(stream)).await.map_err(broken)?;
        // Ends once the client is dropped or the peer closes. The next request reports an error.
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(error = crate::chain(&error), "HTTP connection closed");
            }
        });
        Ok(Self {
            sender,
            host,
            authorization: None,
            body_limit: BODY_LIMIT_BYTES,
        })
    }

    /// Adds a bearer token to each request from now on.
    #[must_use]
    pub fn with_bearer(self, token: &str) -> Self {
        let value = HeaderValue::try_from(format!("Bearer {token}")).ok();
        self.with_authorization(value.map(|mut value| {
            value.set_sensitive(true);
            value
        }))
    }

    /// Sets the value of `Authorization` for each request from now on.
    #[must_use]
    pub fn with_authorization(mut self, value: Option<HeaderValue>) -> Self {
        self.authorization = value;
        self
    }

    /// Sets the longest body of a response.
    #[must_use]
    pub fn with_body_limit(mut self, bytes: usize) -> Self {
        self.body_limit = bytes;
        self
    }

    /// Whether the connection is open and has no request in progress.
    #[must_use]
    pub fn is_usable(&self) -> bool {
        self.sender.is_ready() && !self.sender.is_closed()
    }

    /// Sends a request and reads the whole response, of any status. The caller bounds the time.
    ///
    /// # Errors
    /// [`HttpError::Broken`] and [`HttpError::TooLong`]. The connection cannot be used again.
    pub async fn exchange(
        &mut self,
        method: Method,
        uri: Uri,
        body: impl Into<Bytes>,
    ) -> Result<Response<Bytes>, HttpError> {
        let mut request = Request::new(Full::new(body.into()));
        *request.method_mut() = method;
        *request.uri_mut() = uri;
        let headers = request.headers_mut();
        headers.insert(HOST, HeaderValue::from_static(self.host));
        let json = HeaderValue::from_static("application/json");
        headers.insert(CONTENT_TYPE, json);
        if let Some(shown) = &self.authorization {
            headers.insert(AUTHORIZATION, shown.clone());
        }
        self.sender.ready().await.map_err(broken)?;
        let response = self.sender.send_request(request).await.map_err(broken)?;
        let (head, body) = response.into_parts();
        match Limited::new(body, self.body_limit).collect().await {
            Ok(body) => Ok(Response::from_parts(head, body.to_bytes())),
            Err(error) if error.is::<LengthLimitError>() => {
                Err(HttpError::TooLong(self.body_limit))
            }
            Err(error) => Err(HttpError::Broken(error)),
        }
    }

    /// Sends a request and reads the whole response within `limit`. It must be a success.
    ///
    /// # Errors
    /// [`HttpError`]. After anything but [`HttpError::Status`] the connection cannot be used again.
    pub async fn send(
        &mut self,
        method: Method,
        path: &str,
        body: impl Into<Bytes>,
        limit: Duration,
    ) -> Result<Bytes, HttpError> {
        // An invalid path becomes `/`, which gets 404.
        let exchange = self.exchange(method, path.parse().unwrap_or_default(), body);
        let response = tokio::time::timeout(limit, exchange).await;
        let response = response.map_err(|_| HttpError::Late(limit))??;
        if response.status().is_success() {
            return Ok(response.into_body());
        }
        let text = refusal(response.body());
        Err(HttpError::Status(response.status(), text))
    }
}

/// The begin of a refusal's text, for an error message.
#[must_use]
pub fn refusal(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body);
    text.trim().chars().take(REFUSAL_CHARS).collect()
}

/// Sends one request over a new connection to a unix socket. See [`HttpClient::send`].
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
    let stream = unix_socket::connect(socket)
        .await
        .map_err(HttpError::Connect)?;
    HttpClient::over(stream, "runner")
        .await?
        .send(method, path, body, limit)
        .await
}

#[cfg(test)]
mod tests;
