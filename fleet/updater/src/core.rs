//! Decisions of the updater, without I/O.

pub mod check;
pub mod schedule;
pub mod upgrade;
