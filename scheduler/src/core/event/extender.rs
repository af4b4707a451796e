//! Requests of a kube-scheduler and the responses to them.

use std::collections::BTreeMap;

use protocol::permit::NamespacedName;
use serde::Serialize;

use crate::core::amount::Both;
use crate::core::pod_problem::PodProblem;
use crate::core::pod_requests::PodView;

/// Message on a pod that fits on no node. The deployed plugin dictates the text.
pub const NO_ROOM_MESSAGE: &str = "Not enough resources for Pod";

/// A request of a kube-scheduler.
#[derive(Debug, Clone, PartialEq)]
pub enum ExtenderRequest {
    /// Which of these nodes have headroom for the pod?
    Filter {
        /// The pod as kube-scheduler has it.
        pod: Box<PodView>,
        /// Nodes that passed kube-scheduler's own filters.
        nodes: Vec<String>,
    },
    /// What is the pod's score on each of these nodes?
    Prioritize {
        /// The pod as kube-scheduler has it.
        pod: Box<PodView>,
        /// Nodes with headroom.
        nodes: Vec<String>,
    },
    /// On which of these nodes would the pod fit without the victims?
    Preempt {
        /// The pod that fits nowhere.
        pod: Box<PodView>,
        /// Uids of the pods that kube-scheduler would evict, by node.
        victims: BTreeMap<String, Vec<String>>,
    },
    /// Bind the pod.
    Bind {
        /// The pod's name.
        pod: NamespacedName,
        /// The pod's uid.
        uid: String,
        /// The node to bind to.
        node: String,
        /// Whether a node without headroom refuses the binding.
        strict: bool,
    },
}

/// The response to an [`ExtenderRequest`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub enum ExtenderResponse {
    /// The lists are incomplete, or another replica leads.
    NotReady,
    /// A verdict per node, in the order of the request.
    Filtered(Vec<(String, Result<(), Unfit>)>),
    /// A score per node, 0 to 100, in the order of the request.
    Scored(Vec<(String, u8)>),
    /// Nodes that would have headroom, each with the uids of all pods to evict.
    Preempted(BTreeMap<String, Vec<String>>),
    /// Whether the pod is bound.
    Bound(Result<(), Unbound>),
}

/// Why a node cannot take a pod. The text appears on the pod.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize)]
pub enum Unfit {
    /// The amount that is missing, after over-commit.
    #[error("{NO_ROOM_MESSAGE}")]
    NoRoom(Both<u128>),
    /// An earlier binding to another node may still succeed.
    #[error("it may yet be bound to node {0}")]
    HeldBy(String),
    /// The watch has not shown the node.
    #[error("the node is not known yet")]
    UnknownNode,
    /// `spec.schedulerName` names another scheduler.
    #[error("spec.schedulerName is not ours")]
    ForeignScheduler,
    /// The pod's size does not parse.
    #[error("Pod is not readable: {0}")]
    Unreadable(PodProblem),
}

impl Unfit {
    /// Whether the node could take the pod if other pods left.
    #[must_use]
    pub const fn is_about_room(&self) -> bool {
        matches!(self, Self::NoRoom(_))
    }
}

/// Why a pod was not bound. The text appears in kube-scheduler's log and event.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize)]
pub enum Unbound {
    /// The node cannot take the pod.
    #[error(transparent)]
    Unfit(Unfit),
    /// The watch has not shown the pod.
    #[error("the pod is not known")]
    UnknownPod,
    /// The pod is bound to another node than the requested one.
    #[error("the pod is bound to node {0}")]
    Elsewhere(String),
    /// Another binding of the pod is under way, or the limit of bindings is reached.
    #[error("another binding is under way")]
    Busy,
    /// The API server refused the binding.
    #[error("{0}")]
    Refused(String),
    /// The outcome of the call is unknown.
    #[error("the binding has no known end yet: {0}")]
    Unclear(String),
}

impl Unbound {
    /// The framework's status name, for metrics.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Unfit(unfit) if unfit.is_about_room() => "Unschedulable",
            _ => "Error",
        }
    }
}
