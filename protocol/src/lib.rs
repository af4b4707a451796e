//! Wire types of every link of Bellows: the monitor link, the permit link, the VM objects, the
//! runner's private control link, the metrics pages of a guest, and the units all of them speak.
//! [`core`] is the interface of every decision core.
//!
//! Nothing in here reads a clock, a socket or a file. Peers' spellings stay in this crate
//! (`#[serde(rename)]`); the Rust names are the project's own words.

#![forbid(unsafe_code)]

pub mod admission;
pub mod annotations;
pub mod claims;
pub mod core;
pub mod crds;
pub mod disk_cache;
pub mod exposition;
pub mod extender;
pub mod fleet;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz;
pub mod image;
pub mod journal;
pub mod migration;
pub mod mode;
pub mod monitor;
pub mod monitor_v2;
pub mod notice;
pub mod object;
pub mod overtaken;
pub mod parts;
pub mod permit;
pub mod policy;
pub mod postgres;
pub mod quantity;
pub mod release;
pub mod revision;
pub mod runner;
pub mod time;
pub mod trace;
pub mod units;
pub mod vm;
