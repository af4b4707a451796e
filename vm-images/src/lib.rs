//! vm-images
pub mod digest;
