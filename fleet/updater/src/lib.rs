//! Brings the package `vm-monitor` of this machine to the version that its channel names.
//!
//! * [`core`] decides: what an upgrade does next, what a check does, which schedules are sound.
//! * [`shell`] reads files and pages, and runs apt and systemd.
//!
//! The package manager fetches and verifies programs. From outside come a version, the text `yes`
//! and a schedule; no command is made of any other text.

pub mod core;
pub mod shell;
