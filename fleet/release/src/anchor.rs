//! Where trust begins: the newest root that was verified from the root that a person gave.
//!
//! The library begins with the root that it is given. From an old one, a server that hides newer
//! roots could bring back keys that the publisher has replaced.

use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};
use tokio::fs;

use crate::error::ReadError;

/// File that names the root that a person gave, by its SHA-256.
const ANCHOR: &str = "anchor";
/// File of the newest verified root, which the library writes.
const ROOT: &str = "root.json";

/// Metadata that was verified, in a folder of its own for each channel object.
#[derive(Debug, Clone)]
pub(crate) struct Anchor {
    folder: PathBuf,
}

impl Anchor {
    /// Prepares the folder for a root. What was verified from another one is forgotten.
    pub(crate) async fn open(folder: &Path, root: &[u8]) -> Result<Self, ReadError> {
        let failed = |error: std::io::Error| {
            let folder = folder.display();
            ReadError::Unavailable(format!(
                "failed to keep verified metadata in {folder}: {error}"
            ))
        };
        let anchor = hex(&Sha256::digest(root));
        let file = folder.join(ANCHOR);
        let known = fs::read_to_string(&file).await.unwrap_or_default();
        if known != anchor {
            match fs::remove_dir_all(folder).await {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(failed(error));
                }
                _ => {}
            }
            fs::create_dir_all(folder).await.map_err(failed)?;
            fs::write(&file, anchor).await.map_err(failed)?;
        }
        Ok(Self {
            folder: folder.to_owned(),
        })
    }

    /// Folder in which the library keeps what it verified.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// The newest verified root, if there is a readable one.
    pub(crate) async fn newest_root(&self) -> Option<Vec<u8>> {
        let root = fs::read(self.folder.join(ROOT)).await.ok()?;
        let is_whole = serde_json::from_slice::<serde_json::Value>(&root).is_ok();
        is_whole.then_some(root)
    }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
