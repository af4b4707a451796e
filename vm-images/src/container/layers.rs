//! Reads layers twice: first to compute the tree of the image, then to write it.

use std::collections::BTreeMap;
use std::fs::{self, File, Permissions};
use std::io::{self, BufReader, Read};
use std::os::unix::fs::{PermissionsExt as _, lchown, symlink};
use std::path::{Path, PathBuf};

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use super::config::{Image, LayerRef};
use super::layer_error::LayerError;
use super::store::{Hashed, Store};
use super::tar::{Archive, Stream};
use super::tree::{Body, Tree};
use crate::error::{BuildError, IoContext};
use crate::progress::{Amount, Reporter, Step};

/// Bytes per read of the archive.
const CHUNK: usize = 1 << 18;
/// First bytes of a compressed layer.
const GZIP: [u8; 2] = [0x1f, 0x8b];
const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// Computes the tree of the image and checks the digest of every layer. Writes nothing.
pub(super) fn survey(
    image: &Image,
    disk_mib: u32,
    reporter: &mut Reporter<'_>,
) -> Result<Tree, LayerError> {
    let mut tree = Tree::default();
    for (number, layer) in image.layers.iter().enumerate() {
        if number > 0 {
            tree.next_layer();
        }
        reporter.begin(
            Step::Layers,
            &format!("layer {} of {}", number + 1, image.layers.len()),
        );
        read(&image.store, layer, reporter, |header, _| {
            // A file larger than the disk is refused before its content is read.
            fits(header.bytes, disk_mib)?;
            let taken = tree.take(header);
            taken.map_err(|error| LayerError::Tree(layer.name.clone(), error))
        })?;
        fits(tree.bytes(), disk_mib)?;
    }
    Ok(tree)
}

fn fits(bytes: u64, disk_mib: u32) -> Result<(), LayerError> {
    if bytes > u64::from(disk_mib) << 20 {
        return Err(LayerError::Large { bytes, disk_mib });
    }
    Ok(())
}

/// Writes the tree below `root`, which must be empty.
pub(super) fn write(
    image: &Image,
    tree: &Tree,
    root: &Path,
    reporter: &mut Reporter<'_>,
) -> Result<(), BuildError> {
    let mut files: BTreeMap<(usize, usize), (PathBuf, u64)> = BTreeMap::new();
    let mut first: BTreeMap<usize, PathBuf> = BTreeMap::new();
    let mut later: Vec<(PathBuf, PathBuf)> = Vec::new();
    for (path, number, node) in tree.iter().filter(|(path, ..)| !path.is_empty()) {
        let path = root.join(path);
        if let Some(first) = first.get(&number) {
            later.push((first.clone(), path));
            continue;
        }
        first.insert(number, path.clone());
        match &node.body {
            Body::Directory => fs::create_dir(&path).at("create", &path)?,
            Body::Symlink(to) => symlink(to, &path).at("link", &path)?,
            Body::Fifo => mkfifo(&path, Mode::from_bits_truncate(0o600))
                .map_err(io::Error::from)
                .at("create", &path)?,
            Body::File {
                layer,
                entry,
                bytes,
            } => {
                files.insert((*layer, *entry), (path, *bytes));
            }
        }
    }
    for (number, layer) in image.layers.iter().enumerate() {
        reporter.begin(
            Step::Extract,
            &format!("layer {} of {}", number + 1, image.layers.len()),
        );
        let mut entry = 0;
        let mut failed = None;
        read(&image.store, layer, reporter, |_, content| {
            if let Some((path, bytes)) = files.get(&(number, entry)) {
                match File::create_new(path).and_then(|mut file| io::copy(content, &mut file)) {
                    Ok(copied) if copied == *bytes => {}
                    Ok(_) => {
                        return Err(LayerError::Read(
                            layer.name.clone(),
                            io::ErrorKind::UnexpectedEof.into(),
                        ));
                    }
                    Err(error) => failed = failed.take().or(Some((path.clone(), error))),
                }
            }
            entry += 1;
            Ok(())
        })?;
        if let Some((path, error)) = failed {
            return Err(error).at("write", &path);
        }
    }
    for (target, path) in later {
        fs::hard_link(&target, &path).at("link", &path)?;
    }
    settle(tree, root)
}

/// Sets owners before modes, because a change of owner clears special bits.
fn settle(tree: &Tree, root: &Path) -> Result<(), BuildError> {
    for (path, _, node) in tree.iter() {
        let path = root.join(path);
        lchown(&path, Some(node.uid), Some(node.gid)).at("change the owner of", &path)?;
        if !matches!(node.body, Body::Symlink(_)) {
            fs::set_permissions(&path, Permissions::from_mode(node.mode))
                .at("change the mode of", &path)?;
        }
    }
    Ok(())
}

/// Reads all entries of a layer, then compares its digests.
fn read(
    store: &Store,
    layer: &LayerRef,
    reporter: &mut Reporter<'_>,
    mut on_entry: impl FnMut(&super::tar::Header, &mut dyn Read) -> Result<(), LayerError>,
) -> Result<(), LayerError> {
    let broken = |error| LayerError::Read(layer.name.clone(), error);
    let (file, _) = store.reader(&layer.name)?;
    let mut packed = Hashed::new(BufReader::with_capacity(CHUNK, file));
    let mut magic = [0; 4];
    let n = fill(&mut packed, &mut magic).map_err(broken)?;
    let begun = io::Cursor::new(magic[..n].to_vec());
    let unpacked = {
        let whole: Box<dyn Read + '_> = Box::new(begun.chain(&mut packed));
        let tar: Box<dyn Read + '_> = if magic.starts_with(&GZIP) {
            Box::new(flate2::read::MultiGzDecoder::new(whole))
        } else if magic == ZSTD {
            Box::new(zstd::Decoder::new(whole).map_err(broken)?)
        } else {
            whole
        };
        let mut archive = Archive::new(Stream(Hashed::new(BufReader::with_capacity(CHUNK, tar))));
        let bad = |error| LayerError::Tar(layer.name.clone(), error);
        while let Some(header) = archive.entry().map_err(bad)? {
            reporter.amount(Amount::Bytes(archive.position()));
            on_entry(&header, &mut archive)?;
        }
        archive.into_source().0.finish().map_err(broken)?.0
    };
    let (packed, _) = packed.finish().map_err(broken)?;
    for (what, found, wanted) in [
        ("file", packed, layer.packed.as_ref()),
        ("archive in it", unpacked, Some(&layer.unpacked)),
    ] {
        if let Some(wanted) = wanted.filter(|wanted| **wanted != found) {
            return Err(LayerError::Digest {
                name: layer.name.clone(),
                what,
                found,
                wanted: wanted.clone(),
            });
        }
    }
    Ok(())
}

/// Reads until the buffer is full or the stream ends.
fn fill(stream: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match stream.read(&mut buffer[filled..])? {
            0 => break,
            n => filled += n,
        }
    }
    Ok(filled)
}

#[cfg(test)]
mod tests;
