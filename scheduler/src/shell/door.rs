//! TLS on the permit port. Files may be replaced at any time: connections made by what they held
//! before are let go after the request that is open, so that nobody stays in by a certificate that
//! is not trusted any more.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use daemon_kit::tls::Server;
use rustls::{CertificateError, Error as RustlsError, ServerConfig};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;

/// Time for a handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// Between two looks at the files while nobody connects.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// The door of the permit port.
pub(super) struct Door(Mutex<State>);

struct State {
    server: Server,
    /// Cancelled when what the files held is used no more.
    term: CancellationToken,
}

/// One who came in.
pub(super) struct Guest {
    pub(super) stream: TlsStream<TcpStream>,
    /// Whether a certificate is asked for and was not shown.
    pub(super) is_stranger: bool,
    /// Until when it may stay.
    pub(super) term: CancellationToken,
}

impl Door {
    pub(super) fn new(server: Server) -> Self {
        let term = CancellationToken::new();
        Self(Mutex::new(State { server, term }))
    }

    /// Shakes hands by the files as they are now.
    ///
    /// # Errors
    /// The word for what went wrong.
    pub(super) async fn enter(&self, stream: TcpStream) -> Result<Guest, &'static str> {
        let (config, asks, term) = self.current();
        let handshake = TlsAcceptor::from(config).accept(stream);
        match tokio::time::timeout(HANDSHAKE_TIMEOUT, handshake).await {
            Ok(Ok(stream)) => Ok(Guest {
                is_stranger: asks && stream.get_ref().1.peer_certificates().is_none(),
                stream,
                term,
            }),
            Ok(Err(error)) => Err(reason(&error)),
            Err(_) => Err("tls_slow"),
        }
    }

    /// Looks at the files now and then, until `cancel`.
    pub(super) async fn watch(&self, cancel: CancellationToken) {
        while tokio::time::timeout(LOOK_EVERY, cancel.cancelled())
            .await
            .is_err()
        {
            self.current();
        }
    }

    fn current(&self) -> (Arc<ServerConfig>, bool, CancellationToken) {
        // Only whole values are stored, so a panic elsewhere leaves nothing half done.
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if state.server.renew() {
            std::mem::take(&mut state.term).cancel();
        }
        let asks = state.server.asks_clients();
        (state.server.config(), asks, state.term.clone())
    }
}

/// The word for an error of a handshake.
fn reason(error: &io::Error) -> &'static str {
    let inner = error.get_ref();
    let Some(error) = inner.and_then(|inner| inner.downcast_ref::<RustlsError>()) else {
        return "tls_closed";
    };
    match error {
        RustlsError::InvalidCertificate(
            CertificateError::Expired
            | CertificateError::ExpiredContext { .. }
            | CertificateError::NotValidYet
            | CertificateError::NotValidYetContext { .. },
        ) => "tls_expired",
        RustlsError::InvalidCertificate(_) => "tls_untrusted",
        RustlsError::InvalidMessage(_) => "not_tls",
        _ => "tls_failed",
    }
}
