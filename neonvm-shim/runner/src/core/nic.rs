//! QEMU options of network devices that end at an interface of the pod
//! (docs/compatibility/neonvm.md §3.4).
//!
//! Such a device has several queues, each with an interrupt of its own, so that several of the
//! guest's CPUs send and receive at once. The guest's kernel uses as many as it has CPUs when it
//! boots; more of them later is for `ethtool -L` in the guest.

use super::shape::Shape;
use super::transfer::Manifest;

const QUEUES: u32 = 4;

/// Queues of a device per direction: at most the largest number of CPUs. A migrated guest keeps the
/// number it booted with.
#[must_use]
pub fn queues(shape: &Shape, arrival: Option<&Manifest>) -> u32 {
    arrival.map_or(shape.max_cpus.clamp(1, QUEUES), |from| from.queues)
}

/// Option of an interface that QEMU makes in the pod. With `vhost` the kernel serves it.
#[must_use]
pub fn tap(id: &str, interface: &str, queues: u32, vhost: bool) -> String {
    let several = if queues > 1 {
        format!(",queues={queues}")
    } else {
        String::new()
    };
    let vhost = if vhost { ",vhost=on" } else { "" };
    format!("tap,id={id},ifname={interface}{several},script=no,downscript=no{vhost}")
}

/// Option of the device at the end of `netdev` with hardware address `mac`. `mtu`, the largest
/// packet in bytes, becomes the MTU of the guest's interface; without it that is 1500.
#[must_use]
pub fn device(netdev: &str, mac: &str, queues: u32, mtu: Option<u16>) -> String {
    // QEMU assigns interrupts by the number of queues: two each, and two more.
    let several = if queues > 1 { ",mq=on" } else { "" };
    let mtu = mtu.map_or_else(String::new, |bytes| format!(",host_mtu={bytes}"));
    format!("virtio-net-pci,netdev={netdev},mac={mac}{several}{mtu},romfile=")
}
