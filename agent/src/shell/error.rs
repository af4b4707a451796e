//! Why an agent ended.

use agent_events::EventsError;

/// Why an agent did not start, or ended by itself.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The configuration of events cannot be used.
    #[error("events cannot be sent")]
    Events(#[from] EventsError),
    /// The address of a server is in use, or not one of this machine.
    #[error("could not listen on {address} for {what}")]
    Bind {
        /// IP address and port that could not be bound.
        address: String,
        /// Server of that address, for example `metrics`.
        what: &'static str,
        /// Error of the operating system.
        #[source]
        source: std::io::Error,
    },
    /// A main task panicked.
    #[error("a main task crashed")]
    Crashed(#[source] tokio::task::JoinError),
}
