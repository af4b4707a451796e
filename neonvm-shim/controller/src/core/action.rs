//! Actions that the core asks its shell to carry out, one per peer at a time.

use protocol::runner::{CpusAhead, SizeOrder};
use protocol::vm::{CpuScalingMode, VmStatus};
use serde::Serialize;
use serde_json::Value;

use super::certificate::objects::{Order, Step};
use super::kind::Kind;
use super::metadata::PatchOp;
use super::overlay::holder::Holder;
use super::vm_event::VmEvent;

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
        /// Events to publish once the status is written.
        #[serde(rename = "notes")]
        events: Vec<VmEvent>,
        /// Merge patch from the stored status, with its version.
        patch: Value,
    },
    /// Read the VM object afresh.
    ReadVm,
    /// Read a pod from the API server, not from the watch.
    ReadPod {
        /// Name of the pod, from `status.podName` or from a watch.
        name: String,
    },
    /// Check whether the migration that claims the VM exists.
    #[serde(rename = "read_taker")]
    ReadMigration {
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
    /// Make the secret with the token by which the VM's runners recognize the controller, if it is
    /// missing.
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
    /// JSON-patch the pod's requests, by the subresource `resize`.
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
        /// The VM that gets the address. The pool object records its id and uid.
        holder: Holder,
    },
    /// Release the VM's address.
    ReleaseAddress {
        /// The VM that gives back. An address of a VM with the same name and another uid stays.
        holder: Holder,
    },
    /// Take one step to the guest's certificate.
    Certificate {
        /// The step; it also decides the [`Kind`] of the action.
        step: Step,
        /// Secret, wanted certificate and owner that the step works with.
        order: Box<Order>,
    },
    /// Have the runner plug CPUs ahead of the order for them, or take them back.
    PlugAhead {
        /// Name of the runner's pod.
        pod: String,
        /// CPUs that the guest shall have plugged.
        #[serde(rename = "wish")]
        cpus: CpusAhead,
    },
    /// Send the size to the runner.
    SetSize {
        /// Name of the runner's pod.
        pod: String,
        /// The size, and which order of the VM it is.
        order: SizeOrder,
        /// Number of orders that the runner had taken up in the state on which this order rests.
        /// `None` if the runner does not report it.
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

impl Action {
    /// Kind of this action, by which errors, back-off and metrics are kept.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match self {
            Self::PatchVm { .. } => Kind::PatchVm,
            Self::WriteStatus { .. } => Kind::WriteStatus,
            Self::ReadVm => Kind::ReadVm,
            Self::ReadPod { .. } => Kind::ReadPod,
            Self::ReadMigration { .. } => Kind::ReadMigration,
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
