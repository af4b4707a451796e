//! Decisions of the guest daemon, without I/O.

pub mod callers;
pub mod cpus;
pub mod facts;
pub mod flags;
pub mod overlay;
pub mod render;
pub mod uevent;
