//! The link to a runner: HTTP/1 over the unix socket in its directory, or by TLS to its pod's
//! address (types: `protocol::runner`).

mod address;
mod client;
mod error;
mod transport;
mod watch;

pub use address::RunnerAddress;
pub use client::RunnerLink;
pub use error::LinkError;
pub(super) use watch::watch_state;

#[cfg(test)]
mod tests;
