//! What single kinds ask beyond their schema: admission of VM objects, and the few rules of core
//! kinds.

use serde_json::Value;

use super::error::{ApiError, Cause};
use super::kind::Kind;
use super::native;

/// Group of VMs and their migrations.
const VM_GROUP: &str = "vm.neon.tech";

/// Brings a new state into the form it is kept in, before the schema looks at it.
///
/// # Errors
/// Causes for values that cannot be brought into form.
pub fn normalise(kind: &Kind, value: &mut Value) -> Result<(), Vec<Cause>> {
    if kind.group == VM_GROUP {
        return protocol::admission::normalise(&kind.kind, value).map_err(causes);
    }
    if kind.extras().is_some_and(|extras| extras.string_data) {
        fold_string_data(value)?;
    }
    if kind.builtin.is_some() {
        let mut problems = Vec::new();
        native::canonical_quantities(value, &kind.storage_version().schema, "", &mut problems);
        if !problems.is_empty() {
            return Err(problems);
        }
    }
    Ok(())
}

/// Completes what a writer may leave out of a new state, beyond the schema's defaults, and keeps
/// what only one writer may change. Returns warnings for the writer.
pub fn settle(kind: &Kind, old: Option<&Value>, manager: &str, value: &mut Value) -> Vec<String> {
    if kind.group != VM_GROUP {
        return Vec::new();
    }
    // All clients of this server have one account.
    let writer = protocol::admission::Writer::of(None, Some(manager));
    protocol::admission::settle_size(&kind.kind, old, writer, value)
}

/// Checks a new object beyond its schema.
///
/// # Errors
/// Causes, one per broken rule.
pub fn validate_create(kind: &Kind, value: &Value) -> Result<(), Vec<Cause>> {
    if kind.group == protocol::policy::GROUP {
        return protocol::policy::validate(&kind.kind, value).map_err(causes);
    }
    if kind.group == protocol::fleet::GROUP {
        return protocol::fleet::validate_create(&kind.kind, value).map_err(causes);
    }
    if kind.group == VM_GROUP {
        return protocol::admission::validate_create(&kind.kind, value).map_err(causes);
    }
    Ok(())
}

/// What the writer of a new object is told although it is stored.
#[must_use]
pub fn warnings(kind: &Kind, value: &Value) -> Vec<String> {
    if kind.group == VM_GROUP {
        return protocol::admission::warnings(&kind.kind, value);
    }
    Vec::new()
}

/// Checks a change beyond the schema.
///
/// # Errors
/// Causes, one per broken rule.
pub fn validate_update(kind: &Kind, old: &Value, new: &Value) -> Result<(), Vec<Cause>> {
    if kind.group == protocol::policy::GROUP {
        return protocol::policy::validate(&kind.kind, new).map_err(causes);
    }
    if kind.group == protocol::fleet::GROUP {
        return protocol::fleet::validate_update(&kind.kind, old, new).map_err(causes);
    }
    if kind.group == VM_GROUP {
        return protocol::admission::validate_update(&kind.kind, old, new).map_err(causes);
    }
    if kind.key() == "pods" {
        return pod_spec_is_kept(old, new);
    }
    if kind.key() == "controllerrevisions.apps" && old.get("data") != new.get("data") {
        return Err(data_is_kept());
    }
    if old.get("immutable") == Some(&Value::Bool(true)) {
        return immutable_is_kept(old, new);
    }
    Ok(())
}

/// Checks a deletion that a client asks for.
///
/// # Errors
/// The rule that it breaks, with the fix.
pub fn validate_delete(kind: &Kind, value: &Value) -> Result<(), String> {
    if kind.group == protocol::fleet::GROUP {
        return protocol::fleet::validate_delete(&kind.kind, value);
    }
    Ok(())
}

fn causes(errors: Vec<protocol::admission::FieldError>) -> Vec<Cause> {
    let cause = |error: protocol::admission::FieldError| Cause {
        reason: error.kind.as_str().to_owned(),
        message: error.to_message(),
        field: error.field,
    };
    errors.into_iter().map(cause).collect()
}

fn forbidden(field: &str, why: &str) -> Vec<Cause> {
    vec![Cause {
        reason: "FieldValueForbidden".to_owned(),
        message: format!("Forbidden: {why}"),
        field: field.to_owned(),
    }]
}

/// Members of a pod's spec that may change after creation, and of each of its containers.
const MUTABLE_POD_SPEC: [&str; 3] = [
    "activeDeadlineSeconds",
    "terminationGracePeriodSeconds",
    "tolerations",
];

fn pod_spec_is_kept(old: &Value, new: &Value) -> Result<(), Vec<Cause>> {
    let fixed = |pod: &Value| {
        let mut spec = pod["spec"].clone();
        if let Some(map) = spec.as_object_mut() {
            map.retain(|name, _| !MUTABLE_POD_SPEC.contains(&name.as_str()));
        }
        for list in ["containers", "initContainers"] {
            let containers = spec.get_mut(list).and_then(Value::as_array_mut);
            for container in containers
                .into_iter()
                .flatten()
                .filter_map(Value::as_object_mut)
            {
                container.remove("image");
            }
        }
        spec
    };
    if fixed(old) == fixed(new) {
        return Ok(());
    }
    let why = "pod updates may not change fields other than `spec.containers[*].image`, \
        `spec.initContainers[*].image`, `spec.activeDeadlineSeconds`, `spec.tolerations` or \
        `spec.terminationGracePeriodSeconds`";
    Err(forbidden("spec", why))
}

fn data_is_kept() -> Vec<Cause> {
    vec![Cause {
        reason: "FieldValueInvalid".to_owned(),
        message: "Invalid value: field is immutable".to_owned(),
        field: "data".to_owned(),
    }]
}

fn immutable_is_kept(old: &Value, new: &Value) -> Result<(), Vec<Cause>> {
    let why = "field is immutable when `immutable` is set";
    for field in ["data", "binaryData", "immutable"] {
        if old.get(field) != new.get(field) {
            return Err(forbidden(field, why));
        }
    }
    Ok(())
}

/// Moves `stringData` into `data`, base64-coded, and checks that all data is base64.
fn fold_string_data(value: &mut Value) -> Result<(), Vec<Cause>> {
    use base64::Engine as _;
    let coder = base64::engine::general_purpose::STANDARD;
    let Some(map) = value.as_object_mut() else {
        return Ok(());
    };
    if let Some(Value::Object(texts)) = map.remove("stringData") {
        for (key, text) in texts {
            let coded = coder.encode(text.as_str().unwrap_or_default());
            let data = map
                .entry("data")
                .or_insert_with(|| Value::Object(serde_json::Map::new()));
            if !data.is_object() {
                *data = Value::Object(serde_json::Map::new());
            }
            data[key] = Value::from(coded);
        }
    }
    let mut problems = Vec::new();
    for (key, coded) in map
        .get("data")
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
    {
        if coded
            .as_str()
            .is_none_or(|text| coder.decode(text).is_err())
        {
            problems.push(Cause {
                reason: "FieldValueInvalid".to_owned(),
                message: "Invalid value: must be base64".to_owned(),
                field: format!("data[{key}]"),
            });
        }
    }
    if problems.is_empty() {
        Ok(())
    } else {
        Err(problems)
    }
}

/// Refuses a change of an object's kind rules as a 422.
///
/// # Errors
/// Always the given causes, as [`ApiError::invalid`].
pub fn refuse(kind: &Kind, name: &str, result: Result<(), Vec<Cause>>) -> Result<(), ApiError> {
    result.map_err(|causes| ApiError::invalid(&kind.group, &kind.kind, name, causes))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn string_data_is_folded_and_data_checked() {
        let mut secret = json!({"data": {"a": "YQ=="}, "stringData": {"b": "x"}});
        fold_string_data(&mut secret).expect("valid");
        assert_eq!(secret, json!({"data": {"a": "YQ==", "b": "eA=="}}));
        let problems = fold_string_data(&mut json!({"data": {"a": "?"}})).expect_err("not base64");
        assert_eq!(problems[0].field, "data[a]");
    }

    #[test]
    fn a_pods_spec_is_fixed_but_for_images_and_tolerations() {
        let old = json!({"spec": {"nodeName": "a", "containers": [{"name": "c", "image": "1"}]}});
        let mut new = old.clone();
        new["spec"]["containers"][0]["image"] = json!("2");
        new["spec"]["tolerations"] = json!([]);
        assert!(pod_spec_is_kept(&old, &new).is_ok());
        new["spec"]["nodeName"] = json!("b");
        assert!(pod_spec_is_kept(&old, &new).is_err());
    }

    #[test]
    fn data_of_a_revision_stays() {
        let document = include_str!("../../kinds/controllerrevisions.apps.yaml");
        let document = serde_saphyr::from_str(document).expect("YAML");
        let kind = Kind::parse(&document, true).expect("a kind");
        let old = json!({"data": {"a": 1}, "revision": 1});
        let renumbered = json!({"data": {"a": 1}, "revision": 2});
        assert!(validate_update(&kind, &old, &renumbered).is_ok());
        let causes = validate_update(&kind, &old, &json!({"revision": 1})).expect_err("changed");
        assert_eq!(causes[0].field, "data");
    }

    #[test]
    fn immutable_data_stays() {
        let old = json!({"immutable": true, "data": {"a": "1"}});
        assert!(immutable_is_kept(&old, &old).is_ok());
        assert!(immutable_is_kept(&old, &json!({"immutable": true})).is_err());
        assert!(immutable_is_kept(&old, &json!({"data": {"a": "1"}})).is_err());
    }
}
