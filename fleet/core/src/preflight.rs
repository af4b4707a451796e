//! Would a control plane of a release understand the parts that run?

use std::collections::BTreeMap;

use protocol::parts::PartName;
use serde_json::Value;

use crate::order::{Refusal, Release, skew};

/// A part that runs, by the status of its instance.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct RunningPart {
    /// Namespace and name of the instance.
    pub instance: String,
    /// Name of the part.
    pub part: String,
    /// Version that its newest turn brought.
    pub version: String,
}

/// Running parts by what a control plane would make of them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Findings {
    /// Parts with a common version of each link.
    pub understood: usize,
    /// Parts without one, with the reason.
    pub refused: Vec<(RunningPart, String)>,
    /// Parts whose version is no known release. They refuse nothing.
    pub unknown: Vec<RunningPart>,
}

/// Parts by the status of their instances. One without a version has never been seen. The control
/// plane itself is left out, since it is what changes.
#[must_use]
pub fn running_parts(instances: &[Value]) -> Vec<RunningPart> {
    let mut all = Vec::new();
    for instance in instances {
        let metadata = &instance["metadata"];
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let (namespace, name) = (text(&metadata["namespace"]), text(&metadata["name"]));
        let parts = instance["status"]["parts"].as_object();
        for (part, state) in parts.into_iter().flatten() {
            let version = text(&state["version"]);
            let is_own = PartName::CONTROL_PLANE
                .iter()
                .any(|own| own.as_str() == part);
            if !version.is_empty() && !is_own {
                all.push(RunningPart {
                    instance: format!("{namespace}/{name}"),
                    part: part.clone(),
                    version,
                });
            }
        }
    }
    all
}

/// Compares the links of a release with those of the releases that run, by version.
#[must_use]
pub fn compare(
    release: &Release,
    parts: Vec<RunningPart>,
    known: &BTreeMap<String, Release>,
) -> Findings {
    let mut findings = Findings::default();
    for part in parts {
        let Some(runs) = known.get(&part.version) else {
            findings.unknown.push(part);
            continue;
        };
        match skew(release, &[(part.part.as_str(), runs)]) {
            Ok(()) => findings.understood += 1,
            Err(
                Refusal::Skew(text)
                | Refusal::Order(text)
                | Refusal::LowerMajor(text)
                | Refusal::SteppingStone(text),
            ) => findings.refused.push((part, text)),
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Requirement: R12
    #[test]
    fn parts_of_the_control_plane_itself_are_not_compared() {
        let parts = json!({
            "monitor": {"version": "1.1.0"}, "agent": {"version": "1.2.0"},
            "controller": {"version": "1.0.0"}, "fleet": {"version": "1.0.0"},
        });
        let instance = json!({
            "metadata": {"namespace": "default", "name": "vm-pg"}, "status": {"parts": parts},
        });
        let found = running_parts(&[instance]);
        let names: Vec<&str> = found.iter().map(|part| part.part.as_str()).collect();
        assert_eq!(names, ["agent", "monitor"]);
        assert_eq!(found[0].instance, "default/vm-pg");
    }
}
