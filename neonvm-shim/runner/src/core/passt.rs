//! The guest's network on one machine: the program `passt`, one process for each VM.
//!
//! ```text
//!  host ── sockets of passt ── passt ── network.sock ── QEMU
//!  guest: eth0 10.0.2.15/24, gateway 10.0.2.2, DNS 10.0.2.3
//! ```
//!
//! The addresses are those of QEMU's user network, which images expect. passt serves the guest's
//! ports at the pod's address, and opens the guest's connections as a user of the machine. It maps
//! no guest address to the host, and refuses loopback addresses.

use std::net::Ipv4Addr;
use std::path::Path;

use super::forwards::{self, Protocol};
use crate::config::{RunnerConfig, Walls};

const GUEST: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 15);
const BITS: u8 = 24;
/// The guest's gateway. Connections from the host's loopback addresses reach the guest from here.
const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 2);
/// Address of the name server inside the guest.
const NAMES: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 3);
/// Hardware address of the gateway, the same in every pod: a migrated guest has it in its ARP
/// cache.
const GATEWAY_MAC: &str = "52:55:0a:00:02:02";
/// QEMU's option: its standard input is the listening socket. When passt ends, its successor
/// connects again.
pub(super) const NETDEV: &str = "stream,id=net0,server=on,addr.type=fd,addr.str=0";

/// Largest packet between guest and passt in bytes: the payload of passt's largest frame. Packets
/// end at passt, so the host's network does not see their size. A guest's small writes wait in its
/// kernel until a packet is full or the last one is acknowledged, so fewer packets carry them.
pub(super) const LARGEST_FRAME: u16 = 65_520;

/// A word for the guest's kernel, which sets `net.ipv4.tcp_frto` before the guest's first process.
///
/// passt forwards the guest's data while the host's socket accepts it. It drops the data that does
/// not fit and all that follows, until the guest retransmits the missing part. With F-RTO (RFC
/// 5682) a guest answers its first timeout with new data, which passt drops too. The guest then
/// waits for a second timeout of twice the length: 600 ms of a transfer instead of 200 ms.
pub(super) const KERNEL_WORD: &str = "sysctl.net.ipv4.tcp_frto=0";

/// Command line of passt without the program's name. Its standard input is connected to QEMU's
/// socket.
#[must_use]
pub fn passt_args(config: &RunnerConfig, walls: &Walls, pid_file: &Path) -> Vec<String> {
    let mut args: Vec<String> = ["--foreground", "--quiet", "--fd", "0", "--pid"]
        .map(str::to_owned)
        .into();
    let mut add = |words: &[&str]| args.extend(words.iter().map(|word| (*word).to_owned()));
    add(&[&pid_file.display().to_string()]);
    if let Some(user) = walls.user {
        add(&["--runas", &format!("{user}:{user}")]);
    }
    // passt would read these values from an interface of the host, which may appear or vanish.
    add(&[
        "--ipv4-only",
        "--interface",
        "lo",
        "--mac-addr",
        GATEWAY_MAC,
    ]);
    add(&[
        "--address",
        &GUEST.to_string(),
        "--netmask",
        &BITS.to_string(),
    ]);
    add(&["--gateway", &GATEWAY.to_string(), "--no-map-gw"]);
    add(&["--dns", &NAMES.to_string()]);
    if !walls.outside {
        // The loopback device leads to no other host.
        add(&["--outbound-if4", "lo"]);
    } else if let Some(server) = config.network.resolver.servers.first() {
        let (names, server) = (NAMES.to_string(), server.to_string());
        add(&["--dns-forward", &names, "--dns-host", &server]);
    }
    for (protocol, option) in [
        (Protocol::Tcp, "--tcp-ports"),
        (Protocol::Udp, "--udp-ports"),
    ] {
        let ports: Vec<String> = forwards::forwarded(config, protocol)
            .map(|(host, guest)| format!("{host}:{guest}"))
            .collect();
        if !ports.is_empty() {
            add(&[option, &format!("{}/{}", config.pod_ip, ports.join(","))]);
        }
    }
    args
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::core::args::tests::config;
    use crate::core::connection::{Connection, connection};

    pub(crate) fn walls() -> Walls {
        Walls {
            user: Some(1_879_048_193),
            passt: "/q/passt".into(),
            outside: true,
        }
    }

    #[test]
    fn passt_serves_the_guests_ports_and_maps_nothing_to_the_host() {
        let mut config = config();
        config.network.resolver.servers = vec![Ipv4Addr::new(192, 0, 2, 53)];
        let line = passt_args(&config, &walls(), Path::new("/r/passt.pid")).join(" ");
        assert_eq!(
            line,
            "--foreground --quiet --fd 0 --pid /r/passt.pid --runas 1879048193:1879048193 --ipv4-only \
             --interface lo --mac-addr 52:55:0a:00:02:02 --address 10.0.2.15 --netmask 24 \
             --gateway 10.0.2.2 --no-map-gw --dns 10.0.2.3 --dns-forward 10.0.2.3 --dns-host 192.0.2.53 \
             --tcp-ports 127.77.1.2/22:22,5432:5432,9100:9100,10301:10301,25184:25183 \
             --udp-ports 127.77.1.2/53:53"
        );
    }

    #[test]
    fn guest_without_outside_connections_has_no_name_server() {
        let config = config();
        let walls = Walls {
            user: None,
            outside: false,
            ..walls()
        };
        let args = passt_args(&config, &walls, Path::new("/p"));
        assert!(args.windows(2).any(|pair| pair == ["--outbound-if4", "lo"]));
        assert!(
            !args
                .iter()
                .any(|arg| arg == "--dns-forward" || arg == "--runas")
        );
    }

    #[test]
    fn walls_select_passt_for_a_guest_that_boots_here() {
        let mut config = config();
        assert_eq!(connection(&config, None), Connection::UserNetwork);
        config.walls = Some(walls());
        assert_eq!(connection(&config, None), Connection::Passt(&walls()));
        config.network.bridged = true;
        assert_eq!(connection(&config, None), Connection::Bridge);
    }
}
