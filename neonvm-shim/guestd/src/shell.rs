//! Input and output of the guest daemon: sysfs and procfs, kernel events, files, HTTP.

pub mod http;
pub mod keeper;
pub mod notice;
pub mod parts;
pub mod render;
mod response;
pub mod runtime;
pub mod system;
pub mod uevents;
