//! TLS to a monitor, with the agent's certificate and the authority of the monitors' certificates.
//!
//! Each connection reads the files again, so renewed files need no restart. Connections are few and
//! long.

use std::io;

use daemon_kit::reload::Files as _;
use daemon_kit::tls::{ClientFiles, IdentityFiles, TlsError as FilesError};
use rustls::pki_types::ServerName;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use transport::Stream;

use crate::shell::config;

/// Why TLS with a monitor failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum TlsError {
    #[error(transparent)]
    Files(#[from] FilesError),
    #[error("{0:?} is no name that a certificate can hold: set monitor.tls.serverName")]
    Name(String),
    #[error("no TLS with the monitor")]
    Handshake(#[source] io::Error),
}

/// Makes a TLS connection over `stream` to the monitor of the pod at `address`. Our monitors speak
/// TLS 1.3; others speak no TLS.
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
    let client = ClientFiles {
        authority: files.ca_file.clone(),
        identity: Some(IdentityFiles {
            cert: files.cert_file.clone(),
            key: files.key_file.clone(),
        }),
    };
    let connector = TlsConnector::from(client.read()?);
    let connected = connector.connect(name, stream).await;
    connected.map_err(TlsError::Handshake)
}
