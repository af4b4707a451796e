//! TLS on the permit port.
//!
//! The files may be replaced at any time. Connections under an earlier state of the files are then
//! closed after the open request, so that no client stays connected by a certificate that is no
//! longer trusted.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use daemon_kit::tls::Server;
use rustls::{CertificateError, Error as RustlsError, ServerConfig};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;

/// Longest time for a handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// Time between two checks of the files without new connections.
const CHECK_EVERY: Duration = Duration::from_secs(2);

/// Accepts TLS connections by the current files.
pub(super) struct TlsAcceptor(Mutex<State>);

struct State {
    server: Server,
    /// Cancelled when the files have changed.
    config_retired: CancellationToken,
}

/// A connection after its handshake.
pub(super) struct Accepted {
    pub(super) stream: TlsStream<TcpStream>,
    /// Whether the server requests a client certificate and the client sent none.
    pub(super) lacks_certificate: bool,
    /// Cancelled when the connection must be closed.
    pub(super) config_retired: CancellationToken,
}

impl TlsAcceptor {
    pub(super) fn new(server: Server) -> Self {
        let config_retired = CancellationToken::new();
        Self(Mutex::new(State {
            server,
            config_retired,
        }))
    }

    /// Performs the handshake with the current files.
    ///
    /// # Errors
    /// The failure as a metric label.
    pub(super) async fn accept(&self, stream: TcpStream) -> Result<Accepted, &'static str> {
        let (config, asks, config_retired) = self.current().ok_or("tls_failed")?;
        let handshake = tokio_rustls::TlsAcceptor::from(config).accept(stream);
        match tokio::time::timeout(HANDSHAKE_TIMEOUT, handshake).await {
            Ok(Ok(stream)) => Ok(Accepted {
                lacks_certificate: asks && stream.get_ref().1.peer_certificates().is_none(),
                stream,
                config_retired,
            }),
            Ok(Err(error)) => Err(reason(&error)),
            Err(_) => Err("tls_slow"),
        }
    }

    /// Checks the files periodically until `cancel`.
    pub(super) async fn watch(&self, cancel: CancellationToken) {
        while tokio::time::timeout(CHECK_EVERY, cancel.cancelled())
            .await
            .is_err()
        {
            self.current();
        }
    }

    /// `None` if there never was a valid configuration.
    fn current(&self) -> Option<(Arc<ServerConfig>, bool, CancellationToken)> {
        // The lock is never held across a partial update, so a panic elsewhere is harmless.
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (config, is_new) = state.server.renew().ok()?;
        if is_new {
            std::mem::take(&mut state.config_retired).cancel();
        }
        let asks = state.server.files().client_authority.is_some();
        Some((config, asks, state.config_retired.clone()))
    }
}

/// A handshake error as a metric label.
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
