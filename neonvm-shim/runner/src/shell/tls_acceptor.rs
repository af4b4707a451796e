//! TLS on the runner's port at its pod's address. A connection that begins with a handshake gets
//! TLS, any other plain HTTP, on the same port. Kubelets and Prometheus use plain HTTP, as with
//! NeonVM's runner. Our controller sends orders and their token encrypted.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use daemon_kit::reload::{Files, Reloaded};
use daemon_kit::secret::{self, SecretError};
use daemon_kit::tls::{PemUnusable, showing};
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
pub(super) struct TlsAcceptor(Option<Mutex<Reloaded<Identity>>>);

impl TlsAcceptor {
    /// With the certificate beside the token that orders need. Without a token connections are in
    /// the clear.
    pub(super) fn new(token: Option<&Path>) -> Self {
        let identity = |dir: &Path| Identity(ORDERS_IDENTITY.map(|name| dir.join(name)));
        let identity = token.and_then(Path::parent).map(identity);
        Self(identity.map(Reloaded::new).map(Mutex::new))
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
        let config = {
            let mut identity = identity.lock().unwrap_or_else(PoisonError::into_inner);
            identity.renew().map_err(io::Error::other)?.0
        };
        let stream = RustlsAcceptor::from(config).accept(stream).await?;
        Ok(Either::Right(Box::new(stream)))
    }
}

/// Certificate and key of a runner in files of the kubelet, which may be missing and are replaced
/// with the secret. Their mode is not checked: the volume is the pod's own, and a group of the pod
/// may read it.
struct Identity([PathBuf; 2]);

/// Errors of certificate and key files.
#[derive(Debug, thiserror::Error)]
enum Unusable {
    #[error(transparent)]
    File(#[from] SecretError),
    #[error("certificate or key")]
    Pem(#[from] PemUnusable),
}

impl Files for Identity {
    const WHAT: &'static str = "certificates for orders by TLS";
    type Content = Arc<ServerConfig>;
    type Error = Unusable;

    fn paths(&self) -> Vec<&Path> {
        self.0.iter().map(PathBuf::as_path).collect()
    }

    fn read(&self) -> Result<Arc<ServerConfig>, Unusable> {
        let [cert, key] = &self.0;
        let (_, cert) = secret::read_public(cert, FILE_LIMIT_BYTES)?;
        let (_, key) = secret::read_public(key, FILE_LIMIT_BYTES)?;
        Ok(showing(&cert, &key)?)
    }
}

#[cfg(test)]
mod tests;
