//! Log of a repository: a line for each call that changed it, or found it as asked. Each line has
//! the hash of the one before, so a cut or edited log is found.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::Path;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::error::{PublishError, of_file};
use crate::anchor::hex;

/// The file, beside the folders of the repository.
const LOG: &str = "publish.log";

/// Whether a call changed the repository.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Changed {
    /// It is as asked from now on.
    Yes,
    /// It was so already.
    No,
}

/// A line of the log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LogLine {
    /// Time of the call.
    pub at: String,
    /// `init`, `release`, `channel`, `promote`, `withdraw` or `renew`.
    pub action: String,
    /// Channel, or nothing.
    pub channel: String,
    /// Version, or nothing.
    pub version: String,
    /// Whether the repository was changed.
    pub changed: bool,
    /// SHA-256 of the line before, or nothing for the first.
    pub previous: String,
}

pub(super) fn append(
    folder: &Path,
    action: &str,
    channel: &str,
    version: &str,
    changed: Changed,
) -> Result<(), PublishError> {
    let path = folder.join(LOG);
    let before = fs::read_to_string(&path).unwrap_or_default();
    let line = LogLine {
        at: Timestamp::now().to_string(),
        action: action.to_owned(),
        channel: channel.to_owned(),
        version: version.to_owned(),
        changed: changed == Changed::Yes,
        previous: before.lines().last().map_or_else(String::new, hash),
    };
    let text =
        serde_json::to_string(&line).map_err(|error| PublishError::Broken(error.to_string()))?;
    let mut file = OpenOptions::new()
        .create(true)
        .append(true)
        .open(&path)
        .map_err(of_file(&path))?;
    let written = file.write_all(format!("{text}\n").as_bytes());
    written
        .and_then(|()| file.sync_all())
        .map_err(of_file(&path))
}

/// Reads the log and checks its chain.
///
/// # Errors
/// The log cannot be read, or a line does not follow the one before.
pub fn read_log(folder: &Path) -> Result<Vec<LogLine>, PublishError> {
    let path = folder.join(LOG);
    let text = fs::read_to_string(&path).map_err(of_file(&path))?;
    let mut lines = Vec::new();
    let mut previous = String::new();
    for (index, text) in text.lines().enumerate() {
        let broken = |what: &str| {
            PublishError::Broken(format!("{} line {}: {what}", path.display(), index + 1))
        };
        let line: LogLine =
            serde_json::from_str(text).map_err(|error| broken(&error.to_string()))?;
        if line.previous != previous {
            return Err(broken(
                "it does not follow the line before: the log was edited",
            ));
        }
        previous = hash(text);
        lines.push(line);
    }
    Ok(lines)
}

fn hash(line: &str) -> String {
    hex(&Sha256::digest(line.as_bytes()))
}
