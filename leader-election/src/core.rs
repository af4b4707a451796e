//! The rules by which a process takes a Lease and acts by it. No clock and no I/O.

pub mod elect;
pub mod lease;
