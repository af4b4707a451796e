//! Reads and writes of pods.

use kube::api::{DeleteParams, GetParams, Patch, PatchParams, Preconditions, ValidationDirective};
use kube::core::Request;
use protocol::object::Pod;
use serde_json::{Value, json};

use super::client::{KubeApi, as_json_patch, patch_params, post_params};
use super::error::ApiError;
use crate::core::Refusal;
use crate::core::metadata::{self, PatchOp};
use crate::core::requests::{self, SUBRESOURCE};
use crate::shell::decode;

/// Result of a request about a pod; `None` if no pod has the name.
pub(crate) type Found = Result<Option<Box<Pod>>, Refusal>;

impl KubeApi {
    /// Reads a pod.
    pub(crate) async fn read_pod(&self, namespace: &str, name: &str) -> Found {
        let request = pods(namespace).get(name, &GetParams::default());
        found(self.send(request).await)
    }

    /// Creates a pod, or returns the existing pod with its name.
    pub(crate) async fn create_pod(&self, namespace: &str, name: &str, pod: &Value) -> Found {
        let pods = pods(namespace);
        let request = pods.create(&post_params(), pod.to_string().into_bytes());
        let made = self.send(request).await;
        match self.disown(&pods, name, made).await {
            // The pod exists. The core checks its owner.
            Err(error) if error.code() == Some(409) => self.read_pod(namespace, name).await,
            // Not found is the namespace here, not the pod.
            Err(error) => Err(error.refusal()),
            response => found(response),
        }
    }

    /// Applies a JSON patch to a pod.
    pub(crate) async fn edit_pod(&self, namespace: &str, name: &str, ops: &Value) -> Found {
        let patch = Patch::Merge(ops);
        let request = pods(namespace).patch(name, &patch_params(), &patch);
        found(self.send(request.map(as_json_patch)).await)
    }

    /// Applies a JSON patch to a pod's owners, labels and annotations.
    pub(crate) async fn sync_pod(&self, namespace: &str, name: &str, ops: &[PatchOp]) -> Found {
        let patch = Patch::Merge(json!(ops));
        let pods = pods(namespace);
        let request = pods.patch(name, &patch_params(), &patch);
        let rests = |pod: &Pod| metadata::rest_on_others(ops, &pod.metadata);
        let written = self.send(request.map(as_json_patch)).await;
        match self.disown(&pods, name, written).await {
            Err(error) if error.code() == Some(422) => {
                self.unless_changed(namespace, name, &error, rests).await
            }
            response => found(response),
        }
    }

    /// Applies a JSON patch to a pod's requests. "Not found" may mean the subresource, so it is no
    /// proof that the pod is gone.
    pub(crate) async fn resize_pod(&self, namespace: &str, name: &str, ops: &[PatchOp]) -> Found {
        let patch = Patch::Merge(json!(ops));
        let pods = pods(namespace);
        // A guest waits for this write, and warnings about fields are of no use here.
        let params = PatchParams {
            field_validation: Some(ValidationDirective::Ignore),
            ..patch_params()
        };
        let request = pods.patch_subresource(SUBRESOURCE, name, &params, &patch);
        let rests = |pod: &Pod| requests::rest_on_another(ops, pod);
        match self.send(request.map(as_json_patch)).await {
            Err(error) if error.code() == Some(422) => {
                self.unless_changed(namespace, name, &error, rests).await
            }
            Err(error) => Err(error.refusal()),
            response => found(response),
        }
    }

    /// Result of a patch that does not apply. If the patch rests on another state of the pod, it is
    /// the pod's present state, and the core decides again. Otherwise it is the refusal.
    async fn unless_changed(
        &self,
        namespace: &str,
        name: &str,
        error: &ApiError,
        rests: impl Fn(&Pod) -> bool,
    ) -> Found {
        match self.read_pod(namespace, name).await {
            Ok(Some(pod)) if rests(&pod) => Ok(Some(pod)),
            Ok(None) => Ok(None),
            _ => Err(error.refusal()),
        }
    }

    /// Deletes the pod with this uid. Returns the pod if it needs time to end.
    pub(crate) async fn delete_pod(
        &self,
        namespace: &str,
        name: &str,
        uid: String,
        grace_s: u32,
    ) -> Found {
        let params = DeleteParams {
            grace_period_seconds: Some(grace_s),
            preconditions: Some(Preconditions {
                uid: Some(uid),
                resource_version: None,
            }),
            ..DeleteParams::default()
        };
        let request = pods(namespace).delete(name, &params);
        match self.send(request).await {
            // A bare "Success" does not show the pod, so it is read.
            Ok(response) if response["kind"] == "Status" => self.read_pod(namespace, name).await,
            response => found(response),
        }
    }

    /// Takes the owners off the pod of this uid.
    pub(crate) async fn orphan_pod(&self, namespace: &str, name: &str, uid: &str) -> Found {
        let ops = json!([
            {"op": "test", "path": "/metadata/uid", "value": uid},
            {"op": "remove", "path": "/metadata/ownerReferences"},
        ]);
        self.edit_pod(namespace, name, &ops).await
    }
}

pub(super) fn pods(namespace: &str) -> Request {
    Request::new(format!("/api/v1/namespaces/{namespace}/pods"))
}

/// Decodes the pod of a response.
fn found(response: Result<Value, ApiError>) -> Found {
    match response {
        Ok(value) => match decode::pod(value) {
            Ok(pod) => Ok(Some(Box::new(pod))),
            Err(error) => Err(ApiError::Decode(error).refusal()),
        },
        Err(error) if error.code() == Some(404) => Ok(None),
        Err(error) => Err(error.refusal()),
    }
}
