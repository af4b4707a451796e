//! Everything of the guest daemon that touches the machine: sysfs and procfs, kernel events, files,
//! HTTP.

pub mod http;
pub mod keeper;
pub mod runtime;
pub mod system;
pub mod uevents;
