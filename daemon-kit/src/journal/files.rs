//! Files of a journal: `<part>/<seq>.bj` while it is written, then `<part>/<seq>.bj.zst`. Lists,
//! reads and packs them.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::durable::sync_folder_of;
use protocol::journal::{Damage, MAX_LINE_BYTES, Scan, scan};

const PLAIN: &str = "bj";
/// Extension of a packed segment.
const PACKED: &str = "bj.zst";
/// Longest segment in bytes after unpacking: a hundred times what the writer produces.
const READ_LIMIT: u64 = 1 << 31;
const LEVEL: i32 = 6;

/// A segment of a journal as a file, plain or packed.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct SegmentFile {
    /// Number of the segment in its folder.
    pub seq: u64,
    /// Path of the segment's file.
    pub path: PathBuf,
    /// Whether the file is compressed.
    pub is_packed: bool,
    /// Length of the file in bytes.
    pub bytes: u64,
    /// Time of the last write.
    pub modified: SystemTime,
}

pub(super) fn path_of(folder: &Path, seq: u64) -> PathBuf {
    folder.join(format!("{seq:010}.{PLAIN}"))
}

pub(super) fn seq_of(name: &str) -> Option<(u64, bool)> {
    let (number, ending) = name.split_once('.')?;
    let is_packed = match ending {
        PLAIN => false,
        PACKED => true,
        _ => return None,
    };
    Some((number.parse().ok()?, is_packed))
}

/// Segments in a component's folder, by number. If a segment exists in both forms, packing was
/// interrupted: the plain one counts.
///
/// # Errors
/// The folder cannot be read; a missing one is empty.
pub fn list(folder: &Path) -> io::Result<Vec<SegmentFile>> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut files: Vec<SegmentFile> = Vec::new();
    for entry in entries {
        let entry = entry?;
        let Some((seq, is_packed)) = entry.file_name().to_str().and_then(seq_of) else {
            continue;
        };
        // Retention may remove a file after the listing.
        let Ok(metadata) = entry.metadata() else {
            continue;
        };
        files.push(SegmentFile {
            seq,
            path: entry.path(),
            is_packed,
            bytes: metadata.len(),
            modified: metadata.modified()?,
        });
    }
    files.sort_by_key(|file| (file.seq, file.is_packed));
    files.dedup_by_key(|file| file.seq);
    Ok(files)
}

/// Bytes of a segment, unpacked.
///
/// # Errors
/// The file cannot be read or unpacked, or is longer than any segment of ours.
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    let file = File::open(path)?;
    let mut bytes = Vec::new();
    if path.to_str().is_some_and(|name| name.ends_with(PACKED)) {
        zstd::Decoder::new(file)?
            .take(READ_LIMIT + 1)
            .read_to_end(&mut bytes)?;
    } else {
        file.take(READ_LIMIT + 1).read_to_end(&mut bytes)?;
    }
    if bytes.len() as u64 > READ_LIMIT {
        return Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            "longer than any segment",
        ));
    }
    Ok(bytes)
}

/// Whether a newer program wrote a segment: such a file is never changed.
///
/// # Errors
/// The file cannot be read.
pub fn is_newer(file: &SegmentFile) -> io::Result<bool> {
    let mut start = Vec::new();
    let limit = MAX_LINE_BYTES as u64 + 1;
    let open = File::open(&file.path)?;
    if file.is_packed {
        zstd::Decoder::new(open)?
            .take(limit)
            .read_to_end(&mut start)?;
    } else {
        open.take(limit).read_to_end(&mut start)?;
    }
    let end = start
        .iter()
        .position(|byte| *byte == b'\n')
        .map_or(start.len(), |end| end + 1);
    Ok(scan_is_newer(&scan(&start[..end])))
}

pub(super) fn scan_is_newer(scan: &Scan) -> bool {
    matches!(scan.damages.first(), Some(Damage::Format(_)))
}

/// Packs a segment and removes the plain file. The next start handles leftovers of a crash.
pub(super) fn pack(file: &SegmentFile) -> io::Result<()> {
    if file.is_packed {
        return Ok(());
    }
    let packed = file.path.with_extension(PACKED);
    let draft = file.path.with_extension("draft");
    let mut source = File::open(&file.path)?;
    let target = File::create(&draft)?;
    zstd::stream::copy_encode(&mut source, &target, LEVEL)?;
    target.set_modified(file.modified)?;
    target.sync_all()?;
    fs::rename(&draft, &packed)?;
    sync_folder_of(&file.path)?;
    fs::remove_file(&file.path)
}
