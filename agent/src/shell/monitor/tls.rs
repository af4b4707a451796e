//! TLS to a monitor: the agent's own certificate, and the authority that has signed the monitors'.
//!
//! The files are read for each connection, so that renewed ones need no restart; connections are few and long.

use std::io;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::pem::{Error as PemError, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::shell::config;

/// Most that is read of one file, bytes. A chain of a few certificates has a tenth of it.
const FILE_LIMIT_BYTES: u64 = 256 * 1024;
/// Bits of a key file's mode that let others than its owner at it.
const OTHERS: u32 = 0o077;

/// Why there is no TLS with a monitor.
#[derive(Debug, thiserror::Error)]
pub(super) enum TlsError {
    #[error("cannot read {}", .path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{} has more than {FILE_LIMIT_BYTES} bytes", .0.display())]
    TooLong(PathBuf),
    #[error("{} can be read by others than its owner (mode {mode:04o}): make it 0600 or 0400", .path.display())]
    KeyIsOpen { path: PathBuf, mode: u32 },
    #[error("{} holds no {what} in PEM form", .path.display())]
    Pem {
        path: PathBuf,
        what: &'static str,
        #[source]
        source: PemError,
    },
    #[error("certificate, key or authority cannot be used")]
    Identity(#[source] rustls::Error),
    #[error("no TLS with the monitor")]
    Handshake(#[source] io::Error),
}

/// Shakes hands by TLS with the monitor at an address.
pub(super) async fn connect(
    files: &config::MonitorTls,
    address: IpAddr,
    stream: TcpStream,
) -> Result<TlsStream<TcpStream>, TlsError> {
    let mut roots = RootCertStore::empty();
    for authority in certificates(&files.ca_file).await? {
        roots.add(authority).map_err(TlsError::Identity)?;
    }
    let chain = certificates(&files.cert_file).await?;
    let key = key(&files.key_file).await?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    // Our monitors speak nothing older, and others no TLS at all.
    let config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(TlsError::Identity)?
        .with_root_certificates(roots)
        .with_client_auth_cert(chain, key)
        .map_err(TlsError::Identity)?;
    let name = match &files.server_name {
        Some(name) => name.0.clone(),
        None => ServerName::IpAddress(address.into()),
    };
    let connector = TlsConnector::from(Arc::new(config));
    let connected = connector.connect(name, stream).await;
    connected.map_err(TlsError::Handshake)
}

async fn content(path: &Path) -> Result<(u32, Vec<u8>), TlsError> {
    let unreadable = |source| TlsError::Read {
        path: path.to_owned(),
        source,
    };
    let found = tokio::fs::metadata(path).await.map_err(unreadable)?;
    if found.len() > FILE_LIMIT_BYTES {
        return Err(TlsError::TooLong(path.to_owned()));
    }
    let content = tokio::fs::read(path).await.map_err(unreadable)?;
    Ok((found.mode(), content))
}

async fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let bad = |source| TlsError::Pem {
        path: path.to_owned(),
        what: "certificate",
        source,
    };
    let (_, text) = content(path).await?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    let found = found.map_err(bad)?;
    if found.is_empty() {
        return Err(bad(PemError::NoItemsFound));
    }
    Ok(found)
}

async fn key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    let (mode, text) = content(path).await?;
    if mode & OTHERS != 0 {
        return Err(TlsError::KeyIsOpen {
            path: path.to_owned(),
            mode: mode & 0o7777,
        });
    }
    PrivateKeyDer::from_pem_slice(&text).map_err(|source| TlsError::Pem {
        path: path.to_owned(),
        what: "private key",
        source,
    })
}
