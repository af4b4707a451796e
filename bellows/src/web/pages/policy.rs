//! Policies, and one policy: the version that decides beside the newest one.

use askama::Template;
use policy_controller::core::reconcile::PROMOTABLE;
use protocol::policy::{PolicyCondition, ScalingPolicyStatus, Stage};
use serde_json::Value;

use crate::commands::policy::canary::Canary;
use crate::commands::policy::conditions::is_stale;
use crate::commands::policy::state::{PolicyRow, candidate_of, live_of, sentence, short};
use crate::fail::Outcome;
use crate::web::frame::Frame;
use crate::web::paths::path_of;
use crate::web::snapshot::Snapshot;

/// Most VMs on a page.
const VMS: usize = 100;

#[derive(Debug, Template)]
#[template(path = "policies.html", whitespace = "minimize")]
pub(crate) struct PoliciesPage {
    pub(super) frame: Frame,
    policies: Vec<PolicyRow>,
}

impl PoliciesPage {
    pub(crate) fn new(frame: Frame, state: &Snapshot) -> Self {
        Self {
            policies: state.policy_rows.clone(),
            frame,
        }
    }
}

/// One version of a policy.
#[derive(Debug)]
pub(super) struct Version {
    /// What it does.
    role: String,
    digest: String,
    since: Option<String>,
    /// Its source, or why it is not shown.
    source: Result<String, String>,
}

/// A VM that has the policy.
#[derive(Debug)]
struct VmAnswer {
    vm: String,
    href: String,
    sentence: String,
}

/// What the gate says about the candidate: the policy's condition `Promotable`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Gate {
    verdict: &'static str,
    /// What the next stage still needs.
    missing: Vec<String>,
    /// What was seen, once nothing is missing.
    seen: String,
    /// What the gate does not judge.
    unjudged: String,
    /// Rules of the policy's own, as names and values.
    rules: Vec<(String, String)>,
}

impl Gate {
    /// `None` without a candidate.
    fn of(object: &Value, status: &ScalingPolicyStatus) -> Option<Self> {
        let digest = candidate_of(object)?;
        let mut conditions = status.conditions.iter();
        let is_current = |one: &&PolicyCondition| !is_stale(one, Some(&digest));
        let judged = conditions.find(|one| one.r#type == PROMOTABLE);
        let judged = judged.filter(is_current);
        let said = judged.map_or("", |one| &one.message);
        let said = said.strip_prefix(&format!("{digest}: ")).unwrap_or(said);
        let is_open = judged.is_some_and(|one| one.status == "True");
        // A second sentence is about what is not judged.
        let (first, second) = said.split_once(". ").unwrap_or((said, ""));
        let parts = first.split("; ").filter(|part| !part.is_empty());
        Some(Self {
            verdict: match judged {
                None => "It has not been judged.",
                Some(_) if is_open => "Nothing is missing: a person may let it on.",
                Some(_) => "The next stage begins when nothing is missing:",
            },
            missing: parts.filter(|_| !is_open).map(str::to_owned).collect(),
            seen: if is_open { first } else { "" }.to_owned(),
            unjudged: second.to_owned(),
            rules: members(&object["spec"]["gate"], ""),
        })
    }
}

/// Members of an object, as names with a prefix and values.
fn members(object: &Value, prefix: &str) -> Vec<(String, String)> {
    let pairs = object.as_object().into_iter().flatten();
    pairs
        .map(|(name, value)| (format!("{prefix}{name}"), text(value)))
        .collect()
}

fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

#[derive(Debug, Template)]
#[template(path = "policy.html", whitespace = "minimize")]
pub(crate) struct PolicyPage {
    pub(super) frame: Frame,
    name: String,
    /// Says which version decides, or that none does.
    sentence: String,
    problem: Option<String>,
    versions: Vec<Version>,
    gate: Option<Gate>,
    canary: Option<Canary>,
    /// Limits and parameters, as names and values.
    settings: Vec<(String, String)>,
    /// Conditions, as sentences.
    conditions: Vec<String>,
    vms: Vec<VmAnswer>,
    vms_left: usize,
    what_if_href: String,
    /// Orders that make sense now, with their paths.
    orders: Vec<(&'static str, String)>,
}

fn versions(
    object: &Value,
    status: &ScalingPolicyStatus,
    live: Outcome<Option<String>>,
) -> Vec<Version> {
    let mut versions = Vec::new();
    if let Some(version) = &status.live {
        versions.push(Version {
            role: if live_of(object).is_some() {
                "Live version: it decides".to_owned()
            } else {
                "Live version: paused, it decides nothing".to_owned()
            },
            digest: short(&version.digest),
            since: version.since.map(|since| since.to_string()),
            source: match live {
                Ok(source) => Ok(source.unwrap_or_default()),
                Err(fail) => Err(fail.what().to_owned()),
            },
        });
    }
    let is_live = |digest: &str| versions.iter().any(|version| version.digest == digest);
    if let Some(digest) = candidate_of(object).filter(|digest| !is_live(digest)) {
        let candidate = status.candidate.as_ref();
        let is_canary = candidate.is_some_and(|one| one.stage == Some(Stage::Canary));
        let source = object["spec"]["source"].as_str().unwrap_or_default();
        versions.push(Version {
            role: if is_canary {
                "Candidate: it decides about some of the VMs".to_owned()
            } else {
                "Candidate: its answers are recorded, and it decides nothing".to_owned()
            },
            digest,
            since: candidate.and_then(|one| Some(one.since?.to_string())),
            source: Ok(source.to_owned()),
        });
    }
    versions
}

fn settings(object: &Value) -> Vec<(String, String)> {
    let spec = &object["spec"];
    let mut all = members(&spec["limits"], "limit ");
    all.extend(members(&spec["params"], "parameter "));
    for member in ["series", "namespaces"] {
        let words = spec[member].as_array().into_iter().flatten();
        let words: Vec<String> = words.map(text).collect();
        if !words.is_empty() {
            all.push((member.to_owned(), words.join(", ")));
        }
    }
    all
}

/// Orders by name and last segment of their path.
fn orders(object: &Value, status: &ScalingPolicyStatus, name: &str) -> Vec<(&'static str, String)> {
    let path = |order: &str| path_of(&["policies", name, order]);
    let mut orders = Vec::new();
    if candidate_of(object).is_some() {
        orders.push(("Promote the newest version", path("promote")));
    }
    if status.live.is_some() {
        orders.push(("Take the live version back", path("demote")));
    }
    if status.is_paused() {
        orders.push(("End the pause", path("resume")));
    } else {
        orders.push(("Pause", path("pause")));
    }
    orders
}

impl PolicyPage {
    pub(crate) fn new(
        frame: Frame,
        state: &Snapshot,
        object: &Value,
        live: Outcome<Option<String>>,
    ) -> Self {
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        let status = ScalingPolicyStatus::of_object(object).unwrap_or_default();
        let conditions = status.conditions.iter().map(|one| {
            format!(
                "{} is {} since {}: {}",
                one.r#type, one.status, one.last_transition_time, one.message
            )
        });
        let vms = state.agents.vms(name);
        let asked = vms.iter().take(VMS).map(|(vm, _, sentence)| {
            let (namespace, name) = vm.split_once('/').unwrap_or(("", vm));
            VmAnswer {
                href: path_of(&["vms", namespace, name]),
                vm: vm.clone(),
                sentence: sentence.clone(),
            }
        });
        Self {
            name: name.to_owned(),
            sentence: format!("Policy {name}: {}.", sentence(object)),
            problem: state.agents.problem(name),
            conditions: conditions.collect(),
            versions: versions(object, &status, live),
            gate: Gate::of(object, &status),
            canary: Canary::of(object),
            settings: settings(object),
            vms: asked.collect(),
            vms_left: vms.len().saturating_sub(VMS),
            what_if_href: path_of(&["policies", name, "what-if"]),
            orders: orders(object, &status, name),
            frame,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn gate_lists_what_is_missing() {
        let mut object =
            json!({"spec": {"scope": "vm", "source": "return 1", "gate": {"hours": 2}}});
        let digest = candidate_of(&object).expect("a candidate");
        let mut gate = |name: &str, status: &str, message: &str| {
            let message = format!("{digest}: {message}");
            let condition = json!({"type": name, "status": status, "reason": "Hours",
                "message": message, "lastTransitionTime": "2026-01-02T03:04:05Z"});
            object["status"] = json!({"conditions": [condition]});
            let status = ScalingPolicyStatus::of_object(&object).expect("a status");
            Gate::of(&object, &status).expect("a candidate")
        };
        let short = gate(PROMOTABLE, "False", "hours 1 of 2; decisions 3 of 2000");
        assert_eq!(short.missing, ["hours 1 of 2", "decisions 3 of 2000"]);
        assert_eq!(short.rules, [("hours".to_owned(), "2".to_owned())]);
        let open = gate(PROMOTABLE, "True", "canary may begin; hours 2");
        assert!(open.missing.is_empty() && open.verdict.contains("may let it on"));
        assert_eq!(open.seen, "canary may begin; hours 2");
        let of_sets = gate(
            PROMOTABLE,
            "False",
            "hours 1 of 2. There is no model of sets",
        );
        assert_eq!(of_sets.missing, ["hours 1 of 2"]);
        assert_eq!(of_sets.unjudged, "There is no model of sets");
        let unjudged = gate("Loaded", "True", "");
        assert_eq!(unjudged.verdict, "It has not been judged.");
        let message = "5be1a7c0: canary may begin";
        let condition = json!({"type": PROMOTABLE, "status": "True", "reason": "Ready",
            "message": message, "lastTransitionTime": "2026-01-02T03:04:05Z"});
        object["status"] = json!({"conditions": [condition]});
        let status = ScalingPolicyStatus::of_object(&object).expect("a status");
        let other = Gate::of(&object, &status).expect("a candidate");
        assert_eq!(other.verdict, unjudged.verdict, "it is of another version");
    }
}
