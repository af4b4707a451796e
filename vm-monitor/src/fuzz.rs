//! What holds for any input, one function for each thing that reads what others wrote.
//!
//! These bodies take any bytes and panic when a property does not hold. The coverage-guided fuzzer
//! of `fuzz/` drives them (`cargo xtask fuzz`), and so do the property tests beside them, which run
//! with all other tests: neither can go stale without the other.

#![expect(
    clippy::missing_panics_doc,
    reason = "to panic is what these are for: a panic is a finding"
)]

mod control;
mod files;
mod frames;
mod session;
#[cfg(test)]
mod tests;
mod words;

pub use control::control_order;
pub use files::{machine_files, memory_events, memory_stat, pressure_file, zone_file};
pub use frames::{agent_frame, handshake, monitor_frame};
pub use session::session;
pub use words::command_line;
