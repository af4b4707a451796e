//! TLS to a monitor: the agent's own certificate, and the authority that has signed the monitors'.
//!
//! The files are read for each connection, so that renewed ones need no restart; connections are
//! few and long.

use std::io;

use daemon_kit::tls::{ClientFiles, IdentityFiles, TlsError as FilesError};
use rustls::pki_types::ServerName;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use transport::Stream;

use crate::shell::config;

/// Why there is no TLS with a monitor.
#[derive(Debug, thiserror::Error)]
pub(super) enum TlsError {
    #[error(transparent)]
    Files(#[from] FilesError),
    #[error("{0:?} is no name that a certificate can hold: set monitor.tls.serverName")]
    Name(String),
    #[error("no TLS with the monitor")]
    Handshake(#[source] io::Error),
}

/// Shakes hands by TLS with the monitor of the pod at an address, whatever carries it. Our monitors
/// speak nothing older than TLS 1.3, and others no TLS at all.
pub(super) async fn connect(
    files: &config::MonitorTls,
    address: &str,
    stream: Stream,
) -> Result<TlsStream<Stream>, TlsError> {
    let name = match &files.server_name {
        Some(name) => name.0.clone(),
        None => {
            ServerName::try_from(address.to_owned()).map_err(|_| TlsError::Name(address.into()))?
        }
    };
    let files = ClientFiles {
        authority: files.ca_file.clone(),
        identity: Some(IdentityFiles {
            cert: files.cert_file.clone(),
            key: files.key_file.clone(),
        }),
    };
    let connector = TlsConnector::from(files.read()?);
    let connected = connector.connect(name, stream).await;
    connected.map_err(TlsError::Handshake)
}
