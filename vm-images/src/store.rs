//! The content-addressed cache of images and of the layers they are built from.
//!
//! ```text
//! store/
//!   lock                      held (flock) by a build or a collection
//!   blobs/<sha256>/           finished artefacts, never changed; <sha256> is the digest of their manifest
//!   refs/<image name>         a digest: the newest build of that image
//!   layers/<image name>/<l>   a digest and the key of the inputs it was made from: the image's two layers and itself
//!   tmp/<random>/             work in progress
//! ```
//!
//! A build works in `tmp/`, then moves its result to `blobs/` and replaces the reference, each by
//! one rename. A killed build leaves only a directory in `tmp/`, which the next holder of the lock
//! removes. Readers take no lock: a referenced artefact is complete, and stays until
//! [`Store::collect`].

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use protocol::image::{Digest, ImageContent, ImageManifest, MANIFEST_FILE, MANIFEST_FORMAT};

use crate::digest;

mod cache;
mod collect;
mod error;
mod files;
mod layer;
mod lock;
mod manifest;

use cache::IMAGE_KIND;
pub use cache::Store;
pub use collect::Collected;
pub use error::StoreError;
use error::StoreIo;
use files::{files_below, read_digest};
pub(crate) use layer::{Layer, LayerManifest};
pub(crate) use lock::Guard;
use manifest::{check_lengths, read_manifest, to_json};

/// A finished image in the cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    /// SHA-256 of its manifest.
    pub digest: Digest,
    /// Kind, files, packages and inputs of the image.
    pub manifest: ImageManifest,
    /// Directory of its files, which is never written to.
    pub dir: PathBuf,
}

impl Image {
    /// Path of one of its files.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Wrapper of a program of a runtime, for example `qemu-img`. `None` if the image has no such
    /// program.
    #[must_use]
    pub fn program(&self, name: &str) -> Option<PathBuf> {
        match &self.manifest.content {
            ImageContent::Runtime(runtime) => runtime.programs.get(name).map(|p| self.dir.join(p)),
            ImageContent::Guest(_) => None,
        }
    }
}

impl Store {
    /// Opens the cache in `dir`, and creates it if it is missing.
    ///
    /// # Errors
    ///
    /// If the directories cannot be created.
    pub fn open(dir: impl Into<PathBuf>) -> Result<Self, StoreError> {
        let root = dir.into();
        for part in ["blobs", "refs", "layers", "tmp"] {
            let path = root.join(part);
            fs::create_dir_all(&path).at("create", &path)?;
        }
        // Disks of VMs store the absolute path of their image.
        let root = root.canonicalize().at("open", &root)?;
        Ok(Self { root })
    }

    /// `${XDG_CACHE_HOME:-$HOME/.cache}/bellows/store`, from the given variables.
    #[must_use]
    pub fn default_dir(xdg_cache_home: Option<&str>, home: Option<&str>) -> PathBuf {
        let cache = match xdg_cache_home.filter(|dir| dir.starts_with('/')) {
            Some(dir) => PathBuf::from(dir),
            None => Path::new(home.unwrap_or("/root")).join(".cache"),
        };
        cache.join("bellows/store")
    }

    /// Directory of the cache.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The newest build of an image. `None` if there is none.
    ///
    /// Checks the manifest's digest and the length of every file, in less than a millisecond.
    /// [`Store::verify`] reads everything.
    ///
    /// # Errors
    ///
    /// If the name is invalid, or the image is damaged.
    pub fn resolve(&self, name: &str) -> Result<Option<Image>, StoreError> {
        let path = self.reference(name)?;
        match read_digest(&path)? {
            Some(digest) => self.image(&digest).map(Some),
            None => Ok(None),
        }
    }

    /// The image with this digest.
    ///
    /// # Errors
    ///
    /// If it is missing or damaged.
    pub fn image(&self, digest: &Digest) -> Result<Image, StoreError> {
        let dir = self.blob_dir(digest);
        let bytes = read_manifest(&dir, MANIFEST_FILE, digest)?;
        let damaged = |problem: String| StoreError::Damaged {
            dir: dir.clone(),
            problem,
        };
        let manifest: ImageManifest =
            serde_json::from_slice(&bytes).map_err(|e| damaged(format!("{MANIFEST_FILE}: {e}")))?;
        if manifest.format != MANIFEST_FORMAT {
            return Err(damaged(format!("format {} is unknown", manifest.format)));
        }
        check_lengths(&dir, manifest.files.iter())?;
        Ok(Image {
            digest: digest.clone(),
            manifest,
            dir,
        })
    }

    /// Reads every file of an image and compares it with the manifest.
    ///
    /// # Errors
    ///
    /// If a file differs.
    pub fn verify(&self, image: &Image) -> Result<(), StoreError> {
        let damaged = |problem: String| StoreError::Damaged {
            dir: image.dir.clone(),
            problem,
        };
        for (name, record) in &image.manifest.files {
            let path = image.dir.join(name);
            if digest::of_file(&path, &mut |_| {}).at("read", &path)? != *record {
                return Err(damaged(format!("{name} has changed")));
            }
        }
        if let ImageContent::Runtime(runtime) = &image.manifest.content {
            let root = image.dir.join(&runtime.root);
            let (found, _) = digest::of_tree(&root, &mut |_| {}).at("read", &root)?;
            if found != runtime.root_sha256 {
                return Err(damaged(format!("{} has changed", runtime.root)));
            }
        }
        Ok(())
    }

    /// All images with a name, sorted by name. Damaged ones are left out.
    ///
    /// # Errors
    ///
    /// If the references cannot be listed.
    pub fn images(&self) -> Result<Vec<Image>, StoreError> {
        let mut images = Vec::new();
        for path in files_below(&self.root.join("refs"))? {
            if let Some(digest) = read_digest(&path)? {
                images.extend(self.image(&digest));
            }
        }
        Ok(images)
    }

    /// Removes the name of an image. Returns whether it had one. Its files stay until
    /// [`Store::collect`].
    ///
    /// # Errors
    ///
    /// If the name is invalid, or the reference cannot be removed.
    pub fn remove(&self, name: &str) -> Result<bool, StoreError> {
        let path = self.reference(name)?;
        match fs::remove_file(&path) {
            Ok(()) => Ok(true),
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(false),
            Err(e) => Err(e).at("remove", &path),
        }
    }

    /// The newest build of an image, if it has this key and is complete.
    pub(crate) fn current(&self, name: &str, key: &Digest) -> Option<Image> {
        let digest = self.keyed(&self.layer_reference(name, IMAGE_KIND), key)?;
        // A damaged image is rebuilt, as a damaged layer is.
        self.resolve(name)
            .ok()
            .flatten()
            .filter(|image| image.digest == digest)
    }

    /// Moves a finished image into place and sets its name.
    ///
    /// `dir` (inside the cache's `tmp/`) holds everything but the manifest.
    pub(crate) fn publish(
        &self,
        _guard: &Guard,
        key: &Digest,
        dir: &Path,
        manifest: &ImageManifest,
    ) -> Result<Image, StoreError> {
        let digest = self.settle(dir, MANIFEST_FILE, &to_json(manifest))?;
        let image = self.image(&digest)?;
        self.write_text(&self.reference(&manifest.name)?, &format!("{digest}\n"))?;
        let keyed = self.layer_reference(&manifest.name, IMAGE_KIND);
        self.write_text(&keyed, &format!("{digest}\n{key}\n"))?;
        Ok(image)
    }

    /// Writes the manifest and renames the directory to its digest. An equal artefact stays.
    fn settle(&self, dir: &Path, file: &str, json: &[u8]) -> Result<Digest, StoreError> {
        let digest = digest::of_bytes(json);
        let path = dir.join(file);
        fs::write(&path, json).at("write", &path)?;
        let target = self.blob_dir(&digest);
        if target.exists() {
            if self.is_sound(&target, file, &digest) {
                return Ok(digest);
            }
            let doomed = self.root.join("tmp").join(digest.as_str());
            fs::rename(&target, &doomed).at("move", &target)?;
        }
        open_to_all(dir).at("change the mode of", dir)?;
        fs::rename(dir, &target).at("move", dir)?;
        Ok(digest)
    }

    fn is_sound(&self, dir: &Path, file: &str, digest: &Digest) -> bool {
        if file == MANIFEST_FILE {
            self.image(digest)
                .is_ok_and(|image| self.verify(&image).is_ok())
        } else {
            read_manifest(dir, file, digest).is_ok()
        }
    }

    fn blob_dir(&self, digest: &Digest) -> PathBuf {
        self.root.join("blobs").join(digest.as_str())
    }

    fn reference(&self, name: &str) -> Result<PathBuf, StoreError> {
        if crate::recipe::is_image_name(name) {
            Ok(self.root.join("refs").join(name))
        } else {
            Err(StoreError::Name(name.chars().take(200).collect()))
        }
    }

    /// Replaces a small file by one rename.
    fn write_text(&self, path: &Path, text: &str) -> Result<(), StoreError> {
        let parent = path.parent().unwrap_or(&self.root);
        fs::create_dir_all(parent).at("create", parent)?;
        let tmp = self.root.join("tmp");
        let mut file = tempfile::NamedTempFile::new_in(&tmp).at("create a file in", &tmp)?;
        io::Write::write_all(&mut file, text.as_bytes()).at("write", path)?;
        file.persist(path)
            .map_err(|e| e.error)
            .at("replace", path)?;
        Ok(())
    }
}

/// A temporary directory is private. A finished artefact is open to all users that may enter the
/// cache.
fn open_to_all(dir: &Path) -> io::Result<()> {
    fs::set_permissions(dir, std::os::unix::fs::PermissionsExt::from_mode(0o755))
}

#[cfg(test)]
mod tests;
