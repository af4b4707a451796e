//! One HTTP exchange over an open stream.

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use hyper::http::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::task::AbortOnDropHandle;

/// Longest response in bytes. The state of a thousand VMs is much smaller.
const ANSWER_LIMIT_BYTES: usize = 64 << 20;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Why an exchange failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HttpError {
    #[error("the connection ended before the answer was whole")]
    Broken(#[source] BoxError),
    #[error("the answer is longer than {ANSWER_LIMIT_BYTES} bytes")]
    Length,
}

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
) -> Result<(StatusCode, Bytes), HttpError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let body = body.map(Value::to_string).unwrap_or_default();
    let request = Request::builder()
        .method(method)
        .uri(route)
        .header("host", "bellows")
        .header("content-type", "application/json")
        .body(Full::new(Bytes::from(body)))
        .map_err(broken)?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .map_err(broken)?;
    let _driver = AbortOnDropHandle::new(tokio::spawn(connection));
    let answer = sender.send_request(request).await.map_err(broken)?;
    let status = answer.status();
    let body = Limited::new(answer.into_body(), ANSWER_LIMIT_BYTES);
    match body.collect().await {
        Ok(whole) => Ok((status, whole.to_bytes())),
        Err(error) if error.is::<LengthLimitError>() => Err(HttpError::Length),
        Err(error) => Err(HttpError::Broken(error)),
    }
}

fn broken(error: impl Into<BoxError>) -> HttpError {
    HttpError::Broken(error.into())
}
