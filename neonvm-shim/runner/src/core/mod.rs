//! The decisions of runner and node driver: synchronous, without clock, socket or file.

pub mod args;
pub mod budget;
pub mod exit;
pub mod quota;
pub mod shape;
pub mod sizer;
pub mod stop;
