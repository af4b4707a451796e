//! Patches as pure functions from an object to an object.

pub mod json;
pub mod merge;
pub mod strategic;

/// Why a patch cannot be applied.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PatchError {
    /// The patch document itself is malformed.
    #[error("{0}")]
    Malformed(String),
    /// The document is fine but does not fit the object.
    #[error("{0}")]
    DoesNotApply(String),
}
