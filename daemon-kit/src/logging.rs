//! Logs: JSON lines on stderr, or text when stderr is a terminal; the filter can be changed at run
//! time.

use std::io::IsTerminal;

use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, Registry, fmt, reload};

/// Variables that hold a filter such as `info,agent=debug`; the first one set wins.
const FILTER_VARIABLES: [&str; 2] = ["BELLOWS_LOG", "RUST_LOG"];

/// Filter without a variable: of libraries only warnings.
const DEFAULT_FILTER: &str =
    "info,hyper=warn,kube=warn,tower=warn,rustls=warn,h2=warn,tungstenite=warn";

/// Changes the log filter of this process.
#[derive(Debug, Clone)]
pub struct LogHandle {
    reload: reload::Handle<EnvFilter, Registry>,
}

/// Errors of setting up or changing logging.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The filter does not parse.
    #[error("log filter {filter:?} is not of the form level,target=level")]
    Filter {
        /// Text that does not parse.
        filter: String,
        /// Error of the filter's parser.
        #[source]
        source: tracing_subscriber::filter::ParseError,
    },
    /// Logging was set up twice.
    #[error("logging is already set up")]
    AlreadySet,
    /// The subscriber with the filter is gone.
    #[error("the log filter can no longer be changed")]
    Gone,
}

impl LogHandle {
    /// Sets a new filter, such as `debug` or `info,agent=trace`.
    ///
    /// # Errors
    /// [`LogError::Filter`] leaves the old filter in force.
    pub fn set_filter(&self, filter: &str) -> Result<(), LogError> {
        let parsed = parse(filter)?;
        self.reload.reload(parsed).map_err(|_| LogError::Gone)
    }
}

fn parse(filter: &str) -> Result<EnvFilter, LogError> {
    EnvFilter::try_new(filter).map_err(|source| LogError::Filter {
        filter: filter.to_owned(),
        source,
    })
}

/// Starts logging for the process. `service` becomes a field of the first line.
///
/// # Errors
/// [`LogError`] when a filter variable does not parse or logging was set up before.
pub fn init(service: &str) -> Result<LogHandle, LogError> {
    let filter = FILTER_VARIABLES
        .iter()
        .find_map(|name| std::env::var(name).ok().filter(|value| !value.is_empty()))
        .unwrap_or_else(|| DEFAULT_FILTER.to_owned());
    let (filter, reload) = reload::Layer::new(parse(&filter)?);
    // A failed write is not reported on stderr: a second failure there would panic, and a program
    // whose log is on a full disk must go on.
    let output = if std::io::stderr().is_terminal() {
        fmt::layer()
            .log_internal_errors(false)
            .with_writer(std::io::stderr)
            .boxed()
    } else {
        fmt::layer()
            .json()
            .flatten_event(true)
            // `spans` contains it as well.
            .with_current_span(false)
            .log_internal_errors(false)
            .with_writer(std::io::stderr)
            .boxed()
    };
    tracing_subscriber::registry()
        .with(filter)
        .with(output)
        .try_init()
        .map_err(|_| LogError::AlreadySet)?;
    tracing::debug!(service, "logging is set up");
    Ok(LogHandle { reload })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Set in the child process in which the test logs: a process sets logging up once, and its
    /// stderr must be on a full disk.
    const INSIDE: &str = "BELLOWS_TEST_LOG_IS_ON_A_FULL_DISK";

    #[test]
    fn program_with_its_log_on_a_full_disk_goes_on() {
        if std::env::var_os(INSIDE).is_some() {
            let _handle = init("test").expect("set up once in this process");
            tracing::error!("nowhere");
            return;
        }
        let full = std::fs::File::options().write(true).open("/dev/full");
        let status = std::process::Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", "--nocapture"])
            .arg("logging::tests::program_with_its_log_on_a_full_disk_goes_on")
            .env(INSIDE, "1")
            .stdout(std::process::Stdio::null())
            .stderr(full.expect("a device of every Linux"))
            .status();
        assert!(status.expect("it runs").success());
    }
}
