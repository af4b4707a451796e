//! Directories of files that are replaced as a whole: what the kubelet makes of a secret, the
//! runner pushes into the guest and the guest daemon writes there, each in the same layout and with
//! the same checksum.

pub mod checksum;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz;
pub mod projected;
pub mod push;
