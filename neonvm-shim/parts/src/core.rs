//! Decisions about parts, without I/O.

pub mod elf;
pub mod orders;
pub mod record;
pub mod refusal;
pub mod request;
pub mod state;
pub mod trial;
