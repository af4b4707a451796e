//! Writes tar archives for layers: POSIX ustar headers, with a pax header for a long path or a
//! large size.

use std::io::{self, Read as _, Write};
use std::path::{Path, PathBuf};

use super::open;

const BLOCK: usize = 512;
/// Longest name and longest link target in a header, bytes.
const NAME: usize = 100;
/// First size that does not fit into the eleven octal digits of a header.
const LARGE: u64 = 1 << 33;

#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub(super) mode: u32,
    pub(super) body: Body,
}

#[derive(Debug, Clone)]
pub(super) enum Body {
    /// A file on this machine, and its length in bytes.
    File(PathBuf, u64),
    Text(String),
    Link(String),
    Directory,
}

impl Entry {
    pub(super) fn directory(mode: u32) -> Self {
        let body = Body::Directory;
        Self { mode, body }
    }

    pub(super) fn link(to: &str) -> Self {
        let body = Body::Link(to.to_owned());
        Self { mode: 0o777, body }
    }

    pub(super) fn text(text: String) -> Self {
        let body = Body::Text(text);
        Self { mode: 0o644, body }
    }

    /// Path of its source, for messages.
    pub(super) fn source(&self) -> &Path {
        match &self.body {
            Body::File(path, _) => path,
            _ => Path::new(""),
        }
    }
}

/// Appends an entry. Paths of directories end with a slash.
pub(super) fn append(out: &mut impl Write, path: &str, entry: &Entry) -> io::Result<()> {
    match &entry.body {
        Body::Directory => header(out, path, entry.mode, 0, b'5', ""),
        Body::Link(to) => header(out, path, entry.mode, 0, b'2', to),
        Body::Text(text) => {
            header(out, path, entry.mode, text.len() as u64, b'0', "")?;
            out.write_all(text.as_bytes())?;
            pad(out, text.len() as u64)
        }
        Body::File(source, bytes) => {
            header(out, path, entry.mode, *bytes, b'0', "")?;
            let copied = io::copy(&mut open(source, *bytes)?.take(*bytes), out)?;
            if copied != *bytes {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            pad(out, *bytes)
        }
    }
}

/// Appends a file of `bytes` bytes, which `write` writes.
pub(super) fn append_stream<W: Write>(
    out: &mut W,
    path: &str,
    bytes: u64,
    write: impl FnOnce(&mut W) -> io::Result<()>,
) -> io::Result<()> {
    header(out, path, 0o644, bytes, b'0', "")?;
    write(out)?;
    pad(out, bytes)
}

/// Writes the end of the archive: two empty blocks.
pub(super) fn finish(out: &mut impl Write) -> io::Result<()> {
    out.write_all(&[0; 2 * BLOCK])
}

fn pad(out: &mut impl Write, bytes: u64) -> io::Result<()> {
    let over = usize::try_from(bytes % BLOCK as u64).unwrap_or(0);
    if over == 0 {
        return Ok(());
    }
    out.write_all(&[0; BLOCK][over..])
}

fn header(
    out: &mut impl Write,
    path: &str,
    mode: u32,
    size: u64,
    kind: u8,
    link: &str,
) -> io::Result<()> {
    let mut extended = String::new();
    if path.len() > NAME {
        extended += &record("path", path);
    }
    if link.len() > NAME {
        extended += &record("linkpath", link);
    }
    if size >= LARGE {
        extended += &record("size", &size.to_string());
    }
    if !extended.is_empty() {
        let length = extended.len() as u64;
        out.write_all(&block("pax", 0o644, length, b'x', ""))?;
        out.write_all(extended.as_bytes())?;
        pad(out, length)?;
    }
    out.write_all(&block(path, mode, size, kind, link))
}

/// `length key=value\n`, where the length counts itself.
pub(crate) fn record(key: &str, value: &str) -> String {
    let rest = format!(" {key}={value}\n");
    let mut length = rest.len();
    loop {
        let whole = rest.len() + length.to_string().len();
        if whole == length {
            return format!("{length}{rest}");
        }
        length = whole;
    }
}

fn block(path: &str, mode: u32, size: u64, kind: u8, link: &str) -> [u8; BLOCK] {
    let mut block = [0; BLOCK];
    let mut put = |at: usize, bytes: &[u8], most: usize| {
        let length = bytes.len().min(most);
        block[at..at + length].copy_from_slice(&bytes[..length]);
    };
    put(0, path.as_bytes(), NAME);
    put(100, format!("{mode:07o}\0").as_bytes(), 8);
    // Owner and group are root, the time is the epoch.
    put(108, b"0000000\0", 8);
    put(116, b"0000000\0", 8);
    put(124, format!("{:011o}\0", size % LARGE).as_bytes(), 12);
    put(136, b"00000000000\0", 12);
    put(148, b"        ", 8);
    put(156, &[kind], 1);
    put(157, link.as_bytes(), NAME);
    put(257, b"ustar\x0000", 8);
    let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    block
}
