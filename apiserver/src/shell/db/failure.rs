//! A failure of redb before it is known which file it is about.

/// Any failure of redb, in a box: its error types are large.
pub(super) struct Failure(pub(super) Box<redb::Error>);

impl<E: Into<redb::Error>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self(Box::new(error.into()))
    }
}
