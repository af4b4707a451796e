//! The requests and calls under way for each VM.

use std::collections::VecDeque;
use std::hash::{Hash, Hasher};

use protocol::permit::NamespacedName;
use protocol::time::Timestamp;
use serde::Serialize;

use crate::core::decision::{Limit, PermitDecision};
use crate::core::event::{CallId, PermitRequest, RequestId, VmWrite};
use crate::core::ledger::GrantHold;

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Timer {
    /// The request must be answered.
    Request(RequestId),
    /// The call must have ended.
    Call(CallId),
    /// A write of unknown outcome is sent again.
    Settle(NamespacedName),
    /// The permit of an earlier agent no longer counts.
    Legacy(NamespacedName),
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct PendingRequest {
    pub(super) request: PermitRequest,
    pub(super) vm: NamespacedName,
    pub(super) conflicts: u32,
    pub(super) in_flight: bool,
    /// The VM was read because the request claims a permit above the approved size.
    pub(super) verified: bool,
}

impl Hash for PendingRequest {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        // No decision depends on the load figures of a request, and they have no hash.
        let PermitRequest {
            proto_version,
            pod,
            compute_unit,
            resources,
            last_permit,
            metrics: _,
        } = &self.request;
        (proto_version, pod, compute_unit, resources, last_permit).hash(hasher);
        (&self.vm, self.conflicts, self.in_flight, self.verified).hash(hasher);
    }
}

/// A write and the hold that the ledger counts for it.
#[derive(Debug, Clone, PartialEq, Hash, Serialize)]
pub(super) struct HeldWrite {
    pub(super) write: VmWrite,
    pub(super) hold: GrantHold,
}

/// The call in flight for a VM, with the request that waits for it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) enum VmCall {
    Write(HeldWrite, Option<(RequestId, Box<PermitDecision>)>),
    Read(CallId, Option<RequestId>),
}

impl VmCall {
    pub(super) const fn id(&self) -> CallId {
        match self {
            Self::Write(held, _) => held.write.id,
            Self::Read(id, _) => *id,
        }
    }
}

/// The requests of one VM, and its writes of unknown outcome.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(super) struct VmQueue {
    pub(super) flight: Option<VmCall>,
    pub(super) waiting: VecDeque<RequestId>,
    pub(super) unclear: Vec<HeldWrite>,
    pub(super) settle_attempts: u32,
    /// When the last denial was reported, and its limits.
    pub(super) denied: Option<(Timestamp, Vec<Limit>)>,
}

impl VmQueue {
    pub(super) fn is_idle(&self) -> bool {
        self.flight.is_none() && self.waiting.is_empty() && self.unclear.is_empty()
    }
}
