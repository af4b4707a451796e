//! Layers: cached intermediate results, so that a change repeats only the steps that depend on it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use protocol::image::{Digest, FileRecord};
use serde::{Deserialize, Serialize};

use super::cache::Store;
use super::error::StoreError;
use super::files::read_digest;
use super::lock::Guard;
use super::manifest::{check_lengths, read_manifest, to_json};

const LAYER_FILE: &str = "layer.json";

/// Files of a layer, and facts about it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct LayerManifest<T> {
    pub(crate) files: BTreeMap<String, FileRecord>,
    /// Facts that the next step needs.
    pub(crate) facts: T,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Layer<T> {
    pub(crate) digest: Digest,
    pub(crate) manifest: LayerManifest<T>,
    pub(crate) dir: PathBuf,
}

impl Store {
    /// The layer `kind` of an image, if it has this key and is complete.
    pub(crate) fn layer<T: for<'a> Deserialize<'a>>(
        &self,
        image: &str,
        kind: &str,
        key: &Digest,
    ) -> Option<Layer<T>> {
        let digest = self.keyed(&self.layer_reference(image, kind), key)?;
        // A damaged layer is rebuilt.
        self.load_layer(&digest).ok()
    }

    /// Directory of the image's newest layer of this kind, with any key.
    pub(crate) fn former_layer_dir(&self, image: &str, kind: &str) -> Option<PathBuf> {
        let digest = read_digest(&self.layer_reference(image, kind))
            .ok()
            .flatten()?;
        Some(self.blob_dir(&digest)).filter(|dir| dir.exists())
    }

    fn load_layer<T: for<'a> Deserialize<'a>>(
        &self,
        digest: &Digest,
    ) -> Result<Layer<T>, StoreError> {
        let dir = self.blob_dir(digest);
        let bytes = read_manifest(&dir, LAYER_FILE, digest)?;
        let manifest: LayerManifest<T> =
            serde_json::from_slice(&bytes).map_err(|e| StoreError::Damaged {
                dir: dir.clone(),
                problem: format!("{LAYER_FILE}: {e}"),
            })?;
        check_lengths(&dir, manifest.files.iter())?;
        Ok(Layer {
            digest: digest.clone(),
            manifest,
            dir,
        })
    }

    /// Moves a finished layer into place. It replaces the image's earlier layer of this kind.
    pub(crate) fn publish_layer<T: Serialize + for<'a> Deserialize<'a>>(
        &self,
        guard: &Guard,
        (image, kind, key): (&str, &str, &Digest),
        dir: &Path,
        manifest: &LayerManifest<T>,
    ) -> Result<Layer<T>, StoreError> {
        let digest = self.settle(dir, LAYER_FILE, &to_json(manifest))?;
        let layer = self.load_layer(&digest)?;
        self.write_text(
            &self.layer_reference(image, kind),
            &format!("{digest}\n{key}\n"),
        )?;
        self.collect_layers(guard)?;
        Ok(layer)
    }

    /// The digest in a reference, if its second line is this key.
    pub(super) fn keyed(&self, path: &Path, key: &Digest) -> Option<Digest> {
        let text = std::fs::read_to_string(path).ok()?;
        let (digest, rest) = text.split_once('\n')?;
        (rest.trim_end() == key.as_str())
            .then(|| Digest::parse(digest).ok())
            .flatten()
    }

    pub(super) fn layer_reference(&self, image: &str, kind: &str) -> PathBuf {
        self.root.join("layers").join(image).join(kind)
    }
}
