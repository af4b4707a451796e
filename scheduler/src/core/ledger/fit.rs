//! The result of a fit check.

use crate::core::amount::Both;
use crate::core::pod_problem::PodProblem;

/// Whether a pod fits on a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fit {
    /// The node has headroom for the pod.
    Fits,
    /// The amounts that are missing, after over-commit. At least one is above zero.
    NoRoom(Both<u128>),
    /// `spec.schedulerName` names another scheduler.
    ForeignScheduler,
    /// The ledger has no such node.
    UnknownNode,
    /// The pod's size does not parse.
    Unreadable(PodProblem),
}
