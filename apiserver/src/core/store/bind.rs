//! `POST pods/<name>/binding`: a scheduler's placement of a pod.

use serde_json::{Value, json};

use super::{Body, Context, POD_KIND, Store};
use crate::core::error::{ApiError, Cause, success_status};
use crate::core::metadata;
use crate::core::object::{Object, is_deleting};

impl Store {
    /// Sets `spec.nodeName` once, with the binding's annotations and labels and the `PodScheduled`
    /// condition.
    pub(super) fn bind(
        &mut self,
        context: &Context,
        name: &str,
        binding: &Value,
    ) -> Result<(u16, Body), ApiError> {
        let place = (context.namespace.clone(), name.to_owned());
        let pod = self.view.get(POD_KIND, &place.0, &place.1).cloned();
        let pod = pod.ok_or_else(|| ApiError::not_found("", POD_KIND, name))?;
        let node = check(name, &pod, binding)?;
        let mut value = pod.value.clone();
        value["spec"]["nodeName"] = Value::from(node);
        for member in ["annotations", "labels"] {
            let sent = binding["metadata"][member].as_object();
            for (key, text) in sent.into_iter().flatten() {
                value["metadata"][member][key] = text.clone();
            }
        }
        let problems = metadata::validate(&value, true);
        if !problems.is_empty() {
            return Err(ApiError::invalid("", "Binding", name, problems));
        }
        let condition = json!({
            "type": "PodScheduled",
            "status": "True",
            "lastProbeTime": null,
            "lastTransitionTime": context.now.to_string(),
        });
        set_condition(&mut value, condition);
        if let Some(generation) = value["metadata"]["generation"].as_i64() {
            value["metadata"]["generation"] = Value::from(generation + 1);
        }
        self.write(POD_KIND, place, value);
        Ok((201, Body::Status(success_status("", "", "", ""))))
    }
}

/// Whether the pod may be bound so; the node.
fn check<'a>(name: &str, pod: &Object, binding: &'a Value) -> Result<&'a str, ApiError> {
    let target = &binding["target"];
    let node = target["name"].as_str().unwrap_or_default();
    if node.is_empty() || !matches!(target["kind"].as_str(), None | Some("" | "Node")) {
        let cause = Cause {
            reason: "FieldValueRequired".to_owned(),
            message: "Required value: must name a Node".to_owned(),
            field: "target.name".to_owned(),
        };
        return Err(ApiError::invalid("", "Binding", name, vec![cause]));
    }
    let conflict = |why: &str| ApiError::conflict("", "pods/binding", name, why);
    let wanted_uid = binding["metadata"]["uid"]
        .as_str()
        .filter(|uid| !uid.is_empty());
    if wanted_uid.is_some_and(|uid| uid != pod.uid()) {
        return Err(conflict("the UID in the binding is not that of the pod"));
    }
    if is_deleting(&pod.value) {
        let why = format!("pod {name} is being deleted, cannot be assigned to a host");
        return Err(conflict(&why));
    }
    let bound = pod.value["spec"]["nodeName"]
        .as_str()
        .filter(|node| !node.is_empty());
    match bound {
        Some(bound) => Err(conflict(&format!(
            "pod {name} is already assigned to node {bound:?}"
        ))),
        None => Ok(node),
    }
}

/// Puts a condition in the place of the one of its type.
pub(super) fn set_condition(value: &mut Value, condition: Value) {
    let list = &mut value["status"]["conditions"];
    if !list.is_array() {
        *list = Value::Array(Vec::new());
    }
    let Some(conditions) = list.as_array_mut() else {
        return;
    };
    conditions.retain(|known| known["type"] != condition["type"]);
    conditions.push(condition);
}
