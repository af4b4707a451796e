//! JSON merge patches (RFC 7396) and the four operations of JSON patches (RFC 6902) that are in use
//! here.

use serde_json::{Map, Value};

/// A JSON patch that cannot be applied; nothing was changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Unapplicable(pub String);

/// Applies a merge patch.
pub(crate) fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(members) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let Value::Object(object) = target else {
        return;
    };
    for (name, value) in members {
        if value.is_null() {
            object.remove(name);
        } else {
            merge(object.entry(name.clone()).or_insert(Value::Null), value);
        }
    }
}

/// Applies all operations of a JSON patch, or none.
///
/// # Errors
/// [`Unapplicable`]: a test failed, or a parent is not there.
pub(crate) fn apply(target: &mut Value, operations: &Value) -> Result<(), Unapplicable> {
    let mut next = target.clone();
    for operation in operations.as_array().into_iter().flatten() {
        one(&mut next, operation)?;
    }
    *target = next;
    Ok(())
}

fn one(target: &mut Value, operation: &Value) -> Result<(), Unapplicable> {
    let text = |name: &str| {
        operation
            .get(name)
            .and_then(Value::as_str)
            .unwrap_or_default()
    };
    let (kind, path) = (text("op"), text("path"));
    let wrong = |what: &str| Err(Unapplicable(format!("{kind} {path}: {what}")));
    let value = operation.get("value").unwrap_or(&Value::Null);
    if kind == "test" {
        // As on API servers, what is not there passes a test against `null`.
        return match target.pointer(path).unwrap_or(&Value::Null) {
            found if found == value => Ok(()),
            _ => wrong("the test failed"),
        };
    }
    let Some((parent, key)) = path.rsplit_once('/') else {
        return wrong("no such path");
    };
    let key = key.replace("~1", "/").replace("~0", "~");
    let Some(Value::Object(parent)) = target.pointer_mut(parent) else {
        return wrong("the parent is no object");
    };
    match kind {
        // A replacement of what is not there acts as an addition, as it does in the Kubernetes API
        // server.
        "add" | "replace" => {
            parent.insert(key, value.clone());
            Ok(())
        }
        "remove" if parent.remove(&key).is_some() => Ok(()),
        "remove" => wrong("nothing to remove"),
        _ => wrong("unknown operation"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn merge_changes_removes_and_keeps() {
        let mut target = json!({"a": {"b": 1, "c": 2}, "d": [1]});
        merge(
            &mut target,
            &json!({"a": {"b": null, "e": {"f": 3}}, "d": [2]}),
        );
        assert_eq!(target, json!({"a": {"c": 2, "e": {"f": 3}}, "d": [2]}));
    }

    #[test]
    fn a_json_patch_is_all_or_nothing() {
        let mut target = json!({"metadata": {"annotations": {"x/y": "1"}}});
        let ops = json!([
            {"op": "add", "path": "/metadata/annotations/z", "value": "2"},
            {"op": "test", "path": "/metadata/annotations/x~1y", "value": "other"},
        ]);
        assert!(apply(&mut target, &ops).is_err());
        assert_eq!(target, json!({"metadata": {"annotations": {"x/y": "1"}}}));
        let ops = json!([
            {"op": "test", "path": "/metadata/annotations/x~1y", "value": "1"},
            {"op": "remove", "path": "/metadata/annotations/x~1y"},
            {"op": "replace", "path": "/metadata/annotations/z", "value": "2"},
        ]);
        assert_eq!(apply(&mut target, &ops), Ok(()));
        assert_eq!(target, json!({"metadata": {"annotations": {"z": "2"}}}));
    }
}
