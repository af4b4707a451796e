//! Asks the monitor to execute another program in its process.

use std::io;
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::client::conn::http1::handshake;
use hyper::header::{CONTENT_TYPE, HOST, HeaderValue};
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use protocol::parts::control::{EXEC, Exec};
use tokio::net::UnixStream;
use tokio::time::timeout;

/// Longest wait for the monitor's response.
const LIMIT: Duration = Duration::from_secs(5);
/// Most bytes of a response.
const MAX_BODY_BYTES: usize = 4 << 10;

/// Response to the order.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Exchanged {
    /// The monitor executes the program, or has already.
    Begun,
    /// The monitor refuses, for this reason.
    Refused(String),
    /// No monitor listens at the socket.
    NoControl,
}

/// Sends the order to the control socket.
pub(super) async fn exec(socket: &Path, order: &Exec) -> Exchanged {
    match timeout(LIMIT, UnixStream::connect(socket)).await {
        Ok(Ok(stream)) => match timeout(LIMIT, exchange(stream, order)).await {
            Ok(Ok((status, _))) if status.is_success() => Exchanged::Begun,
            Ok(Ok((_, text))) => Exchanged::Refused(text),
            // The process may have changed before its response was whole. The caller looks.
            Ok(Err(_)) => Exchanged::Begun,
            Err(_) => {
                Exchanged::Refused(format!("the monitor is silent for {} s", LIMIT.as_secs()))
            }
        },
        Ok(Err(error)) if is_absent(&error) => Exchanged::NoControl,
        Ok(Err(error)) => Exchanged::Refused(format!("failed to connect to the monitor: {error}")),
        Err(_) => Exchanged::Refused("the monitor accepts no connection".to_owned()),
    }
}

fn is_absent(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionRefused, NotFound};
    matches!(error.kind(), NotFound | ConnectionRefused)
}

async fn exchange(
    stream: UnixStream,
    order: &Exec,
) -> Result<(StatusCode, String), Box<dyn std::error::Error + Send + Sync>> {
    let (mut sender, connection) = handshake(TokioIo::new(stream)).await?;
    let connection = tokio::spawn(connection);
    let body = Full::new(Bytes::from(serde_json::to_vec(order)?));
    let mut request = Request::post(EXEC).body(body)?;
    let headers = request.headers_mut();
    headers.insert(HOST, HeaderValue::from_static("monitor"));
    let json = HeaderValue::from_static("application/json");
    headers.insert(CONTENT_TYPE, json);
    let response = sender.send_request(request).await?;
    let status = response.status();
    let body = Limited::new(response.into_body(), MAX_BODY_BYTES);
    let body = body.collect().await?.to_bytes();
    connection.abort();
    Ok((status, String::from_utf8_lossy(&body).trim().to_owned()))
}
