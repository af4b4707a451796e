//! The guest's network devices whose other end is an interface of the pod's, as QEMU is told of
//! them (docs/compatibility/neonvm.md §3.4).
//!
//! Such a device has several queues, each with an interrupt of its own, so that several of the
//! guest's CPUs send and receive at once. The guest's kernel uses as many as it has CPUs when it
//! boots; more of them later is for `ethtool -L` in the guest.

use super::shape::Shape;
use super::transfer::Manifest;

/// Queues at most, each way.
const QUEUES: u32 = 4;

/// How many queues a device has, each way: no more than the guest may ever have CPUs, and for a
/// guest that came as many as where it booted.
#[must_use]
pub fn queues(shape: &Shape, arrival: Option<&Manifest>) -> u32 {
    arrival.map_or(shape.max_cpus.clamp(1, QUEUES), |from| from.queues)
}

/// An interface of the pod's of this name, which QEMU makes, and which the kernel serves itself
/// with `vhost`.
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

/// The device at the end of `netdev`, with this hardware address. The guest's kernel takes `mtu`,
/// the largest packet in bytes, as that of its interface; without one it takes 1500.
#[must_use]
pub fn device(netdev: &str, mac: &str, queues: u32, mtu: Option<u16>) -> String {
    // QEMU gives it as many interrupts as its queues need: two each, and two more.
    let several = if queues > 1 { ",mq=on" } else { "" };
    let mtu = mtu.map_or_else(String::new, |bytes| format!(",host_mtu={bytes}"));
    format!("virtio-net-pci,netdev={netdev},mac={mac}{several}{mtu},romfile=")
}
