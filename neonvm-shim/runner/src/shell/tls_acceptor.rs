//! TLS on the runner's port at its pod's address. A connection that begins with a handshake gets
//! TLS, any other plain HTTP, on the same port. Kubelets and Prometheus use plain HTTP, as with
//! NeonVM's runner. Our controller sends orders and their token encrypted.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use daemon_kit::chain;
use daemon_kit::secret::{self, SecretError};
use daemon_kit::tls::{PemUnusable, Stamp, showing};
use protocol::runner::ORDERS_IDENTITY;
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor as RustlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::server::TlsStream;
use tokio_util::either::Either;

/// First byte of a TLS connection: the type of a handshake record.
const HANDSHAKE: u8 = 0x16;
/// Longest certificate or key file in bytes.
const FILE_LIMIT_BYTES: u64 = 64 << 10;

/// An accepted connection, in the clear or with TLS.
pub(super) type AcceptedStream = Either<TcpStream, Box<TlsStream<TcpStream>>>;

/// Accepts connections with or without TLS.
pub(super) struct TlsAcceptor(Option<Identity>);

impl TlsAcceptor {
    /// With the certificate beside the token that orders need. Without a token connections are in
    /// the clear.
    pub(super) fn new(token: Option<&Path>) -> Self {
        Self(token.and_then(Path::parent).map(Identity::of))
    }

    /// Waits for the first byte, and for the handshake if it begins one.
    ///
    /// # Errors
    /// The connection or the handshake failed.
    pub(super) async fn accept(&self, stream: TcpStream) -> io::Result<AcceptedStream> {
        let Some(identity) = &self.0 else {
            return Ok(Either::Left(stream));
        };
        let mut first = [0];
        stream.peek(&mut first).await?;
        if first != [HANDSHAKE] {
            return Ok(Either::Left(stream));
        }
        let acceptor = identity
            .acceptor()
            .ok_or_else(|| io::Error::other("there is no certificate to show"))?;
        let stream = acceptor.accept(stream).await?;
        Ok(Either::Right(Box::new(stream)))
    }
}

/// Certificate and key of a runner in files of the kubelet, which may be missing and are replaced
/// with the secret. Their mode is not checked: the volume is the pod's own, and a group of the pod
/// may read it.
struct Identity {
    files: [PathBuf; 2],
    loaded: Mutex<Option<Loaded>>,
}

/// Stamp of the files, and their last valid content. `None` if they were never valid.
struct Loaded {
    stamp: Stamp,
    config: Option<Arc<ServerConfig>>,
}

/// Errors of certificate and key files.
#[derive(Debug, thiserror::Error)]
enum Unusable {
    #[error(transparent)]
    File(#[from] SecretError),
    #[error("certificate or key")]
    Pem(#[from] PemUnusable),
}

impl Identity {
    fn of(dir: &Path) -> Self {
        Self {
            files: ORDERS_IDENTITY.map(|name| dir.join(name)),
            loaded: Mutex::new(None),
        }
    }

    /// Acceptor with the files' present or last valid content. An error is logged once.
    fn acceptor(&self) -> Option<RustlsAcceptor> {
        // Only whole values are stored, so a panic elsewhere leaves nothing half done.
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        let stamp = Stamp::of(self.files.iter().map(PathBuf::as_path));
        if loaded.as_ref().is_none_or(|loaded| loaded.stamp != stamp) {
            let read = self.read().inspect_err(|error| {
                tracing::warn!(
                    error = chain(error),
                    "failed to load the runner's certificate: orders by TLS are not possible"
                );
            });
            let before = loaded.take().and_then(|loaded| loaded.config);
            let config = read.ok().or(before);
            *loaded = Some(Loaded { stamp, config });
        }
        let config = loaded.as_ref()?.config.clone()?;
        Some(RustlsAcceptor::from(config))
    }

    fn read(&self) -> Result<Arc<ServerConfig>, Unusable> {
        let [cert, key] = &self.files;
        let (_, cert) = secret::read_public(cert, FILE_LIMIT_BYTES)?;
        let (_, key) = secret::read_public(key, FILE_LIMIT_BYTES)?;
        Ok(showing(&cert, &key)?)
    }
}

#[cfg(test)]
mod tests;
