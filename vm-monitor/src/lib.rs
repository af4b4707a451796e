//! The monitor inside each VM: it approves shrinks by what is in use, asks for growth when memory climbs, sizes the
//! database's file cache, and serves the host metrics the agent reads.
//!
//! [`core`] decides, [`shell`] does. [`run`] is the whole monitor on bound listeners; the binary `vm-monitor` adds only the
//! command line, the log and the signals. Protocol and rules: spec/monitor.md.

pub mod core;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz;
pub mod shell;

use std::io;
use std::net::SocketAddr;

use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

pub use shell::config::Config;

use crate::core::cache::CacheFailure;

/// The monitor's two listeners, bound but not served yet.
#[derive(Debug)]
pub struct Bound {
    /// For agents: the WebSocket at `/monitor`.
    pub monitor: TcpListener,
    /// For scrapers: `/metrics`, `/healthz`, `/readyz`, `/debug/state`.
    pub metrics: TcpListener,
}

/// An address that could not be bound.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {addr}")]
pub struct BindError {
    /// The address.
    pub addr: SocketAddr,
    /// Why.
    #[source]
    pub source: io::Error,
}

impl Bound {
    /// Binds both addresses of a configuration. Port 0 takes a free one.
    ///
    /// # Errors
    /// [`BindError`], for the first address that cannot be had.
    pub async fn bind(config: &Config) -> Result<Self, BindError> {
        let bind = async |addr| {
            let listener = TcpListener::bind(addr).await;
            listener.map_err(|source| BindError { addr, source })
        };
        Ok(Self {
            monitor: bind(config.addr).await?,
            metrics: bind(config.metrics_addr).await?,
        })
    }
}

/// Why the monitor ended by itself.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The file cache has to be managed (`--file-cache=on`) and cannot be.
    #[error("cannot manage the file cache")]
    FileCache(#[source] CacheFailure),
    /// The kernel gives us no timer.
    #[error("cannot use a timer")]
    Timer(#[source] io::Error),
}

/// Serves agents and scrapers until `cancel`, then says goodbye to the agent and returns.
///
/// # Errors
/// [`RunError`] when something needed at the start is missing.
pub async fn run(config: Config, bound: Bound, cancel: CancellationToken) -> Result<(), RunError> {
    shell::owner::run(config, bound, cancel).await
}
