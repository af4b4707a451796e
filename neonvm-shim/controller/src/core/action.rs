//! What the core asks its shell to do, one thing per peer at a time.

use std::fmt;

use protocol::runner::{CpusAhead, SizeOrder};
use protocol::vm::{CpuScalingMode, VmStatus};
use serde::Serialize;
use serde_json::Value;

use super::certificate::{Order, Step};
use super::metadata::PatchOp;
use super::overlay::Holder;
use super::vm_event::VmEvent;

/// Whom an action talks to. At most one action per peer is under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Peer {
    /// The Kubernetes API server.
    Api,
    /// The API server about what a pod requests, an endpoint of its own: a growth that waits for
    /// the pod's metadata too waits for the slower of the two, not for both.
    Requests,
    /// The runner of the VM.
    Runner,
    /// The API server once more: an issuer may take its time, and nothing else of a VM waits for
    /// that.
    Certificates,
}

/// One thing to do. Writes to the VM object carry the version they rest on, so that one based on an
/// old state is refused.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "do", rename_all = "snake_case")]
pub enum Action {
    /// Merge-patch the VM object.
    PatchVm {
        /// Change of the finalizer or of the scaling mode.
        what: VmEdit,
        /// The merge patch, version included.
        patch: Value,
    },
    /// Merge-patch the status subresource.
    WriteStatus {
        /// The status as it should be.
        #[serde(skip)]
        status: Box<VmStatus>,
        /// What is to be told once it is written.
        notes: Vec<VmEvent>,
        /// The merge patch from what is stored, version included.
        patch: Value,
    },
    /// Read the VM object afresh.
    ReadVm,
    /// Read a pod from the API server, not from the watch.
    ReadPod {
        /// Name of the pod, from `status.podName` or from a watch.
        name: String,
    },
    /// See whether the migration the VM is taken for exists.
    ReadTaker {
        /// Name of the migration, in the VM's namespace.
        name: String,
        /// Uid of that migration. Another migration of the same name does not count.
        uid: String,
    },
    /// See that the SSH key pair exists.
    EnsureSshSecret {
        /// Name of the secret, in the VM's namespace.
        name: String,
        /// The owner reference it gets.
        owner: Value,
    },
    /// See that there is the token by which the VM's runners know us.
    EnsureRunnerSecret {
        /// Name of the secret, in the VM's namespace.
        name: String,
        /// The owner reference it gets.
        owner: Value,
    },
    /// Create the runner pod.
    CreatePod {
        /// Name of the new pod, which is `status.podName`.
        name: String,
        /// Whole pod object as JSON.
        pod: Value,
    },
    /// JSON-patch labels and annotations of the pod.
    PatchPodMetadata {
        /// Name of the pod, in the VM's namespace.
        name: String,
        /// Operations of one JSON patch. The API server applies all of them or none.
        ops: Vec<PatchOp>,
    },
    /// JSON-patch that part of them by which others count the pod, where all together is refused.
    PatchPodCounted {
        /// Name of the pod, in the VM's namespace.
        name: String,
        /// Operations of one JSON patch: only those on labels and annotations that others count by.
        ops: Vec<PatchOp>,
    },
    /// JSON-patch what the pod requests, by its subresource.
    ResizePod {
        /// Name of the pod, in the VM's namespace.
        name: String,
        /// Operations of one JSON patch. The first ones test the state of the pod they rest on.
        ops: Vec<PatchOp>,
    },
    /// Delete the pod.
    DeletePod {
        /// Name of the pod, in the VM's namespace.
        name: String,
        /// Uid of the pod: a later pod of this name is left alone.
        uid: String,
        /// Seconds it has to end.
        grace_s: u32,
    },
    /// Take the owners off a pod that is being deleted, so that its deletion cannot hold up the
    /// VM's.
    OrphanPod {
        /// Name of the pod, in the VM's namespace.
        name: String,
        /// Uid of the pod: a later pod of this name is left alone.
        uid: String,
    },
    /// See that the VM holds an address of the overlay.
    TakeAddress {
        /// The VM that asks. Its id and uid are what the pool object records.
        holder: Holder,
    },
    /// Give back what address the VM holds.
    ReleaseAddress {
        /// The VM that gives back. An address of a VM with the same name and another uid stays.
        holder: Holder,
    },
    /// Take one step to the guest's certificate.
    Certificate {
        /// The step; it also decides the [`Kind`] of the action.
        step: Step,
        /// Secret, wishes and owner that the step works with.
        order: Box<Order>,
    },
    /// Have the runner plug CPUs ahead of the order for them, or take them back.
    PlugAhead {
        /// Name of the runner's pod.
        pod: String,
        /// CPUs that the guest shall have plugged.
        wish: CpusAhead,
    },
    /// Tell the runner the size.
    SetSize {
        /// Name of the runner's pod.
        pod: String,
        /// The size, and which order of the VM it is.
        order: SizeOrder,
        /// How many it has taken up, by the state that the order was decided by; nothing of a
        /// runner that does not say.
        over: Option<u64>,
    },
}

/// Which edit of the VM object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum VmEdit {
    /// Add the finalizer.
    AddFinalizer,
    /// Drop the finalizer.
    DropFinalizer,
    /// Fill in the scaling mode.
    SetScalingMode(CpuScalingMode),
}

/// The kind of an action: what errors, back-off and metrics are kept by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "the variants of `Action`, one to one")]
pub enum Kind {
    PatchVm,
    WriteStatus,
    ReadVm,
    ReadPod,
    ReadTaker,
    EnsureSshSecret,
    EnsureRunnerSecret,
    CreatePod,
    PatchPodMetadata,
    PatchPodCounted,
    ResizePod,
    DeletePod,
    OrphanPod,
    TakeAddress,
    ReleaseAddress,
    ReadCertificate,
    MakeTlsKey,
    #[serde(rename = "ask_certificate")]
    RequestCertificate,
    AwaitCertificate,
    StoreCertificate,
    WithdrawRequest,
    TidyCertificate,
    PlugAhead,
    SetSize,
}

impl Action {
    /// Kind of this action, by which errors, back-off and metrics are kept.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match self {
            Self::PatchVm { .. } => Kind::PatchVm,
            Self::WriteStatus { .. } => Kind::WriteStatus,
            Self::ReadVm => Kind::ReadVm,
            Self::ReadPod { .. } => Kind::ReadPod,
            Self::ReadTaker { .. } => Kind::ReadTaker,
            Self::EnsureSshSecret { .. } => Kind::EnsureSshSecret,
            Self::EnsureRunnerSecret { .. } => Kind::EnsureRunnerSecret,
            Self::CreatePod { .. } => Kind::CreatePod,
            Self::PatchPodMetadata { .. } => Kind::PatchPodMetadata,
            Self::PatchPodCounted { .. } => Kind::PatchPodCounted,
            Self::ResizePod { .. } => Kind::ResizePod,
            Self::DeletePod { .. } => Kind::DeletePod,
            Self::OrphanPod { .. } => Kind::OrphanPod,
            Self::TakeAddress { .. } => Kind::TakeAddress,
            Self::ReleaseAddress { .. } => Kind::ReleaseAddress,
            Self::Certificate { step, .. } => match step {
                Step::Read => Kind::ReadCertificate,
                Step::MakeKey => Kind::MakeTlsKey,
                Step::Request => Kind::RequestCertificate,
                Step::Await { .. } => Kind::AwaitCertificate,
                Step::Store => Kind::StoreCertificate,
                Step::Withdraw { .. } => Kind::WithdrawRequest,
                Step::Tidy => Kind::TidyCertificate,
            },
            Self::PlugAhead { .. } => Kind::PlugAhead,
            Self::SetSize { .. } => Kind::SetSize,
        }
    }
}

impl Kind {
    /// Peer that carries out the action. Each peer has at most one action under way.
    #[must_use]
    pub fn peer(self) -> Peer {
        match self {
            Self::PlugAhead | Self::SetSize => Peer::Runner,
            Self::ResizePod => Peer::Requests,
            Self::ReadCertificate
            | Self::MakeTlsKey
            | Self::RequestCertificate
            | Self::AwaitCertificate
            | Self::StoreCertificate
            | Self::WithdrawRequest
            | Self::TidyCertificate => Peer::Certificates,
            _ => Peer::Api,
        }
    }

    /// Whether its VM lacks something as long as it fails. CPUs that do not come ahead of their
    /// order come with it.
    #[must_use]
    pub fn is_needed(self) -> bool {
        self != Self::PlugAhead
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::PatchVm => "edit the VM object",
            Self::WriteStatus => "write the status",
            Self::ReadVm => "read the VM object",
            Self::ReadPod => "read the pod",
            Self::ReadTaker => "read the migration",
            Self::EnsureSshSecret => "create the SSH secret",
            Self::EnsureRunnerSecret => "create the runner's secret",
            Self::CreatePod => "create the pod",
            Self::PatchPodMetadata => "sync the pod's labels and annotations",
            Self::PatchPodCounted => "say in the pod what its VM has",
            Self::ResizePod => "resize what the pod requests",
            Self::DeletePod => "delete the pod",
            Self::OrphanPod => "release the pod",
            Self::TakeAddress => "take an overlay address",
            Self::ReleaseAddress => "release the overlay address",
            Self::ReadCertificate => "read the certificate",
            Self::MakeTlsKey => "make a key for the certificate",
            Self::RequestCertificate => "ask for the certificate",
            Self::AwaitCertificate => "wait for the certificate",
            Self::StoreCertificate => "store the certificate",
            Self::WithdrawRequest => "withdraw the request for the certificate",
            Self::TidyCertificate => "delete what the certificate was made with",
            Self::PlugAhead => "plug CPUs ahead of their order",
            Self::SetSize => "set the size",
        })
    }
}

/// The merge patch that turns `from` into `to`: changed members, `null` for vanished ones, objects
/// by recursion, arrays whole. `None` when nothing differs.
#[must_use]
pub fn merge_difference(from: &Value, to: &Value) -> Option<Value> {
    match (from, to) {
        (Value::Object(old), Value::Object(new)) => {
            let mut patch = serde_json::Map::new();
            for (name, value) in new {
                let old = old.get(name).unwrap_or(&Value::Null);
                if let Some(change) = merge_difference(old, value) {
                    patch.insert(name.clone(), change);
                }
            }
            for name in old.keys().filter(|name| !new.contains_key(*name)) {
                patch.insert(name.clone(), Value::Null);
            }
            (!patch.is_empty()).then_some(Value::Object(patch))
        }
        _ => (from != to).then(|| to.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn merge_difference_changes_only_what_differs() {
        let old =
            json!({"phase": "Running", "cpus": 1, "rev": {"value": 1, "flags": 0}, "list": [1]});
        let new = json!({"phase": "Scaling", "rev": {"value": 2, "flags": 0}, "list": [1, 2]});
        assert_eq!(
            merge_difference(&old, &new),
            Some(json!({"phase": "Scaling", "cpus": null, "rev": {"value": 2}, "list": [1, 2]}))
        );
        assert_eq!(merge_difference(&new, &new), None);
        assert_eq!(
            merge_difference(&json!({}), &json!({"a": {"b": 1}})),
            Some(json!({"a": {"b": 1}}))
        );
    }
}
