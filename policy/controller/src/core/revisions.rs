//! `ControllerRevision` objects, which keep the sources of versions. Their data never changes.

use std::collections::BTreeMap;

use policy_contract::Spec;
use protocol::policy::{KEY_POLICY, REVISION_NAMESPACE, ScalingPolicyStatus, revision_name};
use serde_json::{Value, json};

/// Versions that are kept beside those that a status names.
const OTHERS_KEPT: usize = 10;

/// The revision of a version, with a number above those that are known.
#[must_use]
pub fn revision_of(policy: &str, spec: &Spec, known: &[Value]) -> Value {
    let numbers = known.iter().filter_map(|one| one["revision"].as_i64());
    json!({
        "apiVersion": "apps/v1",
        "kind": "ControllerRevision",
        "metadata": {
            "name": revision_name(policy, &spec.digest().to_string()),
            "namespace": REVISION_NAMESPACE,
            "labels": {KEY_POLICY: policy},
        },
        "data": spec,
        "revision": numbers.max().unwrap_or(0).saturating_add(1),
    })
}

/// Whether a version has its revision.
#[must_use]
pub fn is_kept(policy: &str, spec: &Spec, known: &[Value]) -> bool {
    let name = revision_name(policy, &spec.digest().to_string());
    known.iter().any(|one| one["metadata"]["name"] == *name)
}

/// Names of the revisions that are not needed. All policies must be known by their status, and
/// `known` must have been listed before them.
#[must_use]
pub fn superfluous(
    known: &[Value],
    policies: &BTreeMap<String, ScalingPolicyStatus>,
) -> Vec<String> {
    let mut by_policy: BTreeMap<&str, Vec<&Value>> = BTreeMap::new();
    for revision in known {
        if let Some(policy) = revision["metadata"]["labels"][KEY_POLICY].as_str() {
            by_policy.entry(policy).or_default().push(revision);
        }
    }
    let mut gone = Vec::new();
    for (policy, mut revisions) in by_policy {
        let status = policies.get(policy);
        let named = status.into_iter().flat_map(|status| {
            let versions = [&status.live, &status.candidate, &status.previous];
            versions.into_iter().flatten()
        });
        let named: Vec<String> = named
            .map(|version| revision_name(policy, &version.digest))
            .collect();
        let name = |revision: &Value| revision["metadata"]["name"].as_str().map(str::to_owned);
        revisions.retain(|one| name(one).is_some_and(|name| !named.contains(&name)));
        revisions.sort_by_key(|one| std::cmp::Reverse(one["revision"].as_i64()));
        let others = if status.is_some() { OTHERS_KEPT } else { 0 };
        gone.extend(revisions.into_iter().skip(others).filter_map(name));
    }
    gone
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn named_versions_and_ten_others_are_kept() {
        let mut known = Vec::new();
        let mut specs = Vec::new();
        for number in 0..14 {
            let spec = Spec::of_source(format!("return {number}"));
            assert!(!is_kept("db", &spec, &known));
            known.push(revision_of("db", &spec, &known));
            assert!(is_kept("db", &spec, &known));
            specs.push(spec);
        }
        let name = |number: usize| revision_name("db", &specs[number].digest().to_string());
        let mut status = ScalingPolicyStatus::default();
        status.promote(&specs[0].digest().to_string(), protocol::time::WallTime(1));
        let policies = [("db".to_owned(), status)].into();
        // The first one decides; of the 13 others three are older than ten.
        let gone = superfluous(&known, &policies);
        assert_eq!(gone, [name(3), name(2), name(1)]);
        let all = superfluous(&known, &BTreeMap::new());
        assert_eq!(all.len(), 14, "they go with their policy");
    }
}
