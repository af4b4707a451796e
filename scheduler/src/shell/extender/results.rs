//! The results of the verbs as kube-scheduler expects them.

use std::collections::BTreeMap;

use protocol::extender::{
    ExtenderFilterResult, ExtenderPreemptionResult, HostPriority, MetaPod, MetaVictims,
};
use rand::Rng as _;
use serde_json::Value;

use crate::core::event::Unfit;

const ZONE: &str = "topology.kubernetes.io/zone";

pub(super) fn filter_result(verdicts: Vec<(String, Result<(), Unfit>)>) -> ExtenderFilterResult {
    let mut result = ExtenderFilterResult::default();
    let mut names = Vec::new();
    for (node, verdict) in verdicts {
        match verdict {
            Ok(()) => names.push(node),
            // No node is at fault. kube-scheduler is misconfigured and reports this on the pod.
            Err(Unfit::ForeignScheduler) => result.error = Unfit::ForeignScheduler.to_string(),
            Err(unfit) if unfit.is_about_room() => {
                result.failed_nodes.insert(node, unfit.to_string());
            }
            Err(unfit) => {
                let hopeless = &mut result.failed_and_unresolvable_nodes;
                hopeless.insert(node, unfit.to_string());
            }
        }
    }
    result.node_names = Some(names);
    result
}

/// Converts scores of 0 to 100 to an extender's scores of 0 to 10. `randomize` replaces each score
/// by a random one from 1 up to it, so that simultaneous pods do not all go to the best node.
pub(super) fn priorities(scores: Vec<(String, u8)>, randomize: bool) -> Vec<HostPriority> {
    let mut random = rand::rng();
    let scores = scores.into_iter().map(|(host, score)| {
        let score = if randomize && score > 0 {
            random.random_range(1..=score)
        } else {
            score
        };
        HostPriority {
            host,
            score: i64::from(score.div_ceil(10)),
        }
    });
    scores.collect()
}

pub(super) type Victims = BTreeMap<String, MetaVictims>;

pub(super) fn preemption_result(
    kept: BTreeMap<String, Vec<String>>,
    given: &Victims,
) -> ExtenderPreemptionResult {
    let kept = kept.into_iter().map(|(node, uids)| {
        // The disruption budgets of added victims are unknown. kube-scheduler checks them before it
        // deletes a pod.
        let pdb_violations = given.get(&node).map_or(0, |of| of.pdb_violations);
        let pods = uids.into_iter().map(|uid| MetaPod { uid }).collect();
        let victims = MetaVictims {
            pods,
            pdb_violations,
        };
        (node, victims)
    });
    ExtenderPreemptionResult {
        node_name_to_meta_victims: kept.collect(),
    }
}

/// The only zone that a pod's node affinity requires, otherwise the one that it prefers, as a
/// metric label. Empty if there is none.
pub(super) fn desired_zone(pod: &Value) -> String {
    let affinity = "/spec/affinity/nodeAffinity";
    let list = |path: String| {
        let found = pod.pointer(&path).and_then(Value::as_array);
        found.into_iter().flatten()
    };
    let required = list(format!(
        "{affinity}/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms"
    ));
    let preferred = list(format!(
        "{affinity}/preferredDuringSchedulingIgnoredDuringExecution"
    ));
    let preferred = preferred.filter_map(|term| term.get("preference"));
    let expressions = required
        .chain(preferred)
        .filter_map(|term| term.get("matchExpressions")?.as_array())
        .flatten();
    let mut zones = expressions.filter_map(|expression| {
        let is_zone = expression["key"] == ZONE && expression["operator"] == "In";
        match expression["values"].as_array().map(Vec::as_slice) {
            Some([zone]) if is_zone => zone.as_str(),
            _ => None,
        }
    });
    zones.next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::json;

    use super::*;
    use crate::core::amount::Both;

    #[test]
    fn verdicts_become_the_lists_of_kube_scheduler() {
        let node = |name: &str, verdict| (name.to_owned(), verdict);
        let result = filter_result(vec![
            node("a", Err(Unfit::NoRoom(Both::new(1, 0)))),
            node("b", Ok(())),
            node("c", Err(Unfit::UnknownNode)),
        ]);
        let golden = include_str!("../../../../protocol/testdata/extender/filter_result.json");
        let golden = golden
            .replace("n1", "a")
            .replace("n2", "b")
            .replace("n3", "c");
        assert_eq!(
            serde_json::to_string(&result).expect("encodes"),
            golden.trim()
        );
        let result = filter_result(vec![node("a", Err(Unfit::ForeignScheduler))]);
        assert_eq!(result.error, "spec.schedulerName is not ours");
        assert_eq!(result.node_names, Some(vec![]));
    }

    #[test]
    fn scores_are_rounded_up_to_ten_steps() {
        let scores = |randomize| {
            let scores = [0, 1, 10, 11, 99, 100].map(|score| (score.to_string(), score));
            let list = priorities(scores.to_vec(), randomize);
            list.into_iter().map(|part| part.score).collect::<Vec<_>>()
        };
        assert_eq!(scores(false), [0, 1, 1, 2, 10, 10]);
        let mut last = BTreeSet::new();
        for _ in 0..1000 {
            let got = scores(true);
            assert_eq!(got[..3], [0, 1, 1]);
            assert!((1..=2).contains(&got[3]) && (1..=10).contains(&got[5]));
            last.insert(got[5]);
        }
        assert_eq!(last.len(), 10, "every step is drawn: {last:?}");
    }

    #[test]
    fn zone_of_a_pod_is_the_only_one_of_its_affinity() {
        let term = |operator: &str, zones: Value| {
            json!({"matchExpressions": [
            {"key": "x", "operator": "In", "values": ["y"]},
            {"key": ZONE, "operator": operator, "values": zones}]})
        };
        let pod = |required: Value, preferred: Value| {
            json!({"spec": {"affinity": {"nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [required]},
                "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": preferred}]}}}})
        };
        let (a, b) = (term("In", json!(["a"])), term("In", json!(["b"])));
        assert_eq!(desired_zone(&pod(a.clone(), b.clone())), "a");
        assert_eq!(desired_zone(&pod(json!({}), b.clone())), "b");
        let many = term("In", json!(["a", "b"]));
        assert_eq!(desired_zone(&pod(many, json!(7))), "");
        let others = term("NotIn", json!(["a"]));
        assert_eq!(desired_zone(&pod(others, b)), "b");
        assert_eq!(desired_zone(&json!({})), "");
    }
}
