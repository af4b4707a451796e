//! Firewall rules of the host that limit the connections of guests' processes, by user id.
//!
//! passt opens a guest's connections as the VM's own user. The rules refuse such a user every
//! address of this machine, loopback and link-local ones included, and so the ports of other
//! guests. They also hold for a process that has broken out of QEMU or passt.

use std::net::Ipv4Addr;

use super::users::UserRange;

/// Ruleset for `nft`. It replaces the earlier one atomically.
#[must_use]
pub fn rules(block: u8, users: UserRange, name_servers: &[Ipv4Addr]) -> String {
    let table = table(block);
    let (all, closed) = (users.all(), users.closed());
    let names = names(name_servers);
    format!(
        "\
table inet {table}
delete table inet {table}
table inet {table} {{
  chain leaving {{
    type filter hook output priority 0; policy accept;
    meta skuid {}-{} jump guests
  }}
  chain guests {{
    ct state established,related accept
    tcp flags & (syn | ack) != syn accept
    meta skuid {}-{} reject with icmpx type admin-prohibited
{names}    fib daddr type {{ local, broadcast, multicast }} reject with icmpx type admin-prohibited
    ip daddr {{ 0.0.0.0/8, 127.0.0.0/8, 169.254.0.0/16 }} reject with icmpx type admin-prohibited
    ip6 daddr {{ ::1, fe80::/10 }} reject with icmpx type admin-prohibited
  }}
}}
",
        all.start(),
        all.end(),
        closed.start(),
        closed.end()
    )
}

/// Rule that accepts DNS queries.
fn names(servers: &[Ipv4Addr]) -> String {
    // passt forwards queries to the first server only.
    servers.first().map_or_else(String::new, |server| {
        format!("    ip daddr {server} meta l4proto {{ tcp, udp }} th dport 53 accept\n")
    })
}

/// Input for `nft` that removes the rules. Missing rules are no error.
#[must_use]
pub fn removal(block: u8) -> String {
    let table = table(block);
    format!("table inet {table}\ndelete table inet {table}\n")
}

/// Name of the table in family `inet`.
#[must_use]
pub fn table(block: u8) -> String {
    format!("bellows_{block}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_name_the_users_and_the_name_server() {
        let users = UserRange::new(0x7000_0000).expect("a range");
        let rules = rules(77, users, &[Ipv4Addr::new(127, 0, 0, 53)]);
        for line in [
            "delete table inet bellows_77",
            "meta skuid 1879048192-1879113727 jump guests",
            "meta skuid 1879080960-1879113727 reject with icmpx type admin-prohibited",
            "ip daddr 127.0.0.53 meta l4proto { tcp, udp } th dport 53 accept",
        ] {
            assert!(
                rules.lines().any(|found| found.trim() == line),
                "{line}: {rules}"
            );
        }
        let none = super::rules(77, users, &[]);
        assert!(!none.contains("dport"), "{none}");
    }
}
