//! Reads the image store: `refs/<name>` holds a digest, `blobs/<digest>/` the files with their
//! `manifest.json`.

use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};

use protocol::image::{
    Digest, GuestContent, ImageContent, ImageManifest, MANIFEST_FILE, MANIFEST_FORMAT,
};

use crate::config::{BootImage, Programs};

const QEMU_IMAGE: &str = "bellows/qemu";
const MAX_MANIFEST_BYTES: u64 = 8 << 20;

/// Errors of an image in the store.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// The store has no image of this name.
    #[error("image {0:?} is not in the store; build it with `bellows image build {0}`")]
    Missing(String),
    /// The name is a path out of the store.
    #[error("{0:?} is not an image name")]
    Name(String),
    /// A file of the store cannot be read.
    #[error("image {name:?}: cannot read {path}; build it again with `bellows image build {name}`")]
    Read {
        /// Name of the image that was asked for.
        name: String,
        /// Path of the file that cannot be read.
        path: PathBuf,
        /// Error of the file operation on `path`.
        source: io::Error,
    },
    /// A file of the store is malformed.
    #[error("image {name:?} is damaged ({what}); build it again with `bellows image build {name}`")]
    Damaged {
        /// Name of the image that was asked for.
        name: String,
        /// Description of the malformed part.
        what: String,
    },
    /// The image was built by an older version and lacks a program.
    #[error(
        "image {name:?} has no program {program}: an older version of bellows has built it; \
         build it again with `bellows image build {name}`"
    )]
    Lacks {
        /// Name of the image, by which it is built again.
        name: String,
        /// Name of the missing program.
        program: String,
    },
    /// The image is not of the kind that is needed.
    #[error("image {0:?} is not {1}")]
    Kind(String, &'static str),
}

/// Image store below a directory with `refs` and `blobs`.
#[derive(Debug, Clone)]
pub struct Store {
    dir: PathBuf,
}

impl Store {
    /// The store below `dir`. The directory may be missing.
    #[must_use]
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into() }
    }

    /// Files of a guest image, by name.
    ///
    /// # Errors
    /// [`ImageError`].
    pub fn guest(&self, name: &str) -> Result<BootImage, ImageError> {
        self.guest_of(name, self.digest(name)?.as_str())
    }

    /// Paths of `qemu-system-x86_64` and `qemu-img`.
    ///
    /// # Errors
    /// [`ImageError`].
    pub fn programs(&self) -> Result<Programs, ImageError> {
        Ok(Programs {
            qemu_system: self.program("qemu-system-x86_64")?,
            qemu_img: self.program("qemu-img")?,
        })
    }

    /// Path of a program in QEMU's image.
    ///
    /// # Errors
    /// [`ImageError`].
    pub fn program(&self, program: &str) -> Result<PathBuf, ImageError> {
        let (dir, manifest) = self.manifest(QEMU_IMAGE)?;
        let ImageContent::Runtime(runtime) = manifest.content else {
            return Err(ImageError::Kind(QEMU_IMAGE.to_owned(), "a set of programs"));
        };
        let path = runtime.programs.get(program).map(|path| dir.join(path));
        path.ok_or_else(|| ImageError::Lacks {
            name: QEMU_IMAGE.to_owned(),
            program: program.to_owned(),
        })
    }

    /// Digest of the image that a name refers to at present.
    ///
    /// # Errors
    /// [`ImageError`].
    pub fn digest(&self, name: &str) -> Result<Digest, ImageError> {
        let relative = Path::new(name);
        let plain = relative
            .components()
            .all(|part| matches!(part, Component::Normal(_)));
        if name.is_empty() || !plain || name.contains('\0') {
            return Err(ImageError::Name(name.chars().take(200).collect()));
        }
        let path = self.dir.join("refs").join(relative);
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::NotFound
                        | io::ErrorKind::IsADirectory
                        | io::ErrorKind::NotADirectory
                ) =>
            {
                return Err(ImageError::Missing(name.to_owned()));
            }
            Err(source) => {
                return Err(ImageError::Read {
                    name: name.to_owned(),
                    path,
                    source,
                });
            }
        };
        Digest::parse(text.trim()).map_err(|error| damaged(name, error.to_string()))
    }

    /// Files of the guest image with this digest, to which the name may no longer refer.
    ///
    /// # Errors
    /// [`ImageError`].
    pub fn guest_of(&self, name: &str, digest: &str) -> Result<BootImage, ImageError> {
        let digest = Digest::parse(digest).map_err(|error| damaged(name, error.to_string()))?;
        let (dir, manifest) = self.manifest_of(name, &digest)?;
        match manifest.content {
            ImageContent::Guest(guest) => Ok(boot_image(&dir, guest)),
            ImageContent::Runtime(_) => Err(ImageError::Kind(name.to_owned(), "bootable")),
        }
    }

    fn manifest(&self, name: &str) -> Result<(PathBuf, ImageManifest), ImageError> {
        self.manifest_of(name, &self.digest(name)?)
    }

    fn manifest_of(
        &self,
        name: &str,
        digest: &Digest,
    ) -> Result<(PathBuf, ImageManifest), ImageError> {
        let dir = self.dir.join("blobs").join(digest.as_str());
        let path = dir.join(MANIFEST_FILE);
        let read = || -> io::Result<Vec<u8>> {
            let file = fs::File::open(&path)?;
            let mut bytes = Vec::new();
            io::Read::read_to_end(&mut io::Read::take(file, MAX_MANIFEST_BYTES), &mut bytes)?;
            Ok(bytes)
        };
        let bytes = read().map_err(|source| ImageError::Read {
            name: name.to_owned(),
            path: path.clone(),
            source,
        })?;
        let manifest: ImageManifest =
            serde_json::from_slice(&bytes).map_err(|error| damaged(name, error.to_string()))?;
        if manifest.format != MANIFEST_FORMAT {
            let what = format!("its format is {}, not {MANIFEST_FORMAT}", manifest.format);
            return Err(damaged(name, what));
        }
        Ok((dir, manifest))
    }
}

fn damaged(name: &str, what: String) -> ImageError {
    ImageError::Damaged {
        name: name.to_owned(),
        what,
    }
}

/// Files of a guest by the manifest in `dir`.
pub(crate) fn boot_image(dir: &Path, guest: GuestContent) -> BootImage {
    BootImage {
        kernel: dir.join(guest.kernel),
        kernel_version: guest.kernel_version,
        initrd: Some(dir.join(guest.initrd)),
        root_disk: dir.join(guest.root_disk),
        root_disk_format: guest.root_disk_format,
        root_disk_bytes: guest.root_disk_bytes,
        cmdline: guest.cmdline,
        cmdline_tcg: guest.cmdline_tcg,
        ports: guest.ports.into_iter().map(|port| port.port).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn put(store: &Path, name: &str, manifest: &serde_json::Value) {
        let digest = "ab".repeat(32);
        let blob = store.join("blobs").join(&digest);
        fs::create_dir_all(&blob).unwrap();
        fs::write(blob.join(MANIFEST_FILE), manifest.to_string()).unwrap();
        let reference = store.join("refs").join(name);
        fs::create_dir_all(reference.parent().unwrap()).unwrap();
        fs::write(reference, format!("{digest}\n")).unwrap();
    }

    fn manifest(content: &serde_json::Value) -> serde_json::Value {
        json!({
            "format": MANIFEST_FORMAT, "name": "x", "architecture": "amd64", "suite": "bookworm",
            "recipe_sha256": "00".repeat(32), "files": {}, "packages": [], "inputs": {}, "reproducible": true,
            "content": content,
        })
    }

    #[test]
    fn guest_image_is_resolved_to_files() {
        let temp = tempfile::tempdir().unwrap();
        let content = json!({
            "kind": "guest", "kernel": "vmlinuz", "kernel_version": "6.1", "initrd": "initrd", "root_disk": "root.ext4",
            "root_disk_format": "raw", "root_disk_bytes": 5, "cmdline": "a", "cmdline_tcg": "b",
            "ports": [{ "name": "postgres", "port": 5432 }], "ready_line": "R", "cgroup": null,
        });
        put(temp.path(), "bellows/postgres:15", &manifest(&content));
        let image = Store::new(temp.path())
            .guest("bellows/postgres:15")
            .unwrap();
        assert!(image.kernel.ends_with("vmlinuz") && image.kernel.starts_with(temp.path()));
        assert_eq!((image.ports, image.root_disk_bytes), (vec![5432], 5));
        let kind = Store::new(temp.path()).programs().unwrap_err();
        assert!(matches!(kind, ImageError::Missing(_)), "{kind}");
    }

    #[test]
    fn programs_come_from_the_runtime_image() {
        let temp = tempfile::tempdir().unwrap();
        let content = json!({
            "kind": "runtime", "root": "root", "root_sha256": "11".repeat(32), "root_bytes": 1, "qemu_version": "10.0.2",
            "programs": { "qemu-system-x86_64": "bin/q", "qemu-img": "bin/i" },
        });
        put(temp.path(), QEMU_IMAGE, &manifest(&content));
        let programs = Store::new(temp.path()).programs().unwrap();
        assert!(programs.qemu_system.ends_with("bin/q") && programs.qemu_img.ends_with("bin/i"));
        assert!(matches!(
            Store::new(temp.path()).guest(QEMU_IMAGE),
            Err(ImageError::Kind(..))
        ));
    }

    #[test]
    fn error_names_the_image_and_the_fix() {
        let temp = tempfile::tempdir().unwrap();
        let store = Store::new(temp.path());
        let missing = store.guest("bellows/nope").unwrap_err().to_string();
        assert!(
            missing.contains("bellows image build bellows/nope"),
            "{missing}"
        );
        for bad in ["", "../x", "/etc/passwd", "a/../b"] {
            assert!(
                matches!(store.guest(bad), Err(ImageError::Name(_))),
                "{bad:?}"
            );
        }
        put(temp.path(), "bellows/x", &json!({ "format": 1 }));
        assert!(matches!(
            store.guest("bellows/x"),
            Err(ImageError::Damaged { .. })
        ));
        fs::write(temp.path().join("refs/bellows/x"), "zz").unwrap();
        assert!(matches!(
            store.guest("bellows/x"),
            Err(ImageError::Damaged { .. })
        ));
        assert!(matches!(
            store.guest("bellows"),
            Err(ImageError::Missing(_))
        ));
    }
}
