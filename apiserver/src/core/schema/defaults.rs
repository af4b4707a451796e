//! Filling in absent members that have a default.

use serde_json::Value;

use super::model::Schema;

/// Sets every absent member that has a default, also inside defaults just set. A `null` where the
/// schema is not nullable counts as absent, as in the real server.
pub fn apply_defaults(value: &mut Value, schema: &Schema) {
    match value {
        Value::Object(map) => {
            for (name, child) in &schema.properties {
                let absent = match map.get(name) {
                    None => true,
                    Some(Value::Null) => !child.nullable,
                    Some(_) => false,
                };
                if absent && let Some(default) = &child.default {
                    map.insert(name.clone(), default.clone());
                }
            }
            for (name, member) in map.iter_mut() {
                if let Some(child) = schema.member(name) {
                    apply_defaults(member, child);
                }
            }
        }
        Value::Array(items) => {
            if let Some(child) = &schema.items {
                for item in items {
                    apply_defaults(item, child);
                }
            }
        }
        _ => {}
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
            "a": {"type": "string", "default": "x"},
            "n": {"type": "string", "nullable": true, "default": "y"},
            "o": {"type": "object", "default": {}, "properties": {"p": {"type": "integer", "default": 7}}},
            "q": {"type": "object", "properties": {"p": {"type": "integer", "default": 8}}},
            "l": {"type": "array", "items": {"type": "object", "properties": {"e": {"type": "string", "default": ""}}}},
            "m": {"type": "object", "additionalProperties": {"type": "object", "properties": {"f": {"type": "boolean", "default": true}}}},
        }});
        Schema::parse(&document, "").expect("structural")
    }

    #[test]
    fn absent_members_are_set_and_present_ones_kept() {
        let mut value = json!({"l": [{}, {"e": "z"}], "m": {"k": {}}, "n": null});
        apply_defaults(&mut value, &schema());
        let expected = json!({"a": "x", "n": null, "o": {"p": 7}, "l": [{"e": ""}, {"e": "z"}], "m": {"k": {"f": true}}});
        assert_eq!(value, expected);
    }

    #[test]
    fn null_counts_as_absent_where_it_is_not_a_value() {
        let mut value = json!({"a": null});
        apply_defaults(&mut value, &schema());
        assert_eq!(value["a"], "x");
    }

    proptest! {
        #[test]
        fn defaulting_twice_changes_nothing_more(mut value in any_json()) {
            let schema = schema();
            apply_defaults(&mut value, &schema);
            let once = value.clone();
            apply_defaults(&mut value, &schema);
            prop_assert_eq!(value, once);
        }
    }
}
