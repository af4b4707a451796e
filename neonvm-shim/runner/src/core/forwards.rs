//! Ports of the guest that are served at the pod's address.

use std::collections::BTreeSet;

use protocol::runner::{GUESTD_FORWARD, GUESTD_PORT, pods_own_ports};

use super::connection::is_bridged;
use super::transfer::Manifest;
use crate::config::RunnerConfig;

/// Guest ports that are always reachable at the pod's address: ssh, host metrics, the monitor.
pub const ALWAYS_PORTS: [u16; 3] = [22, 9100, 10301];

/// Transport protocol of a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Protocol {
    /// Also the protocol of a port whose spec names no known one.
    Tcp,
    /// Served by QEMU's user network, passt and the bridge.
    Udp,
    /// Served by the bridge only: QEMU's user network cannot forward it.
    Sctp,
}

impl Protocol {
    /// Name in QEMU's options and nft's rules, in lower case.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Sctp => "sctp",
        }
    }
}

/// Ports that any host may reach, with the same number in the guest: those of spec and image, and
/// those of every guest. The pod's own ports are excluded.
#[must_use]
pub fn public(config: &RunnerConfig) -> BTreeSet<(Protocol, u16)> {
    let guest = config.spec.guest.ports.iter().filter_map(|port| {
        let number = u16::try_from(port.port).ok()?;
        let protocol = match port.protocol.as_str() {
            "UDP" => Protocol::Udp,
            "SCTP" => Protocol::Sctp,
            _ => Protocol::Tcp,
        };
        Some((protocol, number))
    });
    let tcp = ALWAYS_PORTS.into_iter().chain(config.image.ports.clone());
    let own = pods_own_ports(config.spec.runner_port.into());
    let is_own = |(protocol, port): &(Protocol, u16)| {
        *port == 0 || (*protocol == Protocol::Tcp && own.contains(&(*port).into()))
    };
    guest
        .chain(tcp.map(|port| (Protocol::Tcp, port)))
        .filter(|forward| !is_own(forward))
        .collect()
}

/// Whether the program that serves the guest's ports needs a privilege for one of them. That
/// program is QEMU with its user network, or passt; a bridge needs none.
#[must_use]
pub fn needs_privilege(
    config: &RunnerConfig,
    arrival: Option<&Manifest>,
    first_free_port: u16,
) -> bool {
    let serves = !is_bridged(config, arrival);
    serves
        && public(config)
            .iter()
            .any(|(_, port)| *port < first_free_port)
}

/// Ports at the pod's address, each with the guest's port behind it. `protocol` selects them.
pub fn forwarded(config: &RunnerConfig, protocol: Protocol) -> impl Iterator<Item = (u16, u16)> {
    let public = public(config).into_iter();
    let mut ports: BTreeSet<(u16, u16)> = public
        .filter(|(of, _)| *of == protocol)
        .map(|(_, port)| (port, port))
        .collect();
    if protocol == Protocol::Tcp {
        ports.insert((GUESTD_FORWARD, GUESTD_PORT));
    }
    ports.into_iter()
}

/// Option of QEMU's user network with one forward per port.
#[must_use]
pub fn user_network(config: &RunnerConfig) -> String {
    let ip = config.pod_ip;
    let mut text = "user,id=net0".to_owned();
    // QEMU's user network does not support SCTP.
    for protocol in [Protocol::Tcp, Protocol::Udp] {
        let name = protocol.as_str();
        for (host, guest) in forwarded(config, protocol) {
            text.push_str(&format!(",hostfwd={name}:{ip}:{host}-:{guest}"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::args::tests::config;

    #[test]
    fn only_a_user_network_on_low_ports_needs_a_privilege() {
        let mut config = config();
        assert!(needs_privilege(&config, None, 1024), "ssh");
        assert!(!needs_privilege(&config, None, 0), "the kernel lets all");
        config.network.bridged = true;
        assert!(!needs_privilege(&config, None, 1024));
    }
}
