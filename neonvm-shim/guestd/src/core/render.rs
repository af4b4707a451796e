//! Files of programs that follow the guest: which text do they have, and in which steps does a new
//! file take the place of the old one?
//!
//! ```text
//!  size, watched files ─> template ─> read ─> write ─> check ─> note ─> place ─> signal ─> forget
//!                                      │ equal: done     │ failed: discard
//! ```
//!
//! Rules:
//! 1. A file that its check refuses is never at its place (`machine::tests::v28_*`).
//! 2. After a crash at any step the place holds the old content or the new one
//!    (`machine::tests::v29_*`).
//! 3. A note on disk precedes the rename. The signal is repeated until it succeeds, also by the
//!    next daemon (`machine::tests::v30_*`).

use std::collections::BTreeMap;
use std::fmt;

use protocol::units::Bytes;

pub mod machine;
pub mod template;
pub mod unit;

/// Most bytes of a unit's file, and of each watched file.
pub const MAX_INPUT_BYTES: usize = 64 << 10;

/// Text that a unit keeps at its destination.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    /// Text of a single file.
    File(String),
    /// A folder of files, by their names.
    Folder(BTreeMap<String, String>),
}

/// What templates may use.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Values {
    /// Number of CPUs online.
    pub cpus: u32,
    /// `MemTotal` of the guest.
    pub memory: Bytes,
    /// Watched files, by the name that the unit gives them. A file that does not exist is not here.
    pub files: BTreeMap<String, WatchedFile>,
}

/// A watched file as it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WatchedFile {
    /// Its text, without the line feed at the end.
    Text(String),
    /// Its JSON document.
    Json(serde_json::Value),
    /// Why there is no value: the file is too long, not UTF-8 or not JSON.
    Unusable(String),
}

/// Result of the last attempt to bring a unit's destination up to date.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// No attempt has ended.
    Waiting,
    /// The destination is up to date.
    Current,
    /// The destination or its owner cannot be used. It is looked at again.
    Refused(String),
    /// The template gives no text for these values.
    Template(String),
    /// The check refused the new file. The old one is in place.
    Check(String),
    /// A step failed. It is tried again.
    Failed(String),
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Waiting => f.write_str("no attempt has ended"),
            Self::Current => f.write_str("up to date"),
            Self::Template(error) => write!(f, "the template failed: {error}"),
            Self::Check(line) => write!(f, "the check refused the new file: {line}"),
            Self::Refused(error) | Self::Failed(error) => f.write_str(error),
        }
    }
}
