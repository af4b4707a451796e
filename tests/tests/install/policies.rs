//! Whom the policy of VMs' pods lets in, and where; and that the policies of VM objects come with
//! the roles, by the right accounts.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{Kit, key};

/// Ports of a pod that its guest does not offer: metrics, monitor, incoming migrations and runner.
const CLOSED: [u64; 7] = [9100, 9499, 10301, 20187, 20188, 25183, 25184];

/// Whom a rule is about.
fn peer_of(rule: &Value) -> &str {
    let Some(peers) = rule["from"].as_array() else {
        return "anyone";
    };
    let [peer] = &peers[..] else {
        panic!("one peer a rule: {rule}");
    };
    let expression = &peer["podSelector"]["matchExpressions"][0];
    match peer["podSelector"]["matchLabels"]["name"].as_str() {
        Some(name) => name,
        None if expression["key"] == "vm.neon.tech/name" => "VMs",
        None => panic!("who is that: {rule}"),
    }
}

/// Whether a rule is about this port.
fn names(rule: &Value, protocol: &str, port: u64) -> bool {
    let Some(ports) = rule["ports"].as_array() else {
        return true;
    };
    ports.iter().any(|one| {
        let first = one["port"].as_u64().expect("a number");
        let last = one["endPort"].as_u64().unwrap_or(first);
        one["protocol"].as_str().unwrap_or("TCP") == protocol && (first..=last).contains(&port)
    })
}

/// The ports that a policy leaves closed to a peer.
fn closed(policy: &Value, peer: &str, protocol: &str) -> BTreeSet<u64> {
    let rules = policy["spec"]["ingress"].as_array().expect("rules");
    let about = |rule: &&Value| ["anyone", peer].contains(&peer_of(rule));
    let rules: Vec<&Value> = rules.iter().filter(about).collect();
    let is_closed = |port: &u64| !rules.iter().any(|rule| names(rule, protocol, *port));
    (1..=65535).filter(is_closed).collect()
}

/// Requirement: N49
#[test]
fn guests_reach_of_their_neighbours_what_guests_serve_and_nothing_of_their_pods() {
    let test = "guests_reach_of_their_neighbours_what_guests_serve_and_nothing_of_their_pods";
    let Some(kit) = Kit::find(test) else {
        return;
    };
    let made = kit.chart(&[r#"networkPolicy.vmNamespaces=["default"]"#]);
    let policy = &made[&key("NetworkPolicy", "default", "bellows-vms")];
    for (peer, reached) in [
        ("anyone", &[][..]),
        // Runners of migrations, and all guests with them.
        ("VMs", &[20187, 20188]),
        ("autoscaler-agent", &[9100, 9499, 10301]),
        ("neonvm-controller", &[25183]),
    ] {
        let wanted = CLOSED.into_iter().filter(|port| !reached.contains(port));
        assert_eq!(closed(policy, peer, "TCP"), wanted.collect(), "{peer}");
        // Our components serve nothing over these.
        for protocol in ["UDP", "SCTP"] {
            assert_eq!(closed(policy, peer, protocol), BTreeSet::new(), "{peer}");
        }
    }
}

/// Requirements: W7, W8.
#[test]
fn roles_of_vms_come_with_the_policies_and_these_name_our_accounts() {
    let test = "roles_of_vms_come_with_the_policies_and_these_name_our_accounts";
    let Some(kit) = Kit::find(test) else {
        return;
    };
    let made = kit.chart(&[r#"controller={"namespace":"vms"}"#, "fleet.enabled=true"]);
    let role = key("ClusterRole", "", "neonvm-virtualmachine-editor-role");
    assert!(made.contains_key(&role));
    let names = [
        "bellows-agent",
        "bellows-agent-schedule",
        "bellows-controller-secrets",
        "bellows-fleet-deletion",
        "bellows-fleet-pods",
        "bellows-policy-revisions",
        "bellows-scheduler",
        "bellows-vm-privileged-members",
        "bellows-vm-written-by-parts",
    ];
    for name in names {
        let policy = &made[&key("ValidatingAdmissionPolicy", "", name)];
        assert_eq!(policy["spec"]["failurePolicy"], "Fail", "{name}");
        let binding = &made[&key("ValidatingAdmissionPolicyBinding", "", name)];
        assert_eq!(binding["spec"]["policyName"], name);
        let actions = &binding["spec"]["validationActions"];
        assert_eq!(actions, &serde_json::json!(["Deny"]), "{name}");
        assert!(binding["spec"].get("matchResources").is_none(), "{name}");
        // The chart makes each account that a policy names.
        let text = policy.to_string();
        let named = "system:serviceaccount:";
        for (at, _) in text.match_indices(named) {
            let account = &text[at + named.len()..];
            let end = account.find('\'').expect("a text in an expression");
            if let Some((namespace, name)) = account[..end].split_once(':') {
                let made = made.contains_key(&key("ServiceAccount", namespace, name));
                assert!(made, "{namespace}:{name}");
            }
        }
    }
    let without = kit.chart(&["crds.install=false"]);
    assert!(!without.contains_key(&role));
}
