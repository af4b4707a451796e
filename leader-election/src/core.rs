//! The rules: who may take a Lease, and who may act by it. No clock and no I/O.

pub mod elect;
pub mod lease;
