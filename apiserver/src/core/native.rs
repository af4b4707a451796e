//! Built-in kinds against their types in the Kubernetes API.
//!
//! Their schemas here leave the leaves open, but an object that does not fit its type would make
//! every typed client's whole list or watch fail. Such an object is refused on its way in, as the
//! real server refuses what it cannot decode.

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Event, Namespace, Node, Pod, Secret, ServiceAccount};
use serde::Deserialize as _;
use serde_json::Value;

use super::error::Cause;
use super::schema::Schema;

/// Checks an object of the kind with this key.
///
/// # Errors
/// What does not fit. Kinds without a type here always pass.
pub fn check(kind: &str, object: &Value) -> Result<(), String> {
    let fits = match kind {
        "configmaps" => ConfigMap::deserialize(object).map(drop),
        "events" => Event::deserialize(object).map(drop),
        "leases.coordination.k8s.io" => Lease::deserialize(object).map(drop),
        "namespaces" => Namespace::deserialize(object).map(drop),
        "nodes" => Node::deserialize(object).map(drop),
        "pods" => Pod::deserialize(object).map(drop),
        "secrets" => Secret::deserialize(object).map(drop),
        "serviceaccounts" => ServiceAccount::deserialize(object).map(drop),
        _ => Ok(()),
    };
    fits.map_err(|error| error.to_string())
}

/// Drops members that are `null`: for the types of built-in kinds that is the same as absent, and
/// Go clients write many.
pub fn drop_nulls(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.retain(|_, member| !member.is_null());
            map.values_mut().for_each(drop_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(drop_nulls),
        _ => {}
    }
}

/// Brings amounts (schema nodes of format `quantity`) into canonical spelling: `2` → `"2"`,
/// `"1024Mi"` → `"1Gi"`.
pub fn canonical_quantities(
    value: &mut Value,
    schema: &Schema,
    path: &str,
    problems: &mut Vec<Cause>,
) {
    if schema.int_or_string && schema.checks.format.as_deref() == Some("quantity") {
        match protocol::quantity::Quantity::from_json(value) {
            Ok(quantity) => *value = Value::from(quantity.to_string()),
            Err(error) => problems.push(Cause {
                reason: "FieldValueInvalid".to_owned(),
                message: format!("Invalid value: {value}: {error}"),
                field: path.to_owned(),
            }),
        }
        return;
    }
    match value {
        Value::Object(map) => {
            for (name, member) in map.iter_mut() {
                if let Some(child) = schema.member(name) {
                    let at = if path.is_empty() {
                        name.clone()
                    } else {
                        format!("{path}.{name}")
                    };
                    canonical_quantities(member, child, &at, problems);
                }
            }
        }
        Value::Array(items) => {
            if let Some(child) = &schema.items {
                for (index, item) in items.iter_mut().enumerate() {
                    canonical_quantities(item, child, &format!("{path}[{index}]"), problems);
                }
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn objects_a_typed_client_could_not_read_are_found() {
        assert_eq!(
            check("pods", &json!({"spec": {"containers": [{"name": "c"}]}})),
            Ok(())
        );
        for (kind, object) in [
            ("pods", json!({"status": {"podIP": 5}})),
            (
                "nodes",
                json!({"status": {"conditions": [{"type": "Ready", "status": "True", "message": true}]}}),
            ),
            (
                "leases.coordination.k8s.io",
                json!({"spec": {"renewTime": "soon"}}),
            ),
            ("events", json!({"involvedObject": "x"})),
        ] {
            assert!(check(kind, &object).is_err(), "{kind}");
        }
        assert_eq!(check("virtualmachines.vm.neon.tech", &json!(1)), Ok(()));
    }

    #[test]
    fn null_members_are_absent() {
        let mut value = json!({"a": null, "b": [{"c": null}, null], "d": {"e": null, "f": 1}});
        drop_nulls(&mut value);
        assert_eq!(value, json!({"b": [{}, null], "d": {"f": 1}}));
    }

    #[test]
    fn amounts_are_canonical() {
        let document = json!({"type": "object", "additionalProperties": {"x-kubernetes-int-or-string": true, "format": "quantity"}});
        let schema = Schema::parse(&document, "").expect("structural");
        let mut value = json!({"cpu": 2, "half": 0.5, "memory": "1024Mi"});
        let mut problems = Vec::new();
        canonical_quantities(&mut value, &schema, "", &mut problems);
        assert_eq!(
            (value, problems),
            (json!({"cpu": "2", "half": "500m", "memory": "1Gi"}), vec![])
        );
        let mut problems = Vec::new();
        canonical_quantities(&mut json!({"cpu": "x"}), &schema, "status", &mut problems);
        assert_eq!(problems[0].field, "status.cpu");
    }
}
