//! The state of a binding that kube-scheduler requested.

use protocol::permit::NamespacedName;
use protocol::time::Timestamp;
use serde::Serialize;

use crate::core::event::{CallId, RequestId};

#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
pub(super) enum Stage {
    /// The watch has not shown the pod. The binding fails at `until`.
    Unseen { until: Timestamp },
    /// The call is in flight.
    Posting(CallId),
    /// The pod is read, because the call did not say whether the pod is bound.
    Reading(CallId, Doubt),
    /// The call may have an effect before `until`.
    Landing { until: Timestamp },
    /// The pod is read to prove that the call had no effect.
    Proving(CallId),
}

/// Why the response to a call does not say whether the pod is bound.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
pub(super) enum Doubt {
    /// The pod was bound or changed before. This attempt had no effect.
    Conflict,
    Unclear(String),
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize)]
pub(super) struct Bind {
    pub(super) pod: NamespacedName,
    pub(super) node: String,
    pub(super) strict: bool,
    /// The request to respond to. `None` after the response.
    #[serde(rename = "ticket")]
    pub(super) request_id: Option<RequestId>,
    pub(super) stage: Stage,
    /// Until when a call of unknown outcome may have an effect.
    pub(super) lands_until: Option<Timestamp>,
}
