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
    // A store from before this rule may hold such definitions. They stay as they are until their
    // specification changes.
    if old.is_none_or(|old| old["spec"] != value["spec"]) {
        let rules = unenforced_rules(&kind);
        if !rules.is_empty() {
            return Err(refuse(rules));
        }
    }
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

/// A cause for each place with `x-kubernetes-validations`. Nothing here evaluates CEL, and a rule
/// that is taken and not enforced lets objects in that their author believes to be checked. The
/// rules of the fleet's kinds are for other servers: `hooks` enforces them here.
fn unenforced_rules(kind: &Kind) -> Vec<Cause> {
    let mut causes = Vec::new();
    let is_hooked = protocol::fleet::FleetKind::parse(&kind.kind).is_some();
    if kind.group == protocol::fleet::GROUP && is_hooked {
        return causes;
    }
    for (index, version) in kind.versions.iter().enumerate() {
        let path = format!("spec.versions[{index}].schema.openAPIV3Schema");
        find_rules(&version.schema_document, &path, &mut causes);
    }
    causes
}

/// Walks the nodes of a schema, whose depth [`Kind::parse`] has bounded. Members of objects,
/// defaults and examples may have any name, so only the places of schemas are looked at.
fn find_rules(node: &Value, path: &str, causes: &mut Vec<Cause>) {
    let rules = &node["x-kubernetes-validations"];
    if !rules.is_null() && rules.as_array().is_none_or(|rules| !rules.is_empty()) {
        causes.push(Cause {
            reason: "FieldValueForbidden".to_owned(),
            message: "Forbidden: the API of one machine does not enforce CEL rules; leave them out, \
                      and check with enum, pattern, minimum or oneOf, or in the controller of the kind"
                .to_owned(),
            field: format!("{path}.x-kubernetes-validations"),
        });
    }
    for (name, child) in node["properties"].as_object().into_iter().flatten() {
        find_rules(child, &format!("{path}.properties[{name}]"), causes);
    }
    for name in ["additionalProperties", "items", "not"] {
        if let Some(child) = node.get(name) {
            find_rules(child, &format!("{path}.{name}"), causes);
        }
    }
    for name in ["allOf", "anyOf", "oneOf"] {
        for (index, child) in node[name].as_array().into_iter().flatten().enumerate() {
            find_rules(child, &format!("{path}.{name}[{index}]"), causes);
        }
    }
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

/// The status: kinds are served as soon as the definition is written, so the conditions hold from
/// the start.
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

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: &str = "x-kubernetes-validations";

    /// A definition whose objects have a `spec` of this schema.
    fn kind_with(spec: &Value) -> Kind {
        let schema = json!({"type": "object", "properties": {"spec": spec}});
        let definition = json!({"metadata": {"name": "things.example.org"}, "spec": {
            "group": "example.org", "scope": "Namespaced",
            "names": {"plural": "things", "kind": "Thing"},
            "versions": [{"name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": schema}}]}});
        Kind::parse(&definition, false).expect("is a kind")
    }

    #[test]
    fn rule_is_found_in_every_place_of_a_schema() {
        let ruled = json!({"type": "object", RULES: [{"rule": "self.a < self.b"}]});
        let spec = json!({"type": "object", RULES: [{"rule": "true"}], "properties": {
            "list": {"type": "array", "items": ruled},
            "map": {"type": "object", "additionalProperties": ruled}},
            "anyOf": [{"not": {RULES: [{"rule": "true"}]}}]});
        let at = "spec.versions[0].schema.openAPIV3Schema.properties[spec].";
        let causes = unenforced_rules(&kind_with(&spec));
        let fields: Vec<&str> = causes
            .iter()
            .filter_map(|cause| cause.field.strip_prefix(at)?.strip_suffix(RULES))
            .collect();
        let wanted = [
            "",
            "properties[list].items.",
            "properties[map].additionalProperties.",
            "anyOf[0].not.",
        ];
        assert_eq!(fields, wanted, "{causes:?}");
    }

    #[test]
    fn member_of_the_name_of_rules_and_no_rules_are_taken() {
        let spec = json!({"type": "object", RULES: [], "properties": {
            RULES: {"type": "array", "items": {"type": "string"}},
            "free": {"type": "object", "default": {RULES: [{"rule": "x"}]}}}});
        assert_eq!(unenforced_rules(&kind_with(&spec)), []);
    }
}
