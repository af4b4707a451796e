//! The position of a store: its identity and its newest revision.

/// Which store, and how far it had come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Position {
    /// Random identity of the store.
    pub id: u64,
    /// Newest revision that the store gave out.
    pub revision: u64,
}
