//! Container images as the base of a guest: read from an OCI image layout (a directory, or the
//! archive of one) or from what `docker save` writes, without a daemon or a registry.
//!
//! ```text
//! archive ──> manifest, config ──> layers, read once ──> tree of the image ────> layers, read again ──> directory
//!             (digests checked)    (digests checked)     (tree.rs: no file yet)   (only what is left over)
//! ```
//!
//! Archives come from untrusted authors. Every document and record is bounded, digests are checked
//! before they are used, and no path can lead out of the directory that is written ([`tree`]).

mod build;
mod config;
mod context;
mod kit;
mod layer_error;
mod layers;
mod merge;
mod spec;
mod store;
mod tar;
mod tree;

#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz;

pub use build::{ContainerBuild, build};
pub use config::ConfigError;
pub use layer_error::LayerError;
pub use merge::MergeError;
pub use spec::{ImageSpec, SpecError};
pub use store::StoreError as ArchiveError;
