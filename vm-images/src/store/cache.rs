//! The cache itself. Each module of the store adds its own operations.

use std::path::PathBuf;

/// Cache of images and layers in one directory. All builds that open it share it.
#[derive(Debug, Clone)]
pub struct Store {
    pub(super) root: PathBuf,
}

/// Kind of the layer that stores an image's own key.
pub(super) const IMAGE_KIND: &str = "image";
