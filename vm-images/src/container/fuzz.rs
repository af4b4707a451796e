//! Properties of any archive, as bodies of property tests and of fuzz targets.

use std::io::{Cursor, Read as _};

use super::tar::{Archive, Header, Kind, Stream};
use super::tree::{Body, Tree};

/// Names in paths and links. They are few, so that paths collide.
const NAMES: [&str; 12] = [
    "a",
    "b",
    "c",
    "dir",
    ".",
    "..",
    "",
    ".wh.a",
    ".wh.dir",
    ".wh..wh..opq",
    ".wh.",
    ".wh..",
];
/// Paths in a tree after which the rest of the input is ignored.
const MAX_PATHS: usize = 512;

/// Reads `data` as an archive to its end.
///
/// # Panics
///
/// If an entry has more content than `data`.
pub fn container_archive(data: &[u8]) {
    let mut archive = Archive::new(Stream(Cursor::new(data)));
    let mut given = 0;
    while let Ok(Some(header)) = archive.entry() {
        assert!(!header.path.ends_with('/'), "{header:?}");
        assert!(header.mode <= 0o7777, "{header:?}");
        let mut content = Vec::new();
        let whole = archive.read_to_end(&mut content).is_ok();
        assert!(!whole || content.len() as u64 == header.bytes, "{header:?}");
        given += content.len();
    }
    assert!(given <= data.len(), "{given} bytes from {}", data.len());
}

/// Builds layers from `data`, with two or more bytes per entry, and lays them over each other.
///
/// # Panics
///
/// If an invariant of the tree does not hold.
pub fn container_layers(data: &[u8]) {
    let mut tree = Tree::default();
    let mut bytes = data.iter().copied();
    while let Some(what) = bytes.next() {
        if what == 0xff {
            tree.next_layer();
            continue;
        }
        let kinds = [
            Kind::File,
            Kind::Directory,
            Kind::Symlink,
            Kind::HardLink,
            Kind::Fifo,
            Kind::Device,
        ];
        let header = Header {
            path: path(&mut bytes),
            kind: kinds[usize::from(what) % kinds.len()],
            mode: 0o644,
            uid: 0,
            gid: 0,
            bytes: u64::from(what),
            link: path(&mut bytes),
        };
        // A refused entry ends the build. The tree so far must still be valid.
        let refused = tree.take(&header).is_err();
        check(&tree);
        if refused || tree.iter().count() > MAX_PATHS {
            return;
        }
    }
}

/// Up to three names. The path may be absolute.
fn path(bytes: &mut impl Iterator<Item = u8>) -> String {
    let mut path = String::new();
    let (length, first) = match bytes.next() {
        Some(byte) => (byte % 4, byte >= 0x80),
        None => return path,
    };
    if first {
        path.push('/');
    }
    for _ in 0..length {
        let name = NAMES[usize::from(bytes.next().unwrap_or(0)) % NAMES.len()];
        path.push_str(name);
        path.push('/');
    }
    path.pop();
    path
}

/// Checks the tree's invariants.
fn check(tree: &Tree) {
    for (path, _, node) in tree.iter() {
        if path.is_empty() {
            assert_eq!(node.body, Body::Directory, "the root");
            continue;
        }
        for part in path.split('/') {
            assert!(!matches!(part, "" | "." | ".."), "{path:?}");
            assert!(!part.starts_with(".wh."), "a whiteout is left: {path:?}");
        }
        let above = path.rsplit_once('/').map_or("", |(above, _)| above);
        let parent = tree.get(above).map(|node| &node.body);
        assert_eq!(parent, Some(&Body::Directory), "above {path:?}");
    }
}
