use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt as _;

use super::*;
use crate::oci::{self, OciImage, Part};

fn text(at: &str, text: &str) -> Part {
    Part::Text {
        text: text.to_owned(),
        at: at.to_owned(),
    }
}

/// An image with these layers, in a directory so that tests can replace its blobs.
fn image(dir: &Path, layers: Vec<Vec<Part>>) -> Image {
    let image = OciImage {
        reference: "x:1".to_owned(),
        layers,
        entrypoint: Vec::new(),
        env: BTreeMap::new(),
        cmd: Vec::new(),
        user: None,
        working_dir: None,
    };
    let archive = dir.join("image.tar");
    oci::write(&image, &archive).unwrap();
    Image::open(&archive, None).unwrap()
}

fn unpacked(image: &Image, dir: &Path) -> PathBuf {
    let root = dir.join("root");
    fs::create_dir(&root).unwrap();
    let mut sink = |_| {};
    let reporter = &mut Reporter::new(&mut sink);
    let tree = survey(image, 64, reporter).unwrap();
    write(image, &tree, &root, reporter).unwrap();
    root
}

/// Compresses the tar of a layer.
type Packing = fn(&[u8]) -> Vec<u8>;

/// Requirement: N46
#[test]
fn merged_tree_of_the_layers_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let link = |to: &str, at: &str| Part::Link {
        to: to.to_owned(),
        at: at.to_owned(),
    };
    let directory = Part::Directory {
        at: "/tmp".to_owned(),
        mode: 0o1777,
    };
    let image = image(
        dir.path(),
        vec![
            vec![
                text("/etc/a", "old"),
                text("/etc/b", "b"),
                text("/gone/x", "x"),
                directory,
                link("usr/lib", "/lib"),
            ],
            vec![
                text("/etc/a", "new"),
                text("/.wh.gone", ""),
                text("/usr/lib/c", "c"),
                link("/etc/a", "/usr/abs"),
            ],
        ],
    );
    let root = unpacked(&image, dir.path());
    let read = |path: &str| fs::read_to_string(root.join(path)).unwrap();
    assert_eq!(
        [read("etc/a"), read("etc/b"), read("lib/c")],
        ["new", "b", "c"]
    );
    assert!(!root.join("gone").exists());
    assert_eq!(
        fs::metadata(root.join("tmp")).unwrap().mode() & 0o7777,
        0o1777
    );
    assert_eq!(
        fs::read_link(root.join("usr/abs")).unwrap(),
        Path::new("/etc/a")
    );
}

/// Replaces a layer's blob by another compression of its tar, and returns the image.
fn repacked(dir: &Path, pack: impl Fn(&[u8]) -> Vec<u8>) -> Image {
    let mut image = image(dir, vec![vec![text("/a", "content")]]);
    let layer = &mut image.layers[0];
    let (mut reader, _) = image.store.reader(&layer.name).unwrap();
    let mut tar = Vec::new();
    reader.read_to_end(&mut tar).unwrap();
    let blob = pack(&tar);
    let digest = crate::digest::of_bytes(&blob);
    let layout = dir.join("layout");
    fs::create_dir_all(layout.join("blobs/sha256")).unwrap();
    layer.name = super::super::store::blob_name(&digest);
    layer.packed = Some(digest);
    fs::write(layout.join(&layer.name), blob).unwrap();
    image.store = Store::Directory(layout);
    image
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    io::Write::write_all(&mut encoder, bytes).unwrap();
    encoder.finish().unwrap()
}

/// Requirement: N46
#[test]
fn layers_may_be_packed_in_three_ways() {
    let ways: [Packing; 3] = [<[u8]>::to_vec, gzip, |tar| {
        zstd::encode_all(tar, 1).unwrap()
    }];
    for pack in ways {
        let dir = tempfile::tempdir().unwrap();
        let root = unpacked(&repacked(dir.path(), pack), dir.path());
        assert_eq!(fs::read_to_string(root.join("a")).unwrap(), "content");
    }
}

/// Requirement: N46
#[test]
fn layer_with_another_digest_is_named() {
    let survey = |image: &Image, mib| survey(image, mib, &mut Reporter::new(&mut |_| {}));
    let dir = tempfile::tempdir().unwrap();
    let other = repacked(dir.path(), |tar| {
        let mut tar = tar.to_vec();
        let at = tar.windows(7).position(|part| part == b"content").unwrap();
        tar[at] = b'C';
        gzip(&tar)
    });
    let error = survey(&other, 64).unwrap_err();
    assert!(
        matches!(
            &error,
            LayerError::Digest {
                what: "archive in it",
                ..
            }
        ),
        "{error}"
    );
    let dir = tempfile::tempdir().unwrap();
    let mut other = repacked(dir.path(), gzip);
    let name = &other.layers[0].name;
    let Store::Directory(layout) = &other.store else {
        panic!()
    };
    let mut blob = fs::read(layout.join(name)).unwrap();
    blob.extend(gzip(b"more"));
    fs::write(layout.join(name), blob).unwrap();
    let error = survey(&other, 64).unwrap_err();
    assert!(
        error.to_string().contains("the file has the SHA-256"),
        "{error}"
    );
    other.layers[0].name = "blobs/sha256/none".to_owned();
    assert!(
        survey(&other, 64)
            .unwrap_err()
            .to_string()
            .contains("incomplete")
    );
    let dir = tempfile::tempdir().unwrap();
    let torn = repacked(dir.path(), |tar| gzip(tar)[..40].to_vec());
    assert!(survey(&torn, 64).is_err());
}

/// Requirement: N46
#[test]
fn an_image_larger_than_its_disk_is_refused_before_anything_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let content = "x".repeat(3 << 20);
    let image = image(
        dir.path(),
        vec![vec![text("/a", &content)], vec![text("/a", &content)]],
    );
    let fits = |mib| survey(&image, mib, &mut Reporter::new(&mut |_| {}));
    // Replaced files do not count.
    assert_eq!(fits(3).unwrap().bytes(), 3 << 20);
    let error = fits(2).unwrap_err();
    assert!(error.to_string().contains("--disk-size"), "{error}");
}
