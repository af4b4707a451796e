//! Which release does a channel name, and are its programs those that the publisher signed?
//!
//! A repository is a folder of static files, served by any file server. A channel is a name in it,
//! with one version and a mark for urgent ones. [`Repository`] reads both ways of trust, by TUF
//! metadata or as a folder of the same user. [`Publisher`] makes and changes a repository.
//!
//! # Rules
//! * Nothing of a repository is used before its signatures, hashes and dates were checked.
//! * Every body has a bound in bytes and in time, whatever its metadata says.
//! * A version that cannot be read stands for no version. A mark that cannot be read stands for one
//!   that is not set.
//! * The timestamp is written last, so a reader sees a change as a whole or not at all.

#![forbid(unsafe_code)]

mod anchor;
mod error;
mod fetch;
mod folder;
mod layout;
mod publish;
mod repository;

pub use error::ReadError;
pub use fetch::{FetchLimits, Fetcher};
pub use layout::PLATFORM;
pub use publish::{
    Audience, Changed, LogLine, Program, PublishError, Publisher, ReleaseDraft, read_log,
};
pub use repository::{Repository, Scope, Trust};
