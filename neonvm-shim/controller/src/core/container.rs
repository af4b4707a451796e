//! Names of the containers in a runner pod.

/// Name of the container that owns QEMU.
pub const CONTAINER: &str = "neonvm-runner";
/// Name of the init container that brings the guest's disk.
pub const INIT_CONTAINER: &str = "init";
/// User of the files of a guest's disks (`qemu` in the runner's image).
pub(super) const QEMU_UID: u32 = 36;
/// Group of the files of a guest's disks (`kvm` in the runner's image).
pub(super) const QEMU_GID: u32 = 34;
