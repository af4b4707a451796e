//! Rights of the fleet's account, compared with the calls that the API server's audit log holds.

use std::collections::BTreeSet;
use std::fmt;

use anyhow::{Context as _, Result, ensure};
use bellows_tests::cluster::AUDIT_LOG;
use serde_json::{Value, json};

use super::{FLEET, SYSTEM, World};

/// Annotation of a line of the audit log: whether a right allows the call.
const DECISION: &str = "authorization.k8s.io/decision";

/// The test of this file that uses a right.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shown {
    Guests,
    Agents,
    Services,
    /// None, for this reason.
    Nowhere(&'static str),
}

/// Rights about the other parts of the control plane.
const OTHER_SERVICES: Shown =
    Shown::Nowhere("the controller stands for its peers, which the driver treats alike");

/// Every right of the account: namespace of a role, resource with a name, verb.
const RIGHTS: [(&str, Shown); 43] = [
    ("fleetenvironments list", Shown::Guests),
    ("fleetenvironments update", Shown::Guests),
    ("fleetenvironments/status update", Shown::Guests),
    ("fleetchannels list", Shown::Guests),
    ("fleetchannels/status update", Shown::Guests),
    ("fleetdeployments list", Shown::Guests),
    ("fleetdeployments create", Shown::Guests),
    ("fleetdeployments/status update", Shown::Guests),
    ("fleetinstances list", Shown::Guests),
    ("fleetinstances create", Shown::Guests),
    ("fleetinstances update", Shown::Guests),
    ("fleetinstances/status update", Shown::Guests),
    ("controllerrevisions list", Shown::Guests),
    ("controllerrevisions create", Shown::Guests),
    ("virtualmachines list", Shown::Guests),
    ("pods list", Shown::Guests),
    ("namespaces list", Shown::Guests),
    ("nodes list", Shown::Guests),
    ("events create", Shown::Guests),
    ("secrets get", Shown::Guests),
    ("virtualmachines get", Shown::Guests),
    ("virtualmachines patch", Shown::Guests),
    (
        "virtualmachines use-privileged",
        Shown::Nowhere("the admission policy of VMs asks for it; it is no verb of a call"),
    ),
    ("virtualmachinemigrations list", Shown::Guests),
    ("virtualmachinemigrations create", Shown::Guests),
    ("virtualmachinemigrations delete", Shown::Guests),
    ("kube-system: leases create", Shown::Guests),
    ("kube-system: leases get bellows-fleet", Shown::Guests),
    ("kube-system: leases list bellows-fleet", Shown::Guests),
    ("kube-system: leases watch bellows-fleet", Shown::Guests),
    ("kube-system: leases patch bellows-fleet", Shown::Guests),
    (
        "kube-system: daemonsets get autoscaler-agent",
        Shown::Agents,
    ),
    (
        "kube-system: daemonsets update autoscaler-agent",
        Shown::Agents,
    ),
    ("kube-system: pods delete", Shown::Agents),
    ("kube-system: configmaps list", Shown::Agents),
    (
        "kube-system: deployments get autoscale-scheduler",
        OTHER_SERVICES,
    ),
    (
        "kube-system: deployments patch autoscale-scheduler",
        OTHER_SERVICES,
    ),
    ("kube-system: deployments get bellows-fleet", OTHER_SERVICES),
    (
        "kube-system: deployments patch bellows-fleet",
        OTHER_SERVICES,
    ),
    (
        "kube-system: leases get autoscale-scheduler",
        OTHER_SERVICES,
    ),
    (
        "neonvm-system: deployments get neonvm-controller",
        Shown::Services,
    ),
    (
        "neonvm-system: deployments patch neonvm-controller",
        Shown::Services,
    ),
    (
        "neonvm-system: leases get a3b22509.neon.tech",
        Shown::Services,
    ),
];

/// Policy by which the API server logs each call of the account.
pub(super) fn audit_policy() -> String {
    json!({
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived"],
        "rules": [{"level": "Metadata", "users": [account()]}, {"level": "None"}],
    })
    .to_string()
}

fn account() -> String {
    format!("system:serviceaccount:{SYSTEM}:{FLEET}")
}

/// A call of the account.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Call {
    group: String,
    namespace: String,
    pub(super) resource: String,
    name: String,
    pub(super) verb: String,
    /// No right allows it. An admission that refuses a call is none of that.
    is_forbidden: bool,
}

/// A right of the account. An empty namespace or name stands for all.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Right {
    namespace: String,
    group: String,
    resource: String,
    verb: String,
    name: String,
}

impl fmt::Display for Right {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.namespace.is_empty() {
            write!(f, "{}: ", self.namespace)?;
        }
        write!(f, "{} {}", self.resource, self.verb)?;
        if !self.name.is_empty() {
            write!(f, " {}", self.name)?;
        }
        Ok(())
    }
}

impl Right {
    fn allows(&self, call: &Call) -> bool {
        let fits = |own: &str, called: &str| own.is_empty() || own == called;
        fits(&self.namespace, &call.namespace)
            && fits(&self.name, &call.name)
            && (&self.group, &self.resource, &self.verb)
                == (&call.group, &call.resource, &call.verb)
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// The calls of the account so far, each once. Calls of no object are left out.
pub(super) fn calls(world: &World) -> Result<BTreeSet<Call>> {
    let file = world.cluster.plane().dir().join(AUDIT_LOG);
    let log = std::fs::read_to_string(&file);
    let log = log.with_context(|| format!("failed to read {}", file.display()))?;
    let mut calls = BTreeSet::new();
    // The server may be writing the last line.
    let whole = log.rfind('\n').map_or("", |end| &log[..end]);
    for line in whole.lines() {
        let event: Value = serde_json::from_str(line).with_context(|| line.to_owned())?;
        let object = &event["objectRef"];
        if event["user"]["username"] != account() || object.is_null() {
            continue;
        }
        let part = object["subresource"].as_str();
        let part = part.map(|part| format!("/{part}")).unwrap_or_default();
        calls.insert(Call {
            group: text(&object["apiGroup"]),
            namespace: text(&object["namespace"]),
            resource: text(&object["resource"]) + &part,
            name: text(&object["name"]),
            verb: text(&event["verb"]),
            is_forbidden: event["annotations"][DECISION] == "forbid",
        });
    }
    Ok(calls)
}

/// Rights that roles give the account.
fn granted(world: &World) -> Result<BTreeSet<Right>> {
    let mut rights = BTreeSet::new();
    for (bindings, role) in [
        ("clusterrolebindings", "clusterrole"),
        ("rolebindings", "role"),
    ] {
        let all = world.get(&[bindings, "-A"])?;
        for binding in all["items"].as_array().into_iter().flatten() {
            let subjects = binding["subjects"].as_array().into_iter().flatten();
            let mut subjects = subjects.filter(|one| one["kind"] == "ServiceAccount");
            if !subjects.any(|one| one["name"] == FLEET && one["namespace"] == SYSTEM) {
                continue;
            }
            let namespace = text(&binding["metadata"]["namespace"]);
            let name = text(&binding["roleRef"]["name"]);
            let mut words = vec![role, &name];
            if !namespace.is_empty() {
                words.extend(["-n", &namespace]);
            }
            for rule in world.get(&words)?["rules"].as_array().into_iter().flatten() {
                rights.extend(of_rule(rule, &namespace));
            }
        }
    }
    Ok(rights)
}

fn of_rule(rule: &Value, namespace: &str) -> Vec<Right> {
    let texts = |member: &str| -> Vec<String> {
        rule[member]
            .as_array()
            .into_iter()
            .flatten()
            .map(text)
            .collect()
    };
    let mut names = texts("resourceNames");
    if names.is_empty() {
        names.push(String::new());
    }
    let mut rights = Vec::new();
    for group in texts("apiGroups") {
        for resource in texts("resources") {
            for verb in texts("verbs") {
                rights.extend(names.iter().map(|name| Right {
                    namespace: namespace.to_owned(),
                    group: group.clone(),
                    resource: resource.clone(),
                    verb: verb.clone(),
                    name: name.clone(),
                }));
            }
        }
    }
    rights
}

/// Checks that no call was refused for want of a right, and that a test uses what it is to use.
pub(super) fn are_used(world: &World, test: Shown) -> Result<()> {
    let (calls, granted) = (calls(world)?, granted(world)?);
    let refused: Vec<&Call> = calls.iter().filter(|call| call.is_forbidden).collect();
    ensure!(refused.is_empty(), "the account lacks rights: {refused:?}");
    let mut faults = Vec::new();
    for right in &granted {
        let name = right.to_string();
        let is_used = calls.iter().any(|call| right.allows(call));
        let listed = RIGHTS.iter().find(|(listed, _)| *listed == name);
        match listed.map(|(_, shown)| *shown) {
            None => faults.push(format!("{name}: it is not listed; used: {is_used}")),
            Some(Shown::Nowhere(_)) if is_used => {
                faults.push(format!("{name}: it is used, and listed as not"));
            }
            Some(shown) if shown == test && !is_used => {
                faults.push(format!("{name}: no call uses it"));
            }
            Some(_) => {}
        }
    }
    let names: BTreeSet<String> = granted.iter().map(ToString::to_string).collect();
    let missing = RIGHTS.iter().filter(|(name, shown)| {
        // The other tests do without the rights of settings.
        (*shown == test || test == Shown::Guests) && !names.contains(*name)
    });
    faults.extend(missing.map(|(name, _)| format!("{name}: it is listed and not given")));
    ensure!(faults.is_empty(), "{}", faults.join("\n"));
    Ok(())
}
