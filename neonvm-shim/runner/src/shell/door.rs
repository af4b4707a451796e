//! The runner's port at its pod's address. Who begins by TLS is answered by it, everybody else in
//! plain HTTP, on the same port: kubelets and Prometheus ask as they ask NeonVM's runner, and our
//! controller's orders, with the token among them, go over the wire encrypted.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use daemon_kit::chain;
use daemon_kit::secret::{self, SecretError};
use daemon_kit::tls::{PemUnusable, Stamp, showing};
use protocol::runner::ORDERS_IDENTITY;
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::server::TlsStream;
use tokio_util::either::Either;

/// First byte of whoever begins by TLS: the type of the record that a handshake is in.
const HANDSHAKE: u8 = 0x16;
/// Most that is read of a file, bytes.
const FILE_LIMIT_BYTES: u64 = 64 << 10;

/// One who came in, in the clear or by TLS.
pub(super) type Guest = Either<TcpStream, Box<TlsStream<TcpStream>>>;

/// See the module.
pub(super) struct Door(Option<Identity>);

impl Door {
    /// With the certificate beside the token that orders need; in the clear alone without a token.
    pub(super) fn new(token: Option<&Path>) -> Self {
        Self(token.and_then(Path::parent).map(Identity::of))
    }

    /// Finds out what one speaks who came, for as long as that takes.
    ///
    /// # Errors
    /// That of the connection, or of the handshake.
    pub(super) async fn enter(&self, stream: TcpStream) -> io::Result<Guest> {
        let Some(identity) = &self.0 else {
            return Ok(Either::Left(stream));
        };
        let mut first = [0];
        stream.peek(&mut first).await?;
        if first != [HANDSHAKE] {
            return Ok(Either::Left(stream));
        }
        let acceptor = identity.acceptor();
        let acceptor =
            acceptor.ok_or_else(|| io::Error::other("there is no certificate to show"))?;
        let stream = acceptor.accept(stream).await?;
        Ok(Either::Right(Box::new(stream)))
    }
}

/// What a runner is known by, as the kubelet has it in files: there or not yet, and replaced when
/// the secret is made anew. Whom their mode lets in does not matter: the volume is the pod's own,
/// and a group of the pod's may be on it.
struct Identity {
    files: [PathBuf; 2],
    loaded: Mutex<Option<Loaded>>,
}

/// How the files looked, and what they held then, or before if that was no good; `None`: they never
/// held anything.
struct Loaded {
    stamp: Stamp,
    config: Option<Arc<ServerConfig>>,
}

/// Why files are no good.
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

    /// Of the files as they are now, or as they were when they were good. What is wrong with them
    /// is told once.
    fn acceptor(&self) -> Option<TlsAcceptor> {
        // Only whole values are stored, so a panic elsewhere leaves nothing half done.
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        let stamp = Stamp::of(self.files.iter().map(PathBuf::as_path));
        if loaded.as_ref().is_none_or(|loaded| loaded.stamp != stamp) {
            let read = self.read().inspect_err(|error| {
                tracing::warn!(
                    error = chain(error),
                    "orders cannot come by TLS: what the runner is known by is no good"
                );
            });
            let before = loaded.take().and_then(|loaded| loaded.config);
            let config = read.ok().or(before);
            *loaded = Some(Loaded { stamp, config });
        }
        let config = loaded.as_ref()?.config.clone()?;
        Some(TlsAcceptor::from(config))
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
