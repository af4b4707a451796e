//! Streams to runners by TCP and TLS.

use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use protocol::runner::ORDERS_NAME;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, Error as TlsError};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::address::RunnerAddress;
use super::error::LinkError;
use crate::core::observe::PodRunner;

/// How long a connection to a pod may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

pub(super) async fn dial(runner: PodRunner) -> Result<TcpStream, LinkError> {
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

pub(super) async fn shake_hands(
    config: Arc<ClientConfig>,
    stream: TcpStream,
) -> std::io::Result<TlsStream<TcpStream>> {
    let name = ServerName::try_from(ORDERS_NAME).expect("a name that a certificate can hold");
    let shaking = TlsConnector::from(config).connect(name, stream);
    let shaken = timeout(CONNECT_TIMEOUT, shaking).await;
    shaken.unwrap_or_else(|_| Err(ErrorKind::TimedOut.into()))
}

pub(super) fn tls_error(error: &std::io::Error) -> Option<&TlsError> {
    error.get_ref()?.downcast_ref()
}

/// Whether a handshake failed because the peer sent something other than TLS.
pub(super) fn responds_in_the_clear(error: &std::io::Error) -> bool {
    matches!(tls_error(error), Some(TlsError::InvalidMessage(_)))
}

/// Whether a handshake failed because the peer does not support TLS: it sent other bytes, or hung
/// up.
pub(super) fn is_not_tls(error: &std::io::Error) -> bool {
    let hung_up = [
        ErrorKind::UnexpectedEof,
        ErrorKind::ConnectionReset,
        ErrorKind::BrokenPipe,
    ];
    responds_in_the_clear(error) || tls_error(error).is_none() && hung_up.contains(&error.kind())
}
