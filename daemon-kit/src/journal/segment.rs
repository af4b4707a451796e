//! The segment being written: recovered after a crash, begun, written, ended.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use protocol::journal::{FORMAT, Gap, Head, Previous, Record, Why, chain_hash, encode, scan};
use protocol::time::{Timestamp, WallTime};

use super::files::{self, SegmentFile};
use super::settings::Identity;
use crate::durable::sync_folder_of;

/// State that an earlier writer left.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Recovered {
    /// Number of its newest segment, 0 for none.
    pub seq: u64,
    /// Link to that segment; `None` where a new chain begins.
    pub prev: Option<Previous>,
    /// Bytes cut off its end.
    pub torn: usize,
}

/// Recovers the folder, and cuts a torn tail. A segment of a newer format is not changed; a new
/// chain begins beside it.
pub(super) fn recover(files: &[SegmentFile]) -> io::Result<Recovered> {
    let mut torn = 0;
    let newest = files.last().map_or(0, |file| file.seq);
    for file in files.iter().rev() {
        let bytes = files::read(&file.path)?;
        let found = scan(&bytes);
        if files::scan_is_newer(&found) {
            break;
        }
        if found.torn > 0 && !file.is_packed {
            torn = found.torn;
            OpenOptions::new()
                .write(true)
                .open(&file.path)?
                .set_len(found.good as u64)?;
        }
        match found.last {
            Some(h) => {
                let prev = Previous { h, seq: file.seq };
                return Ok(Recovered {
                    seq: newest,
                    prev: Some(prev),
                    torn,
                });
            }
            // Not even its first line was written: the segment counts as never begun.
            None if !file.is_packed => fs::remove_file(&file.path)?,
            None => break,
        }
    }
    Ok(Recovered {
        seq: newest,
        prev: None,
        torn,
    })
}

#[derive(Debug)]
pub(super) struct Segment {
    pub file: File,
    pub path: PathBuf,
    pub seq: u64,
    pub bytes: u64,
    pub begun: Timestamp,
    /// Its last line, for the link of the next segment; without its line feed while incomplete.
    last_line: Vec<u8>,
}

impl Segment {
    /// Begins a segment: its first line, then `records`.
    pub(super) fn begin(
        folder: &Path,
        identity: &Identity,
        (now, wall): (Timestamp, WallTime),
        seq: u64,
        prev: Option<Previous>,
        records: &[Record],
    ) -> io::Result<Self> {
        let head = Record::Head(Head {
            build: identity.build.clone(),
            cu: identity.compute_unit.into(),
            node: identity.node.clone(),
            part: identity.part.clone(),
            prev,
            run: identity.run,
            seq,
            t: now.0,
            v: FORMAT,
            wall: u64::try_from(wall.0).unwrap_or(0).saturating_sub(now.0),
        });
        let text: String = std::iter::once(&head).chain(records).map(encode).collect();
        let path = files::path_of(folder, seq);
        let mut file = OpenOptions::new()
            .append(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)?;
        let begun = file
            .write_all(text.as_bytes())
            .and_then(|()| sync_folder_of(&path));
        if let Err(error) = begun {
            let _ = fs::remove_file(&path);
            return Err(error);
        }
        let mut segment = Self {
            file,
            path,
            seq,
            bytes: 0,
            begun: now,
            last_line: Vec::new(),
        };
        segment.wrote(text.as_bytes());
        Ok(segment)
    }

    /// Writes as much as the disk accepts. Returns the number of bytes, and the error if there is a
    /// rest.
    pub(super) fn write(&mut self, bytes: &[u8]) -> (usize, io::Result<()>) {
        let mut done = 0;
        while done < bytes.len() {
            match self.file.write(&bytes[done..]) {
                Ok(0) => return (done, Err(io::ErrorKind::WriteZero.into())),
                Ok(count) => {
                    self.wrote(&bytes[done..done + count]);
                    done += count;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return (done, Err(error)),
            }
        }
        (done, Ok(()))
    }

    fn wrote(&mut self, bytes: &[u8]) {
        self.bytes += bytes.len() as u64;
        let is_whole = |line: &[u8]| line.ends_with(b"\n");
        for line in bytes.split_inclusive(|byte| *byte == b'\n') {
            if is_whole(&self.last_line) {
                self.last_line.clear();
            }
            self.last_line.extend_from_slice(line);
        }
    }

    /// Whether the last line is complete, so that the segment may end here.
    pub(super) fn is_at_line_end(&self) -> bool {
        self.last_line.ends_with(b"\n")
    }

    pub(super) fn link(&self) -> Previous {
        Previous {
            h: chain_hash(&self.last_line),
            seq: self.seq,
        }
    }
}

/// Record of a cut tail.
pub(super) fn torn_record(left: &Recovered, now: Timestamp) -> Option<Record> {
    let gap = Gap {
        n: left.torn as u64,
        span: 0,
        t: now.0,
        vm: None,
        why: Why::TornTail,
    };
    (left.torn > 0).then_some(Record::Gap(gap))
}
