//! JSON Merge Patch (RFC 7396).

use serde_json::{Map, Value};

/// Merges `patch` into `target`: members that are `null` are removed, objects merge, everything
/// else replaces.
pub fn apply(target: &mut Value, patch: &Value) {
    let Value::Object(members) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let Value::Object(map) = target else { return };
    for (name, value) in members {
        if value.is_null() {
            map.remove(name);
        } else {
            apply(map.entry(name.clone()).or_insert(Value::Null), value);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::core::testing::any_json;

    #[test]
    fn the_examples_of_the_rfc_hold() {
        for (target, patch, expected) in [
            (json!({"a": "b"}), json!({"a": "c"}), json!({"a": "c"})),
            (
                json!({"a": "b"}),
                json!({"b": "c"}),
                json!({"a": "b", "b": "c"}),
            ),
            (
                json!({"a": "b", "b": "c"}),
                json!({"a": null}),
                json!({"b": "c"}),
            ),
            (json!({"a": ["b"]}), json!({"a": "c"}), json!({"a": "c"})),
            (
                json!({"a": {"b": "c"}}),
                json!({"a": {"b": "d", "c": null}}),
                json!({"a": {"b": "d"}}),
            ),
            (
                json!({"a": [{"b": "c"}]}),
                json!({"a": [1]}),
                json!({"a": [1]}),
            ),
            (json!(["a"]), json!({"a": "b"}), json!({"a": "b"})),
            (
                json!({"e": null}),
                json!({"a": 1}),
                json!({"e": null, "a": 1}),
            ),
            (
                json!({}),
                json!({"a": {"bb": {"ccc": null}}}),
                json!({"a": {"bb": {}}}),
            ),
        ] {
            let mut merged = target;
            apply(&mut merged, &patch);
            assert_eq!(merged, expected);
        }
    }

    proptest! {
        #[test]
        fn merging_the_same_patch_again_changes_nothing(mut target in any_json(), patch in any_json()) {
            apply(&mut target, &patch);
            let once = target.clone();
            apply(&mut target, &patch);
            prop_assert_eq!(target, once);
        }
    }
}
