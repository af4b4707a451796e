//! Names of the containers in a runner pod.

/// Name of the container that owns QEMU.
pub const CONTAINER: &str = "neonvm-runner";
/// Name of the init container that brings the guest's disk.
pub const INIT_CONTAINER: &str = "init";
