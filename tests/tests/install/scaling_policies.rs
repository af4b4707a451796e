//! Policies in a cluster: values of the chart, rights, and the program in the agent's image.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use bellows_tests::{checkout, program};
use serde_json::{Value, json};

use super::{Kit, at, chart, key, objects, read};

const AGENT_IMAGE: &str = "deploy/images/autoscaler-agent.json";

/// Requirement: V34
#[test]
fn v34_limits_of_the_administrator_reach_the_agents_file() {
    let Some(kit) = Kit::find("v34_limits_of_the_administrator_reach_the_agents_file") else {
        return;
    };
    let config = |values: &[&str]| -> Value {
        let config = key("ConfigMap", "kube-system", "autoscaler-agent-config");
        let text = at(&kit.chart(values), &config, "/data/config.json");
        serde_json::from_str(text.as_str().expect("a text")).expect("JSON")
    };
    assert_eq!(config(&[])["policies"], json!({}));
    let limits = r#"policies.limits={"maxUnits":0,"fallbackAfterSeconds":-1}"#;
    let values = [
        r#"policies.default="db""#,
        limits,
        "policies.feedPorts=[9200]",
    ];
    let expected = json!({
        "default": "db",
        "limits": {"maxUnits": 0, "fallbackAfterSeconds": -1},
        "feedPorts": [9200],
    });
    assert_eq!(config(&values)["policies"], expected);
    let off = config(&["policies=null"]);
    assert_eq!(off.get("policies"), None, "no section, no policies");
    for wrong in [
        "policies.default=No Name",
        "policies.limits.maxunits=3",
        "policies.limits.vmsShrunkAtOncePercent=101",
        "policies.feedPorts[0]=0",
        "policies.feeds=9200",
    ] {
        let error = kit.helm("template", &["--set", wrong]).expect_err(wrong);
        assert!(error.contains("schema"), "{wrong}: {error}");
    }
}

/// A policy decides about VMs of all namespaces.
///
/// Requirement: V34
#[test]
fn v34_no_role_of_a_namespace_has_policies() {
    let roles = objects(&read(&chart().join("parts/crds/roles.yaml")));
    assert!(!roles.is_empty());
    for role in roles.values() {
        let text = role.to_string();
        assert!(!text.contains("scalingpolicies"), "{text}");
    }
}

/// A wish for nodes is an object. The credential that buys nodes is the operator's.
///
/// Requirement: V39
#[test]
fn v39_controller_of_policies_has_no_right_to_a_secret_a_token_or_a_vm() {
    let all = objects(&read(&chart().join("parts/policies/rbac.yaml")));
    let roles = all.iter().filter(|((kind, ..), _)| kind.ends_with("Role"));
    let rules: Vec<Value> = roles
        .flat_map(|(_, role)| role["rules"].as_array().cloned().unwrap_or_default())
        .collect();
    let resources = |rule: &Value| -> Vec<String> {
        serde_json::from_value(rule["resources"].clone()).expect("resources")
    };
    let has = |wanted: &str| rules.iter().flat_map(resources).any(|one| one == wanted);
    assert!(has("capacitywishes"), "{rules:?}");
    for other in [
        "*",
        "secrets",
        "serviceaccounts/token",
        "configmaps",
        "virtualmachines",
    ] {
        assert!(!has(other), "{other}");
    }
    let deployment = read(&chart().join("parts/policies/deployment.yaml"));
    for word in ["secretKeyRef", "secretName", "envFrom", "hostPath"] {
        assert!(!deployment.contains(word), "{word}");
    }
}

/// The image has no other files, so a library that is missing there is missing when a VM chooses
/// its first policy.
#[test]
fn image_of_the_agent_has_the_program_for_policies_and_its_libraries() {
    let image: Value =
        serde_json::from_str(&read(&checkout().join(AGENT_IMAGE))).expect("a specification");
    let layers = image["layers"].as_array().expect("layers");
    let entries = layers.iter().flat_map(|layer| layer.as_array().into_iter());
    let files: BTreeSet<&str> = entries
        .flatten()
        .filter_map(|entry| entry["file"]["at"].as_str())
        .collect();
    // The agent looks for it beside its own program.
    assert_eq!(image["entrypoint"], json!(["/usr/bin/autoscaler-agent"]));
    assert!(files.contains("/usr/bin/bellows-policy"), "{files:?}");
    let names: BTreeSet<_> = files
        .iter()
        .map(|file| Path::new(file).file_name())
        .collect();
    for name in ["autoscaler-agent", "bellows-policy"] {
        let output = Command::new("ldd").arg(program(name)).output();
        let output = output.expect("ldd runs");
        let text = String::from_utf8(output.stdout).expect("text");
        assert!(text.contains("libc.so.6"), "{name}: {text}");
        for line in text.lines() {
            let library = line.split_whitespace().next().unwrap_or_default();
            let is_here = names.contains(&Path::new(library).file_name());
            // The kernel brings the first one.
            assert!(
                library.starts_with("linux-vdso") || is_here,
                "{name}: {line}"
            );
        }
    }
}
