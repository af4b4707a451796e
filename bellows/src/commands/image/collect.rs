//! `bellows image gc`: which artefacts are in use, and the removal of all others.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use procfs::process::{FDTarget, all_processes};
use protocol::image::Digest;

use super::store::{explain_store, store};
use crate::fail::{Fail, Outcome};
use crate::places::StateDir;
use crate::progress::Progress;
use crate::terminal::out;
use crate::view::units::memory;

pub(super) fn collect(state: &StateDir) -> Outcome {
    let store = store()?;
    let keep = used_by_vms(state, store.root())
        .into_iter()
        .chain(used_by_disks(state)?)
        .chain(used_by_processes(store.root()))
        .collect();
    let mut progress = Progress::new();
    progress.say("collecting");
    let collected = store
        .collect(&keep)
        .map_err(|error| explain_store(&error))?;
    progress.clear();
    out(&format!(
        "{} artefacts removed, {} freed",
        collected.blobs.len(),
        memory(collected.bytes)
    ));
    Ok(())
}

/// Digests in the configuration of this state directory's runners.
fn used_by_vms(state: &StateDir, store: &Path) -> BTreeSet<Digest> {
    let dirs = std::fs::read_dir(state.vms())
        .into_iter()
        .flatten()
        .flatten();
    dirs.filter_map(|dir| std::fs::read_to_string(dir.path().join("config.json")).ok())
        .flat_map(|text| digests_in(&text, store))
        .collect()
}

/// Digests of the images below root disks, including disks in the trash. An unreadable record stops
/// the collection, because its disk is lost without its image.
fn used_by_disks(state: &StateDir) -> Outcome<BTreeSet<Digest>> {
    let mut used = BTreeSet::new();
    let below = |dir: PathBuf| std::fs::read_dir(dir).into_iter().flatten().flatten();
    let places = below(state.disks()).chain(below(state.trash()));
    for path in places.map(|dir| dir.path().join("disk.json")) {
        let unreadable = |why: String| {
            Fail::missing(format!("{}: {why}", path.display()))
                .rule("a root disk holds only what differs from its image, so no image may go before all disks are known")
                .fix("restore the file, or move its directory out of the state directory")
        };
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            Err(error) => return Err(unreadable(error.to_string())),
        };
        let record: serde_json::Value =
            serde_json::from_str(&text).map_err(|error| unreadable(error.to_string()))?;
        let digest = record["image_digest"].as_str().unwrap_or_default();
        used.insert(Digest::parse(digest).map_err(|error| unreadable(error.to_string()))?);
    }
    Ok(used)
}

/// Every digest after `<store>/blobs/` in a text.
fn digests_in(text: &str, store: &Path) -> Vec<Digest> {
    let blobs = format!("{}/", store.join("blobs").display());
    text.match_indices(&blobs)
        .filter_map(|(at, _)| text.get(at + blobs.len()..at + blobs.len() + 64))
        .filter_map(|digits| Digest::parse(digits).ok())
        .collect()
}

/// Digests of which any process has a file open or runs a program.
fn used_by_processes(store: &Path) -> BTreeSet<Digest> {
    let mut used = BTreeSet::new();
    let Ok(processes) = all_processes() else {
        return used;
    };
    for process in processes.flatten() {
        let files = process.fd().into_iter().flatten().flatten();
        let open = files.filter_map(|file| match file.target {
            FDTarget::Path(path) => Some(path),
            _ => None,
        });
        for path in open.chain(process.exe()) {
            used.extend(digests_in(&path.display().to_string(), store));
        }
    }
    used
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_of_vms_are_found_in_their_configuration() {
        let digest = "0123456789abcdef".repeat(4);
        let text =
            format!(r#"{{"kernel":"/c/store/blobs/{digest}/vmlinuz","x":"/c/store/blobs/short"}}"#);
        let found = digests_in(&text, Path::new("/c/store"));
        assert_eq!(found, [Digest::parse(&digest).unwrap()]);
        assert!(digests_in(&text, Path::new("/d/store")).is_empty());
    }

    #[test]
    fn images_below_root_disks_stay_and_an_unreadable_record_stops_the_collection() {
        let root = tempfile::tempdir().unwrap();
        let state = StateDir::choose(Some(root.path())).unwrap();
        assert!(used_by_disks(&state).unwrap().is_empty());
        let put = |place: PathBuf, text: &str| {
            std::fs::create_dir_all(&place).unwrap();
            std::fs::write(place.join("disk.json"), text).unwrap();
        };
        let record = |byte: u8| {
            let digest = Digest::from_bytes([byte; 32]);
            serde_json::json!({"image_digest": digest.as_str()}).to_string()
        };
        put(state.disks().join("default_pg"), &record(1));
        put(
            state.trash().join("default_old_1738367999000000"),
            &record(2),
        );
        let both = [1, 2].map(|byte| Digest::from_bytes([byte; 32]));
        assert_eq!(used_by_disks(&state).unwrap(), both.into());
        put(state.disks().join("default_bad"), "{");
        let fail = used_by_disks(&state).unwrap_err();
        assert!(fail.to_string().contains("default_bad/disk.json"), "{fail}");
    }

    #[test]
    fn an_image_that_a_process_has_open_is_in_use() {
        let root = tempfile::tempdir().unwrap();
        let store = root.path().canonicalize().unwrap();
        let digest = Digest::from_bytes([7; 32]);
        let dir = store.join("blobs").join(digest.as_str());
        std::fs::create_dir_all(&dir).unwrap();
        let file = std::fs::File::create(dir.join("root.img")).unwrap();
        assert!(used_by_processes(&store).contains(&digest));
        drop(file);
        assert!(!used_by_processes(&store).contains(&digest));
    }
}
