//! TLS on the agent's port. Both sides show a certificate: the monitor the one of its files, the
//! agent one that a given authority has signed. Only then is there a WebSocket, so a stranger
//! cannot take the present agent's place.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::{Error as PemError, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{VerifierBuilderError, WebPkiClientVerifier};
use rustls::{CertificateError, Error as RustlsError, RootCertStore, ServerConfig};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use transport::Stream;

use super::config::TlsFiles;
use super::logging::chain;
use crate::core::handshake::HandshakeFailure;

/// Most that is read of one file, bytes. A chain of a few certificates has a tenth of it.
const FILE_LIMIT_BYTES: u64 = 256 * 1024;
/// Bits of a key file's mode that let others than its owner at it.
const OTHERS: u32 = 0o077;
/// How long a peer that was refused may take to read why.
const GOODBYE_LIMIT: Duration = Duration::from_secs(1);

/// Why certificates and keys cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("cannot read {}", .path.display())]
    Read {
        /// Certificate, key or authority file, as configured.
        path: PathBuf,
        /// Error of opening, examining or reading the file.
        #[source]
        source: io::Error,
    },
    /// The key's file is open to others.
    #[error("{} can be read by others than its owner (mode {mode:04o}): make it 0600 or 0400", .path.display())]
    KeyIsOpen {
        /// The key's file.
        path: PathBuf,
        /// Permission bits of the file, of which some are set for group or others.
        mode: u32,
    },
    /// A file does not hold what it should.
    #[error("{} holds no {what} in PEM form", .path.display())]
    Pem {
        /// Certificate or key file whose content is not PEM of that kind.
        path: PathBuf,
        /// What it should hold.
        what: &'static str,
        /// Why it does not.
        #[source]
        source: PemError,
    },
    /// Certificates and key do not go together, or not with TLS.
    #[error("certificate and key cannot be used")]
    Identity(#[source] RustlsError),
    /// The authority cannot be used.
    #[error("the agents' authority cannot be used")]
    Authority(#[source] VerifierBuilderError),
}

/// How three files looked when they were read.
type Stamp = [Option<(u64, u64, i64, i64)>; 3];

/// The monitor's side of TLS, as its files have it.
#[derive(Debug)]
pub struct Identity {
    files: TlsFiles,
    stamp: Stamp,
    config: Arc<ServerConfig>,
}

impl Identity {
    /// Reads the files.
    ///
    /// # Errors
    /// [`TlsError`], about the first thing that is wrong.
    pub fn load(files: TlsFiles) -> Result<Self, TlsError> {
        // Before they are read: a change in between is then seen as one.
        let stamp = stamp_of(&files);
        let config = read(&files)?;
        Ok(Self {
            files,
            stamp,
            config,
        })
    }

    /// For the next connection, by the files as they are now. Files that cannot be used, such as a
    /// certificate whose key is yet to be written, leave in force what was.
    pub fn acceptor(&mut self) -> TlsAcceptor {
        let stamp = stamp_of(&self.files);
        if stamp != self.stamp {
            self.stamp = stamp;
            match read(&self.files) {
                Ok(config) => {
                    tracing::info!("certificates have changed and are in use");
                    self.config = config;
                }
                Err(error) => {
                    let error = chain(&error);
                    tracing::warn!(
                        error,
                        "certificates have changed and cannot be used: the ones before stay"
                    );
                }
            }
        }
        TlsAcceptor::from(Arc::clone(&self.config))
    }
}

/// Shakes hands by TLS.
///
/// # Errors
/// The reason, as it is counted. The peer is told first.
pub async fn accept(acceptor: TlsAcceptor, stream: Stream) -> Result<Stream, HandshakeFailure> {
    match acceptor.accept(stream).into_fallible().await {
        Ok(stream) => Ok(Box::new(stream)),
        Err((error, stream)) => {
            let failure = failure_of(&error);
            tracing::debug!(%error, reason = failure.label(), "TLS handshake failed");
            say_goodbye(stream).await;
            Err(failure)
        }
    }
}

/// The peer has been told why; a socket closed with unread input would take that back (RFC 1122
/// §4.2.2.13).
async fn say_goodbye(mut stream: Stream) {
    let goodbye = async {
        if stream.shutdown().await.is_ok() {
            let mut ignored = [0; 1024];
            while matches!(stream.read(&mut ignored).await, Ok(count) if count > 0) {}
        }
    };
    let _ = timeout(GOODBYE_LIMIT, goodbye).await;
}

/// The reason behind an error of a TLS handshake.
fn failure_of(error: &io::Error) -> HandshakeFailure {
    let inner = error.get_ref();
    let Some(error) = inner.and_then(|inner| inner.downcast_ref::<RustlsError>()) else {
        return HandshakeFailure::Closed;
    };
    match error {
        RustlsError::NoCertificatesPresented => HandshakeFailure::TlsNoCertificate,
        RustlsError::InvalidCertificate(
            CertificateError::Expired
            | CertificateError::ExpiredContext { .. }
            | CertificateError::NotValidYet
            | CertificateError::NotValidYetContext { .. },
        ) => HandshakeFailure::TlsExpired,
        RustlsError::InvalidCertificate(_) => HandshakeFailure::TlsUntrusted,
        RustlsError::InvalidMessage(_) => HandshakeFailure::NotTls,
        _ => HandshakeFailure::TlsFailed,
    }
}

fn stamp_of(files: &TlsFiles) -> Stamp {
    [&files.cert, &files.key, &files.client_ca].map(|path| {
        let found = std::fs::metadata(path).ok()?;
        // The time of a change of mode or content, which nobody can set back.
        Some((found.ino(), found.size(), found.ctime(), found.ctime_nsec()))
    })
}

fn read(files: &TlsFiles) -> Result<Arc<ServerConfig>, TlsError> {
    let chain = certificates(&files.cert)?;
    let key = key(&files.key)?;
    let provider = Arc::new(provider());
    let mut roots = RootCertStore::empty();
    for authority in certificates(&files.client_ca)? {
        roots.add(authority).map_err(TlsError::Identity)?;
    }
    let verifier =
        WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider));
    let verifier = verifier.build().map_err(TlsError::Authority)?;
    // Both ends are ours, so nothing older is needed.
    let builder = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(TlsError::Identity)?;
    let config = builder
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain, key)
        .map_err(TlsError::Identity)?;
    Ok(Arc::new(config))
}

fn provider() -> CryptoProvider {
    ring::default_provider()
}

fn content(path: &Path) -> Result<(u32, Vec<u8>), TlsError> {
    let unreadable = |source| TlsError::Read {
        path: path.to_owned(),
        source,
    };
    let file = File::open(path).map_err(unreadable)?;
    // Of the file that is read, not of one that has its name by now.
    let mode = file.metadata().map_err(unreadable)?.mode();
    let mut content = Vec::new();
    let read = file.take(FILE_LIMIT_BYTES).read_to_end(&mut content);
    read.map_err(unreadable)?;
    Ok((mode, content))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let bad = |source| TlsError::Pem {
        path: path.to_owned(),
        what: "certificate",
        source,
    };
    let (_, text) = content(path)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    let found = found.map_err(bad)?;
    if found.is_empty() {
        return Err(bad(PemError::NoItemsFound));
    }
    Ok(found)
}

fn key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    let (mode, text) = content(path)?;
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
