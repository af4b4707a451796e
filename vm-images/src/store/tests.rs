use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use protocol::image::FileRecord;

use super::*;
use crate::progress::{Reporter, Step};

fn store() -> (tempfile::TempDir, Store) {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path().join("store")).unwrap();
    (dir, store)
}

fn silent<T>(use_it: impl FnOnce(&mut Reporter<'_>) -> T) -> T {
    use_it(&mut Reporter::new(&mut |_| {}))
}

fn manifest(name: &str, files: &[(&str, &str)]) -> ImageManifest {
    let record = |content: &str| FileRecord {
        bytes: content.len() as u64,
        sha256: digest::of_bytes(content.as_bytes()),
    };
    let runtime = protocol::image::RuntimeContent {
        root: "root".into(),
        root_sha256: digest::of_bytes(b""),
        root_bytes: 0,
        qemu_version: "10.0.2".into(),
        programs: [("qemu-img".to_owned(), "bin/qemu-img".to_owned())].into(),
    };
    ImageManifest {
        format: MANIFEST_FORMAT,
        name: name.into(),
        architecture: "amd64".into(),
        suite: "bookworm".into(),
        recipe_sha256: digest::of_bytes(b"recipe"),
        files: files
            .iter()
            .map(|(n, c)| ((*n).to_owned(), record(c)))
            .collect(),
        packages: Vec::new(),
        inputs: Default::default(),
        reproducible: true,
        unreproducible: Vec::new(),
        content: ImageContent::Runtime(runtime),
    }
}

fn publish(store: &Store, name: &str, content: &str) -> Image {
    let guard = silent(|r| store.lock(r)).unwrap();
    let work = store.work_dir(&guard).unwrap();
    let dir = work.path().join("out");
    fs::create_dir_all(dir.join("root")).unwrap();
    fs::write(dir.join("disk"), content).unwrap();
    let key = digest::of_bytes(content.as_bytes());
    store
        .publish(&guard, &key, &dir, &manifest(name, &[("disk", content)]))
        .unwrap()
}

/// Requirement: N46
#[test]
fn a_published_image_is_found_by_name_and_digest() {
    let (_dir, store) = store();
    assert!(store.resolve("bellows/thing:1").unwrap().is_none());
    let image = publish(&store, "bellows/thing:1", "content");
    assert_eq!(store.resolve("bellows/thing:1").unwrap().unwrap(), image);
    assert_eq!(store.image(&image.digest).unwrap(), image);
    assert_eq!(
        image.dir,
        store.root().join("blobs").join(image.digest.as_str())
    );
    assert_eq!(
        image.program("qemu-img").unwrap(),
        image.dir.join("bin/qemu-img")
    );
    assert_eq!(image.program("qemu-nbd"), None);
    assert_eq!(store.images().unwrap(), std::slice::from_ref(&image));
    store.verify(&image).unwrap();
}

/// Requirement: N46
#[test]
fn same_content_same_digest_other_content_other_digest() {
    let (_dir, store) = store();
    let first = publish(&store, "a", "content");
    assert_eq!(publish(&store, "a", "content").digest, first.digest);
    let other = publish(&store, "a", "changed");
    assert_ne!(other.digest, first.digest);
    assert_eq!(store.resolve("a").unwrap().unwrap().digest, other.digest);
    assert!(
        store.image(&first.digest).is_ok(),
        "the former build stays until it is collected"
    );
}

/// Requirement: N46
#[test]
fn an_unchanged_image_is_not_built_again() {
    let (_dir, store) = store();
    let (old, new) = (digest::of_bytes(b"one"), digest::of_bytes(b"two"));
    assert!(store.current("a", &old).is_none());
    let first = publish(&store, "a", "one");
    assert_eq!(store.current("a", &old), Some(first.clone()));
    assert!(store.current("a", &new).is_none() && store.current("b", &old).is_none());
    let second = publish(&store, "a", "two");
    assert!(store.current("a", &old).is_none());
    fs::write(second.path("disk"), "").unwrap();
    assert!(
        store.current("a", &new).is_none(),
        "a damaged image is made again"
    );
    // A reference that was changed by hand is not trusted.
    fs::write(store.root().join("refs/a"), first.digest.as_str()).unwrap();
    assert!(store.current("a", &new).is_none());
}

/// Requirement: N46
#[test]
fn collection_keeps_named_and_used_artefacts() {
    let (_dir, store) = store();
    let old = publish(&store, "a", "one");
    let used = publish(&store, "a", "two");
    let newest = publish(&store, "a", "three");
    let collected = store
        .collect(&BTreeSet::from([used.digest.clone()]))
        .unwrap();
    assert_eq!(collected.blobs, std::slice::from_ref(&old.digest));
    assert!(collected.bytes > 0);
    assert!(store.image(&old.digest).is_err());
    assert!(store.image(&used.digest).is_ok() && store.image(&newest.digest).is_ok());
    assert_eq!(
        store.collect(&BTreeSet::new()).unwrap().blobs,
        [used.digest]
    );
}

/// Requirement: N46
#[test]
fn a_forgotten_image_and_its_layers_go_with_the_next_collection() {
    let (_dir, store) = store();
    let image = publish(&store, "a/b:1", "one");
    let kept = publish(&store, "c", "two");
    let key = digest::of_bytes(b"key");
    let layers = ["a/b:1", "c"].map(|name| {
        let guard = silent(|r| store.lock(r)).unwrap();
        let work = store.work_dir(&guard).unwrap();
        let dir = work.path().join("out");
        fs::create_dir(&dir).unwrap();
        let manifest = LayerManifest {
            files: Default::default(),
            facts: name.to_owned(),
        };
        store
            .publish_layer(&guard, (name, "base", &key), &dir, &manifest)
            .unwrap()
            .digest
    });
    assert!(store.collect(&BTreeSet::new()).unwrap().blobs.is_empty());
    assert!(store.remove("a/b:1").unwrap());
    assert!(!store.remove("a/b:1").unwrap() && store.resolve("a/b:1").unwrap().is_none());
    let gone: BTreeSet<_> = store
        .collect(&BTreeSet::new())
        .unwrap()
        .blobs
        .into_iter()
        .collect();
    assert_eq!(gone, BTreeSet::from([image.digest, layers[0].clone()]));
    assert!(store.layer::<String>("c", "base", &key).is_some());
    assert_eq!(store.resolve("c").unwrap(), Some(kept));
}

/// Requirement: N46
#[test]
fn damage_is_named_and_repaired_by_the_next_build() {
    let (_dir, store) = store();
    let image = publish(&store, "a", "content");
    fs::write(image.path("disk"), "CONTENT").unwrap();
    assert!(
        store.resolve("a").is_ok(),
        "same length: only verify reads it"
    );
    let error = store.verify(&image).unwrap_err().to_string();
    assert!(
        error.contains("disk has changed") && error.contains("build the image again"),
        "{error}"
    );
    fs::write(image.path("disk"), "short").unwrap();
    let error = store.resolve("a").unwrap_err().to_string();
    assert!(error.contains("disk has 5 bytes instead of 7"), "{error}");
    let again = publish(&store, "a", "content");
    store.verify(&again).unwrap();
    fs::write(again.path(MANIFEST_FILE), "{}").unwrap();
    assert!(
        store
            .resolve("a")
            .unwrap_err()
            .to_string()
            .contains("manifest.json has changed")
    );
}

/// Requirement: N46
#[test]
fn a_truncated_reference_is_an_error_not_an_absent_image() {
    let (_dir, store) = store();
    publish(&store, "a", "content");
    fs::write(store.root().join("refs/a"), "0123").unwrap();
    assert!(matches!(
        store.resolve("a"),
        Err(StoreError::Reference { .. })
    ));
    assert!(matches!(store.resolve("../a"), Err(StoreError::Name(_))));
    // A name may be a prefix of another. "a" is a directory here.
    fs::remove_file(store.root().join("refs/a")).unwrap();
    publish(&store, "a/b", "content");
    assert!(store.resolve("a").unwrap().is_none());
    assert!(store.resolve("a/b/c").unwrap().is_none());
}

/// Requirement: N46
#[test]
fn layers_are_found_by_key_and_replaced() {
    let (_dir, store) = store();
    let make = |key: &Digest, content: &str| {
        let guard = silent(|r| store.lock(r)).unwrap();
        let work = store.work_dir(&guard).unwrap();
        let dir = work.path().join("out");
        fs::create_dir(&dir).unwrap();
        fs::write(dir.join("f"), content).unwrap();
        let record = digest::of_file(&dir.join("f"), &mut |_| {}).unwrap();
        let manifest = LayerManifest {
            files: [("f".to_owned(), record)].into(),
            facts: 7u32,
        };
        store
            .publish_layer(&guard, ("img", "base", key), &dir, &manifest)
            .unwrap()
    };
    let (k1, k2) = (digest::of_bytes(b"1"), digest::of_bytes(b"2"));
    let first = make(&k1, "x");
    assert_eq!(store.layer::<u32>("img", "base", &k1).unwrap(), first);
    assert!(store.layer::<u32>("img", "base", &k2).is_none());
    assert!(store.layer::<u32>("img", "packages", &k1).is_none());
    let second = make(&k2, "y");
    assert_eq!(store.layer::<u32>("img", "base", &k2).unwrap(), second);
    assert!(
        !first.dir.exists(),
        "a layer nothing names is removed at once"
    );
    fs::write(second.dir.join("f"), "").unwrap();
    assert!(
        store.layer::<u32>("img", "base", &k2).is_none(),
        "a damaged layer is made again"
    );
}

/// Requirement: N46
#[test]
fn second_builder_waits_and_reports_it() {
    let (_dir, store) = store();
    let (inside, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let guard = silent(|r| store.lock(r)).unwrap();
    let (sender, reports) = mpsc::sync_channel(100);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            let mut sink =
                |p: crate::progress::Progress| sender.try_send(p.step).unwrap_or_default();
            let _guard = store.lock(&mut Reporter::new(&mut sink)).unwrap();
            most.fetch_max(inside.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        });
        // The report proves that the build waits. Then the lock is released.
        let step = reports.recv_timeout(Duration::from_secs(20)).unwrap();
        assert_eq!(step, Step::Lock);
        assert_eq!(inside.load(Ordering::SeqCst), 0);
        drop(guard);
        waiting.join().unwrap();
    });
    assert_eq!(most.load(Ordering::SeqCst), 1);
}

/// Requirement: N46. Child process of the next test: takes the lock, begins a build and waits to be
/// killed.
#[test]
fn child_begins_a_build() {
    let Ok(dir) = std::env::var("N46_STORE") else {
        return;
    };
    let store = Store::open(dir).unwrap();
    let guard = silent(|r| store.lock(r)).unwrap();
    let work = store.work_dir(&guard).unwrap();
    fs::write(work.path().join("half"), "half").unwrap();
    println!("\nN46 {}", work.path().display());
    std::io::stdin().read_line(&mut String::new()).unwrap();
}

/// Requirement: N46
#[test]
fn killed_builder_leaves_nothing() {
    let (_dir, store) = store();
    let before = publish(&store, "a", "content");
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "store::tests::child_begins_a_build",
            "--nocapture",
        ])
        .env("N46_STORE", store.root())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap())
        .lines()
        .map(Result::unwrap);
    let half = lines
        .find_map(|l| l.strip_prefix("N46 ").map(PathBuf::from))
        .unwrap();
    assert!(half.join("half").exists());
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(half.exists(), "kill -9 leaves the work directory");
    assert_eq!(
        store.resolve("a").unwrap().unwrap(),
        before,
        "readers do not see it"
    );
    let _guard = silent(|r| store.lock(r)).unwrap();
    assert!(!half.exists(), "the next builder clears it");
    assert_eq!(fs::read_dir(store.root().join("tmp")).unwrap().count(), 0);
}

/// Requirement: N46
#[test]
fn the_default_place_follows_the_environment() {
    let place = |xdg, home| Store::default_dir(xdg, home).display().to_string();
    assert_eq!(place(Some("/c"), Some("/home/me")), "/c/bellows/store");
    assert_eq!(
        place(None, Some("/home/me")),
        "/home/me/.cache/bellows/store"
    );
    assert_eq!(
        place(Some("relative"), Some("/h")),
        "/h/.cache/bellows/store"
    );
}
