//! What does the program of rollouts in a cluster need beside the driver? Its command line, its
//! configuration, and an eye on its own tasks.
//!
//! One replica holds the Lease and runs [`fleet::run`]. Each write of the driver is conditional on
//! the version that it read, so a replica that has lost the Lease changes nothing late.

#![forbid(unsafe_code)]

pub mod args;
pub mod config;
pub mod join;
pub mod runners;
pub mod watchdog;
