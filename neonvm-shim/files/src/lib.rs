//! Directories of files that are replaced as a whole. Kubelet, runner and guest daemon use the same
//! layout and the same checksum for the files of a secret.

pub mod checksum;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz;
pub mod projected;
pub mod push;
