//! The overlay network between the nodes of a cluster: on each node a bridge, and a VXLAN tunnel to
//! all others.
//!
//! [`core`] says what to do from what is there, [`shell`] looks and does it: at each change of a
//! node, and every 30 s.

#![forbid(unsafe_code)]

pub mod args;
pub mod core;
pub mod shell;
