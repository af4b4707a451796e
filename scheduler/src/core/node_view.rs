//! The members of a Node that the scheduler uses.

use std::collections::BTreeMap;

use protocol::quantity::Quantity;
use serde::Serialize;
use serde_json::Value;

use super::amount::Both;
use super::object::{Unreadable, metadata};
use super::overcommit;

/// Why no pod may be placed on a node.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Hash, Serialize)]
pub enum NodeProblem {
    /// There is no `status.allocatable`, as before the first report of a new node.
    #[error("it has not reported what it has")]
    NotReported,
    /// `status.allocatable` misses a resource.
    #[error("status.allocatable has no {0}")]
    Missing(&'static str),
    /// A member of `status.allocatable` is not a quantity of at least 0.
    #[error("status.allocatable.{0} is not a quantity of at least 0")]
    Bad(&'static str),
}

/// The members of a Node that the ledger uses.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
pub struct NodeView {
    /// `metadata.name`, by which pods name their node.
    pub name: String,
    /// Allocatable CPU in thousandths and memory in bytes. 0 if it does not parse.
    pub total: Both<u64>,
    /// `metadata.labels`, for bounds of over-commit and labels of metrics.
    pub labels: BTreeMap<String, String>,
    /// `spec.unschedulable`: no new pod is placed on the node.
    pub cordoned: bool,
    /// The condition Ready is not `True`: no new pod is placed on the node. A node without the
    /// condition is ready.
    pub unready: bool,
    /// Bounds of over-commit factors from the labels, in thousandths.
    pub max_overcommit_milli: Both<u32>,
    /// Why no pod may be placed on the node.
    pub problem: Option<NodeProblem>,
}

impl NodeView {
    /// Reads a Node.
    ///
    /// # Errors
    /// [`Unreadable`] if it has no name or no uid.
    pub fn read(object: &Value) -> Result<Self, Unreadable> {
        let meta = metadata(object)?;
        let mut problem = None;
        let allocatable = object.pointer("/status/allocatable");
        let mut read = |name: &'static str, value: fn(&Quantity) -> i128| {
            let found = allocatable
                .and_then(|map| map.get(name))
                .ok_or(NodeProblem::Missing(name));
            let amount = found.and_then(|raw| {
                let quantity = Quantity::from_json(raw).map_err(|_| NodeProblem::Bad(name))?;
                u64::try_from(value(&quantity)).map_err(|_| NodeProblem::Bad(name))
            });
            amount.unwrap_or_else(|why| {
                problem = Some(why);
                0
            })
        };
        let total = Both::new(
            read("cpu", Quantity::milli_value),
            read("memory", Quantity::value),
        );
        if allocatable.is_none() {
            problem = Some(NodeProblem::NotReported);
        }
        Ok(Self {
            name: meta.name,
            total,
            max_overcommit_milli: overcommit::of_node(&meta.labels),
            labels: meta.labels,
            cordoned: object
                .pointer("/spec/unschedulable")
                .and_then(Value::as_bool)
                .unwrap_or(false),
            unready: is_unready(object),
            problem,
        })
    }

    /// Whether a new pod may be placed on the node.
    #[must_use]
    pub fn is_open(&self) -> bool {
        !self.cordoned && !self.unready && self.problem.is_none()
    }
}

fn is_unready(object: &Value) -> bool {
    let conditions = object
        .pointer("/status/conditions")
        .and_then(Value::as_array);
    let mut conditions = conditions.into_iter().flatten();
    let ready = conditions.find(|condition| condition["type"] == "Ready");
    ready.is_some_and(|condition| condition["status"] != "True")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn node_members_are_read_and_bad_totals_are_zero() {
        let node = json!({"metadata": {"name": "n", "uid": "1", "labels": {"zone": "a"}},
            "spec": {"unschedulable": true},
            "status": {"allocatable": {"cpu": "3800m", "memory": "16Gi"}}});
        let view = NodeView::read(&node).expect("has a name");
        assert_eq!(view.total, Both::new(3800, 16 << 30));
        assert!(view.cordoned && !view.unready && view.problem.is_none());
        let mut unready = node.clone();
        for (status, is_unready) in [("True", false), ("False", true), ("Unknown", true)] {
            unready["status"]["conditions"] = json!([{"type": "DiskPressure", "status": "True"}, {"type": "Ready", "status": status}]);
            unready["spec"]["unschedulable"] = json!(false);
            let view = NodeView::read(&unready).expect("has a name");
            assert_eq!((view.unready, view.is_open()), (is_unready, !is_unready));
        }
        for bad in [
            json!({"cpu": "x", "memory": "1Gi"}),
            json!({"cpu": -1, "memory": "1Gi"}),
            json!({"memory": "1Gi"}),
        ] {
            let mut object = node.clone();
            object["status"]["allocatable"] = bad;
            let view = NodeView::read(&object).expect("has a name");
            assert_eq!(view.total, Both::new(0, 1 << 30));
            assert!(matches!(
                view.problem,
                Some(NodeProblem::Bad("cpu") | NodeProblem::Missing("cpu"))
            ));
        }
        let mut new = node;
        new["status"] = json!({});
        let view = NodeView::read(&new).expect("has a name");
        assert_eq!(view.total, Both::default());
        assert_eq!(view.problem, Some(NodeProblem::NotReported));
    }
}
