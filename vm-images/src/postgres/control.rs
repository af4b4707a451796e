//! Replaces what a cluster has of chance and of the clock: its system identifier, the nonce of
//! refused logins, and the times of its last checkpoint.
//!
//! The identifier only tells apart clusters that replicate to each other; the nonce only makes the
//! challenge for an unknown user look like any other. Both are the same in every guest of one
//! image, as the data is.
//!
//! Works on a cluster fresh from `pg_resetwal`: `global/pg_control`, and a log of one segment with
//! one record in it. Source of the layouts: PostgreSQL's documentation of `pg_controldata` and its
//! headers `catalog/pg_control.h`, `access/xlog_internal.h` and `access/xlogrecord.h`, versions 13
//! to 18.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};

use crate::error::{BuildError, IoContext};
use crate::tool::EPOCH;

/// ASCII for "bellows1".
const SYSTEM_IDENTIFIER: u64 = 0x6265_6c6c_6f77_7331;

/// Control file formats with the same layout of these fields: PostgreSQL 13 to 16, 17 and 18.
const CONTROL_VERSIONS: [u32; 3] = [1300, 1700, 1800];

const IDENTIFIER_AT: usize = 0;
const VERSION_AT: usize = 8;
const TIME_AT: usize = 24;
const CHECKPOINT_TIME_AT: usize = 104;
const NONCE_BYTES: usize = 32;

/// Length of the first page header of the log. Identifier, segment size and block size end it.
const PAGE_HEADER: usize = 40;
const PAGE_IDENTIFIER_AT: usize = 24;
/// Length of a record's header, and offset of its checksum.
const RECORD_HEADER: usize = 24;
const RECORD_CRC_AT: usize = 20;
/// Offset of the checkpoint's time in the record: after the header, two bytes of framing and 64 of
/// other fields.
const RECORD_TIME_AT: usize = RECORD_HEADER + 2 + 64;
/// Length of a checkpoint record: header, framing and 88 bytes of checkpoint.
const RECORD_BYTES: usize = RECORD_HEADER + 2 + 88;

/// Overwrites identity, nonce and times of the cluster in `data`.
pub(crate) fn settle(data: &Path) -> Result<(), BuildError> {
    let control = data.join("global/pg_control");
    let mut bytes = fs::read(&control).at("read", &control)?;
    settle_control(&mut bytes).map_err(|problem| wrong(&control, "control file", problem))?;
    fs::write(&control, bytes).at("write", &control)?;
    let segment = only_segment(&data.join("pg_wal"))?;
    let file = File::options()
        .read(true)
        .write(true)
        .open(&segment)
        .at("open", &segment)?;
    let mut start = [0u8; PAGE_HEADER + RECORD_BYTES];
    file.read_exact_at(&mut start, 0).at("read", &segment)?;
    settle_log(&mut start).map_err(|problem| wrong(&segment, "log of one checkpoint", problem))?;
    file.write_all_at(&start, 0).at("write", &segment)
}

fn wrong(path: &Path, expected: &'static str, problem: String) -> BuildError {
    BuildError::Format {
        path: path.to_owned(),
        expected,
        problem,
    }
}

/// A segment's name has 24 hexadecimal digits.
fn only_segment(dir: &Path) -> Result<PathBuf, BuildError> {
    let mut segments = Vec::new();
    for entry in fs::read_dir(dir).at("list", dir)? {
        let path = entry.at("list", dir)?.path();
        if path.is_file() {
            segments.push(path);
        }
    }
    match (segments.pop(), segments.len()) {
        (Some(segment), 0) => Ok(segment),
        (_, more) => Err(wrong(
            dir,
            "log of one segment",
            format!("{} more files", more),
        )),
    }
}

fn settle_control(bytes: &mut [u8]) -> Result<(), String> {
    let crc_at = checksum_place(bytes).ok_or("no place in it holds its checksum")?;
    let version = le32(bytes, VERSION_AT);
    if !CONTROL_VERSIONS.contains(&version) {
        return Err(format!("its format {version} is unknown"));
    }
    put64(bytes, IDENTIFIER_AT, SYSTEM_IDENTIFIER);
    put64(bytes, TIME_AT, EPOCH.cast_unsigned());
    put64(bytes, CHECKPOINT_TIME_AT, EPOCH.cast_unsigned());
    let nonce: [u8; NONCE_BYTES] = Sha256::digest(b"bellows: nonce of refused logins").into();
    bytes[crc_at - NONCE_BYTES..crc_at].copy_from_slice(&nonce);
    let crc = crc32c::crc32c(&bytes[..crc_at]);
    bytes[crc_at..crc_at + 4].copy_from_slice(&crc.to_le_bytes());
    Ok(())
}

/// Offset of the checksum, which covers all bytes before it. It follows the nonce.
fn checksum_place(bytes: &[u8]) -> Option<usize> {
    let first = CHECKPOINT_TIME_AT + 8 + NONCE_BYTES;
    let last = bytes.len().min(1024).checked_sub(4)?;
    (first..=last)
        .step_by(4)
        .find(|at| crc32c::crc32c(&bytes[..*at]) == le32(bytes, *at))
}

fn settle_log(start: &mut [u8]) -> Result<(), String> {
    let record = &start[PAGE_HEADER..];
    let length = usize::try_from(le32(record, 0)).unwrap_or(0);
    if length != RECORD_BYTES {
        return Err(format!("its first record has {length} bytes"));
    }
    if record_checksum(record) != le32(record, RECORD_CRC_AT) {
        return Err("the checksum of its first record does not fit".to_owned());
    }
    put64(start, PAGE_IDENTIFIER_AT, SYSTEM_IDENTIFIER);
    let record = &mut start[PAGE_HEADER..];
    put64(record, RECORD_TIME_AT, EPOCH.cast_unsigned());
    let crc = record_checksum(record);
    record[RECORD_CRC_AT..RECORD_CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
    Ok(())
}

/// Checksum over the data, then over the header up to the checksum.
fn record_checksum(record: &[u8]) -> u32 {
    let data = crc32c::crc32c(&record[RECORD_HEADER..RECORD_BYTES]);
    crc32c::crc32c_append(data, &record[..RECORD_CRC_AT])
}

fn le32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn put64(bytes: &mut [u8], at: usize, value: u64) {
    bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn control(identifier: u64, time: u64) -> Vec<u8> {
        let mut bytes = vec![0u8; 8192];
        put64(&mut bytes, IDENTIFIER_AT, identifier);
        bytes[VERSION_AT..VERSION_AT + 4].copy_from_slice(&1300u32.to_le_bytes());
        put64(&mut bytes, TIME_AT, time);
        put64(&mut bytes, CHECKPOINT_TIME_AT, time);
        bytes[64] = 9;
        bytes[256..288].fill(u8::try_from(identifier & 0xff).unwrap());
        let crc = crc32c::crc32c(&bytes[..288]);
        bytes[288..292].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    fn log(identifier: u64, time: u64) -> Vec<u8> {
        let mut bytes = vec![0u8; PAGE_HEADER + RECORD_BYTES];
        put64(&mut bytes, PAGE_IDENTIFIER_AT, identifier);
        let record = &mut bytes[PAGE_HEADER..];
        record[0] = u8::try_from(RECORD_BYTES).unwrap();
        put64(record, RECORD_TIME_AT, time);
        let crc = record_checksum(record);
        record[RECORD_CRC_AT..RECORD_CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Requirement: N46
    #[test]
    fn two_clusters_become_one() {
        let (mut first, mut second) = (control(1, 100), control(2, 200));
        settle_control(&mut first).unwrap();
        settle_control(&mut second).unwrap();
        assert_eq!(first, second);
        assert_eq!(checksum_place(&first), Some(288));
        assert_eq!(first[64], 9, "what is neither chance nor time stays");
        let (mut first, mut second) = (log(1, 100), log(2, 200));
        settle_log(&mut first).unwrap();
        settle_log(&mut second).unwrap();
        assert_eq!(first, second);
        let record = &first[PAGE_HEADER..];
        assert_eq!(record_checksum(record), le32(record, RECORD_CRC_AT));
    }

    /// Requirement: N46
    #[test]
    fn an_unknown_or_damaged_cluster_is_refused() {
        let mut bytes = control(1, 1);
        bytes[30] ^= 1;
        assert!(settle_control(&mut bytes).unwrap_err().contains("checksum"));
        let mut bytes = control(1, 1);
        bytes[VERSION_AT] = 1;
        let crc = crc32c::crc32c(&bytes[..288]);
        bytes[288..292].copy_from_slice(&crc.to_le_bytes());
        assert!(settle_control(&mut bytes).unwrap_err().contains("unknown"));
        let mut bytes = log(1, 1);
        bytes[PAGE_HEADER + 30] ^= 1;
        assert!(settle_log(&mut bytes).unwrap_err().contains("checksum"));
        bytes[PAGE_HEADER] = 5;
        assert!(settle_log(&mut bytes).unwrap_err().contains("5 bytes"));
    }
}
