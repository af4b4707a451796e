//! The guest's overlay network, from its kernel's command line. Hosts in it must not give orders to
//! the guest.
//!
//! Orders arrive by the guest's first device, which only its host reaches. Replies to addresses
//! outside the overlay leave by that device, so a host in the overlay that forges such an address
//! never gets a connection.

use std::net::{IpAddr, Ipv4Addr};

/// A network of the guest that its host does not own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Overlay {
    network: u32,
    mask: u32,
}

impl Overlay {
    /// Parses `ip=ADDRESS:SERVER:GATEWAY:MASK:HOST:DEVICE:off` on a kernel's command line.
    #[must_use]
    pub fn of(cmdline: &str) -> Option<Self> {
        let mut words = cmdline.split_ascii_whitespace();
        words.find_map(|word| {
            let parts: Vec<&str> = word.strip_prefix("ip=")?.split(':').collect();
            let address: Ipv4Addr = parts.first()?.parse().ok()?;
            let mask: Ipv4Addr = parts.get(3)?.parse().ok()?;
            let mask = mask.to_bits();
            Some(Self {
                network: address.to_bits() & mask,
                mask,
            })
        })
    }

    /// Whether an address belongs to the overlay.
    #[must_use]
    pub fn has(&self, address: IpAddr) -> bool {
        match address.to_canonical() {
            IpAddr::V4(address) => address.to_bits() & self.mask == self.network,
            // A link-local address belongs to the overlay's device, as the host has no IPv6 link to
            // the guest.
            IpAddr::V6(address) => address.is_unicast_link_local(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlay_is_read_from_the_kernels_command_line() {
        let line = "console=ttyS0 ip=10.100.128.1:::255.255.0.0:pg-x7k2p:eth1:off panic=-1";
        let overlay = Overlay::of(line).expect("one");
        for (address, is_in) in [
            ("10.100.0.1", true),
            ("10.100.255.255", true),
            ("::ffff:10.100.3.4", true),
            ("fe80::1", true),
            ("10.0.2.2", false),
            ("127.0.0.1", false),
            ("10.101.0.1", false),
            ("::1", false),
        ] {
            let address = address.parse().expect("an address");
            assert_eq!(overlay.has(address), is_in, "{address}");
        }
        for line in [
            "",
            "quiet",
            "ip=dhcp",
            "ip=10.1.2.3",
            "zip=1.2.3.4:::255.0.0.0",
            "ip=:::::eth0:dhcp",
        ] {
            assert_eq!(Overlay::of(line), None, "{line}");
        }
    }
}
