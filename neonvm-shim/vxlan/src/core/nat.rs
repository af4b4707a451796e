//! Rules that keep the overlay's own traffic from being masqueraded, in the format of `iptables
//! -S`.
//!
//! ```text
//! POSTROUTING ──destination in the overlay──> NEON-EXTRANET ──source or destination in it──> accepted as it is
//! ```
//!
//! Kubernetes' network plugins often pass bridged frames to iptables. A rule that masquerades all
//! packets leaving a node would then change the source address of packets between guests.

use serde::Serialize;

use super::Cidr;

/// Chain in iptables' table `nat` that accepts the overlay's own traffic unchanged.
pub const CHAIN: &str = "NEON-EXTRANET";
/// Chain with the jump to it.
const FROM: &str = "POSTROUTING";

/// Observed part of the table.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct NatSeen {
    /// Whether the chain [`CHAIN`] exists.
    pub chain: bool,
    /// Rules of the chain, each without `-A CHAIN`.
    pub rules: Vec<String>,
    /// Jumps to the chain, each without `-A POSTROUTING`.
    pub jumps: Vec<String>,
}

impl NatSeen {
    /// Parses `iptables -t nat -S`. Other chains are skipped.
    #[must_use]
    pub fn read(listing: &str) -> Self {
        let mut seen = Self::default();
        for line in listing.lines().map(str::trim) {
            let Some((what, rest)) = line.split_once(' ') else {
                continue;
            };
            let (chain, rule) = rest.split_once(' ').unwrap_or((rest, ""));
            match (what, chain) {
                ("-N", CHAIN) => seen.chain = true,
                ("-A", CHAIN) => seen.rules.push(rule.to_owned()),
                ("-A", FROM) if leads_there(rule) => seen.jumps.push(rule.to_owned()),
                _ => {}
            }
        }
        seen
    }
}

fn leads_there(rule: &str) -> bool {
    let words: Vec<&str> = rule.split(' ').collect();
    words
        .windows(2)
        .any(|pair| matches!(pair[0], "-j" | "-g") && pair[1] == CHAIN)
}

/// Arguments of one call of `iptables -t nat`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NatStep(pub Vec<String>);

fn step(words: &[&str], rule: &str) -> NatStep {
    let rule = rule.split(' ').filter(|word| !word.is_empty());
    NatStep(
        words
            .iter()
            .copied()
            .chain(rule)
            .map(str::to_owned)
            .collect(),
    )
}

/// Steps to the rules for this range; empty if they are there.
#[must_use]
pub fn steps(seen: &NatSeen, range: Cidr) -> Vec<NatStep> {
    let rules = [
        format!("-s {range} -j ACCEPT"),
        format!("-d {range} -j ACCEPT"),
    ];
    let jump = format!("-d {range} -j {CHAIN}");
    let mut steps = Vec::new();
    if !seen.chain {
        steps.push(step(&["-N", CHAIN], ""));
    }
    if seen.rules != rules {
        if !seen.rules.is_empty() {
            steps.push(step(&["-F", CHAIN], ""));
        }
        steps.extend(rules.iter().map(|rule| step(&["-A", CHAIN], rule)));
    }
    // Jumps of another range, and duplicates of this one.
    let mut has_one = false;
    for found in &seen.jumps {
        if *found == jump && !has_one {
            has_one = true;
        } else {
            steps.push(step(&["-D", FROM], found));
        }
    }
    if !has_one {
        steps.push(step(&["-I", FROM, "1"], &jump));
    }
    steps
}

/// Steps that remove chain and jumps.
#[must_use]
pub fn removal(seen: &NatSeen) -> Vec<NatStep> {
    let jumps = seen.jumps.iter().map(|rule| step(&["-D", FROM], rule));
    let mut steps: Vec<NatStep> = jumps.collect();
    if seen.chain {
        steps.extend([step(&["-F", CHAIN], ""), step(&["-X", CHAIN], "")]);
    }
    steps
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    pub(crate) const RANGE: &str = "10.100.0.0/16";

    /// Applies a step as iptables does.
    pub(crate) fn apply(seen: &mut NatSeen, NatStep(words): &NatStep) {
        let rule = |from: usize| words[from..].join(" ");
        match (words[0].as_str(), words[1].as_str()) {
            ("-N", CHAIN) => {
                assert!(!seen.chain, "made twice");
                seen.chain = true;
            }
            ("-F", CHAIN) => seen.rules.clear(),
            ("-A", CHAIN) => {
                assert!(seen.chain, "no chain yet");
                seen.rules.push(rule(2));
            }
            ("-I", FROM) => {
                assert!(seen.chain, "no target yet");
                seen.jumps.insert(0, rule(3));
            }
            ("-D", FROM) => {
                let at = seen.jumps.iter().position(|jump| *jump == rule(2));
                seen.jumps.remove(at.expect("it is there"));
            }
            ("-X", CHAIN) => {
                assert!(seen.rules.is_empty() && seen.jumps.is_empty(), "in use");
                seen.chain = false;
            }
            _ => panic!("{words:?}"),
        }
    }

    fn range() -> Cidr {
        RANGE.parse().expect("a range")
    }

    #[test]
    fn listing_is_read_for_our_rules() {
        let listing = "# Warning: iptables-legacy tables present\n-P PREROUTING ACCEPT\n-P POSTROUTING ACCEPT\n-N KUBE-POSTROUTING\n\
             -N NEON-EXTRANET\n-A POSTROUTING -d 10.100.0.0/16 -j NEON-EXTRANET\n-A POSTROUTING -j KUBE-POSTROUTING\n\
             -A POSTROUTING -m comment --comment \"not NEON-EXTRANET\" -j MASQUERADE\n\
             -A NEON-EXTRANET -s 10.100.0.0/16 -j ACCEPT\n-A NEON-EXTRANET -d 10.100.0.0/16 -j ACCEPT\n";
        let seen = NatSeen::read(listing);
        assert_eq!(seen.jumps, ["-d 10.100.0.0/16 -j NEON-EXTRANET"]);
        assert_eq!(seen.rules.len(), 2);
        assert_eq!(steps(&seen, range()), []);
        let other = steps(&seen, "10.101.0.0/16".parse().expect("a range"));
        assert_eq!(other.len(), 5, "{other:?}");
        assert_eq!(NatSeen::read(""), NatSeen::default());
    }

    fn any_seen() -> impl Strategy<Value = NatSeen> {
        let rule = prop::sample::select(vec![
            "-s 10.100.0.0/16 -j ACCEPT",
            "-d 10.100.0.0/16 -j ACCEPT",
            "-s 10.9.0.0/16 -j ACCEPT",
        ]);
        let jump = prop::sample::select(vec![
            "-d 10.100.0.0/16 -j NEON-EXTRANET",
            "-d 10.9.0.0/16 -j NEON-EXTRANET",
        ]);
        let rules = prop::collection::vec(rule.prop_map(str::to_owned), 0..4);
        let jumps = prop::collection::vec(jump.prop_map(str::to_owned), 0..3);
        (any::<bool>(), rules, jumps).prop_map(|(chain, rules, jumps)| match chain {
            true => NatSeen {
                chain,
                rules,
                jumps,
            },
            false => NatSeen::default(),
        })
    }

    proptest! {
        /// From any state, and after any interruption, the next steps lead to the same rules, and
        /// removal leaves none.
        #[test]
        fn steps_lead_to_the_rules_from_anywhere(start in any_seen(), stop in 0_usize..8) {
            let mut seen = start;
            for step in steps(&seen, range()).iter().take(stop) {
                apply(&mut seen, step);
            }
            for step in &steps(&seen, range()) {
                apply(&mut seen, step);
            }
            prop_assert_eq!(steps(&seen, range()), vec![]);
            prop_assert_eq!(seen.jumps.len(), 1);
            for step in removal(&seen).iter().take(stop) {
                apply(&mut seen, step);
            }
            for step in &removal(&seen) {
                apply(&mut seen, step);
            }
            prop_assert_eq!(seen, NatSeen::default());
        }

        #[test]
        fn any_listing_is_parsed(text in "(-[NAP] (NEON-EXTRANET|POSTROUTING)( -j)?[ a-z\n]{0,9}){0,6}.{0,20}") {
            let _ = steps(&NatSeen::read(&text), range());
        }
    }
}
