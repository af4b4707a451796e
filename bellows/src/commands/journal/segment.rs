//! A segment of a journal, read from its file.

use std::path::Path;

use daemon_kit::journal::files::{self, SegmentFile};
use protocol::journal::{Scan, scan};

use crate::fail::{Fail, Outcome};

/// A segment and its records.
pub(crate) struct Segment {
    pub(crate) file: SegmentFile,
    pub(crate) bytes: Vec<u8>,
    pub(crate) scan: Scan,
}

pub(crate) fn unreadable(path: &Path, error: &std::io::Error) -> Fail {
    Fail::missing(format!("{} cannot be read: {error}", path.display()))
}

pub(crate) fn read(file: SegmentFile) -> Outcome<Segment> {
    let bytes = files::read(&file.path).map_err(|error| unreadable(&file.path, &error))?;
    let scan = scan(&bytes);
    Ok(Segment { file, bytes, scan })
}
