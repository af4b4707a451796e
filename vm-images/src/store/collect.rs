//! Removal of unused artefacts.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use protocol::image::{Digest, MANIFEST_FILE};

use super::cache::{IMAGE_KIND, Store};
use super::error::{StoreError, StoreIo};
use super::files::{files_below, read_digest};
use super::lock::Guard;
use crate::progress::Reporter;

/// Artefacts that [`Store::collect`] removed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Collected {
    /// Digests of the removed artefacts, images and layers alike.
    pub blobs: Vec<Digest>,
    /// Freed disk space in bytes.
    pub bytes: u64,
}

impl Store {
    /// Removes every artefact without an image's name that is not in `keep`. Waits for a running
    /// build.
    ///
    /// Layers stay while their image has a name.
    ///
    /// The disk of a VM is an overlay over an image's root disk. `keep` must hold the digests that
    /// VMs use.
    ///
    /// # Errors
    ///
    /// If files cannot be listed or removed.
    pub fn collect(&self, keep: &BTreeSet<Digest>) -> Result<Collected, StoreError> {
        let guard = self.lock(&mut Reporter::new(&mut |_| {}))?;
        for path in files_below(&self.root.join("layers"))? {
            let image = path
                .parent()
                .and_then(|dir| dir.strip_prefix(self.root.join("layers")).ok());
            if image.is_none_or(|image| !self.root.join("refs").join(image).is_file()) {
                fs::remove_file(&path).at("remove", &path)?;
            }
        }
        self.collect_locked(&guard, |digest, _| keep.contains(digest))
    }

    /// Removes unused layers, but no images.
    pub(crate) fn collect_layers(&self, guard: &Guard) -> Result<Collected, StoreError> {
        self.collect_locked(guard, |_, dir| dir.join(MANIFEST_FILE).exists())
    }

    fn collect_locked(
        &self,
        _guard: &Guard,
        keep: impl Fn(&Digest, &Path) -> bool,
    ) -> Result<Collected, StoreError> {
        let mut named = BTreeSet::new();
        for place in ["refs", "layers"] {
            for path in files_below(&self.root.join(place))? {
                // An image's own key refers to no artefact.
                if place == "layers" && path.ends_with(IMAGE_KIND) {
                    continue;
                }
                // An unreadable reference names nothing, and must not stop the collection.
                named.extend(read_digest(&path).ok().flatten());
            }
        }
        let mut collected = Collected::default();
        let blobs = self.root.join("blobs");
        for entry in fs::read_dir(&blobs).at("list", &blobs)? {
            let dir = entry.at("list", &blobs)?.path();
            let name = dir.file_name().and_then(|n| n.to_str()).unwrap_or_default();
            let Ok(digest) = Digest::parse(name) else {
                continue;
            };
            if named.contains(&digest) || keep(&digest, &dir) {
                continue;
            }
            collected.bytes += disk_bytes(&dir);
            // The rename comes first, so that a kill leaves no partial artefact under a digest.
            let doomed = self.root.join("tmp").join(digest.as_str());
            fs::rename(&dir, &doomed).at("move", &dir)?;
            fs::remove_dir_all(&doomed).at("remove", &doomed)?;
            collected.blobs.push(digest);
        }
        Ok(collected)
    }
}

fn disk_bytes(dir: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let Ok(files) = files_below(dir) else {
        return 0;
    };
    let blocks = files
        .iter()
        .filter_map(|f| f.symlink_metadata().ok())
        .map(|m| m.blocks());
    blocks.sum::<u64>() * 512
}
