//! Clears `metadata.managedFields` of runner pods and VMs, which makes their writes cheaper.
//!
//! API servers record there which client set which field. At every write they convert the whole
//! object once for each entry. That is nearly half the cost of a write of a runner pod or a VM,
//! also of the kubelet's and the agent's writes. Only server-side apply needs the entries. If no
//! client applies, the controller clears them once. The API server then keeps none until a client
//! applies.

use daemon_kit::chain;
use kube::api::Patch;
use kube::core::Request;
use serde_json::{Value, json};

use super::api::{ApiError, KubeApi, as_json_patch, patch_params};

impl KubeApi {
    /// Clears the field managers of an object that was just written, and returns the object.
    /// Returns it unchanged if a client applies it or the settings keep field managers.
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
            // The object has changed or is gone. The next write tries again.
            Err(error) => {
                tracing::debug!(name, error = chain(&error), "field managers not cleared");
                Ok(object)
            }
        }
    }
}

/// Whether there are entries, and none is of server-side apply.
fn is_written_by_plain_writers(object: &Value) -> bool {
    let entries = object["metadata"]["managedFields"].as_array();
    entries.is_some_and(|entries| {
        let mut all = entries.iter();
        !entries.is_empty() && all.all(|entry| entry["operation"] == "Update")
    })
}

/// JSON patch that clears the entries of exactly this version of the object. To the API server, one
/// empty entry means none.
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
    fn managers_are_cleared_only_when_none_applies() {
        let of = |entries: Value| json!({"metadata": {"managedFields": entries}});
        assert!(!is_written_by_plain_writers(&json!({"metadata": {}})));
        assert!(!is_written_by_plain_writers(&of(json!([]))));
        let plain = json!({"manager": "kubelet", "operation": "Update", "subresource": "status"});
        assert!(is_written_by_plain_writers(&of(json!([plain]))));
        let applier = json!({"manager": "argocd-controller", "operation": "Apply"});
        assert!(!is_written_by_plain_writers(&of(json!([plain, applier]))));
    }
}
