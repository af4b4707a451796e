//! The extender link: HTTP POST from kube-scheduler to the scheduler beside it, JSON both ways, one
//! path for each verb. Source: docs/compatibility/scheduler.md §8.1;
//! `k8s.io/kube-scheduler/extender/v1`, whose members have the names of Go's fields.
//!
//! Spoken with `nodeCacheCapable: true`: nodes travel as names, victims as uids. Pods travel whole
//! and are kept as they are, for what the scheduler reads of a pod it reads of every pod in the
//! same way.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Human-readable cause of a refusal, by node name.
pub type FailedNodes = BTreeMap<String, String>;

/// Arguments of `filter` and `prioritize`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct ExtenderArgs {
    /// The Pod object, as the API server has it.
    pub pod: Value,
    /// Whole nodes, from a kube-scheduler that was not told that names are enough; `null`
    /// otherwise.
    #[serde(default)]
    pub nodes: Option<Value>,
    /// Names of the nodes that passed everything else.
    #[serde(default)]
    pub node_names: Option<Vec<String>>,
}

/// Result of `filter`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct ExtenderFilterResult {
    /// Nodes that can take the pod, in the order in which they were asked for.
    pub node_names: Option<Vec<String>>,
    /// Nodes that cannot, unless other pods leave them.
    pub failed_nodes: FailedNodes,
    /// Nodes that cannot, whatever leaves them.
    pub failed_and_unresolvable_nodes: FailedNodes,
    /// Why nothing can be said of any node; empty otherwise.
    pub error: String,
}

/// Score of one node, in the result of `prioritize`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct HostPriority {
    /// Name of the node.
    pub host: String,
    /// Score from 0 to [`MAX_SCORE`]. Higher is better.
    pub score: i64,
}

/// Highest score of a node.
pub const MAX_SCORE: i64 = 10;

/// A pod that preemption would evict.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct MetaPod {
    /// Uid of the pod.
    #[serde(rename = "UID")]
    pub uid: String,
}

/// Pods that preemption would evict from one node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MetaVictims {
    /// The pods. `null` reads as an empty list.
    #[serde(rename = "Pods", default, deserialize_with = "null_is_empty")]
    pub pods: Vec<MetaPod>,
    /// Number of disruption budgets that the eviction violates.
    #[serde(rename = "NumPDBViolations", default)]
    pub pdb_violations: i64,
}

fn null_is_empty<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Vec<MetaPod>, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or_default())
}

/// Arguments of `preempt`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct ExtenderPreemptionArgs {
    /// The Pod object that has no room.
    pub pod: Value,
    /// Whole victims by node, from a kube-scheduler that was not told that names are enough; `null`
    /// otherwise.
    #[serde(default)]
    pub node_name_to_victims: Option<Value>,
    /// Pods to evict, by node name.
    #[serde(default)]
    pub node_name_to_meta_victims: Option<BTreeMap<String, MetaVictims>>,
}

/// Result of `preempt`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct ExtenderPreemptionResult {
    /// Nodes that would have room, and who would have to go.
    pub node_name_to_meta_victims: BTreeMap<String, MetaVictims>,
}

/// Arguments of `bind`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct ExtenderBindingArgs {
    /// Name of the pod.
    pub pod_name: String,
    /// Namespace of the pod.
    pub pod_namespace: String,
    /// Uid of the pod.
    #[serde(rename = "PodUID")]
    pub pod_uid: String,
    /// Name of the node.
    pub node: String,
}

/// Result of `bind`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct ExtenderBindingResult {
    /// Why it was not bound; empty when it was.
    pub error: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads a golden file as `T` and wants the same JSON back.
    fn golden<T: Serialize + for<'de> Deserialize<'de>>(text: &str) -> T {
        let value: T = serde_json::from_str(text).expect("decodes");
        let expected: Value = serde_json::from_str(text).expect("is JSON");
        assert_eq!(serde_json::to_value(&value).expect("encodes"), expected);
        value
    }

    #[test]
    fn requests_are_read_as_kube_scheduler_writes_them() {
        let args: ExtenderArgs = golden(include_str!("../testdata/extender/filter_args.json"));
        assert_eq!(args.node_names, Some(vec!["n1".into(), "n2".into()]));
        assert_eq!(args.pod["spec"]["schedulerName"], "autoscale-scheduler");
        let args: ExtenderPreemptionArgs =
            golden(include_str!("../testdata/extender/preempt_args.json"));
        let victims = args.node_name_to_meta_victims.expect("has victims");
        assert_eq!(victims["n1"].pods.len(), 1);
        let args: ExtenderBindingArgs = golden(include_str!("../testdata/extender/bind_args.json"));
        assert_eq!((args.pod_name.as_str(), args.node.as_str()), ("pg-1", "n2"));
    }

    #[test]
    fn answers_are_written_as_kube_scheduler_reads_them() {
        let result: ExtenderFilterResult =
            golden(include_str!("../testdata/extender/filter_result.json"));
        assert_eq!(result.failed_nodes.len(), 1);
        golden::<Vec<HostPriority>>(include_str!("../testdata/extender/priorities.json"));
        golden::<ExtenderPreemptionResult>(include_str!(
            "../testdata/extender/preempt_result.json"
        ));
        golden::<ExtenderBindingResult>(include_str!("../testdata/extender/bind_result.json"));
    }

    #[test]
    fn what_is_left_out_or_null_reads_as_nothing() {
        let args: ExtenderArgs = serde_json::from_str(r#"{"Pod":{}}"#).expect("decodes");
        assert_eq!((args.nodes, args.node_names), (None, None));
        let victims: MetaVictims = serde_json::from_str(r#"{"Pods":null}"#).expect("decodes");
        assert_eq!(victims, MetaVictims::default());
        for bad in ["{}", "[]", r#"{"pod":{}}"#, r#"{"Pod":{},"NodeNames":"n"}"#] {
            assert!(serde_json::from_str::<ExtenderArgs>(bad).is_err(), "{bad}");
        }
    }
}
