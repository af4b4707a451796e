//! Ports of the guest that are served at the pod's address.

use std::collections::BTreeSet;

use protocol::runner::{GUESTD_FORWARD, GUESTD_PORT, pods_own_ports};
use protocol::vm::{Port, VmSpec};

use super::connection::is_bridged;
use super::transfer::Manifest;
use crate::config::RunnerConfig;

/// Guest ports that are always reachable at the pod's address: ssh, host metrics, the monitor.
pub const ALWAYS_PORTS: [u16; 3] = [22, 9100, 10301];

/// Longest text of a spec in a message.
const MAX_TEXT_CHARS: usize = 32;

/// Transport protocol of a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Protocol {
    /// Also the protocol of a port whose spec names none.
    Tcp,
    /// Served by QEMU's user network, passt and the bridge.
    Udp,
    /// Served by the bridge only: QEMU's user network cannot forward it.
    Sctp,
}

impl Protocol {
    /// The protocol of a spec's text; `None` for a text that [`check`] refuses.
    fn of(text: &str) -> Option<Self> {
        match text {
            "TCP" | "" => Some(Self::Tcp),
            "UDP" => Some(Self::Udp),
            "SCTP" => Some(Self::Sctp),
            _ => None,
        }
    }

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

/// A port of a VM's spec whose protocol no network of a guest forwards.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "spec.guest.ports: port {port} has the protocol {protocol:?}, which is not forwarded: write TCP, UDP or SCTP, or leave it out for TCP"
)]
pub struct UnknownProtocol {
    /// Number of the port in the spec.
    pub port: i32,
    /// Text of the spec, cut to what a message can hold.
    pub protocol: String,
}

/// Checks the protocols of a spec's ports, before a guest boots or arrives.
///
/// # Errors
/// [`UnknownProtocol`] for the first port with another protocol than TCP, UDP and SCTP.
pub fn check(spec: &VmSpec) -> Result<(), UnknownProtocol> {
    let unknown = |port: &&Port| Protocol::of(&port.protocol).is_none();
    match spec.guest.ports.iter().find(unknown) {
        Some(port) => Err(UnknownProtocol {
            port: port.port,
            protocol: port.protocol.chars().take(MAX_TEXT_CHARS).collect(),
        }),
        None => Ok(()),
    }
}

/// Ports that any host may reach, with the same number in the guest: those of spec and image, and
/// those of every guest. The pod's own ports are excluded.
///
/// A guest that an older runner booted may have a protocol that [`check`] refuses. Its port stays
/// what that runner made it: TCP.
#[must_use]
pub fn public(config: &RunnerConfig) -> BTreeSet<(Protocol, u16)> {
    let guest = config.spec.guest.ports.iter().filter_map(|port| {
        let number = u16::try_from(port.port).ok()?;
        let protocol = Protocol::of(&port.protocol).unwrap_or(Protocol::Tcp);
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

    #[test]
    fn ports_with_known_protocols_are_accepted() {
        let mut spec = config().spec;
        assert_eq!(check(&spec), Ok(()));
        spec.guest.ports[0].protocol = String::new();
        assert_eq!(check(&spec), Ok(()), "Kubernetes' default");
    }

    #[test]
    fn port_with_an_unknown_protocol_is_refused_with_rule_and_fix() {
        for protocol in ["tcp", "udp", "QUIC", "TCP "] {
            let mut spec = config().spec;
            spec.guest.ports[1].protocol = protocol.to_owned();
            let error = check(&spec).unwrap_err().to_string();
            assert!(error.contains("port 53"), "{error}");
            assert!(error.contains(&format!("{protocol:?}")), "{error}");
            assert!(error.contains("write TCP, UDP or SCTP"), "{error}");
        }
        let mut spec = config().spec;
        spec.guest.ports[0].protocol = "x".repeat(1000);
        assert!(check(&spec).unwrap_err().to_string().len() < 200);
    }
}
