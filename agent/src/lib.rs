//! The autoscaler agent: one per node. It reads metrics from each VM, decides a size, asks the scheduler for a permit, patches
//! the VM object and keeps the in-guest monitor informed.
//!
//! [`core`] decides, `shell` moves bytes.

#![forbid(unsafe_code)]

pub mod core;
