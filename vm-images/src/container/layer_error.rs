//! Why a layer of a container image is refused.

use std::io;

use protocol::image::Digest;

use super::store::StoreError;
use super::tar::TarError;
use super::tree::TreeError;

/// Why a layer cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LayerError {
    /// The layer's file is missing from the image or cannot be opened.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Reading or decompressing the layer failed. Holds its name and the error.
    #[error("layer {0} cannot be read")]
    Read(String, #[source] io::Error),
    /// The decompressed layer is not a tar archive that the reader accepts.
    #[error("layer {0} is not a tar archive")]
    Tar(String, #[source] TarError),
    /// The SHA-256 of the layer differs from the one in the image's documents.
    #[error("layer {name} is damaged: the {what} has the SHA-256 {found}, not {wanted}")]
    Digest {
        /// Name of the layer's file inside the image.
        name: String,
        /// Hashed part: the file, or the tar in it.
        what: &'static str,
        /// SHA-256 of the content that was read.
        found: Digest,
        /// SHA-256 in the image's documents.
        wanted: Digest,
    },
    /// A path in the layer does not fit the tree of the layers below it.
    #[error("layer {0} cannot be laid over those below it")]
    Tree(String, #[source] TreeError),
    /// All layers together unpack to more than the disk holds.
    #[error(
        "the image unpacks to {bytes} bytes, its disk has {disk_mib} MiB: give it a larger one (--disk-size)"
    )]
    Large {
        /// Bytes of all files.
        bytes: u64,
        /// Size of the root disk in MiB.
        disk_mib: u32,
    },
}
