//! The initial RAM disk: a "newc" cpio archive. The same content gives the same bytes.
//!
//! Source of the format: the kernel's Documentation/driver-api/early-userspace/buffer-format.rst.

use std::collections::BTreeMap;

/// An entry of the archive.
pub(crate) enum Entry {
    /// A directory, mode 0755.
    Dir,
    /// A file with its permissions.
    File(u32, Vec<u8>),
    /// A symbolic link.
    Link(String),
    /// A character device (major, minor), mode 0600.
    Device(u32, u32),
}

const TYPE_DIR: u32 = 0o040_000;
const TYPE_FILE: u32 = 0o100_000;
const TYPE_LINK: u32 = 0o120_000;
const TYPE_CHAR: u32 = 0o020_000;

/// The archive is padded to a multiple of this, as usual.
const BLOCK: usize = 512;

/// Writes the archive. The keys of `entries` are paths without a leading slash, and sort parents
/// before children.
pub(crate) fn archive(entries: &BTreeMap<String, Entry>, time: u32) -> Vec<u8> {
    let mut out = Vec::new();
    for (number, (path, entry)) in (1u32..).zip(entries) {
        let empty: &[u8] = &[];
        let (mode, links, data, device) = match entry {
            Entry::Dir => (TYPE_DIR | 0o755, 2, empty, (0, 0)),
            Entry::File(mode, data) => (TYPE_FILE | mode, 1, data.as_slice(), (0, 0)),
            Entry::Link(target) => (TYPE_LINK | 0o777, 1, target.as_bytes(), (0, 0)),
            Entry::Device(major, minor) => (TYPE_CHAR | 0o600, 1, empty, (*major, *minor)),
        };
        record(
            &mut out,
            &Header {
                number,
                mode,
                links,
                time,
                device,
            },
            path,
            data,
        );
    }
    let end = Header {
        number: 0,
        mode: 0,
        links: 1,
        time: 0,
        device: (0, 0),
    };
    record(&mut out, &end, "TRAILER!!!", &[]);
    out.resize(out.len().next_multiple_of(BLOCK), 0);
    out
}

struct Header {
    number: u32,
    mode: u32,
    links: u32,
    time: u32,
    device: (u32, u32),
}

fn record(out: &mut Vec<u8>, header: &Header, path: &str, data: &[u8]) {
    let length = |n: usize| u32::try_from(n).expect("files of an initial RAM disk are below 4 GiB");
    // Inode, mode, uid, gid, links, mtime, size, device of the file system (2), own device (2),
    // name length, checksum.
    let fields = [
        header.number,
        header.mode,
        0,
        0,
        header.links,
        header.time,
        length(data.len()),
        0,
        0,
        header.device.0,
        header.device.1,
        length(path.len() + 1),
        0,
    ];
    out.extend_from_slice(b"070701");
    for field in fields {
        out.extend_from_slice(format!("{field:08x}").as_bytes());
    }
    out.extend_from_slice(path.as_bytes());
    out.push(0);
    out.resize(out.len().next_multiple_of(4), 0);
    out.extend_from_slice(data);
    out.resize(out.len().next_multiple_of(4), 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads an archive as (path, mode, content).
    fn read(mut bytes: &[u8]) -> Vec<(String, u32, Vec<u8>)> {
        let mut found = Vec::new();
        let all = bytes.len();
        loop {
            assert_eq!(&bytes[..6], b"070701");
            let field = |n: usize| {
                let text = std::str::from_utf8(&bytes[6 + n * 8..14 + n * 8]).unwrap();
                usize::from_str_radix(text, 16).unwrap()
            };
            let (mode, size, name_length) = (field(1), field(6), field(11));
            let name_end = 110 + name_length;
            let name = String::from_utf8(bytes[110..name_end - 1].to_vec()).unwrap();
            let at = all - bytes.len();
            let begin = (at + name_end).next_multiple_of(4) - at;
            if name == "TRAILER!!!" {
                return found;
            }
            found.push((
                name,
                u32::try_from(mode).unwrap(),
                bytes[begin..begin + size].to_vec(),
            ));
            bytes = &bytes[(at + begin + size).next_multiple_of(4) - at..];
        }
    }

    /// Requirement: N46
    #[test]
    fn archive_holds_its_entries_and_is_reproducible() {
        let entries = BTreeMap::from([
            ("bin".to_owned(), Entry::Dir),
            ("bin/sh".to_owned(), Entry::Link("busybox".into())),
            ("dev/console".to_owned(), Entry::Device(5, 1)),
            (
                "init".to_owned(),
                Entry::File(0o755, b"#!/bin/sh\n".to_vec()),
            ),
        ]);
        let bytes = archive(&entries, 7);
        assert_eq!(bytes.len() % 512, 0);
        let expected = [
            ("bin".to_owned(), 0o040_755, Vec::new()),
            ("bin/sh".to_owned(), 0o120_777, b"busybox".to_vec()),
            ("dev/console".to_owned(), 0o020_600, Vec::new()),
            ("init".to_owned(), 0o100_755, b"#!/bin/sh\n".to_vec()),
        ];
        assert_eq!(read(&bytes), expected);
        assert_eq!(bytes, archive(&entries, 7));
    }
}
