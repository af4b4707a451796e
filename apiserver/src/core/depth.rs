//! How deep values are nested.
//!
//! Values are walked by recursion, and a stored object is read back by a reader of JSON that stops
//! at 128 levels. So nothing deeper than [`MAX_DEPTH`] is stored or made on the way to it.

use serde_json::Value;

/// Deepest nesting of an object with all of its metadata. A list and a watch event add two levels,
/// and what is left up to 128 is for clients that put objects into objects of their own.
pub const MAX_DEPTH: usize = 112;

/// Whether a value has at most `levels` levels of lists and objects. A scalar has none.
#[must_use]
pub fn is_within(value: &Value, levels: usize) -> bool {
    let is_inside = |inner: &Value| is_within(inner, levels - 1);
    match value {
        Value::Array(items) => levels > 0 && items.iter().all(is_inside),
        Value::Object(members) => levels > 0 && members.values().all(is_inside),
        _ => true,
    }
}

/// Number of values in a value, itself included.
#[must_use]
pub fn nodes(value: &Value) -> usize {
    1 + match value {
        Value::Array(items) => items.iter().map(nodes).sum(),
        Value::Object(members) => members.values().map(nodes).sum(),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn levels_are_those_of_lists_and_objects() {
        for (value, levels) in [
            (json!(1), 0),
            (json!([]), 1),
            (json!({"a": 1, "b": "c"}), 1),
            (json!({"a": [1, {"b": {}}]}), 4),
        ] {
            assert!(is_within(&value, levels), "{value}");
            assert!(levels == 0 || !is_within(&value, levels - 1), "{value}");
        }
        assert_eq!(nodes(&json!({"a": [1, {"b": {}}]})), 5);
    }
}
