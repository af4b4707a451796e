//! Which ports of the guest are reached at the pod's address.

use std::collections::BTreeSet;

use protocol::runner::{GUESTD_FORWARD, GUESTD_PORT, pods_own_ports};

use super::args::ALWAYS_PORTS;
use super::bridge;
use super::transfer::Manifest;
use crate::config::RunnerConfig;

/// What a port is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Protocol {
    /// Of TCP.
    Tcp,
    /// Of UDP.
    Udp,
    /// Of SCTP.
    Sctp,
}

impl Protocol {
    /// Its name, as QEMU and nft have it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Sctp => "sctp",
        }
    }
}

/// The ports that anybody may reach, with the same number in the guest: those of spec and image, and those that each guest has. Not
/// those that the pod itself has.
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

/// Whether QEMU serves on a port that not everybody may serve on: only its user network serves on the guest's.
#[must_use]
pub fn needs_privilege(
    config: &RunnerConfig,
    arrival: Option<&Manifest>,
    first_free_port: u16,
) -> bool {
    let serves = !bridge::connects(config, arrival);
    serves
        && public(config)
            .iter()
            .any(|(_, port)| *port < first_free_port)
}

/// QEMU's user network with one forward per port.
#[must_use]
pub fn user_network(config: &RunnerConfig) -> String {
    let public = public(config).into_iter();
    // SCTP is unknown to it.
    let known = public.filter(|(protocol, _)| *protocol != Protocol::Sctp);
    let mut forwards: BTreeSet<_> = known
        .map(|(protocol, port)| (protocol.as_str(), port, port))
        .collect();
    forwards.insert((Protocol::Tcp.as_str(), GUESTD_FORWARD, GUESTD_PORT));
    let ip = config.pod_ip;
    let mut text = "user,id=net0".to_owned();
    for (protocol, host, guest) in forwards {
        text.push_str(&format!(",hostfwd={protocol}:{ip}:{host}-:{guest}"));
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
