//! Dropping members that the schema does not name.

use serde_json::Value;

use super::model::Schema;

/// Removes unknown members from `value` and adds the path of each to `dropped` (`spec.guest.foo`,
/// `spec.disks[0].x`). At the root and in embedded objects `apiVersion`, `kind` and `metadata` are
/// always known.
pub fn prune(value: &mut Value, schema: &Schema, is_root: bool, dropped: &mut Vec<String>) {
    prune_at(value, schema, is_root, "", dropped);
}

fn prune_at(
    value: &mut Value,
    schema: &Schema,
    is_root: bool,
    path: &str,
    dropped: &mut Vec<String>,
) {
    match value {
        Value::Object(map) => {
            let is_object = is_root || schema.embedded;
            map.retain(|name, member| {
                let at = join(path, name);
                if is_object && matches!(name.as_str(), "apiVersion" | "kind" | "metadata") {
                    return true;
                }
                match schema.member(name) {
                    Some(child) => prune_at(member, child, false, &at, dropped),
                    None if schema.preserve_unknown => {}
                    None => {
                        dropped.push(at);
                        return false;
                    }
                }
                true
            });
        }
        Value::Array(items) => {
            if let Some(child) = &schema.items {
                for (index, item) in items.iter_mut().enumerate() {
                    prune_at(item, child, false, &format!("{path}[{index}]"), dropped);
                }
            }
        }
        _ => {}
    }
}

fn join(path: &str, name: &str) -> String {
    if path.is_empty() {
        name.to_owned()
    } else {
        format!("{path}.{name}")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::core::testing::any_json;

    fn schema() -> Schema {
        let document = json!({"type": "object", "properties": {
            "spec": {"type": "object", "properties": {
                "a": {"type": "string"},
                "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true,
                    "properties": {"known": {"type": "object", "properties": {"x": {"type": "integer"}}}}},
                "l": {"type": "array", "items": {"type": "object", "properties": {"e": {"type": "string"}}}},
                "m": {"type": "object", "additionalProperties": {"type": "object", "properties": {}}},
            }},
        }});
        Schema::parse(&document, "").expect("structural")
    }

    #[test]
    fn unknown_members_go_and_are_named() {
        let mut value = json!({"kind": "K", "metadata": {"x": 1}, "extra": 1, "spec": {
            "a": "1", "b": 2, "free": {"any": 1, "known": {"x": 1, "y": 2}}, "l": [{"e": ""}, {"f": 1}], "m": {"k": {"z": 1}}}});
        let mut dropped = Vec::new();
        prune(&mut value, &schema(), true, &mut dropped);
        assert_eq!(
            dropped,
            [
                "extra",
                "spec.b",
                "spec.free.known.y",
                "spec.l[1].f",
                "spec.m.k.z"
            ]
        );
        let expected = json!({"kind": "K", "metadata": {"x": 1}, "spec": {
            "a": "1", "free": {"any": 1, "known": {"x": 1}}, "l": [{"e": ""}, {}], "m": {"k": {}}}});
        assert_eq!(value, expected);
    }

    proptest! {
        #[test]
        fn pruning_twice_drops_nothing_more(spec in any_json()) {
            let mut value = json!({"spec": spec});
            prune(&mut value, &schema(), true, &mut Vec::new());
            let mut dropped = Vec::new();
            prune(&mut value, &schema(), true, &mut dropped);
            prop_assert!(dropped.is_empty());
        }
    }
}
