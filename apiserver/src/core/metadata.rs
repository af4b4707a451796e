//! Rules of `metadata` that hold for every kind.

use serde_json::{Value, json};

use super::error::Cause;
use super::object::is_dns_subdomain;
use super::selector::{is_label_key, is_label_value};

/// Most bytes of all annotations of an object, as the real server bounds it.
const MAX_ANNOTATION_BYTES: usize = 256 << 10;

/// Members of `metadata`; others are unknown fields.
const MEMBERS: [&str; 15] = [
    "annotations",
    "creationTimestamp",
    "deletionGracePeriodSeconds",
    "deletionTimestamp",
    "finalizers",
    "generateName",
    "generation",
    "labels",
    "managedFields",
    "name",
    "namespace",
    "ownerReferences",
    "resourceVersion",
    "selfLink",
    "uid",
];

/// The schema of `metadata`: for merging, field owners and OpenAPI.
#[must_use]
pub fn schema_document() -> Value {
    let text = |about: &str| json!({"type": "string", "description": about});
    let time = |about: &str| json!({"type": "string", "format": "date-time", "description": about});
    let number = |about: &str| json!({"type": "integer", "format": "int64", "description": about});
    let texts = |about: &str| json!({"type": "object", "additionalProperties": {"type": "string"}, "description": about});
    json!({
        "type": "object",
        "description": "What every object has: names, labels, owners and what the server states.",
        "properties": {
            "annotations": texts("Texts for programs."),
            "creationTimestamp": time("When the object was created."),
            "deletionGracePeriodSeconds": number("Seconds the object has to end."),
            "deletionTimestamp": time("When the object is to be gone; set by a delete."),
            "finalizers": {
                "type": "array",
                "items": {"type": "string"},
                "description": "Who must agree before the object goes.",
                "x-kubernetes-list-type": "set",
                "x-kubernetes-patch-strategy": "merge",
            },
            "generateName": text("Start of a name the server completes."),
            "generation": number("Counts changes of the spec."),
            "labels": texts("Texts to select by."),
            "managedFields": {
                "type": "array",
                "items": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
                "description": "Who set which field.",
            },
            "name": text("Name, unique in its namespace."),
            "namespace": text("Namespace."),
            "ownerReferences": {
                "type": "array",
                "description": "Objects this one goes with.",
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["uid"],
                "x-kubernetes-patch-strategy": "merge",
                "x-kubernetes-patch-merge-key": "uid",
                "items": {
                    "type": "object",
                    "required": ["apiVersion", "kind", "name", "uid"],
                    "properties": {
                        "apiVersion": {"type": "string"},
                        "blockOwnerDeletion": {"type": "boolean"},
                        "controller": {"type": "boolean"},
                        "kind": {"type": "string"},
                        "name": {"type": "string"},
                        "uid": {"type": "string"},
                    },
                },
            },
            "resourceVersion": text("Version of this state."),
            "selfLink": text("Obsolete."),
            "uid": text("Unique in time and space."),
        },
    })
}

/// Drops unknown members, `null`s and the obsolete `selfLink`; adds the paths of unknown ones to
/// `dropped`.
pub fn prune(value: &mut Value, dropped: &mut Vec<String>) {
    let Some(map) = value.get_mut("metadata").and_then(Value::as_object_mut) else {
        return;
    };
    map.retain(|name, member| {
        let known = MEMBERS.contains(&name.as_str());
        if !known {
            dropped.push(format!("metadata.{name}"));
        }
        known && !member.is_null() && name != "selfLink"
    });
}

/// All problems of an object's metadata.
#[must_use]
pub fn validate(value: &Value, namespaced: bool) -> Vec<Cause> {
    let metadata = &value["metadata"];
    let mut problems = Vec::new();
    check_name(metadata, &mut problems);
    if !namespaced && metadata.get("namespace").is_some() {
        let message = "Forbidden: not allowed on this type";
        problems.push(cause(
            "FieldValueForbidden",
            "metadata.namespace",
            message.to_owned(),
        ));
    }
    check_labels(metadata, &mut problems);
    check_annotations(metadata, &mut problems);
    check_lists(metadata, &mut problems);
    problems
}

fn cause(reason: &str, field: &str, message: String) -> Cause {
    Cause {
        reason: reason.to_owned(),
        field: field.to_owned(),
        message,
    }
}

fn invalid(field: &str, value: &Value, why: &str) -> Cause {
    cause(
        "FieldValueInvalid",
        field,
        format!("Invalid value: {value}: {why}"),
    )
}

fn check_name(metadata: &Value, problems: &mut Vec<Cause>) {
    match metadata.get("name") {
        Some(Value::String(name)) if is_dns_subdomain(name) => {}
        None => {
            let message = "Required value: name or generateName is required".to_owned();
            problems.push(cause("FieldValueRequired", "metadata.name", message));
        }
        Some(other) => {
            let why = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', \
                and must start and end with an alphanumeric character";
            problems.push(invalid("metadata.name", other, why));
        }
    }
}

fn check_labels(metadata: &Value, problems: &mut Vec<Cause>) {
    let Some(labels) = metadata.get("labels") else {
        return;
    };
    let Some(map) = labels.as_object() else {
        problems.push(invalid("metadata.labels", labels, "must be an object"));
        return;
    };
    for (key, value) in map {
        if !is_label_key(key) {
            let why = "must be a qualified name: an optional DNS prefix and '/', then at most 63 letters, digits, '-', '_' or '.'";
            problems.push(invalid("metadata.labels", &Value::from(key.as_str()), why));
        }
        if !value.as_str().is_some_and(is_label_value) {
            let why = "a valid label must be an empty string or consist of at most 63 alphanumeric characters, '-', '_' or '.', \
                and must start and end with an alphanumeric character";
            problems.push(invalid("metadata.labels", value, why));
        }
    }
}

fn check_annotations(metadata: &Value, problems: &mut Vec<Cause>) {
    let Some(annotations) = metadata.get("annotations") else {
        return;
    };
    let Some(map) = annotations.as_object() else {
        problems.push(invalid(
            "metadata.annotations",
            annotations,
            "must be an object",
        ));
        return;
    };
    let mut total_bytes = 0;
    for (key, value) in map {
        // Case does not matter in annotation keys, but form does.
        if !is_label_key(key) {
            problems.push(invalid(
                "metadata.annotations",
                &Value::from(key.as_str()),
                "must be a qualified name",
            ));
        }
        match value.as_str() {
            Some(text) => total_bytes += key.len() + text.len(),
            None => problems.push(invalid(
                &format!("metadata.annotations.{key}"),
                value,
                "must be a string",
            )),
        }
    }
    if total_bytes > MAX_ANNOTATION_BYTES {
        let message = format!("Too long: may not be more than {MAX_ANNOTATION_BYTES} bytes");
        problems.push(cause("FieldValueTooLong", "metadata.annotations", message));
    }
}

fn check_lists(metadata: &Value, problems: &mut Vec<Cause>) {
    if let Some(finalizers) = metadata.get("finalizers") {
        let texts = finalizers.as_array();
        if texts.is_none_or(|texts| {
            !texts
                .iter()
                .all(|text| text.as_str().is_some_and(is_label_key))
        }) {
            problems.push(invalid(
                "metadata.finalizers",
                finalizers,
                "must be a list of qualified names",
            ));
        }
    }
    let Some(owners) = metadata.get("ownerReferences") else {
        return;
    };
    let Some(list) = owners.as_array() else {
        problems.push(invalid(
            "metadata.ownerReferences",
            owners,
            "must be a list",
        ));
        return;
    };
    let mut controllers = 0;
    for (index, owner) in list.iter().enumerate() {
        for member in ["apiVersion", "kind", "name", "uid"] {
            if owner
                .get(member)
                .and_then(Value::as_str)
                .is_none_or(str::is_empty)
            {
                let field = format!("metadata.ownerReferences[{index}].{member}");
                problems.push(cause(
                    "FieldValueInvalid",
                    &field,
                    "Invalid value: must not be empty".to_owned(),
                ));
            }
        }
        controllers += usize::from(owner.get("controller") == Some(&Value::Bool(true)));
    }
    if controllers > 1 {
        let why = "Only one reference can have Controller set to true";
        problems.push(invalid("metadata.ownerReferences", owners, why));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rule_names_its_field() {
        let owner =
            json!({"apiVersion": "v1", "kind": "K", "name": "n", "uid": "u", "controller": true});
        let good = json!({"metadata": {"name": "a", "labels": {"x/y": "1"}, "annotations": {"k": "any thing"},
            "finalizers": ["vm.neon.tech/finalizer"], "ownerReferences": [owner]}});
        assert_eq!(validate(&good, true), []);
        for (metadata, field) in [
            (json!({}), "metadata.name"),
            (json!({"name": "A"}), "metadata.name"),
            (json!({"name": "a", "labels": {"x": 1}}), "metadata.labels"),
            (
                json!({"name": "a", "labels": {"x": "-"}}),
                "metadata.labels",
            ),
            (
                json!({"name": "a", "labels": {"x y": "1"}}),
                "metadata.labels",
            ),
            (
                json!({"name": "a", "annotations": {"x": 1}}),
                "metadata.annotations.x",
            ),
            (
                json!({"name": "a", "annotations": {"x": "y".repeat(300_000)}}),
                "metadata.annotations",
            ),
            (
                json!({"name": "a", "finalizers": "x"}),
                "metadata.finalizers",
            ),
            (
                json!({"name": "a", "ownerReferences": [owner, owner]}),
                "metadata.ownerReferences",
            ),
            (
                json!({"name": "a", "ownerReferences": [{"apiVersion": "v1", "kind": "K", "name": "n"}]}),
                "metadata.ownerReferences[0].uid",
            ),
        ] {
            let problems = validate(&json!({"metadata": metadata}), true);
            let fields: Vec<&str> = problems
                .iter()
                .map(|problem| problem.field.as_str())
                .collect();
            assert_eq!(fields, [field]);
        }
        assert_eq!(
            validate(&json!({"metadata": {"name": "a", "namespace": "b"}}), false).len(),
            1
        );
    }

    #[test]
    fn unknown_members_are_dropped() {
        let mut value =
            json!({"metadata": {"name": "a", "color": "red", "selfLink": "x", "labels": null}});
        let mut dropped = Vec::new();
        prune(&mut value, &mut dropped);
        assert_eq!(
            (value, dropped),
            (
                json!({"metadata": {"name": "a"}}),
                vec!["metadata.color".to_owned()]
            )
        );
    }
}
