//! The log: one JSON object a line on standard error, plain text when that is a terminal.

use std::io::IsTerminal as _;

use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

/// A filter such as `info` or `vm_monitor=debug,info` that does not read.
#[derive(Debug, thiserror::Error)]
#[error("{text:?} is no log filter such as info or vm_monitor=debug,info")]
pub struct FilterError {
    text: String,
    #[source]
    source: tracing_subscriber::filter::ParseError,
}

/// Reads a filter: levels, or `target=level` pairs with commas.
///
/// # Errors
/// [`FilterError`].
pub fn parse_filter(text: &str) -> Result<Targets, FilterError> {
    let parsed = text.parse();
    parsed.map_err(|source| FilterError {
        text: text.to_owned(),
        source,
    })
}

/// Starts the process's log. A second call in one process does nothing.
pub fn init(filter: Targets) {
    let registry = tracing_subscriber::registry().with(filter);
    let layer = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    // An error means that the process has a log already.
    let _ = if std::io::stderr().is_terminal() {
        registry.with(layer).try_init()
    } else {
        registry.with(layer.json().flatten_event(true)).try_init()
    };
}

/// An error and its sources on one line.
#[must_use]
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        text.push_str(": ");
        text.push_str(&source.to_string());
        next = source.source();
    }
    text
}
