//! Did the holder of a key sign this container image? One function answers, without the network:
//! [`ImageKey::verify`].
//!
//! # Rules
//! * A bundle counts for the digest that its signature covers, and for no other.
//! * The signature is checked before anything that it covers is read.
//! * A statement counts only if it is `cosign`'s signature of an image. An attestation by the same
//!   key says something else, perhaps the contrary.
//! * The key alone is trusted. Certificates, logs and timestamps of a bundle are not read.

#![forbid(unsafe_code)]

#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz;
mod key;
mod refusal;

pub use key::{ImageKey, KeyError};
pub use refusal::{ImageFault, ImageRefused};
