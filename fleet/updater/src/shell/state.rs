//! What the updater remembers between runs: attempts, failures, and how the last run ended.

use protocol::time::{Span, Timestamp};
use semver::Version;
use serde::{Deserialize, Serialize};

use super::Error;
use super::files::{self, Files};
use crate::core::upgrade::Outcome;

/// Most bytes of the file.
const MAX_BYTES: usize = 64 << 10;
const NAME: &str = "state.json";

/// State of the updater.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct State {
    /// Boot in which the last attempt began.
    pub boot: String,
    /// Number of attempts.
    pub attempts: u64,
    /// Uptime at which the last attempt began, seconds.
    pub attempt_at: Option<u64>,
    /// Version that was put back.
    pub failed_version: Option<String>,
    /// How often it was.
    pub failures: u32,
    /// How the last attempt ended.
    pub last: Option<serde_json::Value>,
}

impl State {
    /// Reads the state. A file that cannot be read as state counts as none.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn read(files: &Files) -> Result<Self, Error> {
        let content = files::read(&files.state.join(NAME), MAX_BYTES)?;
        let parsed = content.and_then(|content| serde_json::from_slice(&content).ok());
        Ok(parsed.unwrap_or_default())
    }

    /// Writes the state.
    ///
    /// # Errors
    /// A call failed.
    pub fn write(&self, files: &Files) -> Result<(), Error> {
        let content = serde_json::to_vec_pretty(self);
        let content = content.map_err(|error| Error::Machine(error.to_string()))?;
        files::replace(&files.state.join(NAME), &content, 0o600, 0o700)
    }

    /// Number and time of the last attempt of this boot.
    #[must_use]
    pub fn last_attempt(&self, boot: &str) -> Option<(u64, Timestamp)> {
        let at = self.attempt_at.filter(|_| self.boot == boot)?;
        Some((self.attempts, Timestamp(0) + Span::from_secs(at)))
    }

    /// Version that was put back, and how often.
    #[must_use]
    pub fn failed(&self) -> Option<(Version, u32)> {
        let version = Version::parse(self.failed_version.as_ref()?).ok()?;
        Some((version, self.failures))
    }

    /// Counts an attempt.
    pub fn begin(&mut self, boot: &str, now: Timestamp) {
        boot.clone_into(&mut self.boot);
        self.attempts += 1;
        self.attempt_at = Some(now.0 / 1_000_000);
    }

    /// Remembers how an attempt at a version ended.
    pub fn end(&mut self, wanted: Option<&Version>, outcome: &Outcome) {
        let failed = wanted.filter(|_| outcome.is_failure());
        let failed = failed.map(ToString::to_string);
        let is_failure = failed.is_some();
        if is_failure && self.failed_version == failed {
            self.failures += 1;
        } else if is_failure {
            (self.failed_version, self.failures) = (failed, 1);
        }
        if is_failure || matches!(outcome, Outcome::Upgraded { .. }) {
            self.last = serde_json::to_value(outcome).ok();
        }
    }
}

/// Id of this boot.
///
/// # Errors
/// The kernel's file cannot be read.
pub fn boot() -> Result<String, Error> {
    text("/proc/sys/kernel/random/boot_id")
}

/// Name of this machine, which spreads attempts.
///
/// # Errors
/// The file cannot be read.
pub fn machine() -> Result<String, Error> {
    text("/etc/machine-id").or_else(|_| boot())
}

/// Time since boot. The calendar has no part in spacing.
///
/// # Errors
/// The kernel's file cannot be read.
pub fn uptime() -> Result<Timestamp, Error> {
    let text = text("/proc/uptime")?;
    let seconds = text.split('.').next().and_then(|whole| whole.parse().ok());
    let seconds =
        seconds.ok_or_else(|| Error::Machine("failed to read /proc/uptime".to_owned()))?;
    Ok(Timestamp(0) + Span::from_secs(seconds))
}

fn text(path: &str) -> Result<String, Error> {
    let content = std::fs::read_to_string(path);
    content
        .map(|content| content.trim().to_owned())
        .map_err(|error| Error::Machine(format!("failed to read {path}: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_of_another_boot_and_damaged_state_count_as_none() {
        let folder = tempfile::tempdir().expect("a folder");
        let files = Files {
            state: folder.path().join("state"),
            ..Files::default()
        };
        let mut state = State::read(&files).expect("none");
        let now = Timestamp(0) + Span::from_secs(90);
        state.begin("boot-1", now);
        state.write(&files).expect("written");
        let read = State::read(&files).expect("state");
        assert_eq!(read, state);
        assert_eq!(read.last_attempt("boot-1"), Some((1, now)));
        assert_eq!(read.last_attempt("boot-2"), None);
        std::fs::write(files.state.join(NAME), "{").expect("written");
        assert_eq!(State::read(&files).expect("none"), State::default());
    }

    #[test]
    fn failures_of_one_version_are_counted() {
        let (one, two) = (Version::new(1, 0, 0), Version::new(2, 0, 0));
        let failed = Outcome::Failed {
            version: String::new(),
            reason: String::new(),
        };
        let mut state = State::default();
        state.end(Some(&one), &failed);
        state.end(Some(&one), &failed);
        state.end(Some(&one), &Outcome::Current);
        assert_eq!(state.failed(), Some((one, 2)));
        state.end(Some(&two), &failed);
        assert_eq!(state.failed(), Some((two, 1)));
    }
}
