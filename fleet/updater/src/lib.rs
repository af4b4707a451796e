//! Brings the package `vm-monitor` of this machine to the version that its channel names.
//!
//! * [`core`] decides: what an upgrade does next, what a check does, which schedules are sound.
//! * [`shell`] reads files and pages, and runs systemd and a package manager: apt or dnf, fixed by
//!   the program that is built.
//! * [`command`] is what people and units call.
//!
//! The package manager fetches and verifies programs. From outside come a version, the text `yes`
//! and a schedule; no command is made of any other text.

pub mod command;
pub mod core;
pub mod shell;
