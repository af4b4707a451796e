//! Definitions of further kinds, which are objects themselves.

use serde_json::{Value, json};

use super::Context;
use crate::core::error::{ApiError, Cause};
use crate::core::kind::Kind;
use crate::core::registry::Registry;

/// Checks a definition and fills in what the server states about it.
///
/// # Errors
/// 422 with every problem of the document.
pub(super) fn admit(
    context: &Context,
    registry: &Registry,
    value: &mut Value,
    old: Option<&Value>,
) -> Result<(), ApiError> {
    let name = value["metadata"]["name"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    let refuse = |causes| {
        ApiError::invalid(
            "apiextensions.k8s.io",
            "CustomResourceDefinition",
            &name,
            causes,
        )
    };
    fill_names(value);
    let kind = Kind::parse(value, false).map_err(refuse)?;
    if let Some(old) = old {
        let fixed = |field: &str, before: &Value, after: &Value| {
            let cause = Cause {
                reason: "FieldValueInvalid".to_owned(),
                message: format!("Invalid value: {after}: field is immutable"),
                field: field.to_owned(),
            };
            if before == after {
                Ok(())
            } else {
                Err(refuse(vec![cause]))
            }
        };
        fixed("spec.scope", &old["spec"]["scope"], &value["spec"]["scope"])?;
        let (before, after) = (
            &old["spec"]["names"]["kind"],
            &value["spec"]["names"]["kind"],
        );
        fixed("spec.names.kind", before, after)?;
    }
    let clash = registry.clone().insert(kind.clone()).err();
    if let Some(cause) = clash.clone().filter(|_| old.is_none()) {
        return Err(refuse(vec![cause]));
    }
    value["status"] = status(context, &kind, value);
    Ok(())
}

/// Absent names are derived from the kind, and visible in the object.
fn fill_names(value: &mut Value) {
    let Some(kind) = value["spec"]["names"]["kind"].as_str().map(str::to_owned) else {
        return;
    };
    let names = &mut value["spec"]["names"];
    let mut fill = |name: &str, text: String| {
        if names[name].as_str().is_none_or(str::is_empty) {
            names[name] = Value::from(text);
        }
    };
    fill("singular", kind.to_lowercase());
    fill("listKind", format!("{kind}List"));
    if value["spec"]["conversion"].is_null() {
        value["spec"]["conversion"] = json!({"strategy": "None"});
    }
}

/// The status: kinds are served as soon as the definition is written, so the conditions hold from the start.
fn status(context: &Context, kind: &Kind, value: &Value) -> Value {
    let since = value["status"]["conditions"][0]["lastTransitionTime"].as_str();
    let since = since.map_or_else(|| context.now.to_string(), str::to_owned);
    let condition = |name: &str, reason: &str, message: &str| {
        json!({
            "type": name,
            "status": "True",
            "lastTransitionTime": since,
            "reason": reason,
            "message": message,
        })
    };
    let mut stored = value["status"]["storedVersions"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    let storage = Value::from(kind.storage_version().name.clone());
    if !stored.contains(&storage) {
        stored.push(storage);
    }
    json!({
        "conditions": [
            condition("NamesAccepted", "NoConflicts", "no conflicts found"),
            condition("Established", "InitialNamesAccepted", "the initial names have been accepted"),
        ],
        "acceptedNames": value["spec"]["names"],
        "storedVersions": stored,
    })
}
