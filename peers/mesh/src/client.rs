//! Requests to other machines: HTTPS, with the certificate and the token of the key.

use std::net::SocketAddr;
use std::time::Duration;

use axum::body::Bytes;
use daemon_kit::http_client::{HttpClient, HttpError};
use hyper::Method;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use crate::identity::SERVER_NAME;
use crate::keys::Keys;

/// Longest time of one request, and of a connection's start.
pub(crate) const REQUEST_WITHIN: Duration = Duration::from_secs(5);

/// Why a request had no success.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CallError {
    #[error("no connection: {0}")]
    Connect(std::io::Error),
    /// The machine shows another certificate.
    #[error("another key: {0}")]
    Key(std::io::Error),
    #[error("no connection within {} s", REQUEST_WITHIN.as_secs())]
    Late,
    #[error(transparent)]
    Http(#[from] HttpError),
}

/// Connects to a machine. Each key of the file is tried in turn.
pub(crate) async fn connect(keys: &Keys, address: SocketAddr) -> Result<HttpClient, CallError> {
    let mut last = CallError::Late;
    for key in keys.all() {
        let attempt = async {
            let stream = TcpStream::connect(address)
                .await
                .map_err(CallError::Connect)?;
            // Requests are small: an error only makes them slower.
            let _set = stream.set_nodelay(true);
            let name = ServerName::try_from(SERVER_NAME)
                .map_err(|error| CallError::Key(std::io::Error::other(error)))?;
            let connector = TlsConnector::from(key.identity.client.clone());
            let stream =
                connector
                    .connect(name, stream)
                    .await
                    .map_err(|error| match error.kind() {
                        std::io::ErrorKind::InvalidData => CallError::Key(error),
                        _ => CallError::Connect(error),
                    })?;
            let client = HttpClient::over(stream, SERVER_NAME).await?;
            Ok(client.with_bearer(&key.bearer))
        };
        match timeout(REQUEST_WITHIN, attempt).await {
            Ok(Ok(client)) => return Ok(client),
            Ok(Err(error @ CallError::Key(_))) => last = error,
            Ok(Err(error)) => return Err(error),
            Err(_) => return Err(CallError::Late),
        }
    }
    Err(last)
}

/// One request over a new connection.
pub(crate) async fn call(
    keys: &Keys,
    address: SocketAddr,
    method: Method,
    path: &str,
    body: impl Into<Bytes>,
) -> Result<Bytes, CallError> {
    let mut client = connect(keys, address).await?;
    Ok(client.send(method, path, body, REQUEST_WITHIN).await?)
}
