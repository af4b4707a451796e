//! Typed field sets and merges.

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::core::testing::any_json;

pub(super) fn schema() -> Schema {
    let document = json!({"type": "object", "properties": {
        "a": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
        "l": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
        "m": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name", "p"],
            "items": {"type": "object", "properties": {"name": {"type": "string"}, "p": {"type": "string", "default": "TCP"}, "v": {"type": "integer"}}}},
        "n": {"type": "object", "additionalProperties": {"type": "string"}},
        "o": {"type": "object", "x-kubernetes-map-type": "atomic", "properties": {"x": {"type": "integer"}}},
        "p": {"type": "array", "items": {"type": "integer"}},
        "q": {"type": "object", "properties": {"x": {"type": "integer"}, "y": {"type": "integer"}}},
    }});
    Schema::parse(&document, "").expect("structural")
}

fn any_object() -> impl Strategy<Value = Value> {
    let name = || "[abc]";
    let numbers = || prop::collection::btree_map("[xy]", 0_i64..3, 0..3);
    (
        prop::option::of(any_json()),
        prop::option::of(prop::collection::btree_set(name(), 0..3)),
        prop::option::of(prop::collection::btree_map(name(), 0_i64..3, 0..3)),
        prop::option::of(prop::collection::btree_map(name(), name(), 0..3)),
        prop::option::of(numbers()),
        prop::option::of(numbers()),
    )
        .prop_map(|(a, l, m, n, o, q)| {
            let m = m.map(|m| {
                m.into_iter()
                    .map(|(name, v)| json!({"name": name, "v": v}))
                    .collect::<Vec<_>>()
            });
            let mut object =
                json!({"l": l, "m": m, "n": n, "o": o, "q": q, "a": a.filter(Value::is_object)});
            if let Some(map) = object.as_object_mut() {
                map.retain(|_, member| !member.is_null());
            }
            object
        })
}

#[test]
fn fields_follow_the_schema() {
    let object = json!({"l": ["s"], "m": [{"name": "c", "v": 1}], "n": {"k": "v"}, "o": {"x": 1}, "p": [1], "q": {"x": 1}, "a": {"z": [1]}});
    let expected = json!({
        "f:a": {"f:z": {}},
        "f:l": {"v:\"s\"": {}},
        "f:m": {"k:{\"name\":\"c\",\"p\":\"TCP\"}": {".": {}, "f:name": {}, "f:v": {}}},
        "f:n": {"f:k": {}},
        "f:o": {},
        "f:p": {},
        "f:q": {"f:x": {}},
    });
    assert_eq!(fields_of(&object, Some(&schema())).to_json(), expected);
}

#[test]
fn defaults_appear_only_inside_whole_fields() {
    let document = json!({"type": "object", "properties": {
        "ports": {"type": "array", "items": {"type": "object", "properties": {"protocol": {"type": "string", "default": "TCP"}}}},
        "spec": {"type": "object", "properties": {"x": {"type": "integer", "default": 1}}},
    }});
    let schema = Schema::parse(&document, "").expect("structural");
    let mut config = json!({"ports": [{}], "spec": {}});
    default_whole_fields(&mut config, Some(&schema));
    assert_eq!(config, json!({"ports": [{"protocol": "TCP"}], "spec": {}}));
}

#[test]
fn changes_are_found_per_field() {
    let schema = schema();
    let old =
        json!({"m": [{"name": "a", "v": 1}, {"name": "b"}], "o": {"x": 1}, "q": {"x": 1, "y": 1}});
    let new = json!({"m": [{"name": "a", "v": 2}, {"name": "c"}], "o": {"x": 2}, "q": {"x": 1}});
    let found = compare(&old, &new, Some(&schema));
    assert_eq!(
        found.changed.paths(),
        [
            ".m[name=\"a\",p=\"TCP\"].v",
            ".m[name=\"c\",p=\"TCP\"]",
            ".m[name=\"c\",p=\"TCP\"].name",
            ".o"
        ]
    );
    assert_eq!(
        found.removed.paths(),
        [
            ".m[name=\"b\",p=\"TCP\"]",
            ".m[name=\"b\",p=\"TCP\"].name",
            ".q.y"
        ]
    );
}

#[test]
fn taking_fields_away_takes_emptied_parents_too() {
    let schema = schema();
    let object = json!({"m": [{"name": "a", "v": 1}], "q": {"x": 1}, "n": {"k": "v", "j": "w"}});
    let gone = fields_of(
        &json!({"m": [{"name": "a"}], "q": {"x": 1}, "n": {"k": "v"}}),
        Some(&schema),
    );
    assert_eq!(
        without(&object, &gone, Some(&schema)),
        Some(json!({"n": {"j": "w"}}))
    );
}

proptest! {
    #[test]
    fn merging_gives_everything_the_config_says(live in any_object(), config in any_object()) {
        let schema = schema();
        let merged = merge(&live, &config, Some(&schema));
        let again = merge(&merged, &config, Some(&schema));
        prop_assert_eq!(&again, &merged);
        let missing = fields_of(&config, Some(&schema)).difference(&fields_of(&merged, Some(&schema)));
        // Only an empty map or list that met a filled one is no field of its own any more.
        for path in missing.paths() {
            prop_assert!(!path.contains('='), "{} is missing", path);
        }
    }

    #[test]
    fn equal_objects_do_not_differ_and_changes_name_all_new_fields(old in any_object(), new in any_object()) {
        let schema = schema();
        prop_assert_eq!(compare(&old, &old, Some(&schema)), Comparison::default());
        let found = compare(&old, &new, Some(&schema));
        let before = fields_of(&old, Some(&schema));
        let after = fields_of(&new, Some(&schema));
        prop_assert!(after.difference(&before).difference(&found.changed).is_empty());
    }

    #[test]
    fn taking_all_fields_away_leaves_nothing_that_was_named(object in any_object()) {
        let schema = schema();
        let all = fields_of(&object, Some(&schema));
        let left = without(&object, &all, Some(&schema)).unwrap_or(json!({}));
        prop_assert!(left.as_object().is_some_and(Map::is_empty) || object == left, "{}", left);
    }
}
