//! Which version of a policy decides. A candidate is tried in shadow, then on a few VMs, before it
//! decides about all; a version that does harm is taken back without hands.
//!
//! [`core`] decides: rules over figures, no clock and no I/O.

#![forbid(unsafe_code)]

pub mod core;
