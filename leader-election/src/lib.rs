//! One leader among replicas, by a Lease of the Kubernetes API.
//!
//! `core` decides when to read and write a Lease, and whether this process may act. `shell` reads
//! and writes it.

#![forbid(unsafe_code)]

pub mod core;
mod shell;

pub use shell::{
    ANNOTATION_DRAINED, ANNOTATION_HANDOVER, Follower, LeaseName, LeaseObserver, Led, LostLead,
    exit_of, while_leading,
};
