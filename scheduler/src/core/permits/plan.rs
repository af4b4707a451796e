//! From a request to the decision on it and the write that makes the decision durable.

use protocol::permit::{NamespacedName, PermitRefusal};

use super::queue::HeldWrite;
use crate::core::decide::{DecisionInputs, decide};
use crate::core::decision::PermitDecision;
use crate::core::event::{PermitRequest, VmWrite, annotation_text};
use crate::core::ledger::{GrantHold, Ledger, PodEntry, VmEntry, vm_key};
use crate::core::pod_requests::PodView;
use crate::core::view::AnnotationValue;

/// A decision and the write that it needs.
pub(super) struct PermitPlan {
    pub(super) decision: Box<PermitDecision>,
    /// The write to send, unless the object has all three annotations already.
    pub(super) write: Option<HeldWrite>,
    /// Whether the object has the permit already. The response need not wait for the write.
    pub(super) is_durable: bool,
}

pub(super) fn plan(
    inputs: DecisionInputs<'_>,
    pod: &PodView,
    vm: &VmEntry,
    request: &PermitRequest,
) -> Result<PermitPlan, PermitRefusal> {
    let node = pod.node.as_deref().unwrap_or_default();
    let decision = Box::new(decide(inputs, pod, node, vm, request)?);
    let view = &vm.view;
    if !decision.autoscaled {
        // The scheduler neither writes nor counts the annotations of such a VM. Its permit is the
        // size in use.
        return Ok(PermitPlan {
            decision,
            write: None,
            is_durable: true,
        });
    }
    let wanted = request.resources;
    let write = VmWrite {
        id: 0,
        vm: view.key.clone(),
        base: view.version,
        approved_before: view.approved_text.clone(),
        has_annotations: view.has_annotations,
        unit: annotation_text(request.compute_unit),
        requested: annotation_text(view.most().map_or(wanted, |most| wanted.field_min(most))),
        approved: annotation_text(decision.approved),
    };
    // A write of unknown outcome may have changed the approved size. If more is in use than is
    // requested, the observed state is likely older than the agent's own patch. The write finds
    // that out.
    let is_durable = vm.holds.is_empty()
        && decision.approved == decision.permit
        && view.approved == AnnotationValue::Value(decision.approved);
    let is_written = is_durable
        && view.unit_text.as_ref() == Some(&write.unit)
        && view.requested_text.as_ref() == Some(&write.requested)
        && view.approved_text.as_ref() == Some(&write.approved);
    let hold = GrantHold {
        base: view.version,
        target: decision.approved,
    };
    Ok(PermitPlan {
        decision,
        write: (!is_written).then_some(HeldWrite { write, hold }),
        is_durable,
    })
}

/// Finds the pod and the VM of a request.
///
/// # Errors
/// The refusal, with the pod's node if the ledger has it.
pub(super) fn admit<'a>(
    ledger: &'a Ledger,
    request: &PermitRequest,
) -> Result<(&'a PodEntry, NamespacedName), (PermitRefusal, Option<String>)> {
    request.validate().map_err(|refusal| (refusal, None))?;
    let pod = ledger
        .pod_named(&request.pod)
        .ok_or((PermitRefusal::PodNotFound, None))?;
    let Some(node) = &pod.view.node else {
        return Err((PermitRefusal::NodeUnknown, None));
    };
    match vm_key(&pod.view) {
        Some(vm) => Ok((pod, vm)),
        None => Err((PermitRefusal::NotAVm, Some(node.clone()))),
    }
}
