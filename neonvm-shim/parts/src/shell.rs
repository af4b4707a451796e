//! Input and output of parts: their files.

pub mod places;
