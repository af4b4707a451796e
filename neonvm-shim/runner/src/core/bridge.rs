//! The guest's first device, connected to the pod by a bridge (docs/compatibility/neonvm.md §3.4).
//!
//! ```text
//!  pod:  eth0 ── translated by port ── br-def 169.254.254.253/30 ── tap-def ─── QEMU   guest:  eth0 169.254.254.254
//! ```
//!
//! The addresses are link-local, so that no network of a cluster has them. The guest gets its own
//! by its kernel's command line, or by DHCP if it asks.
//!
//! Packets to one of the guest's ports at the pod's address go to the guest with their source
//! address. Packets of the guest to other hosts, and to itself by the pod's address, have the pod's
//! address as source. Nothing else reaches the guest. Only the pod itself reaches the guest's
//! daemon. The pod answers the guest's pings and nothing else. Only connections to the pod's own
//! loopback address arrive from [`POD`], which a guest may trust as it trusts its host. `kubectl
//! port-forward` takes that way and authenticates its user.

use std::net::Ipv4Addr;

use protocol::runner::{GUESTD_FORWARD, GUESTD_PORT};

use super::forwards;
use super::traffic;
use crate::config::{Resolver, RunnerConfig};

/// Name of the bridge in the pod that the guest's first device is connected to.
pub const BRIDGE: &str = "br-def";
/// Name of the guest's end of the bridge, made by QEMU.
pub const TAP: &str = "tap-def";
/// Address of the pod on the bridge, the guest's gateway.
pub const POD: Ipv4Addr = Ipv4Addr::new(169, 254, 254, 253);
/// Address of the guest on the bridge.
pub const GUEST: Ipv4Addr = Ipv4Addr::new(169, 254, 254, 254);
/// Prefix length of the bridge's network.
pub const BITS: u8 = 30;
/// Netmask of the bridge's network.
pub const MASK: Ipv4Addr = Ipv4Addr::from_bits(u32::MAX << (u32::BITS - BITS as u32));
/// Host name of the guest inside its pod.
pub const GUEST_NAME: &str = "guest-vm";
/// Hardware address of the bridge, the same in every pod: a migrated guest has it in its ARP cache.
pub const BRIDGE_MAC: [u8; 6] = [0x52, 0x55, 169, 254, 254, 253];
/// Longest list of servers and of domains that `resolv.conf` supports.
const MAX_SERVERS: usize = 3;
const MAX_SEARCH: usize = 6;

/// Kernel command line words about the first device: address, gateway, name servers and domains.
#[must_use]
pub fn kernel_words(resolver: &Resolver) -> String {
    let mut words = format!("bellows.net={GUEST}/{BITS},{POD}");
    let servers: Vec<String> = resolver.servers.iter().map(Ipv4Addr::to_string).collect();
    for (word, list) in [("dns", servers), ("search", resolver.search.clone())] {
        if !list.is_empty() {
            words.push_str(&format!(" bellows.{word}={}", list.join(",")));
        }
    }
    words
}

impl Resolver {
    /// Reads a `resolv.conf`. Words that are no IPv4 address, or no domain name, are skipped.
    #[must_use]
    pub fn of(text: &str) -> Self {
        let mut found = Self::default();
        for line in text.lines() {
            let mut words = line.split_ascii_whitespace();
            match words.next() {
                Some("nameserver") => {
                    let server = words.next().map(str::parse::<Ipv4Addr>);
                    found.servers.extend(server.and_then(Result::ok));
                }
                // The last such line counts.
                Some("search" | "domain") => {
                    let names = words
                        .map(|name| name.trim_end_matches('.'))
                        .filter(|name| is_name(name))
                        .take(MAX_SEARCH);
                    found.search = names.map(str::to_owned).collect();
                }
                _ => {}
            }
        }
        found.servers.truncate(MAX_SERVERS);
        found
    }
}

/// Whether a word is a domain name, without characters that a kernel or shell interprets.
fn is_name(word: &str) -> bool {
    let is_label = |label: &str| {
        let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
        (1..=63).contains(&label.len()) && label.bytes().all(is_part)
    };
    word.len() <= 253 && word.split('.').all(is_label)
}

/// Ruleset for `nft`: it replaces any earlier ruleset of the runner.
#[must_use]
pub fn rules(config: &RunnerConfig) -> String {
    let pod = config.pod_ip;
    let mut ports = String::new();
    for (protocol, port) in forwards::public(config) {
        let protocol = protocol.as_str();
        ports.push_str(&format!(
            "    {protocol} dport {port} dnat to {GUEST}:{port}\n"
        ));
    }
    let counted = if config.spec.enable_network_monitoring {
        traffic::rules(BRIDGE)
    } else {
        String::new()
    };
    format!(
        "\
table ip bellows
delete table ip bellows
table inet bellows
delete table inet bellows
table ip bellows {{
  chain ports {{
{ports}  }}
  chain arriving {{
    type nat hook prerouting priority -100; policy accept;
    ip daddr {pod} jump ports
  }}
  chain own {{
    type nat hook output priority -100; policy accept;
    ip daddr {pod} tcp dport {GUESTD_FORWARD} dnat to {GUEST}:{GUESTD_PORT}
    ip daddr {{ {pod}, 127.0.0.0/8 }} jump ports
  }}
  chain leaving {{
    type nat hook postrouting priority 100; policy accept;
    oifname != \"{BRIDGE}\" ip saddr {GUEST} masquerade
    oifname \"{BRIDGE}\" ip saddr 127.0.0.0/8 masquerade
    oifname \"{BRIDGE}\" ip saddr {GUEST} snat to {pod}
  }}
}}
table inet bellows {{
  chain through {{
    type filter hook forward priority 0; policy accept;
    iifname \"{BRIDGE}\" ip saddr != {GUEST} drop
    iifname \"{BRIDGE}\" meta nfproto ipv6 drop
    tcp flags syn tcp option maxseg size set rt mtu
    oifname \"{BRIDGE}\" ct status dnat accept
    oifname \"{BRIDGE}\" ct state established,related accept
    oifname \"{BRIDGE}\" drop
  }}
  chain to-pod {{
    type filter hook input priority 0; policy accept;
    iifname \"{BRIDGE}\" ct state established,related accept
    iifname \"{BRIDGE}\" udp dport 67 accept
    iifname \"{BRIDGE}\" icmp type echo-request accept
    iifname \"{BRIDGE}\" drop
  }}
{counted}}}
"
    )
}

/// Line that names the guest in a hosts file. `None` if the file has it.
#[must_use]
pub fn missing_host(hosts: &str) -> Option<String> {
    let is_there = hosts
        .lines()
        .any(|line| line.split_ascii_whitespace().any(|word| word == GUEST_NAME));
    (!is_there).then(|| format!("{GUEST}\t{GUEST_NAME}\n"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::args::tests::config;
    use proptest::prelude::*;

    #[test]
    fn only_the_guests_ports_are_translated() {
        let rules = rules(&config());
        let translated: Vec<&str> = rules
            .lines()
            .map(str::trim)
            .filter(|line| line.contains("dnat to"))
            .collect();
        assert_eq!(
            translated,
            [
                "tcp dport 22 dnat to 169.254.254.254:22",
                "tcp dport 5432 dnat to 169.254.254.254:5432",
                "tcp dport 9100 dnat to 169.254.254.254:9100",
                "tcp dport 10301 dnat to 169.254.254.254:10301",
                "udp dport 53 dnat to 169.254.254.254:53",
                "sctp dport 9 dnat to 169.254.254.254:9",
                "ip daddr 127.77.1.2 tcp dport 25184 dnat to 169.254.254.254:25183",
            ]
        );
    }

    #[test]
    fn resolver_is_read_up_to_its_limits() {
        let text = "# cluster\nsearch default.svc.cluster.local svc.cluster.local. a;b\n\
                    nameserver 10.96.0.10\nnameserver fd00::1\nnameserver x\noptions ndots:5\n";
        let resolver = Resolver::of(text);
        assert_eq!(resolver.servers, [Ipv4Addr::new(10, 96, 0, 10)]);
        assert_eq!(
            resolver.search,
            ["default.svc.cluster.local", "svc.cluster.local"]
        );
        assert_eq!(
            kernel_words(&resolver),
            "bellows.net=169.254.254.254/30,169.254.254.253 bellows.dns=10.96.0.10 \
             bellows.search=default.svc.cluster.local,svc.cluster.local"
        );
        let none = kernel_words(&Resolver::default());
        assert_eq!(none, "bellows.net=169.254.254.254/30,169.254.254.253");
    }

    #[test]
    fn guest_is_named_once_in_the_hosts_file() {
        let line = missing_host("127.0.0.1 localhost\n").expect("it is missing");
        assert_eq!(line, "169.254.254.254\tguest-vm\n");
        assert_eq!(missing_host(&format!("127.0.0.1 localhost\n{line}")), None);
    }

    proptest! {
        #[test]
        fn only_names_of_a_resolver_reach_the_command_line(text in "(search|nameserver|domain)?[ -~\n]{0,200}") {
            let words = kernel_words(&Resolver::of(&text));
            let is_sound = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./,= ".contains(&byte);
            prop_assert!(words.bytes().all(is_sound), "{words}");
            prop_assert!(words.split(' ').all(|word| word.starts_with("bellows.")), "{words}");
        }
    }
}
