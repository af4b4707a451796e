//! Reports for people and for kube-scheduler: events, and conditions of unbound pods.
//!
//! A report that fails is not repeated here. The log and the metrics have the same content.

use api_client::events::Warning;
use k8s_openapi::api::core::v1::{Event as CoreEvent, ObjectReference, Pod};
use kube::api::{Api, ApiResource, DynamicObject, Patch, PatchParams, PostParams};
use protocol::permit::NamespacedName;
use protocol::time::WallTime;
use serde_json::{Value, json};

use super::ApiClient;
use crate::core::decision::PermitDecision;
use crate::core::pod_warnings::PodWarning;

/// Type of the condition on an unbound pod that fits on a node by now.
const CONDITION_ROOM: &str = "autoscaling.neon.tech/room-appeared";

impl ApiClient {
    /// Sets the condition PodScheduled=False with reason Unschedulable, and creates an event.
    pub(in crate::shell) async fn unschedulable(
        &self,
        pod: &NamespacedName,
        uid: &str,
        message: &str,
    ) {
        let pods: Api<DynamicObject> = Api::namespaced_with(
            self.context.client.clone(),
            &pod.namespace,
            &ApiResource::erase::<Pod>(&()),
        );
        if let Ok(object) = self.call(("Get", "Pod"), pods.get(&pod.name)).await
            && let Some(operations) =
                condition_patch(&object, uid, message, self.context.clock.wall())
            && let Ok(patch) = serde_json::from_value(operations)
        {
            let patch = Patch::<()>::Json(patch);
            let params = PatchParams::default();
            let call = pods.patch_subresource("status", &pod.name, &params, &patch);
            // The next attempt to place the pod reports it again.
            let _reported = self.call(("Patch", "Pod"), call).await;
        }
        let about = ObjectReference {
            api_version: Some("v1".into()),
            kind: Some("Pod".into()),
            ..reference(pod, uid)
        };
        self.event(about, "FailedScheduling", message.to_owned())
            .await;
    }

    /// Sets a condition on a waiting pod that a node has headroom for it. Any change of the object
    /// makes kube-scheduler try the pod again.
    pub(in crate::shell) async fn room_appeared(
        &self,
        pod: &NamespacedName,
        uid: &str,
        node: &str,
    ) {
        let pods: Api<Pod> = Api::namespaced(self.context.client.clone(), &pod.namespace);
        let now = self.context.clock.wall();
        // The time makes each message different. A pod of another uid is a conflict.
        let message = format!("node {node} has room since {}", now.to_micro_string());
        let condition = json!({"type": CONDITION_ROOM, "status": "True", "reason": "RoomAppeared",
            "message": message, "lastTransitionTime": now});
        let patch = json!({"metadata": {"uid": uid}, "status": {"conditions": [condition]}});
        let (params, patch) = (PatchParams::default(), Patch::Strategic(patch));
        let call = pods.patch_status(&pod.name, &params, &patch);
        // The core repeats the action unless kube-scheduler sends a request.
        let _reported = self.call(("Patch", "Pod"), call).await;
    }

    /// Creates an event on a pod.
    pub(in crate::shell) async fn warn_on_pod(
        &self,
        pod: &NamespacedName,
        uid: &str,
        warning: PodWarning,
    ) {
        let about = ObjectReference {
            api_version: Some("v1".into()),
            kind: Some("Pod".into()),
            ..reference(pod, uid)
        };
        let message = warning.message().to_owned();
        self.event(about, warning.reason(), message).await;
    }

    /// Creates an event on a VM whose increase was not granted in full.
    pub(in crate::shell) async fn scale_up_denied(&self, uid: &str, decision: &PermitDecision) {
        let about = ObjectReference {
            api_version: Some(protocol::vm::API_VERSION.into()),
            kind: Some("VirtualMachine".into()),
            ..reference(&decision.vm, uid)
        };
        self.event(about, "ScaleUpDenied", denial_text(decision))
            .await;
    }

    /// Creates an event on a VM that is being migrated.
    pub(in crate::shell) async fn migration_triggered(
        &self,
        vm: &NamespacedName,
        uid: &str,
        message: String,
    ) {
        let about = ObjectReference {
            api_version: Some(protocol::vm::API_VERSION.into()),
            kind: Some("VirtualMachine".into()),
            ..reference(vm, uid)
        };
        self.event(about, "MigrationTriggered", message).await;
    }

    /// Creates an event on a node with more reserved than its total.
    pub(in crate::shell) async fn node_over_budget(&self, node: &str, message: String) {
        // As kubelet does: the node's name as uid, and the namespace `default`.
        let about = ObjectReference {
            api_version: Some("v1".into()),
            kind: Some("Node".into()),
            name: Some(node.to_owned()),
            uid: Some(node.to_owned()),
            ..ObjectReference::default()
        };
        self.event(about, "NodeOverBudget", message).await;
    }

    async fn event(&self, about: ObjectReference, reason: &str, message: String) {
        let warning = Warning {
            about,
            component: self.context.reporter.clone(),
            reason: reason.to_owned(),
            message,
            unix_us: self.context.clock.wall().0,
        };
        let events: Api<CoreEvent> =
            Api::namespaced(self.context.client.clone(), warning.namespace());
        let event = warning.into_event();
        let params = PostParams::default();
        // The log and the metrics have the same content.
        let _reported = self
            .call(("Create", "Event"), events.create(&params, &event))
            .await;
    }
}

fn reference(name: &NamespacedName, uid: &str) -> ObjectReference {
    ObjectReference {
        name: Some(name.name.clone()),
        namespace: Some(name.namespace.clone()),
        uid: Some(uid.to_owned()),
        ..ObjectReference::default()
    }
}

/// The patch that sets PodScheduled=False. `None` if it is set, if the pod is bound, or if its uid
/// is another.
fn condition_patch(
    object: &DynamicObject,
    uid: &str,
    message: &str,
    now: WallTime,
) -> Option<Value> {
    let bound = object
        .data
        .pointer("/spec/nodeName")
        .and_then(Value::as_str)
        .unwrap_or_default();
    if object.metadata.uid.as_deref() != Some(uid) || !bound.is_empty() {
        return None;
    }
    let condition = json!({"type": "PodScheduled", "status": "False", "reason": "Unschedulable",
        "message": message, "lastTransitionTime": now, "lastProbeTime": null});
    let status = object
        .data
        .get("status")
        .filter(|status| status.is_object());
    let mut conditions: Vec<Value> = status
        .and_then(|status| status.get("conditions"))
        .and_then(Value::as_array)
        .cloned()
        .unwrap_or_default();
    let place = conditions
        .iter()
        .position(|known| known["type"] == "PodScheduled");
    match place {
        Some(at) if conditions[at]["message"] == message && conditions[at]["status"] == "False" => {
            return None;
        }
        Some(at) => conditions[at] = condition,
        None => conditions.push(condition),
    }
    let version = object.metadata.resource_version.clone().unwrap_or_default();
    let mut operations =
        vec![json!({"op": "test", "path": "/metadata/resourceVersion", "value": version})];
    if status.is_none() {
        operations.push(json!({"op": "add", "path": "/status", "value": {}}));
    }
    operations.push(json!({"op": "add", "path": "/status/conditions", "value": conditions}));
    Some(Value::Array(operations))
}

/// As in `not enough for the increase on node n1: asked 1 CPU / 4Gi, held 500m CPU / 2Gi,
/// permitted 750m CPU / 4Gi (cpu: no_room, room 300)`.
fn denial_text(decision: &PermitDecision) -> String {
    let asked = decision
        .verdicts
        .map(|_, verdict| verdict.asked)
        .to_resources();
    let held = decision
        .verdicts
        .map(|_, verdict| verdict.held)
        .to_resources();
    let limits = decision.limits().into_iter().map(|(resource, limit)| {
        let room = decision.verdicts.get(resource).room;
        format!("{}: {}, room {room}", resource.as_str(), limit.as_str())
    });
    let limits: Vec<String> = limits.collect();
    format!(
        "not enough for the increase on node {}: asked {asked}, held {held}, permitted {} ({})",
        decision.node,
        decision.permit,
        limits.join("; ")
    )
}
