use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;

use serde_json::{Value, json};

use super::*;
use crate::oci::{self, OciImage, Part};

/// Packs an image of one file.
fn pack(dir: &Path, reference: &str) -> std::path::PathBuf {
    let text = |text: &str, at: &str| Part::Text {
        text: text.to_owned(),
        at: at.to_owned(),
    };
    let image = OciImage {
        reference: reference.to_owned(),
        layers: vec![vec![text("one", "/a")], vec![text("two", "/b")]],
        entrypoint: vec!["/a".to_owned()],
        env: BTreeMap::from([("X".to_owned(), "y z".to_owned())]),
        cmd: Vec::new(),
        user: None,
        working_dir: None,
    };
    let archive = dir.join("image.tar");
    oci::write(&image, &archive).unwrap();
    archive
}

/// Unpacks an archive, for tests that damage it.
fn unpack(archive: &Path, dir: &Path) -> std::path::PathBuf {
    let layout = dir.join("layout");
    fs::create_dir(&layout).unwrap();
    let tar = std::process::Command::new("tar")
        .arg("-xf")
        .arg(archive)
        .arg("-C")
        .arg(&layout)
        .status();
    assert!(tar.unwrap().success());
    layout
}

fn index(layout: &Path) -> Value {
    serde_json::from_slice(&fs::read(layout.join("index.json")).unwrap()).unwrap()
}

fn set_index(layout: &Path, index: &Value) {
    fs::write(layout.join("index.json"), index.to_string()).unwrap();
}

/// Requirement: N46
#[test]
fn an_archive_and_its_directory_are_the_same_image() {
    let dir = tempfile::tempdir().unwrap();
    let archive = pack(dir.path(), "docker.io/x/y:1");
    let layout = unpack(&archive, dir.path());
    let images = [&archive, &layout].map(|path| Image::open(path, None).unwrap());
    assert_eq!(images[0].id, images[1].id);
    assert_eq!(images[0].layers, images[1].layers);
    assert_eq!(images[0].layers.len(), 2);
    assert_eq!(
        images[0].process.entrypoint.as_deref(),
        Some(["/a".to_owned()].as_slice())
    );
    for tag in ["1", "docker.io/x/y:1"] {
        assert!(Image::open(&archive, Some(tag)).is_ok(), "{tag}");
    }
    let error = Image::open(&archive, Some("2")).unwrap_err().to_string();
    assert!(error.contains("docker.io/x/y:1"), "{error}");
}

/// Requirement: N46
#[test]
fn the_image_for_this_machine_is_chosen_and_several_are_asked_about() {
    let dir = tempfile::tempdir().unwrap();
    let layout = unpack(&pack(dir.path(), "x:1"), dir.path());
    let one = index(&layout)["manifests"][0].clone();
    let with = |architecture: &str, tag: &str| {
        let mut other = one.clone();
        other["platform"] = json!({"os": "linux", "architecture": architecture});
        other["annotations"] = json!({"org.opencontainers.image.ref.name": tag});
        if architecture != "amd64" || tag == "3" {
            other["digest"] = json!(format!("sha256:{}", "0".repeat(64)));
        }
        other
    };
    set_index(
        &layout,
        &json!({"manifests": [with("arm64", "2"), with("amd64", "2")]}),
    );
    assert!(Image::open(&layout, None).is_ok());
    // Builders for several platforms write an index inside an index.
    let inner = index(&layout).to_string();
    let digest = crate::digest::of_bytes(inner.as_bytes());
    fs::write(layout.join("blobs/sha256").join(digest.as_str()), &inner).unwrap();
    let media_type = "application/vnd.oci.image.index.v1+json";
    set_index(
        &layout,
        &json!({"manifests": [{"mediaType": media_type, "digest": format!("sha256:{digest}")}]}),
    );
    assert!(Image::open(&layout, None).is_ok());
    set_index(
        &layout,
        &json!({"manifests": [with("amd64", "2"), with("amd64", "3")]}),
    );
    let error = Image::open(&layout, None).unwrap_err();
    assert!(
        matches!(&error, ConfigError::Several(names) if names.len() == 2),
        "{error}"
    );
    assert!(Image::open(&layout, Some("2")).is_ok());
    set_index(&layout, &json!({"manifests": [with("arm64", "2")]}));
    assert!(matches!(
        Image::open(&layout, None),
        Err(ConfigError::NoImage { .. })
    ));
}

/// Requirement: N46
#[test]
fn missing_and_damaged_parts_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let archive = pack(dir.path(), "x:1");
    let layout = unpack(&archive, dir.path());
    let id = Image::open(&layout, None).unwrap().id;
    let config = layout.join("blobs/sha256").join(id.as_str());
    let text = fs::read_to_string(&config).unwrap();
    fs::write(&config, text.replace("amd64", "arm64")).unwrap();
    let error = Image::open(&layout, None).unwrap_err().to_string();
    assert!(
        error.contains(id.as_str()) && error.contains("damaged"),
        "{error}"
    );
    fs::remove_file(&config).unwrap();
    let error = Image::open(&layout, None).unwrap_err().to_string();
    assert!(error.contains("incomplete"), "{error}");
    set_index(
        &layout,
        &json!({"manifests": [{"digest": "sha256:../../etc/passwd"}]}),
    );
    assert!(matches!(
        Image::open(&layout, None),
        Err(ConfigError::Digest(_))
    ));
    set_index(&layout, &json!({"manifests": 1}));
    assert!(matches!(
        Image::open(&layout, None),
        Err(ConfigError::Document { .. })
    ));
    fs::remove_file(layout.join("index.json")).unwrap();
    assert!(matches!(
        Image::open(&layout, None),
        Err(ConfigError::Format)
    ));
    // A compressed archive cannot be read in place.
    let packed = dir.path().join("image.tar.zst");
    fs::write(
        &packed,
        zstd::encode_all(fs::File::open(&archive).unwrap(), 1).unwrap(),
    )
    .unwrap();
    let error = Image::open(&packed, None).unwrap_err().to_string();
    assert!(error.contains("compressed as a whole"), "{error}");
    assert!(Image::open(&dir.path().join("gone"), None).is_err());
    fs::write(&packed, "no archive at all").unwrap();
    assert!(Image::open(&packed, None).is_err());
    let half = fs::read(&archive).unwrap();
    fs::write(&packed, &half[..half.len() / 2]).unwrap();
    assert!(Image::open(&packed, None).is_err());
}

/// Requirement: N46
#[test]
fn archives_of_docker_save_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let layout = unpack(&pack(dir.path(), "x:1"), dir.path());
    let image = Image::open(&layout, None).unwrap();
    let blob = |digest: &str| layout.join("blobs/sha256").join(digest);
    let saved = dir.path().join("saved");
    fs::create_dir(&saved).unwrap();
    let config = format!("{}.json", image.id);
    fs::copy(blob(image.id.as_str()), saved.join(&config)).unwrap();
    let mut layers = Vec::new();
    for (number, layer) in image.layers.iter().enumerate() {
        let name = format!("{number}/layer.tar");
        fs::create_dir(saved.join(number.to_string())).unwrap();
        fs::copy(blob(layer.unpacked.as_str()), saved.join(&name)).unwrap();
        layers.push(name);
    }
    let manifest = json!([{"Config": config, "RepoTags": ["x:1"], "Layers": layers}]);
    fs::write(saved.join("manifest.json"), manifest.to_string()).unwrap();
    let read = Image::open(&saved, Some("1")).unwrap();
    assert_eq!((read.id, read.layers.len()), (image.id, 2));
    let mut file = fs::OpenOptions::new()
        .append(true)
        .open(saved.join(&config))
        .unwrap();
    file.write_all(b" ").unwrap();
    let error = Image::open(&saved, None).unwrap_err();
    assert!(error.to_string().contains("damaged"), "{error}");
    let manifest = json!([{"Config": "../../etc/passwd", "Layers": []}]);
    fs::write(saved.join("manifest.json"), manifest.to_string()).unwrap();
    assert!(matches!(
        Image::open(&saved, None),
        Err(ConfigError::Store(StoreError::Name(_)))
    ));
}
