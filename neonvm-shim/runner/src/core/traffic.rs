//! Counts the traffic between a guest behind a bridge and public addresses:
//! `spec.enableNetworkMonitoring` (docs/compatibility/neonvm.md §3.6).
//!
//! As in NeonVM only TCP counts, and no traffic with private addresses, which a cluster's own
//! traffic has. The kernel counts accepted packets in the table of the guest's rules for the life
//! of the pod. The runner only reads the counters.

use serde::Deserialize;

/// Peers whose traffic is not counted: private networks, loopback, and link-local addresses, which
/// guest and pod use between them.
const UNCOUNTED: &str =
    "{ 10.0.0.0/8, 127.0.0.0/8, 169.254.0.0/16, 172.16.0.0/12, 192.168.0.0/16 }";
/// Arguments of `nft` that list the counters as JSON.
pub const READ: [&str; 6] = ["-j", "list", "counters", "table", "inet", "bellows"];

/// Bytes of counted packets since the pod's start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Traffic {
    /// Bytes of packets to the guest.
    pub ingress: u64,
    /// Bytes of packets from the guest.
    pub egress: u64,
}

/// The counting chain of the table `inet bellows`. It runs behind the chain that drops, so that
/// dropped packets are not counted. `bridge` is the guest's.
#[must_use]
pub fn rules(bridge: &str) -> String {
    format!(
        "  counter ingress {{ packets 0 bytes 0 }}
  counter egress {{ packets 0 bytes 0 }}
  chain counted {{
    type filter hook forward priority 10; policy accept;
    oifname \"{bridge}\" meta l4proto tcp ip saddr != {UNCOUNTED} counter name ingress
    iifname \"{bridge}\" meta l4proto tcp ip daddr != {UNCOUNTED} counter name egress
  }}
"
    )
}

/// Errors of reading the counters.
#[derive(Debug, thiserror::Error)]
pub enum TrafficError {
    /// The output of `nft` is not its JSON.
    #[error("nft's list of the guest's counters is malformed")]
    Malformed(#[from] serde_json::Error),
    /// The rules do not have the counter of this name.
    #[error("the guest's rules have no counter {0}")]
    Missing(&'static str),
}

#[derive(Deserialize)]
struct NftOutput {
    nftables: Vec<Entry>,
}

#[derive(Deserialize)]
struct Entry {
    counter: Option<Counter>,
}

#[derive(Deserialize)]
struct Counter {
    name: String,
    bytes: u64,
}

/// Parses the output of `nft` with the arguments [`READ`].
///
/// # Errors
/// [`TrafficError`].
pub fn parse(answer: &[u8]) -> Result<Traffic, TrafficError> {
    let answer: NftOutput = serde_json::from_slice(answer)?;
    let counted = |name| {
        let mut counters = answer
            .nftables
            .iter()
            .filter_map(|entry| entry.counter.as_ref());
        let found = counters.find(|counter| counter.name == name);
        found
            .map(|counter| counter.bytes)
            .ok_or(TrafficError::Missing(name))
    };
    Ok(Traffic {
        ingress: counted("ingress")?,
        egress: counted("egress")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_read_by_name() {
        let answer = br#"{"nftables": [{"metainfo": {"version": "1.0.6", "json_schema_version": 1}},
            {"counter": {"family": "inet", "name": "egress", "table": "bellows", "handle": 3, "packets": 2, "bytes": 120}},
            {"counter": {"family": "inet", "name": "ingress", "table": "bellows", "handle": 2, "packets": 1, "bytes": 60}}]}"#;
        let traffic = parse(answer).expect("counters");
        let expected = Traffic {
            ingress: 60,
            egress: 120,
        };
        assert_eq!(traffic, expected);
        for (answer, why) in [
            (&b"Error: No such file"[..], "malformed"),
            (br#"{"nftables": []}"#, "no counter ingress"),
        ] {
            let error = parse(answer).expect_err("nothing").to_string();
            assert!(error.contains(why), "{error}");
        }
    }
}
