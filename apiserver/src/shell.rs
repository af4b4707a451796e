//! Everything with a clock, a file or a socket in it.

pub mod audit;
pub mod db;
pub mod engine;
pub mod files;
pub mod http;
pub mod hub;
pub mod listen;
pub mod pki;
mod snapshot_files;
pub mod snapshots;

use crate::core::time::WallTime;

/// Current calendar time.
#[must_use]
pub fn now() -> WallTime {
    daemon_kit::clock::Clock::new().wall()
}
