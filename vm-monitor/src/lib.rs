//! The monitor inside each VM: it approves shrinks by what is in use, asks for growth when memory
//! climbs, sizes the database's file cache, and serves the host metrics the agent reads.
//!
//! [`core`] decides, [`shell`] does. [`run`] is the whole monitor on bound listeners; the binary
//! `vm-monitor` adds only the command line, the log and the signals. Protocol and rules:
//! docs/compatibility/monitor.md.

pub mod core;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz;
pub mod shell;

use std::io;
use std::path::{Path, PathBuf};

use protocol::time::Span;
use tokio::net::{TcpListener, UnixListener};
use tokio_util::sync::CancellationToken;

pub use shell::config::Config;

use crate::core::cache::CacheFailure;
use crate::shell::exec::Inherited;
use crate::shell::link::AgentPort;
use crate::shell::process::ThisProcess;
use crate::shell::token::{AgentToken, TokenError};
use transport::{Address, Listener};

/// The monitor's listeners, bound and not served.
#[derive(Debug)]
pub struct Bound {
    /// For agents: the WebSocket at `/monitor`.
    pub monitor: AgentPort,
    /// For scrapers: `/metrics`, `/healthz`, `/readyz`, `/debug/state`. `None` where another
    /// program has the port.
    pub metrics: Option<TcpListener>,
    /// For root: the control socket. `None` without `--control`.
    pub control: Option<UnixListener>,
    /// Facts about the process.
    pub process: ThisProcess,
}

/// Why there are no listeners.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// An address that could not be bound.
    #[error("cannot listen on {addr}")]
    Address {
        /// Address from `--addr` or `--metrics-addr`: a socket address or a vsock port.
        addr: Address,
        /// Error of the operating system, for example that the address is in use.
        #[source]
        source: io::Error,
    },
    /// A control socket that could not be bound.
    #[error("cannot listen on {}", .path.display())]
    Control {
        /// Path from `--control`.
        path: PathBuf,
        /// Error of the operating system, or that another file is there.
        #[source]
        source: io::Error,
    },
    /// A token that cannot be used.
    #[error("cannot ask agents for a token")]
    Token(#[from] TokenError),
    /// Certificates that cannot be used.
    #[cfg(feature = "tls")]
    #[error("cannot speak TLS")]
    Tls(#[from] shell::tls::TlsError),
}

impl Bound {
    /// Reads the token and the certificates of a configuration and binds both of its addresses.
    /// Port 0 takes a free one.
    ///
    /// A taken port of the metrics page is a warning: other programs export metrics at 9100 too,
    /// and a guest without its monitor is never sized. The page is not tried again later, so that
    /// the other program can restart.
    ///
    /// # Errors
    /// [`BindError`], for the first thing that cannot be had.
    pub async fn bind(config: &Config) -> Result<Self, BindError> {
        Self::bind_or_take(config, Inherited::default()).await
    }

    /// Like [`Bound::bind`], but takes listeners of the program that ran in this process before.
    ///
    /// # Errors
    /// [`BindError`], for the first thing that cannot be had.
    pub async fn bind_or_take(config: &Config, inherited: Inherited) -> Result<Self, BindError> {
        #[cfg(feature = "tls")]
        let identity = {
            let files = config.tls.clone();
            files.map(shell::tls::Identity::load).transpose()?
        };
        let token = config.agent_token.as_deref().map(AgentToken::load);
        let token = token.transpose()?;
        let failed = |addr| move |source| BindError::Address { addr, source };
        let door = match inherited.agents {
            Some(socket) => Listener::from_bound(socket),
            None => Listener::bind(config.addr).await,
        };
        let metrics = match inherited.metrics {
            Some(listener) => from_std(listener),
            None => TcpListener::bind(config.metrics_addr).await,
        };
        let control = config.control.as_deref();
        let control = control.map(|path| control_socket(path, inherited.control));
        let monitor = AgentPort {
            door: door.map_err(failed(config.addr))?,
            token,
            #[cfg(feature = "tls")]
            identity,
        };
        let metrics = match metrics {
            Ok(listener) => Some(listener),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                let addr = config.metrics_addr;
                tracing::warn!(%addr, "metrics page is not served: another program has its port. \
                    Give the page another one with --metrics-addr");
                None
            }
            Err(source) => return Err(failed(config.metrics_addr.into())(source)),
        };
        Ok(Self {
            monitor,
            metrics,
            control: control.transpose()?,
            // An updater reads the schedule, and its package manager brings the program.
            process: ThisProcess::without_digest(inherited.execs, config.schedule.is_some()),
        })
    }
}

fn from_std(listener: std::net::TcpListener) -> io::Result<TcpListener> {
    listener.set_nonblocking(true)?;
    TcpListener::from_std(listener)
}

fn control_socket(
    path: &Path,
    inherited: Option<std::os::unix::net::UnixListener>,
) -> Result<UnixListener, BindError> {
    let bound = match inherited {
        Some(listener) => listener.set_nonblocking(true).map(|()| listener),
        None => shell::control::bind(path),
    };
    let listener = bound.and_then(UnixListener::from_std);
    listener.map_err(|source| BindError::Control {
        path: path.to_owned(),
        source,
    })
}

/// Why the monitor ended by itself.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The file cache has to be managed (`--file-cache=on`) and cannot be.
    #[error("cannot manage the file cache")]
    FileCache(#[source] CacheFailure),
    /// The listeners cannot be kept for a next program.
    #[error("cannot keep the listeners for a next program")]
    Control(#[source] io::Error),
    /// The kernel gives us no timer.
    #[error("cannot use a timer")]
    Timer(#[source] io::Error),
    /// No agent has dialled, or none has had a schedule, for as long as `--exit-when-alone` says.
    #[error("no agent for {} s, or none with a schedule", .0.as_millis() / 1000)]
    Alone(Span),
}

/// Serves agents and scrapers until `cancel`, then says goodbye to the agent and returns.
///
/// # Errors
/// [`RunError`] when something needed at the start is missing, or no agent comes.
pub async fn run(config: Config, bound: Bound, cancel: CancellationToken) -> Result<(), RunError> {
    shell::owner::run(config, bound, cancel).await
}
