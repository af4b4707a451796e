//! The shell kit that every daemon shares: clock, driver of a core, logs, exit codes, TLS, secrets,
//! files that are replaced, HTTP, the admin server, journal, stage records, shutdown.
//!
//! No domain logic lives here, and no core may use it: cores get time and randomness passed in.

#![forbid(unsafe_code)]

pub mod admin;
pub mod bearer;
pub mod clock;
pub mod connections;
pub mod descriptors;
pub mod driver;
pub mod durable;
pub mod exit;
pub mod exposition;
pub mod http_client;
pub mod journal;
pub mod logging;
mod process_age;
pub mod process_metrics;
pub mod reload;
pub mod secret;
pub mod serving;
pub mod shutdown;
mod stage_log;
pub mod state_folder;
pub mod tls;
pub mod unix_socket;

pub use process_age::process_age;
pub use stage_log::StageLog;

/// An error and all its sources in one line: `could not open store: permission denied`.
///
/// The only printer of error chains; errors never repeat their source in `Display`.
#[must_use]
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        text.push_str(": ");
        text.push_str(&inner.to_string());
        source = inner.source();
    }
    text
}

#[cfg(test)]
mod tests {
    #[derive(Debug, thiserror::Error)]
    #[error("could not open store")]
    struct Outer(#[source] std::io::Error);

    #[test]
    fn chain_prints_every_source_once() {
        let error = Outer(std::io::Error::other("permission denied"));
        assert_eq!(
            super::chain(&error),
            "could not open store: permission denied"
        );
    }
}
