//! Who set which field of the objects we write.
//!
//! API servers keep that in `metadata.managedFields`, and bring the whole object into another form
//! once for each who is in it, at every write: nearly half of what a write of a runner pod or a VM
//! costs them, the kubelet's and the agent's as well as ours. It serves those who apply parts of
//! objects (server-side apply). Where nobody does, it is cleared once, and servers keep none from
//! then on, until somebody applies.

use daemon_kit::chain;
use kube::api::Patch;
use kube::core::Request;
use serde_json::{Value, json};

use super::api::{ApiError, KubeApi, as_json_patch, patch_params};

impl KubeApi {
    /// The answer to a write of an object, in which nobody is left of those who set its fields, if
    /// that is to be and nobody applies.
    pub(super) async fn disown(
        &self,
        objects: &Request,
        name: &str,
        written: Result<Value, ApiError>,
    ) -> Result<Value, ApiError> {
        let object = written?;
        if self.keep_field_owners || !is_written_by_plain_writers(&object) {
            return Ok(object);
        }
        let patch = Patch::Merge(clearing(&object));
        let request = objects.patch(name, &patch_params(), &patch);
        match self.send(request.map(as_json_patch)).await {
            Ok(cleared) => Ok(cleared),
            // Changed meanwhile, by somebody who applies perhaps, or gone: the next write looks
            // again.
            Err(error) => {
                tracing::debug!(name, error = chain(&error), "who set which field is kept");
                Ok(object)
            }
        }
    }
}

/// Whether there are entries, and all of plain writers.
fn is_written_by_plain_writers(object: &Value) -> bool {
    let entries = object["metadata"]["managedFields"].as_array();
    entries.is_some_and(|entries| {
        let mut all = entries.iter();
        !entries.is_empty() && all.all(|entry| entry["operation"] == "Update")
    })
}

/// Clears them from the object as it was seen, and from no other state of it. One empty entry means
/// none.
fn clearing(object: &Value) -> Value {
    json!([
        {"op": "test", "path": "/metadata/resourceVersion", "value": object["metadata"]["resourceVersion"]},
        {"op": "add", "path": "/metadata/managedFields", "value": [{}]},
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_writers_are_forgotten() {
        let of = |entries: Value| json!({"metadata": {"managedFields": entries}});
        assert!(!is_written_by_plain_writers(&json!({"metadata": {}})));
        assert!(!is_written_by_plain_writers(&of(json!([]))));
        let plain = json!({"manager": "kubelet", "operation": "Update", "subresource": "status"});
        assert!(is_written_by_plain_writers(&of(json!([plain]))));
        let applier = json!({"manager": "argocd-controller", "operation": "Apply"});
        assert!(!is_written_by_plain_writers(&of(json!([plain, applier]))));
    }
}
