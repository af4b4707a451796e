//! Each value rule with a valid and an invalid value, and the bounds on their cost.

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::core::testing::any_json;

fn problems(schema: &Value, value: &Value) -> Vec<(String, String)> {
    let schema = Schema::parse(schema, "").expect("structural");
    let found = validate(value, &schema, "");
    found
        .into_iter()
        .map(|cause| (cause.field, cause.reason))
        .collect()
}

#[test]
fn each_rule_names_its_field() {
    let schema = json!({"type": "object", "required": ["must"], "properties": {
        "n": {"type": "integer", "minimum": 1, "maximum": 512},
        "f": {"type": "number", "exclusiveMinimum": true, "minimum": 0},
        "s": {"type": "string", "minLength": 1, "maxLength": 3, "pattern": "^[a-z]*$"},
        "e": {"type": "string", "enum": ["A", "B"]},
        "t": {"type": "string", "format": "date-time"},
        "q": {"x-kubernetes-int-or-string": true, "pattern": "^[0-9]+"},
        "m": {"type": "integer", "multipleOf": 8},
        "l": {"type": "array", "maxItems": 2, "items": {"type": "string"}, "x-kubernetes-list-type": "set"},
        "k": {"type": "array", "items": {"type": "object", "properties": {"name": {"type": "string"}}},
            "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
        "i": {"type": "integer", "format": "int32"},
    }});
    let good = json!({"must": 1, "n": 512, "f": 0.5, "s": "abc", "e": "B", "t": "2024-01-01T00:00:00Z",
        "q": 5, "m": 16, "l": ["a", "b"], "k": [{"name": "a"}, {"name": "b"}], "i": 7.0});
    assert_eq!(problems(&schema, &good), []);
    for (value, field, reason) in [
        (json!({}), "must", "FieldValueRequired"),
        (json!({"must": 1, "n": 0}), "n", "FieldValueInvalid"),
        (json!({"must": 1, "n": 513}), "n", "FieldValueInvalid"),
        (json!({"must": 1, "n": "1"}), "n", "FieldValueTypeInvalid"),
        (json!({"must": 1, "n": 1.5}), "n", "FieldValueTypeInvalid"),
        (json!({"must": 1, "n": null}), "n", "FieldValueTypeInvalid"),
        (json!({"must": 1, "f": 0}), "f", "FieldValueInvalid"),
        (json!({"must": 1, "s": ""}), "s", "FieldValueInvalid"),
        (json!({"must": 1, "s": "abcd"}), "s", "FieldValueTooLong"),
        (json!({"must": 1, "s": "A"}), "s", "FieldValueInvalid"),
        (json!({"must": 1, "e": "C"}), "e", "FieldValueNotSupported"),
        (json!({"must": 1, "t": "soon"}), "t", "FieldValueInvalid"),
        (json!({"must": 1, "q": 1.5}), "q", "FieldValueTypeInvalid"),
        (json!({"must": 1, "q": "x"}), "q", "FieldValueInvalid"),
        (json!({"must": 1, "m": 9}), "m", "FieldValueInvalid"),
        (
            json!({"must": 1, "l": ["a", "a"]}),
            "l[1]",
            "FieldValueDuplicate",
        ),
        (
            json!({"must": 1, "l": ["a", "b", "c"]}),
            "l",
            "FieldValueTooMany",
        ),
        (
            json!({"must": 1, "k": [{"name": "a"}, {"name": "a"}]}),
            "k[1]",
            "FieldValueDuplicate",
        ),
        (
            json!({"must": 1, "i": 3_000_000_000_u64}),
            "i",
            "FieldValueInvalid",
        ),
    ] {
        assert_eq!(
            problems(&schema, &value),
            [(field.to_owned(), reason.to_owned())],
            "{value}"
        );
    }
}

#[test]
fn the_length_message_is_the_one_the_real_server_writes() {
    let schema = json!({"type": "object", "properties": {"spec": {"type": "object",
        "properties": {"vmName": {"type": "string", "minLength": 1}}}}});
    let schema = Schema::parse(&schema, "").expect("structural");
    let found = validate(&json!({"spec": {"vmName": ""}}), &schema, "");
    let message = "Invalid value: \"\": spec.vmName in body should be at least 1 chars long";
    assert_eq!(found[0].message, message);
}

#[test]
fn alternatives_are_checked() {
    let schema = json!({"type": "object", "properties": {"q": {"x-kubernetes-int-or-string": true,
        "anyOf": [{"type": "integer"}, {"type": "string", "maxLength": 2}], "not": {"enum": [3]}}}});
    assert_eq!(problems(&schema, &json!({"q": 1})), []);
    assert_eq!(problems(&schema, &json!({"q": "ab"})), []);
    assert_eq!(problems(&schema, &json!({"q": "abc"})).len(), 1);
    assert_eq!(problems(&schema, &json!({"q": 3})).len(), 1);
}

proptest! {
    #[test]
    fn no_value_panics_and_problems_are_bounded(value in any_json()) {
        let schema = json!({"type": "object", "additionalProperties": {"type": "array", "items": {"type": "integer"}}});
        let schema = Schema::parse(&schema, "").expect("structural");
        prop_assert!(validate(&value, &schema, "").len() <= MAX_PROBLEMS + 1);
    }
}
