//! The runner's port at its pod's address. Who begins by TLS is answered by it, everybody else in plain HTTP, on the same port: kubelets and
//! Prometheus ask as they ask NeonVM's runner, and our controller's orders, with the token among them, go over the wire encrypted.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::serve::Listener;
use protocol::runner::ORDERS_IDENTITY;
use telemetry::chain;
use telemetry::tls::{IdentityFiles, Server, ServerFiles, TlsError};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::either::Either;

/// First byte of whoever begins by TLS: the type of the record that a handshake is in.
const HANDSHAKE: u8 = 0x16;
/// Time for the first byte, and for the handshake.
const PATIENCE: Duration = Duration::from_secs(5);

/// One who came in, in the clear or by TLS.
pub(super) type Guest = Either<TcpStream, Box<TlsStream<TcpStream>>>;

/// See the module.
pub(super) struct Door {
    listener: TcpListener,
    identity: Option<Arc<Identity>>,
    /// Those of whom it is not known yet what they speak. They wait for nobody, and nobody for them.
    arriving: JoinSet<Option<(Guest, SocketAddr)>>,
}

impl Door {
    /// With the certificate beside the token that orders need; in the clear alone without a token.
    pub(super) fn new(listener: TcpListener, token: Option<&Path>) -> Self {
        Self {
            listener,
            identity: token.and_then(Path::parent).map(Identity::of).map(Arc::new),
            arriving: JoinSet::new(),
        }
    }
}

impl Listener for Door {
    type Io = Guest;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Guest, SocketAddr) {
        loop {
            tokio::select! {
                (stream, from) = Listener::accept(&mut self.listener) => {
                    // What is told is small and must not wait for the acknowledgement of what was told before.
                    let _ = stream.set_nodelay(true);
                    let Some(identity) = &self.identity else {
                        return (Either::Left(stream), from);
                    };
                    self.arriving.spawn(arrive(stream, from, Arc::clone(identity)));
                }
                Some(arrived) = self.arriving.join_next() => {
                    if let Ok(Some(guest)) = arrived {
                        return guest;
                    }
                }
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// Finds out what one speaks; `None` if that comes to nothing.
async fn arrive(
    stream: TcpStream,
    from: SocketAddr,
    identity: Arc<Identity>,
) -> Option<(Guest, SocketAddr)> {
    let entering = timeout(PATIENCE, enter(stream, &identity));
    match entering.await.unwrap_or_else(|_| Err(slow())) {
        Ok(guest) => Some((guest, from)),
        Err(error) => {
            tracing::debug!(%from, error = chain(&error), "a connection came to nothing");
            None
        }
    }
}

async fn enter(stream: TcpStream, identity: &Identity) -> io::Result<Guest> {
    let mut first = [0];
    stream.peek(&mut first).await?;
    if first != [HANDSHAKE] {
        return Ok(Either::Left(stream));
    }
    let acceptor = identity.acceptor().map_err(io::Error::other)?;
    let stream = acceptor.accept(stream).await?;
    Ok(Either::Right(Box::new(stream)))
}

fn slow() -> io::Error {
    io::ErrorKind::TimedOut.into()
}

/// What a runner is known by, as the kubelet has it in files: there or not yet, and replaced when the secret is made anew.
struct Identity {
    files: ServerFiles,
    loaded: Mutex<Option<Server>>,
}

impl Identity {
    fn of(dir: &Path) -> Self {
        let [cert, key] = ORDERS_IDENTITY.map(|name| dir.join(name));
        Self {
            files: ServerFiles {
                identity: IdentityFiles { cert, key },
                client_authority: None,
            },
            loaded: Mutex::new(None),
        }
    }

    fn acceptor(&self) -> Result<TlsAcceptor, TlsError> {
        // Only whole values are stored, so a panic elsewhere leaves nothing half done.
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        let server = match &mut *loaded {
            Some(server) => {
                server.renew();
                server
            }
            none => none.insert(Server::load(self.files.clone())?),
        };
        Ok(TlsAcceptor::from(server.config()))
    }
}

#[cfg(test)]
mod tests;
