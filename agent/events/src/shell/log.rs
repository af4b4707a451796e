//! The log of one stream on disk. A restart loses no event and sends none in two different batches.
//!
//! A folder holds segments, named by the position of their first event, and one cursor file per
//! receiver. A segment has one event per line. A line that begins with `!` ends a group of events
//! and may hold the writer's checkpoint. A group counts only with that line, so its events and its
//! checkpoint exist together or not at all. Text after the last such line is the rest of a crash;
//! opening the log cuts it off.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::ops::Range;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use daemon_kit::durable;
use serde::{Deserialize, Serialize};

/// Size from which the next group begins a new segment, bytes.
const SEGMENT_BYTES: u64 = 4 << 20;
/// Size of all segments above which the oldest is deleted, bytes: days of events of a full node.
const LOG_BYTES: u64 = 1 << 30;
/// First character of the line that ends a group. No event begins with it: they are JSON objects.
const COMMIT: char = '!';
const SEGMENT_SUFFIX: &str = "events";

/// Failure of a file operation on a log.
#[derive(Debug, thiserror::Error)]
#[error("could not {action} {path:?}")]
pub(crate) struct LogError {
    action: &'static str,
    path: PathBuf,
    #[source]
    source: io::Error,
}

fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> LogError {
    let path = path.to_owned();
    move |source| LogError {
        action,
        path,
        source,
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Segment {
    events: u64,
    bytes: u64,
}

/// An open log.
#[derive(Debug)]
pub(crate) struct EventLog {
    folder: PathBuf,
    segments: BTreeMap<u64, Segment>,
    checkpoint: Option<String>,
    newest: Option<File>,
    segment_bytes: u64,
    log_bytes: u64,
}

/// A receiver's position in the log, and the batch in progress.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct Cursor {
    /// Position before which all events are received.
    pub done: u64,
    /// The closed batch that begins at `done`.
    #[serde(default)]
    pub batch: Option<Batch>,
}

/// A closed batch: each attempt sends exactly these events under this name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Batch {
    /// Position after its last event.
    pub end: u64,
    pub name: String,
}

impl EventLog {
    /// Opens the log in a folder, or creates both.
    ///
    /// # Errors
    /// [`LogError`] when the folder cannot be read and written.
    pub(crate) fn open(folder: &Path) -> Result<Self, LogError> {
        Self::open_with(folder, SEGMENT_BYTES, LOG_BYTES)
    }

    fn open_with(folder: &Path, segment_bytes: u64, log_bytes: u64) -> Result<Self, LogError> {
        let made = DirBuilder::new().recursive(true).mode(0o700).create(folder);
        made.map_err(failed("make", folder))?;
        let mut log = Self {
            folder: folder.to_owned(),
            segments: BTreeMap::new(),
            checkpoint: None,
            newest: None,
            segment_bytes,
            log_bytes,
        };
        let mut firsts = Vec::new();
        for entry in fs::read_dir(folder).map_err(failed("read", folder))? {
            let path = entry.map_err(failed("read", folder))?.path();
            let is_segment = path
                .extension()
                .is_some_and(|suffix| suffix == SEGMENT_SUFFIX);
            let stem = path.file_stem().and_then(|stem| stem.to_str());
            if let (true, Some(first)) = (is_segment, stem.and_then(|stem| stem.parse().ok())) {
                firsts.push(first);
            }
        }
        firsts.sort_unstable();
        for first in firsts {
            log.recover(first)?;
        }
        Ok(log)
    }

    fn path(&self, first: u64) -> PathBuf {
        self.folder.join(format!("{first:020}.{SEGMENT_SUFFIX}"))
    }

    /// Reads a segment's groups and cuts off an incomplete one at its end.
    fn recover(&mut self, first: u64) -> Result<(), LogError> {
        let path = self.path(first);
        let file = OpenOptions::new()
            .read(true)
            .append(true)
            .open(&path)
            .map_err(failed("open", &path))?;
        let mut reader = BufReader::new(&file);
        let mut whole = Segment::default();
        let mut read = 0;
        let mut events = 0;
        let mut line = Vec::new();
        loop {
            line.clear();
            let length = reader
                .read_until(b'\n', &mut line)
                .map_err(failed("read", &path))? as u64;
            if length == 0 || line.last() != Some(&b'\n') {
                break;
            }
            read += length;
            if line.first() == Some(&(COMMIT as u8)) {
                whole = Segment {
                    events,
                    bytes: read,
                };
                let text = String::from_utf8_lossy(&line[1..line.len() - 1]).into_owned();
                if !text.is_empty() {
                    self.checkpoint = Some(text);
                }
            } else {
                events += 1;
            }
        }
        drop(reader);
        file.set_len(whole.bytes).map_err(failed("cut", &path))?;
        self.segments.insert(first, whole);
        self.newest = Some(file);
        Ok(())
    }

    /// Position of the oldest event kept.
    pub(crate) fn first(&self) -> u64 {
        self.segments.keys().next().copied().unwrap_or(0)
    }

    /// Position after the newest event.
    pub(crate) fn end(&self) -> u64 {
        let newest = self.segments.iter().next_back();
        newest.map_or(0, |(first, segment)| first + segment.events)
    }

    pub(crate) fn checkpoint(&self) -> Option<&str> {
        self.checkpoint.as_deref()
    }

    /// Adds a group of events, each one line of JSON, with a checkpoint, and syncs it to disk.
    /// Returns the position after the group.
    ///
    /// # Errors
    /// [`LogError`]; nothing of the group is in the log, and it may be added again.
    pub(crate) fn append(
        &mut self,
        events: &[String],
        checkpoint: Option<&str>,
    ) -> Result<u64, LogError> {
        let mut group = String::new();
        for event in events {
            group.push_str(event);
            group.push('\n');
        }
        group.push(COMMIT);
        group.push_str(checkpoint.unwrap_or_default());
        group.push('\n');
        let end = self.end();
        let is_full = |segment: &Segment| segment.events > 0 && segment.bytes >= self.segment_bytes;
        let newest = self.segments.iter().next_back();
        let first = match newest {
            Some((first, segment)) if !is_full(segment) => *first,
            _ => end,
        };
        let path = self.path(first);
        let bytes = self.segments.get(&first).map_or(0, |segment| segment.bytes);
        if bytes == 0 || self.newest.is_none() {
            let file = OpenOptions::new()
                .append(true)
                .create(true)
                .mode(0o600)
                .open(&path)
                .map_err(failed("open", &path))?;
            // Cuts off the rest of a failed attempt.
            file.set_len(bytes).map_err(failed("cut", &path))?;
            self.newest = Some(file);
        }
        if let Some(mut file) = self.newest.take() {
            let written = file.write_all(group.as_bytes());
            written
                .and_then(|()| file.sync_data())
                .map_err(failed("write", &path))?;
            self.newest = Some(file);
        }
        let segment = self.segments.entry(first).or_default();
        segment.events += events.len() as u64;
        segment.bytes += group.len() as u64;
        if let Some(checkpoint) = checkpoint {
            self.checkpoint = Some(checkpoint.to_owned());
        }
        Ok(self.end())
    }

    /// The events of a range that the log still holds.
    ///
    /// # Errors
    /// [`LogError`] when a segment cannot be read.
    pub(crate) fn read(&self, range: Range<u64>) -> Result<Vec<String>, LogError> {
        let mut events = Vec::new();
        for (first, segment) in &self.segments {
            let all = *first..first + segment.events;
            if all.end <= range.start || all.start >= range.end {
                continue;
            }
            let path = self.path(*first);
            let file = File::open(&path).map_err(failed("open", &path))?;
            let mut position = *first;
            for line in BufReader::new(file).lines() {
                let line = line.map_err(failed("read", &path))?;
                if line.starts_with(COMMIT) {
                    continue;
                }
                if range.contains(&position) {
                    events.push(line);
                }
                position += 1;
                if position >= range.end.min(all.end) {
                    break;
                }
            }
        }
        Ok(events)
    }

    /// Deletes segments that all receivers have, and the oldest segments of a log that is too
    /// large.
    ///
    /// # Errors
    /// [`LogError`] when a file cannot be deleted.
    pub(crate) fn trim(&mut self, received: u64) -> Result<(), LogError> {
        while self.segments.len() > 1 {
            let total: u64 = self.segments.values().map(|segment| segment.bytes).sum();
            let Some((first, segment)) = self.segments.first_key_value() else {
                break;
            };
            if first + segment.events > received && total <= self.log_bytes {
                break;
            }
            let (first, path) = (*first, self.path(*first));
            fs::remove_file(&path).map_err(failed("delete", &path))?;
            self.segments.remove(&first);
        }
        Ok(())
    }

    fn cursor_path(&self, receiver: &str) -> PathBuf {
        self.folder.join(format!("{receiver}.cursor"))
    }

    /// A receiver's cursor. A new receiver starts at the oldest event.
    ///
    /// # Errors
    /// [`LogError`] when the cursor's file exists and cannot be read or parsed.
    pub(crate) fn cursor(&self, receiver: &str) -> Result<Cursor, LogError> {
        let path = self.cursor_path(receiver);
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Cursor::default()),
            Err(error) => return Err(failed("read", &path)(error)),
        };
        serde_json::from_slice(&text)
            .map_err(io::Error::other)
            .map_err(failed("understand", &path))
    }

    /// Stores a receiver's cursor durably.
    ///
    /// # Errors
    /// [`LogError`]; the old cursor stays in place.
    pub(crate) fn set_cursor(&self, receiver: &str, cursor: &Cursor) -> Result<(), LogError> {
        let path = self.cursor_path(receiver);
        let text = serde_json::to_vec(cursor).map_err(io::Error::from);
        let written = text.and_then(|text| durable::replace(&path, &text));
        written.map_err(failed("write", &path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn events(range: Range<u64>) -> Vec<String> {
        range.map(|n| format!("{{\"n\":{n}}}")).collect()
    }

    fn newest_file(folder: &Path) -> PathBuf {
        let mut files: Vec<PathBuf> = fs::read_dir(folder)
            .expect("reads")
            .map(|entry| entry.expect("reads").path())
            .filter(|path| {
                path.extension()
                    .is_some_and(|suffix| suffix == SEGMENT_SUFFIX)
            })
            .collect();
        files.sort();
        files.pop().expect("there is one")
    }

    #[test]
    fn events_and_checkpoint_are_restored_together() {
        let folder = tempfile::tempdir().expect("makes a folder");
        let mut log = EventLog::open(folder.path()).expect("opens");
        assert_eq!((log.first(), log.end(), log.checkpoint()), (0, 0, None));
        assert_eq!(log.append(&events(0..3), Some("one")).expect("writes"), 3);
        assert_eq!(log.append(&events(3..5), None).expect("writes"), 5);
        let log = EventLog::open(folder.path()).expect("opens again");
        assert_eq!((log.end(), log.checkpoint()), (5, Some("one")));
        assert_eq!(log.read(1..4).expect("reads"), events(1..4));
        assert_eq!(log.read(4..99).expect("reads"), events(4..5));
    }

    #[test]
    fn group_torn_at_any_byte_is_dropped() {
        let folder = tempfile::tempdir().expect("makes a folder");
        let mut log = EventLog::open(folder.path()).expect("opens");
        log.append(&events(0..2), Some("one")).expect("writes");
        let path = newest_file(folder.path());
        let whole = fs::read(&path).expect("reads");
        log.append(&events(2..4), Some("two")).expect("writes");
        let both = fs::read(&path).expect("reads");
        for length in whole.len()..both.len() {
            fs::write(&path, &both[..length]).expect("writes");
            let mut log = EventLog::open(folder.path()).expect("opens");
            assert_eq!(
                (log.end(), log.checkpoint()),
                (2, Some("one")),
                "{length} bytes"
            );
            log.append(&events(2..3), None).expect("writes");
            assert_eq!(log.read(0..9).expect("reads"), events(0..3));
        }
    }

    #[test]
    fn received_segments_are_deleted_except_the_newest() {
        let folder = tempfile::tempdir().expect("makes a folder");
        let mut log = EventLog::open_with(folder.path(), 19, LOG_BYTES).expect("opens");
        for n in 0..6 {
            log.append(&events(n * 2..n * 2 + 2), Some(&n.to_string()))
                .expect("writes");
        }
        assert_eq!(log.segments.len(), 6, "each group fills a segment");
        log.trim(5).expect("deletes");
        assert_eq!((log.first(), log.end()), (4, 12));
        log.trim(12).expect("deletes");
        assert_eq!(
            (log.first(), log.end(), log.checkpoint()),
            (10, 12, Some("5"))
        );
        let log = EventLog::open(folder.path()).expect("opens");
        assert_eq!(
            (log.first(), log.end(), log.checkpoint()),
            (10, 12, Some("5"))
        );
    }

    #[test]
    fn oldest_segment_of_too_large_log_is_deleted() {
        let folder = tempfile::tempdir().expect("makes a folder");
        let mut log = EventLog::open_with(folder.path(), 20, 60).expect("opens");
        for n in 0..9 {
            log.append(&events(n..n + 1), None).expect("writes");
            log.trim(0).expect("deletes");
        }
        let total: u64 = log.segments.values().map(|segment| segment.bytes).sum();
        assert!(
            total <= 60 && log.first() > 0 && log.end() == 9,
            "{:?}",
            log.segments
        );
    }

    #[test]
    fn cursors_are_kept_and_a_malformed_one_is_an_error() {
        let folder = tempfile::tempdir().expect("makes a folder");
        let log = EventLog::open(folder.path()).expect("opens");
        assert_eq!(log.cursor("http").expect("reads"), Cursor::default());
        let cursor = Cursor {
            done: 3,
            batch: Some(Batch {
                end: 7,
                name: "x".into(),
            }),
        };
        log.set_cursor("http", &cursor).expect("writes");
        assert_eq!(log.cursor("http").expect("reads"), cursor);
        assert_eq!(log.cursor("s3").expect("reads"), Cursor::default());
        fs::write(folder.path().join("http.cursor"), "what").expect("writes");
        assert!(log.cursor("http").is_err());
    }
}
