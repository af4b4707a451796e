use std::process::Command;

use super::*;

fn image(dir: &Path) -> OciImage {
    let tree = dir.join("tree");
    fs::create_dir_all(tree.join("sub")).expect("a directory");
    fs::write(tree.join("sub/b"), "b".repeat(700)).expect("a file");
    std::os::unix::fs::symlink("sub/b", tree.join("a")).expect("a link");
    fs::write(dir.join("program"), "#!/bin/sh\n").expect("a file");
    let long = format!("/deep/{}/{}", "x".repeat(90), "y".repeat(90));
    let text = |text: &str, at: &str| Part::Text {
        text: text.to_owned(),
        at: at.to_owned(),
    };
    OciImage {
        reference: "bellows/test:1".to_owned(),
        layers: vec![
            vec![
                Part::Tree {
                    from: tree,
                    at: "/opt/t".to_owned(),
                },
                Part::Link {
                    to: "z".repeat(150),
                    at: "/bin/sh".to_owned(),
                },
                Part::Directory {
                    at: "/tmp".to_owned(),
                    mode: 0o1777,
                },
            ],
            vec![
                Part::File {
                    from: dir.join("program"),
                    at: "/bin/run".to_owned(),
                    mode: Some(0o755),
                },
                text("far down", &long),
                text("first", "/etc/x"),
                text("second", "/etc/x"),
            ],
        ],
        entrypoint: vec!["/bin/run".to_owned()],
        env: BTreeMap::from([("A".to_owned(), "b".to_owned())]),
        cmd: Vec::new(),
        user: None,
        working_dir: None,
    }
}

/// Unpacks an archive with the system's tar.
fn unpack(archive: &Path, into: &Path) {
    fs::create_dir_all(into).expect("a directory");
    let status = Command::new("tar")
        .args(["-x", "-f"])
        .arg(archive)
        .arg("-C")
        .arg(into)
        .status()
        .expect("tar runs");
    assert!(status.success());
}

fn read_json(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).expect("reads")).expect("is JSON")
}

fn blob(layout: &Path, descriptor: &Value) -> PathBuf {
    let digest = descriptor["digest"].as_str().expect("a digest");
    let digest = digest.strip_prefix("sha256:").expect("of SHA-256");
    let path = layout.join("blobs/sha256").join(digest);
    let bytes = fs::read(&path).expect("a blob");
    assert_eq!(crate::digest::of_bytes(&bytes).as_str(), digest);
    assert_eq!(descriptor["size"], bytes.len());
    path
}

/// Requirement: N46. The archive is an OCI layout with correct digests, and its layers unpack to
/// their parts.
#[test]
fn an_archive_is_a_layout_and_its_layers_unpack() {
    let dir = tempfile::tempdir().expect("a directory");
    let archive = dir.path().join("image.tar");
    let digest = write(&image(dir.path()), &archive).expect("writes");
    let layout = dir.path().join("layout");
    unpack(&archive, &layout);
    let listed = read_json(&layout.join("index.json"))["manifests"][0].clone();
    assert_eq!(listed["digest"], format!("sha256:{}", digest.as_str()));
    let name = &listed["annotations"]["io.containerd.image.name"];
    assert_eq!(name, "bellows/test:1");
    let manifest = read_json(&blob(&layout, &listed));
    let config = read_json(&blob(&layout, &manifest["config"]));
    assert_eq!(config["config"]["Entrypoint"], json!(["/bin/run"]));
    assert_eq!(config["config"]["Env"][0], "A=b");
    let root = dir.path().join("root");
    for (number, layer) in manifest["layers"]
        .as_array()
        .expect("layers")
        .iter()
        .enumerate()
    {
        assert_eq!(config["rootfs"]["diff_ids"][number], layer["digest"]);
        unpack(&blob(&layout, layer), &root);
    }
    let text = |path: &str| fs::read_to_string(root.join(path)).expect("reads");
    assert_eq!(text("opt/t/a"), "b".repeat(700));
    let deep = format!("deep/{}/{}", "x".repeat(90), "y".repeat(90));
    assert_eq!(text(&deep), "far down");
    assert_eq!(text("etc/x"), "second");
    let link = fs::read_link(root.join("bin/sh")).expect("a link");
    assert_eq!(link, Path::new(&"z".repeat(150)));
    let mode = |path: &str| fs::metadata(root.join(path)).expect("is there").mode() & 0o7777;
    assert_eq!((mode("tmp"), mode("bin/run")), (0o1777, 0o755));
}

/// Requirement: N46. Equal inputs give equal bytes, at any time.
#[test]
fn the_same_parts_make_the_same_archive() {
    let dir = tempfile::tempdir().expect("a directory");
    let image = image(dir.path());
    let (a, b) = (dir.path().join("a"), dir.path().join("b"));
    let first = write(&image, &a).expect("writes");
    let program = File::options()
        .append(true)
        .open(dir.path().join("program"));
    let epoch = std::time::SystemTime::UNIX_EPOCH;
    program
        .expect("opens")
        .set_modified(epoch)
        .expect("touches");
    assert_eq!(write(&image, &b).expect("writes"), first);
    assert_eq!(fs::read(&a).expect("reads"), fs::read(&b).expect("reads"));
    fs::write(dir.path().join("program"), "other").expect("writes");
    assert_ne!(write(&image, &b).expect("writes"), first);
}

/// Requirement: N46
#[test]
fn invalid_image_is_refused_and_leaves_no_archive() {
    let dir = tempfile::tempdir().expect("a directory");
    let archive = dir.path().join("image.tar");
    let of = |reference: &str, at: &str| OciImage {
        reference: reference.to_owned(),
        layers: vec![vec![Part::Text {
            text: String::new(),
            at: at.to_owned(),
        }]],
        entrypoint: Vec::new(),
        env: BTreeMap::new(),
        cmd: Vec::new(),
        user: None,
        working_dir: None,
    };
    for (reference, at) in [
        ("bellows/x", "/a"),
        ("a b:1", "/a"),
        ("a:1", "/../a"),
        ("a:1", "/a//b"),
        ("a:1", "/"),
    ] {
        let error = write(&of(reference, at), &archive).expect_err("it is refused");
        assert!(
            matches!(error, OciError::Reference(_) | OciError::Path(_)),
            "{reference} {at}: {error}"
        );
    }
    let mut gone = of("a:1", "/a");
    gone.layers[0].push(Part::File {
        from: dir.path().join("gone"),
        at: "/b".to_owned(),
        mode: None,
    });
    let error = write(&gone, &archive).expect_err("it is refused");
    assert!(error.to_string().contains("gone"), "{error}");
    assert!(!archive.exists());
    let pipe = dir.path().join("pipe");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).expect("a pipe");
    gone.layers[0][1] = Part::File {
        from: pipe,
        at: "/b".to_owned(),
        mode: None,
    };
    let error = write(&gone, &archive).expect_err("it is refused");
    assert!(matches!(error, OciError::Kind(_)), "{error}");
}
