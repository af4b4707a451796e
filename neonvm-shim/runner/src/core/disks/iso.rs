//! An ISO 9660 file system with Rock Ridge names: one directory of plain files, which Linux mounts
//! read-only.
//!
//! Written here because it is small, needs no program in a runner's container, and yields the same
//! bytes for the same files on every machine: a migrated guest must find the same drive.
//!
//! ```text
//! sector 16  the volume's name and the position of its root directory
//! sector 17  the end of the volume descriptors
//! sector 18  the path table, little-endian; 19 the same, big-endian
//! sector 20  the root directory, then names too long for their entries, then the files, each from a sector's begin
//! ```

use std::collections::BTreeMap;

const SECTOR: usize = 2048;
const ROOT: usize = 20;
const MAX_ENTRY: usize = 254;
/// Bytes of a directory entry before its name.
const ENTRY_HEAD: usize = 33;
/// Longest name that Linux supports, and longest label.
const MAX_NAME: usize = 255;
const MAX_LABEL: usize = 32;
/// Lengths of Rock Ridge fields: mode, continuation, and the head of a name.
const PX_BYTES: usize = 36;
const CE_BYTES: usize = 28;
const NM_HEAD: usize = 5;
/// Timestamp of everything: 2023-11-14 22:13:20 UTC, as in the images.
const DATE: [u8; 7] = [123, 11, 14, 22, 13, 20, 0];
const DATE_TEXT: &[u8; 17] = b"2023111422132000\0";

/// Errors of a drive's files.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IsoError {
    /// A file has this name, cut to 64 characters, and Linux takes no such name.
    #[error("{0:?} is not the name of a file")]
    Name(String),
    /// The label is empty or longer than `MAX_LABEL` bytes.
    #[error("{0:?} is not a label of 1 to {MAX_LABEL} bytes")]
    Label(String),
    /// A length or position does not fit its field of the format.
    #[error("the files are larger than a drive of files can be")]
    Size,
}

/// Bytes of a volume with this label and these files. The files named in `private` are readable by
/// root only.
///
/// # Errors
/// [`IsoError`].
pub fn iso(
    label: &str,
    files: &BTreeMap<String, Vec<u8>>,
    private: &[&str],
) -> Result<Vec<u8>, IsoError> {
    if label.is_empty() || label.len() > MAX_LABEL {
        return Err(IsoError::Label(label.to_owned()));
    }
    if let Some(bad) = files.keys().find(|name| !is_name(name)) {
        return Err(IsoError::Name(bad.chars().take(64).collect()));
    }
    let layout = Layout::of(files)?;
    let directory = layout.directory(files, private)?;
    let sectors = layout.end;
    let mut image = vec![0; sectors * SECTOR];
    put(&mut image, 16, &volume(label, sectors, directory.len())?);
    let mut end = [0; SECTOR];
    end[..7].copy_from_slice(b"\xffCD001\x01");
    put(&mut image, 17, &end);
    put(
        &mut image,
        18,
        &path_table(u32::to_le_bytes, u16::to_le_bytes)?,
    );
    put(
        &mut image,
        19,
        &path_table(u32::to_be_bytes, u16::to_be_bytes)?,
    );
    put(&mut image, ROOT, &directory);
    put(&mut image, layout.names_at, &layout.names);
    for (content, at) in files.values().zip(&layout.files_at) {
        put(&mut image, *at, content);
    }
    Ok(image)
}

fn is_name(name: &str) -> bool {
    let plain = !name.contains(['/', '\0']);
    plain && !name.is_empty() && name.len() <= MAX_NAME && !matches!(name, "." | "..")
}

fn put(image: &mut [u8], sector: usize, bytes: &[u8]) {
    image[sector * SECTOR..][..bytes.len()].copy_from_slice(bytes);
}

/// A number in both byte orders, as most fields of the format have it.
fn both(number: usize) -> Result<[u8; 8], IsoError> {
    let number = u32::try_from(number).map_err(|_| IsoError::Size)?;
    let mut out = [0; 8];
    out[..4].copy_from_slice(&number.to_le_bytes());
    out[4..].copy_from_slice(&number.to_be_bytes());
    Ok(out)
}

struct Layout {
    /// Rock Ridge's marker, then names that do not fit into their entries.
    names: Vec<u8>,
    names_at: usize,
    /// Offset of each of those in `names`.
    away: Vec<usize>,
    files_at: Vec<usize>,
    end: usize,
}

impl Layout {
    fn of(files: &BTreeMap<String, Vec<u8>>) -> Result<Self, IsoError> {
        let names_at = ROOT + pack(&entry_sizes(files)?).1;
        let long = files.keys().filter(|name| !fits(name));
        let fields: Vec<Vec<u8>> = std::iter::once(rock_ridge())
            .chain(long.map(|name| name_field(name)))
            .collect();
        let sizes: Vec<usize> = fields.iter().map(Vec::len).collect();
        let (away, sectors) = pack(&sizes);
        let mut names = vec![0; sectors * SECTOR];
        for (field, at) in fields.iter().zip(&away) {
            names[*at..at + field.len()].copy_from_slice(field);
        }
        let mut at = names_at + names.len().div_ceil(SECTOR);
        let mut files_at = Vec::with_capacity(files.len());
        for content in files.values() {
            files_at.push(at);
            at += content.len().div_ceil(SECTOR);
        }
        Ok(Self {
            names,
            names_at,
            away,
            files_at,
            end: at,
        })
    }

    /// Sectors of the root directory. The files named in `private` are readable by root only.
    fn directory(
        &self,
        files: &BTreeMap<String, Vec<u8>>,
        private: &[&str],
    ) -> Result<Vec<u8>, IsoError> {
        let (places, sectors) = pack(&entry_sizes(files)?);
        let place = (ROOT, sectors * SECTOR);
        let extra = root_extra(self.names_at, rock_ridge().len())?;
        let parent = px(0o40_755, 2)?;
        let mut entries = vec![
            entry(&[0], place, 2, &extra)?,
            entry(&[1], place, 2, &parent)?,
        ];
        // The first offset is that of the marker.
        let mut away = self.away.iter().skip(1);
        for (index, (name, content)) in files.iter().enumerate() {
            // The kernel prefers this mode to a mount option.
            let is_private = private.contains(&name.as_str());
            let mut fields = px(if is_private { 0o100_400 } else { 0o100_644 }, 1)?;
            if fits(name) {
                fields.extend(name_field(name));
            } else {
                let at = away.next().copied().unwrap_or_default();
                fields.extend(ce(self.names_at, at, name_field(name).len())?);
            }
            let place = (self.files_at[index], content.len());
            entries.push(entry(&short_name(index), place, 0, &fields)?);
        }
        let mut bytes = vec![0; sectors * SECTOR];
        for (entry, at) in entries.iter().zip(places) {
            bytes[at..at + entry.len()].copy_from_slice(entry);
        }
        Ok(bytes)
    }
}

/// Sizes of the root directory's entries: itself, its parent, the files.
fn entry_sizes(files: &BTreeMap<String, Vec<u8>>) -> Result<Vec<usize>, IsoError> {
    let own = entry_bytes(1, root_extra(0, 0)?.len());
    let of_file = |name: &String| {
        let name = if fits(name) {
            NM_HEAD + name.len()
        } else {
            CE_BYTES
        };
        entry_bytes(short_name(0).len(), PX_BYTES + name)
    };
    let first = [own, entry_bytes(1, PX_BYTES)];
    Ok(first.into_iter().chain(files.keys().map(of_file)).collect())
}

/// Offsets of entries of these sizes, none across the end of a sector, and the number of sectors.
fn pack(sizes: &[usize]) -> (Vec<usize>, usize) {
    let mut at = 0;
    let mut places = Vec::with_capacity(sizes.len());
    for size in sizes {
        if at % SECTOR + size > SECTOR {
            at = at.next_multiple_of(SECTOR);
        }
        places.push(at);
        at += size;
    }
    (places, at.div_ceil(SECTOR))
}

fn entry_bytes(name: usize, extra: usize) -> usize {
    // Name and entry are padded to an even length.
    (ENTRY_HEAD + name).next_multiple_of(2) + extra.next_multiple_of(2)
}

fn fits(name: &str) -> bool {
    entry_bytes(short_name(0).len(), PX_BYTES + NM_HEAD + name.len()) <= MAX_ENTRY
}

/// Name in the standard's format. Systems with Rock Ridge ignore it.
fn short_name(index: usize) -> Vec<u8> {
    format!("F{index:07}.;1").into_bytes()
}

fn entry(
    name: &[u8],
    (sector, bytes): (usize, usize),
    flags: u8,
    extra: &[u8],
) -> Result<Vec<u8>, IsoError> {
    let total = entry_bytes(name.len(), extra.len());
    let mut out = vec![0; total];
    out[0] = u8::try_from(total).map_err(|_| IsoError::Size)?;
    out[2..10].copy_from_slice(&both(sector)?);
    out[10..18].copy_from_slice(&both(bytes)?);
    out[18..25].copy_from_slice(&DATE);
    out[25] = flags;
    out[28..32].copy_from_slice(&[1, 0, 0, 1]);
    out[32] = u8::try_from(name.len()).map_err(|_| IsoError::Size)?;
    out[ENTRY_HEAD..ENTRY_HEAD + name.len()].copy_from_slice(name);
    let at = (ENTRY_HEAD + name.len()).next_multiple_of(2);
    out[at..at + extra.len()].copy_from_slice(extra);
    Ok(out)
}

/// Mode, link count, and root as owner.
fn px(mode: usize, links: usize) -> Result<Vec<u8>, IsoError> {
    let mut field = b"PX\x24\x01".to_vec();
    for number in [mode, links, 0, 0] {
        field.extend(both(number)?);
    }
    Ok(field)
}

fn ce(sector: usize, offset: usize, bytes: usize) -> Result<Vec<u8>, IsoError> {
    let mut field = b"CE\x1c\x01".to_vec();
    for number in [sector + offset / SECTOR, offset % SECTOR, bytes] {
        field.extend(both(number)?);
    }
    Ok(field)
}

fn name_field(name: &str) -> Vec<u8> {
    let mut out = Vec::new();
    // The length of a field is one byte, so the longest names take two fields.
    let mut parts = name.as_bytes().chunks(200).peekable();
    while let Some(part) = parts.next() {
        let bytes = u8::try_from(NM_HEAD + part.len()).unwrap_or(u8::MAX);
        out.extend([b'N', b'M', bytes, 1, u8::from(parts.peek().is_some())]);
        out.extend(part);
    }
    out
}

/// Marker of Rock Ridge, in the root directory's entry for itself.
fn rock_ridge() -> Vec<u8> {
    let mut field = b"ER\x12\x01\x0a\0\0\x01".to_vec();
    field.extend(b"RRIP_1991A");
    field
}

fn root_extra(names_at: usize, bytes: usize) -> Result<Vec<u8>, IsoError> {
    let mut fields = b"SP\x07\x01\xbe\xef\0".to_vec();
    fields.extend(px(0o40_755, 2)?);
    fields.extend(ce(names_at, 0, bytes)?);
    Ok(fields)
}

fn path_table(four: fn(u32) -> [u8; 4], two: fn(u16) -> [u8; 2]) -> Result<Vec<u8>, IsoError> {
    let root = u32::try_from(ROOT).map_err(|_| IsoError::Size)?;
    let mut table = vec![1, 0];
    table.extend(four(root));
    table.extend(two(1));
    table.extend([0, 0]);
    Ok(table)
}

fn volume(label: &str, sectors: usize, directory: usize) -> Result<Vec<u8>, IsoError> {
    let mut out = vec![b' '; SECTOR];
    out[..8].copy_from_slice(b"\x01CD001\x01\0");
    out[40..40 + label.len()].copy_from_slice(label.as_bytes());
    out[72..80].fill(0);
    out[80..88].copy_from_slice(&both(sectors)?);
    out[88..120].fill(0);
    // Volume 1 of 1, sectors of 2048 bytes, a path table of ten bytes.
    out[120..132].copy_from_slice(&[1, 0, 0, 1, 1, 0, 0, 1, 0, 8, 8, 0]);
    out[132..140].copy_from_slice(&both(10)?);
    out[140..156].copy_from_slice(&[18, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 19, 0, 0, 0, 0]);
    let root = entry(&[0], (ROOT, directory), 2, &[])?;
    out[156..156 + root.len()].copy_from_slice(&root);
    for at in [813, 830, 847, 864] {
        out[at..at + 17].copy_from_slice(DATE_TEXT);
    }
    out[881] = 1;
    out[882..].fill(0);
    Ok(out)
}

#[cfg(test)]
mod tests;
