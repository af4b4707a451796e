//! Reads tar archives of container images as a stream: POSIX ustar with pax and GNU extensions.
//!
//! No length is trusted. An extension record is bounded, and content is not kept in memory. Unknown
//! things, such as a sparse file, give an error that names the place.

use std::io::{self, BufReader, Read, Seek};

const BLOCK: usize = 512;
/// [`BLOCK`] as a length of content.
const BLOCK_BYTES: u64 = 512;
/// Longest extension record in bytes. Paths have at most 4096 bytes, and a file has few attributes.
const MAX_EXTENSION: u64 = 1 << 20;

/// Why an archive cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum TarError {
    #[error("it cannot be read")]
    Read(#[from] io::Error),
    /// The archive ends inside an entry. Holds the offset in bytes.
    #[error("it ends in the middle of an entry, at byte {0}")]
    Short(u64),
    /// A header is invalid. Holds the offset in bytes.
    #[error("there is no tar header at byte {0}")]
    Header(u64),
    #[error("a number in the header at byte {0} is not one")]
    Number(u64),
    #[error("a name in the header at byte {0} is not UTF-8")]
    Name(u64),
    /// An extension record is invalid or too long.
    #[error(
        "the extension of {bytes} bytes at byte {at} is not one, or longer than {MAX_EXTENSION}"
    )]
    Extension { at: u64, bytes: u64 },
    /// The archive has a sparse file, which no container image needs.
    #[error("the entry {path:?} is of a kind that is not supported (a sparse file)")]
    Sparse { path: String },
}

/// Type of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    File,
    /// Another name of an earlier file.
    HardLink,
    Symlink,
    Directory,
    Fifo,
    Device,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Header {
    /// Path as the archive spells it.
    pub(super) path: String,
    pub(super) kind: Kind,
    /// Permission bits, twelve of them.
    pub(super) mode: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    /// Length of the content.
    pub(super) bytes: u64,
    /// Target of a link.
    pub(super) link: String,
}

/// A stream that can skip bytes.
pub(super) trait Source: Read + Sized {
    /// Skips `bytes`, or all bytes that are left.
    ///
    /// # Errors
    ///
    /// Errors of the stream.
    fn pass(&mut self, bytes: u64) -> io::Result<()> {
        io::copy(&mut self.by_ref().take(bytes), &mut io::sink()).map(drop)
    }
}

impl<R: Read + Seek> Source for BufReader<R> {
    fn pass(&mut self, bytes: u64) -> io::Result<()> {
        match i64::try_from(bytes) {
            Ok(bytes) => self.seek_relative(bytes),
            Err(_) => Err(io::ErrorKind::InvalidInput.into()),
        }
    }
}

/// A stream that skips bytes by reading them.
#[derive(Debug)]
pub(super) struct Stream<R>(pub(super) R);

impl<R: Read> Read for Stream<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read(buffer)
    }
}

impl<R: Read> Source for Stream<R> {}

/// Reads an archive entry by entry. As a [`Read`] it yields the content of the current entry.
#[derive(Debug)]
pub(super) struct Archive<S> {
    source: S,
    /// Bytes read from the source.
    at: u64,
    /// Unread bytes of the current entry.
    left: u64,
    /// Bytes of padding before the next header.
    pad: u64,
}

/// Values of the extension records before an entry.
#[derive(Debug, Default)]
struct Extended {
    path: Option<String>,
    link: Option<String>,
    bytes: Option<u64>,
    uid: Option<u32>,
    gid: Option<u32>,
    is_sparse: bool,
}

impl<S: Source> Archive<S> {
    /// An archive that begins at the current position of the source.
    pub(super) fn new(source: S) -> Self {
        let (at, left, pad) = (0, 0, 0);
        Self {
            source,
            at,
            left,
            pad,
        }
    }

    /// Offset of the content of the current entry in bytes. Valid until the content is read.
    #[must_use]
    pub(super) fn position(&self) -> u64 {
        self.at
    }

    /// The source, positioned after the archive.
    pub(super) fn into_source(self) -> S {
        self.source
    }

    /// Reads the next header. `None` at the end of the archive.
    ///
    /// # Errors
    ///
    /// [`TarError`].
    pub(super) fn entry(&mut self) -> Result<Option<Header>, TarError> {
        let mut extended = Extended::default();
        loop {
            let skip = self.left.saturating_add(self.pad);
            self.source.pass(skip)?;
            self.at = self.at.saturating_add(skip);
            (self.left, self.pad) = (0, 0);
            let at = self.at;
            let Some(block) = self.block()? else {
                return Ok(None);
            };
            let bytes = number(&block[124..136]).ok_or(TarError::Number(at))?;
            self.set_length(bytes);
            match block[156] {
                b'x' => extended
                    .pax(&self.extension(at)?)
                    .ok_or(TarError::Extension { at, bytes })?,
                b'L' => extended.path = Some(gnu_name(&self.extension(at)?, at)?),
                b'K' => extended.link = Some(gnu_name(&self.extension(at)?, at)?),
                // Global records hold comments only.
                b'g' => drop(self.extension(at)?),
                kind => {
                    let header = header(&block, kind, bytes, extended, at)?;
                    self.set_length(header.bytes);
                    return Ok(Some(header));
                }
            }
        }
    }

    fn set_length(&mut self, bytes: u64) {
        self.left = bytes;
        self.pad = bytes.next_multiple_of(BLOCK_BYTES) - bytes;
    }

    /// Reads the next header block. `None` at the end, with or without the two empty blocks.
    fn block(&mut self) -> Result<Option<[u8; BLOCK]>, TarError> {
        let mut block = [0; BLOCK];
        let mut filled = 0;
        while filled < BLOCK {
            match self.source.read(&mut block[filled..])? {
                0 if filled == 0 => return Ok(None),
                0 => return Err(TarError::Short(self.at)),
                n => filled += n,
            }
        }
        let at = self.at;
        self.at += BLOCK_BYTES;
        if block.iter().all(|byte| *byte == 0) {
            return Ok(None);
        }
        let said = number(&block[148..156]).ok_or(TarError::Header(at))?;
        let sum = |byte: (usize, &u8)| {
            if (148..156).contains(&byte.0) {
                32
            } else {
                u64::from(*byte.1)
            }
        };
        if said == block.iter().enumerate().map(sum).sum::<u64>() {
            Ok(Some(block))
        } else {
            Err(TarError::Header(at))
        }
    }

    /// Reads the content of an extension record.
    fn extension(&mut self, at: u64) -> Result<Vec<u8>, TarError> {
        let bytes = self.left;
        if bytes > MAX_EXTENSION {
            return Err(TarError::Extension { at, bytes });
        }
        let mut content = Vec::new();
        self.read_to_end(&mut content)?;
        Ok(content)
    }
}

impl<S: Source> Read for Archive<S> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = usize::try_from(self.left)
            .unwrap_or(usize::MAX)
            .min(buffer.len());
        if most == 0 {
            return Ok(0);
        }
        let n = self.source.read(&mut buffer[..most])?;
        if n == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.left -= n as u64;
        self.at += n as u64;
        Ok(n)
    }
}

impl Extended {
    /// Parses `length key=value\n` records. `None` if they are malformed.
    fn pax(&mut self, mut records: &[u8]) -> Option<()> {
        while !records.is_empty() {
            let space = records.iter().position(|byte| *byte == b' ')?;
            let length: usize = std::str::from_utf8(&records[..space]).ok()?.parse().ok()?;
            let record = records.get(space + 1..length)?.strip_suffix(b"\n")?;
            records = &records[length..];
            let equals = record.iter().position(|byte| *byte == b'=')?;
            let (key, value) = (&record[..equals], &record[equals + 1..]);
            let text = || std::str::from_utf8(value).ok();
            match key {
                b"path" => self.path = Some(text()?.to_owned()),
                b"linkpath" => self.link = Some(text()?.to_owned()),
                b"size" => self.bytes = Some(text()?.parse().ok()?),
                b"uid" => self.uid = Some(text()?.parse().ok()?),
                b"gid" => self.gid = Some(text()?.parse().ok()?),
                key if key.starts_with(b"GNU.sparse") => self.is_sparse = true,
                // The build sets times, and ignores attributes.
                _ => {}
            }
        }
        Some(())
    }
}

/// A GNU long name ends with a zero byte.
fn gnu_name(content: &[u8], at: u64) -> Result<String, TarError> {
    let name = content.split(|byte| *byte == 0).next().unwrap_or_default();
    let name = std::str::from_utf8(name).map_err(|_| TarError::Name(at))?;
    Ok(name.to_owned())
}

fn header(
    block: &[u8; BLOCK],
    kind: u8,
    bytes: u64,
    extended: Extended,
    at: u64,
) -> Result<Header, TarError> {
    let mut path = match extended.path {
        Some(path) => path,
        None => own_path(block, at)?,
    };
    let link = match extended.link {
        Some(link) => link,
        None => text(&block[157..257], at)?,
    };
    let small = |from: usize, to: usize| {
        let number = number(&block[from..to]).and_then(|number| u32::try_from(number).ok());
        number.ok_or(TarError::Number(at))
    };
    if kind == b'S' || extended.is_sparse {
        return Err(TarError::Sparse { path });
    }
    let kind = match kind {
        b'1' => Kind::HardLink,
        b'2' => Kind::Symlink,
        b'3' | b'4' => Kind::Device,
        b'5' => Kind::Directory,
        b'6' => Kind::Fifo,
        // Old archives mark a directory by a slash at the end.
        0 if path.ends_with('/') => Kind::Directory,
        _ => Kind::File,
    };
    path.truncate(path.trim_end_matches('/').len());
    let content = if kind == Kind::File {
        extended.bytes.unwrap_or(bytes)
    } else {
        0
    };
    Ok(Header {
        path,
        kind,
        mode: small(100, 108)? & 0o7777,
        uid: extended.uid.map_or_else(|| small(108, 116), Ok)?,
        gid: extended.gid.map_or_else(|| small(116, 124), Ok)?,
        bytes: content,
        link,
    })
}

/// The path in the header, with the prefix of POSIX.
fn own_path(block: &[u8; BLOCK], at: u64) -> Result<String, TarError> {
    let name = text(&block[..100], at)?;
    // GNU's format stores other things in the place of the prefix.
    if &block[257..263] != b"ustar\0" || block[345] == 0 {
        return Ok(name);
    }
    Ok(format!("{}/{name}", text(&block[345..500], at)?))
}

fn text(field: &[u8], at: u64) -> Result<String, TarError> {
    gnu_name(field, at)
}

/// Octal digits between blanks and zero bytes. If the first bit is set, a base-256 number.
fn number(field: &[u8]) -> Option<u64> {
    if field.first()? & 0x80 != 0 {
        let mut number = u64::from(field[0] & 0x7f);
        for byte in &field[1..] {
            number = number.checked_mul(256)?.checked_add(u64::from(*byte))?;
        }
        return Some(number);
    }
    let is_blank = |byte: &u8| matches!(byte, b' ' | 0);
    let digits = field.iter().skip_while(|byte| is_blank(byte));
    let mut number = 0u64;
    let mut rest = digits.clone();
    for digit in digits.take_while(|byte| !is_blank(byte)) {
        let value = u64::from(digit.checked_sub(b'0')?);
        number = (value < 8)
            .then(|| number.checked_mul(8))??
            .checked_add(value)?;
        rest.next();
    }
    rest.all(is_blank).then_some(number)
}

#[cfg(test)]
mod tests;
