//! Reading a segment: every line checked, the head understood, a torn tail told from damage in the
//! middle.

use super::line::{DecodeError, FORMAT, OLDEST_FORMAT, crc, decode, open};
use super::record::{Head, Record};

/// CRC-32C of a line with its line feed: what the next segment's head names.
#[must_use]
pub fn chain_hash(line: &[u8]) -> u32 {
    crc(0, line)
}

/// A line of a segment whose checksum holds.
#[derive(Debug, Clone, PartialEq)]
pub struct Line {
    /// Offset of the line's first byte from the start of the segment.
    pub offset: usize,
    /// Record of the line. `Err`: the line is whole, but of a kind or shape that this build cannot
    /// read.
    pub record: Result<Record, DecodeError>,
}

/// What is wrong with a segment.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Damage {
    /// The first line is no head.
    #[error("the first line is no head")]
    NoHead,
    /// The format of the head is newer or older than those that this build reads.
    #[error("format {0} is not one of {OLDEST_FORMAT} to {FORMAT}")]
    Format(u32),
    /// The checksum of a line fails, and a good line follows it.
    #[error("the line at byte {offset} is damaged")]
    Line {
        /// Offset of the line's first byte from the start of the segment.
        offset: usize,
        /// Error of the line's outer form.
        #[source]
        source: DecodeError,
    },
    /// A head follows at this byte offset, where only the first line may be one.
    #[error("another head at byte {0}")]
    SecondHead(usize),
}

/// Content of a segment, with everything that is wrong in it.
#[derive(Debug, Clone, PartialEq)]
pub struct Scan {
    /// Head of the segment, if the first line is one in a readable format.
    pub head: Option<Head>,
    /// Good lines, the head's included.
    pub lines: Vec<Line>,
    /// Bytes up to the end of the last good line: where a torn tail is cut.
    pub good: usize,
    /// [`chain_hash`] of the last good line. `None` if there is none.
    pub last: Option<u32>,
    /// Bytes of the torn tail: what follows the last good line, when nothing good follows it.
    pub torn: usize,
    /// What is wrong, in order.
    pub damages: Vec<Damage>,
}

impl Scan {
    /// Whether every line is good and readable, up to a torn tail.
    #[must_use]
    pub fn is_good(&self) -> bool {
        self.damages.is_empty() && self.lines.iter().all(|line| line.record.is_ok())
    }
}

/// Reads the bytes of a segment. It never fails: [`Scan::damages`] says what is wrong.
#[must_use]
pub fn scan(bytes: &[u8]) -> Scan {
    let mut scan = Scan {
        head: None,
        lines: Vec::new(),
        good: 0,
        last: None,
        torn: 0,
        damages: Vec::new(),
    };
    let mut bad: Vec<Damage> = Vec::new();
    let mut bad_from = 0;
    let mut offset = 0;
    for line in bytes.split_inclusive(|byte| *byte == b'\n') {
        let opened = if line.ends_with(b"\n") {
            open(line).map(|_| ())
        } else {
            Err(DecodeError::Shape)
        };
        match opened {
            Err(source) => {
                if bad.is_empty() {
                    bad_from = offset;
                }
                bad.push(Damage::Line { offset, source });
            }
            Ok(()) => {
                // Something good follows, so what was bad before is damage, not a torn tail.
                scan.damages.append(&mut bad);
                let record = decode(line);
                if scan.lines.is_empty() {
                    scan.take_head(line, &record);
                } else if matches!(record, Ok(Record::Head(_))) {
                    scan.damages.push(Damage::SecondHead(offset));
                }
                scan.lines.push(Line { offset, record });
                scan.good = offset + line.len();
                scan.last = Some(chain_hash(line));
            }
        }
        offset += line.len();
    }
    if !bad.is_empty() {
        scan.torn = bytes.len() - bad_from;
    }
    if scan.lines.is_empty() && !bytes.is_empty() {
        scan.damages.push(Damage::NoHead);
    }
    scan
}

impl Scan {
    fn take_head(&mut self, line: &[u8], record: &Result<Record, DecodeError>) {
        match record {
            Ok(Record::Head(head)) if (OLDEST_FORMAT..=FORMAT).contains(&head.v) => {
                self.head = Some(head.clone());
            }
            Ok(Record::Head(head)) => self.damages.push(Damage::Format(head.v)),
            _ => self
                .damages
                .push(format_of(line).map_or(Damage::NoHead, Damage::Format)),
        }
    }
}

/// The format of a head this build does not know: `v` stays where it is in every format.
fn format_of(line: &[u8]) -> Option<u32> {
    let value: serde_json::Value = serde_json::from_str(open(line).ok()?).ok()?;
    let version = u32::try_from(value.get("v")?.as_u64()?).ok()?;
    (value.get("k")?.as_str()? == "H" && version > FORMAT).then_some(version)
}
