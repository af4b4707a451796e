//! One leader among replicas, by a Lease of the Kubernetes API.
//!
//! `core` decides when a Lease is read and written and what may be done by it; `shell` reads and
//! writes it.

#![forbid(unsafe_code)]

pub mod core;
mod shell;

pub use shell::{
    ANNOTATION_DRAINED, ANNOTATION_NOTE, Follower, LeaseName, Led, LostLead, Witness, while_leading,
};
