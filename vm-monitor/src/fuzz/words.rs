//! The command line.

use crate::core::decision::Watched;
use crate::shell::cli::{self, CliError};

/// A password that must not be shown, whatever is wrong with the rest.
const SECRET: &str = "hunter2";

/// Words, one to a line: they are a configuration or an error that says what is wrong, and a
/// connection string among them is never shown.
pub fn command_line(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    // Where the input itself has the word, showing it proves nothing.
    let has_it_already = text.contains(SECRET);
    let secret = format!("--pgconnstr=host=db password={SECRET} user=postgres");
    let words = ["vm-monitor", &secret].into_iter().chain(text.lines());
    let shown = match cli::parse(words) {
        Ok(invocation) => {
            let config = &invocation.config;
            assert_eq!(config.watched == Watched::Cgroup, config.cgroup.is_some());
            let setup = config.setup();
            assert!(!setup.estimates || config.cgroup.is_some());
            format!("{} {config:?}", invocation.origins)
        }
        Err(CliError::Usage(error)) => error.to_string(),
        Err(CliError::Config(problems)) => {
            assert!(!problems.0.is_empty());
            assert!(problems.0.iter().all(|problem| !problem.is_empty()));
            problems.to_string()
        }
    };
    assert!(has_it_already || !shown.contains(SECRET), "{shown}");
}
