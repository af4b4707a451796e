//! How much a guest behind a bridge says to the world, and hears from it:
//! `spec.enableNetworkMonitoring` (docs/compatibility/neonvm.md §3.6).
//!
//! As NeonVM counts: TCP alone, and nothing that stays among private addresses, which is what a
//! cluster's own traffic has. The kernel counts what it lets through, in the table of the guest's
//! rules, as long as the pod is there; the runner only reads.

use serde::Deserialize;

use super::bridge::BRIDGE;

/// Whose traffic with the guest is not counted: private networks, loopback, and links, as that
/// between guest and pod.
const UNCOUNTED: &str =
    "{ 10.0.0.0/8, 127.0.0.0/8, 169.254.0.0/16, 172.16.0.0/12, 192.168.0.0/16 }";
/// Words of the program that gives rules to the kernel, for what was counted.
pub const READ: [&str; 6] = ["-j", "list", "counters", "table", "inet", "bellows"];

/// Bytes of packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Traffic {
    /// To the guest.
    pub ingress: u64,
    /// From the guest.
    pub egress: u64,
}

/// The part of the table `inet bellows` that counts: behind the chain that drops, so that what is
/// dropped is not counted.
#[must_use]
pub fn rules() -> String {
    format!(
        "  counter ingress {{ packets 0 bytes 0 }}
  counter egress {{ packets 0 bytes 0 }}
  chain counted {{
    type filter hook forward priority 10; policy accept;
    oifname \"{BRIDGE}\" meta l4proto tcp ip saddr != {UNCOUNTED} counter name ingress
    iifname \"{BRIDGE}\" meta l4proto tcp ip daddr != {UNCOUNTED} counter name egress
  }}
"
    )
}

/// Why nothing is known.
#[derive(Debug, thiserror::Error)]
pub enum TrafficError {
    /// Not the program's answer.
    #[error("what nft says of the guest's counters is not understood")]
    Malformed(#[from] serde_json::Error),
    /// Rules without them.
    #[error("the guest's rules have no counter {0}")]
    Missing(&'static str),
}

#[derive(Deserialize)]
struct Answer {
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

/// What the program says to [`READ`].
///
/// # Errors
/// [`TrafficError`].
pub fn parse(answer: &[u8]) -> Result<Traffic, TrafficError> {
    let answer: Answer = serde_json::from_slice(answer)?;
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
    fn what_was_counted_is_read_by_its_name() {
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
            (&b"Error: No such file"[..], "not understood"),
            (br#"{"nftables": []}"#, "no counter ingress"),
        ] {
            let error = parse(answer).expect_err("nothing").to_string();
            assert!(error.contains(why), "{error}");
        }
    }
}
