//! One HTTP exchange over an open stream.

use bytes::Bytes;
use daemon_kit::http_client::{HttpClient, HttpError};
use hyper::http::uri::{InvalidUri, Uri};
use hyper::http::{Method, Response};
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};

/// Longest response in bytes. The state of a thousand VMs is much smaller.
const ANSWER_LIMIT_BYTES: usize = 64 << 20;

/// Sends one request and reads the whole response. The stream is closed after it.
///
/// # Errors
///
/// [`HttpError`].
pub(crate) async fn exchange<S>(
    stream: S,
    method: Method,
    route: &str,
    body: Option<&Value>,
) -> Result<Response<Bytes>, HttpError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let malformed = |error: InvalidUri| HttpError::Broken(error.into());
    let route: Uri = route.parse().map_err(malformed)?;
    let body = body.map(Value::to_string).unwrap_or_default();
    let client = HttpClient::over(stream, "bellows").await?;
    let mut client = client.with_body_limit(ANSWER_LIMIT_BYTES);
    client.exchange(method, route, body).await
}
