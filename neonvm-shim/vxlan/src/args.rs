//! Command line of the program.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use clap::Parser;

use crate::core::Cidr;

/// Makes this node a part of the overlay network of VMs: bridge neon-br0, tunnel neon-vxlan0, an
/// entry for each other node, and rules that keep the overlay's traffic from being masqueraded.
/// Needs CAP_NET_ADMIN in the node's network namespace. Finds its API server by KUBECONFIG or, in a
/// pod, by its service account.
#[derive(Debug, Parser)]
#[command(name = "neonvm-vxlan-controller", version = protocol::release::RELEASE)]
pub struct Args {
    /// This node's IPv4 address, as in its Node object.
    #[arg(long, env = "MY_NODE_IP", required_unless_present = "delete")]
    pub node_ip: Option<Ipv4Addr>,
    /// Remove everything that the program ever made on this node, and exit.
    #[arg(long)]
    pub delete: bool,
    /// Addresses of the overlay, whose traffic is not masqueraded; `none` leaves iptables alone.
    #[arg(long, default_value = "10.100.0.0/16", value_parser = exempt, value_name = "RANGE")]
    pub exempt: Exempt,
    /// The iptables program that manages this node's rules.
    #[arg(long, default_value = "iptables", value_name = "PROGRAM")]
    pub iptables: PathBuf,
    /// Address of /metrics, /healthz, /readyz and /debug/state; port 0 picks one.
    #[arg(long, default_value = "127.0.0.1:7779")]
    pub listen: SocketAddr,
}

/// Addresses that are not masqueraded; `None` disables the rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exempt(pub Option<Cidr>);

fn exempt(text: &str) -> Result<Exempt, String> {
    if text == "none" {
        return Ok(Exempt(None));
    }
    let range = text.parse().map_err(|error| format!("{error}, or none"))?;
    Ok(Exempt(Some(range)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(options: &[&str]) -> Result<Args, String> {
        let args = Args::try_parse_from([&["neonvm-vxlan-controller"], options].concat());
        args.map_err(|error| error.to_string())
    }

    #[test]
    fn options_are_read_and_invalid_ones_are_named() {
        let read = args(&["--node-ip=10.0.0.1"]).expect("reads");
        assert_eq!(
            read.exempt.0.map(|range| range.to_string()).as_deref(),
            Some("10.100.0.0/16")
        );
        assert_eq!(
            args(&["--delete", "--exempt=none"]).expect("reads").exempt,
            Exempt(None)
        );
        assert!(args(&[]).expect_err("no address").contains("--node-ip"));
        assert!(args(&["--node-ip=fd00::1"]).is_err());
        let error = args(&["--delete", "--exempt=10.100.0.1/16"]).expect_err("no range");
        assert!(
            error.contains("10.100.0.0/16, with nothing set behind the prefix"),
            "{error}"
        );
    }
}
