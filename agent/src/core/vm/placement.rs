//! Whether a VM is this agent's to scale, and where its runner pod is.

use protocol::annotations::{ANNOTATION_VSOCK_CID, LABEL_ENABLED};
use protocol::vm::VmPhase;
use serde_json::Value;

/// Place of a VM that this agent scales. It comes from the raw object, so that a malformed member
/// elsewhere does not hide the VM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    /// `status.podName`: the runner pod; empty when the status names none.
    pub pod_name: String,
    /// `status.podIP`: address of the runner pod, where the monitor and metrics are dialled. Never
    /// empty.
    pub pod_ip: String,
    /// Number of the vsock device; `None` without one. [`super::VmInfo::from_object`] reports a
    /// malformed number.
    pub vsock_cid: Option<u32>,
}

/// Node and scheduler of the VMs that an agent scales.
#[derive(Debug, Clone, Copy)]
pub struct Ownership<'a> {
    /// Name of the agent's node, compared with `status.node`.
    pub node: &'a str,
    /// Name of the scheduler, compared with `spec.schedulerName`.
    pub scheduler_name: &'a str,
}

/// Place of the VM if the agent scales it. Such a VM is on the agent's node, alive and not
/// migrating, has an address and the label for autoscaling, and names the agent's scheduler.
#[must_use]
pub fn placement(object: &Value, ours: Ownership<'_>) -> Option<Placement> {
    let text = |pointer: &str| {
        object
            .pointer(pointer)
            .and_then(Value::as_str)
            .unwrap_or("")
    };
    let scaled_phases = [
        VmPhase::Running.as_str(),
        VmPhase::PreMigrating.as_str(),
        VmPhase::Scaling.as_str(),
    ];
    let label = object
        .pointer("/metadata/labels")
        .and_then(|labels| labels.get(LABEL_ENABLED))
        .and_then(Value::as_str);
    let annotation = object
        .pointer("/metadata/annotations")
        .and_then(|annotations| annotations.get(ANNOTATION_VSOCK_CID))
        .and_then(Value::as_str);
    let is_ours = text("/status/node") == ours.node
        && scaled_phases.contains(&text("/status/phase"))
        && !text("/status/podIP").is_empty()
        && label == Some("true")
        && text("/spec/schedulerName") == ours.scheduler_name;
    is_ours.then(|| Placement {
        pod_name: text("/status/podName").to_owned(),
        pod_ip: text("/status/podIP").to_owned(),
        vsock_cid: annotation.and_then(|cid| cid.parse().ok()),
    })
}
