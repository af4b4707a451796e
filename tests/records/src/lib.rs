//! Records of a test run: skipped tests, attempts of tests that may be repeated, and waits.
//!
//! [`FILE`] names the file of a run. All test processes append one line of JSON per record. `cargo
//! xtask test` creates the file, prints its records at the end, and judges them.

#![forbid(unsafe_code)]

mod missing;
pub mod retry;
pub mod wait;

use std::fmt;
use std::fs::File;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

pub use missing::Missing;
pub use wait::Wait;

/// The variable with the path of the run's file. Without it records are only printed.
pub const FILE: &str = "BELLOWS_TEST_RECORDS";
/// The variable with the keys that may be missing, separated by commas. A test that skips for any
/// other key fails. Without the variable every test may skip.
pub const MAY_SKIP: &str = "BELLOWS_MAY_SKIP";

/// A line of the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "record", rename_all = "snake_case")]
pub enum Record {
    /// A test did not run.
    Skip(Skip),
    /// A test that may be run again was run.
    Attempt(Attempt),
    /// A step that a test waited for happened.
    Wait(Wait),
}

/// A test that did not run.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Skip {
    /// Key of what the machine lacks.
    pub missing: Missing,
    /// Name of the test.
    pub test: String,
    /// What is missing, and how to install it.
    pub reason: String,
}

/// One run of a test that may be run again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Attempt {
    /// Name of the test.
    pub test: String,
    /// Number of the attempt: 1 for the first run of the test.
    pub number: u32,
    /// The guest's panic, if it allows another attempt.
    pub retried_for: Option<String>,
}

impl fmt::Display for Skip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            missing,
            test,
            reason,
        } = self;
        write!(f, "SKIP(missing: {missing}): {test}: {reason}")
    }
}

/// Path at which `cargo xtask setup` puts a program of another maker, or `None` without a home.
#[must_use]
pub fn installed(name: &str) -> Option<PathBuf> {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache")));
    Some(cache?.join("bellows/tools").join(name))
}

/// Says that a test does not run, in the output and in the run's file.
///
/// # Panics
/// When the run does not allow it, or the file cannot be written.
pub fn skip(test: &str, missing: Missing, reason: &str) {
    let skip = Skip {
        missing,
        test: test.to_owned(),
        reason: reason.to_owned(),
    };
    say(&skip.to_string());
    record(&Record::Skip(skip));
    let keys = std::env::var(MAY_SKIP).ok();
    assert!(
        is_allowed(missing, keys.as_deref()),
        "{test} needs {missing} and may not be left out: {reason}"
    );
}

/// Whether a test may skip where [`MAY_SKIP`] has this value.
fn is_allowed(missing: Missing, keys: Option<&str>) -> bool {
    keys.is_none_or(|keys| keys.split(',').any(|key| key == missing.key()))
}

/// Appends a record to the run's file, if there is one.
fn record(record: &Record) {
    if let Some(file) = std::env::var_os(FILE) {
        append(Path::new(&file), record)
            .unwrap_or_else(|error| panic!("failed to write {}: {error}", file.display()));
    }
}

/// Appends a record to a file.
///
/// # Errors
///
/// If the file cannot be written, or only a part of the line was.
pub fn append(file: &Path, record: &Record) -> io::Result<()> {
    let mut line = serde_json::to_vec(record)?;
    line.push(b'\n');
    // One call for the whole line: lines of two processes never mix.
    let written = File::options()
        .create(true)
        .append(true)
        .open(file)?
        .write(&line)?;
    if written < line.len() {
        return Err(io::ErrorKind::WriteZero.into());
    }
    Ok(())
}

/// Parses the records in a run's file.
///
/// # Errors
///
/// The first malformed line, with its number.
pub fn read(text: &str) -> Result<Vec<Record>, Damaged> {
    let parsed = text.lines().zip(1..).map(|(text, line)| {
        let damaged = |error| Damaged { line, error };
        serde_json::from_str(text).map_err(damaged)
    });
    parsed.collect()
}

/// A line that is no record.
#[derive(Debug)]
pub struct Damaged {
    /// Line number, from 1.
    pub line: usize,
    error: serde_json::Error,
}

impl fmt::Display for Damaged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {} is no record: {}", self.line, self.error)
    }
}

impl std::error::Error for Damaged {}

#[expect(clippy::print_stdout, reason = "part of the output of a test")]
fn say(line: &str) {
    println!("{line}");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn psi(test: &str) -> Record {
        Record::Skip(Skip {
            missing: Missing::Psi,
            test: test.to_owned(),
            reason: "of two\nlines".to_owned(),
        })
    }

    #[test]
    fn records_are_lines_of_a_known_form() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("records");
        let retried = Record::Attempt(Attempt {
            test: "b".to_owned(),
            number: 1,
            retried_for: Some("Kernel panic".to_owned()),
        });
        for record in [&psi("a"), &retried] {
            append(&file, record).unwrap();
        }
        let text = std::fs::read_to_string(&file).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines,
            [
                r#"{"record":"skip","missing":"psi","test":"a","reason":"of two\nlines"}"#,
                r#"{"record":"attempt","test":"b","number":1,"retried_for":"Kernel panic"}"#,
            ]
        );
        assert_eq!(read(&text).unwrap(), [psi("a"), retried]);
    }

    #[test]
    fn writers_at_once_lose_no_line() {
        const EACH: usize = 500;
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("records");
        std::thread::scope(|scope| {
            for writer in 0..4 {
                let (file, name) = (&file, "test".repeat(1 + 20 * writer));
                scope.spawn(move || (0..EACH).for_each(|_| append(file, &psi(&name)).unwrap()));
            }
        });
        let text = std::fs::read_to_string(&file).unwrap();
        assert_eq!(read(&text).unwrap().len(), 4 * EACH);
    }

    #[test]
    fn line_that_is_no_record_is_named() {
        let good = serde_json::to_string(&psi("a")).unwrap();
        let (cut, _) = good.split_at(good.len() / 2);
        let unknown = good.replace("psi", "weather");
        for bad in [cut, &unknown, "", r#"{"record":"skip"}"#] {
            let damaged = read(&format!("{good}\n{bad}\n{good}\n")).unwrap_err();
            assert_eq!(damaged.line, 2, "{damaged}");
        }
        assert!(read("").unwrap().is_empty());
    }

    #[test]
    fn skip_is_allowed_by_its_key_alone() {
        assert!(is_allowed(Missing::Psi, None), "nobody forbids it");
        assert!(is_allowed(Missing::Psi, Some("vsock,psi")));
        assert!(!is_allowed(Missing::Psi, Some("vsock")));
        assert!(!is_allowed(Missing::Psi, Some("")));
    }
}
