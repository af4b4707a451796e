//! One line of a journal: its outer form, its checksum, and the record in it.

use std::fmt::Write as _;

use super::canonical;
use super::hash::hash_text;
use super::record::Record;

/// The format written. Readers take this one and the one before. Format 2 adds `B`, `P`, `C` and
/// the steps of policies; what a journal of format 1 holds means the same in both.
pub const FORMAT: u32 = 2;
/// Oldest format that readers accept.
pub const OLDEST_FORMAT: u32 = 1;
/// Longest line read, bytes: a checkpoint with a week of working-set windows is below 100 KiB.
pub const MAX_LINE_BYTES: usize = 256 * 1024;
/// Digits of the checksum and the blank after it.
const PREFIX_BYTES: usize = 9;

/// Why a line is not a record.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The line is longer than [`MAX_LINE_BYTES`].
    #[error("the line is longer than {MAX_LINE_BYTES} bytes")]
    TooLong,
    /// The line does not have the form `8 hex digits, blank, text, line feed`.
    #[error("the line is not a checksum, a blank and a text")]
    Shape,
    /// The checksum of the text is not the one that the line begins with.
    #[error("the checksum is {written}, the text has {actual}")]
    Checksum {
        /// The checksum in the line, as text.
        written: String,
        /// The checksum of the text behind it.
        actual: String,
    },
    /// The text is not a record that this build can read. Holds the parser's message.
    #[error("the text is no record: {0}")]
    Record(String),
    /// The text is a record, but not in canonical form.
    #[error("the record is not in its canonical form")]
    NotCanonical,
}

/// CRC-32C of `bytes`, continued from `seed`. The first call passes 0.
#[must_use]
pub fn crc(seed: u32, bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(seed, bytes)
}

/// The line of a record, with its line feed.
#[must_use]
pub fn encode(record: &Record) -> String {
    let json = canonical::text(record);
    let mut line = String::with_capacity(json.len() + PREFIX_BYTES + 1);
    let _ = writeln!(line, "{} {json}", hash_text(crc(0, json.as_bytes())));
    line
}

/// Checks the outer form of a line (with or without its line feed) and returns its JSON text: what
/// every format has in common, whatever kind of record it holds.
///
/// # Errors
/// [`DecodeError`] other than `Record` and `NotCanonical`.
pub fn open(line: &[u8]) -> Result<&str, DecodeError> {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    if line.len() > MAX_LINE_BYTES {
        return Err(DecodeError::TooLong);
    }
    let (prefix, json) = line
        .split_at_checked(PREFIX_BYTES)
        .ok_or(DecodeError::Shape)?;
    let (written, blank) = prefix.split_at(PREFIX_BYTES - 1);
    let written = std::str::from_utf8(written).map_err(|_| DecodeError::Shape)?;
    if blank != b" " || json.contains(&b'\n') {
        return Err(DecodeError::Shape);
    }
    let actual = hash_text(crc(0, json));
    if actual != written {
        return Err(DecodeError::Checksum {
            written: written.to_owned(),
            actual,
        });
    }
    std::str::from_utf8(json).map_err(|_| DecodeError::Shape)
}

/// Reads the record of a line.
///
/// # Errors
/// [`DecodeError`] if the line is damaged, of an unknown kind, or not what [`encode`] writes.
pub fn decode(line: &[u8]) -> Result<Record, DecodeError> {
    let json = open(line)?;
    let record: Record =
        serde_json::from_str(json).map_err(|error| DecodeError::Record(error.to_string()))?;
    if canonical::text(&record) != json {
        return Err(DecodeError::NotCanonical);
    }
    Ok(record)
}
