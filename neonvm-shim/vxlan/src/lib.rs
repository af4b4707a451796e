//! The overlay network between the nodes of a cluster: on each node a bridge, and a VXLAN tunnel to
//! all others.
//!
//! [`core`] computes the steps from the observed state. [`shell`] observes the kernel and executes
//! the steps, at each change of a node and every 30 s.

#![forbid(unsafe_code)]

pub mod args;
pub mod core;
pub mod shell;
