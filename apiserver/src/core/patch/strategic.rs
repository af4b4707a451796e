//! Strategic merge patch, for the built-in kinds: a merge patch whose lists merge by key, with
//! directives.
//!
//! Directives: `$patch: delete|replace|merge`, `$retainKeys`, `$deleteFromPrimitiveList/<list>`,
//! `$setElementOrder/<list>`. Which lists merge, and by which key, is said by the schema
//! (`x-kubernetes-patch-strategy`, `x-kubernetes-patch-merge-key`).

use serde_json::{Map, Value};

use super::PatchError;
use crate::core::schema::Schema;

const DIRECTIVE: &str = "$patch";
const RETAIN: &str = "$retainKeys";
const DELETE_FROM: &str = "$deleteFromPrimitiveList/";
const ORDER: &str = "$setElementOrder/";

/// Applies `patch` to `target`.
///
/// # Errors
/// [`PatchError::Malformed`] for unknown directives, a list item without its key, or a patch that
/// is no object.
pub fn apply(target: &mut Value, patch: &Value, schema: &Schema) -> Result<(), PatchError> {
    let Some(members) = patch.as_object() else {
        return Err(malformed("a strategic merge patch must be an object"));
    };
    merge_map(target, members, Some(schema))
}

fn malformed(why: impl Into<String>) -> PatchError {
    PatchError::Malformed(why.into())
}

fn merge_map(
    target: &mut Value,
    patch: &Map<String, Value>,
    schema: Option<&Schema>,
) -> Result<(), PatchError> {
    match patch.get(DIRECTIVE).map(Value::as_str) {
        None | Some(Some("merge")) => {}
        Some(Some("replace")) => {
            let kept = patch.iter().filter(|(name, _)| *name != DIRECTIVE);
            *target = Value::Object(
                kept.map(|(name, value)| (name.clone(), value.clone()))
                    .collect(),
            );
            return Ok(());
        }
        Some(Some("delete")) => {
            *target = Value::Object(Map::new());
            return Ok(());
        }
        Some(other) => {
            return Err(malformed(format!(
                "unknown {DIRECTIVE} directive {other:?}"
            )));
        }
    }
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let Value::Object(map) = target else {
        return Ok(());
    };
    if let Some(retained) = patch.get(RETAIN).and_then(Value::as_array) {
        map.retain(|name, _| retained.iter().any(|kept| kept == name.as_str()));
    }
    for (name, value) in patch {
        if let Some(list) = name.strip_prefix(DELETE_FROM) {
            let gone = value
                .as_array()
                .ok_or_else(|| malformed(format!("{name} must be a list")))?;
            if let Some(items) = map.get_mut(list).and_then(Value::as_array_mut) {
                items.retain(|item| !gone.contains(item));
            }
        } else if !name.starts_with('$') {
            merge_member(
                map,
                name,
                value,
                schema.and_then(|schema| schema.member(name)),
            )?;
        }
    }
    for (name, order) in patch {
        if let Some(list) = name.strip_prefix(ORDER)
            && let (Some(order), Some(items)) = (
                order.as_array(),
                map.get_mut(list).and_then(Value::as_array_mut),
            )
        {
            let key = merge_key(schema.and_then(|schema| schema.member(list)));
            set_order(items, order, key.as_deref());
        }
    }
    Ok(())
}

fn merge_key(schema: Option<&Schema>) -> Option<String> {
    schema?.patch_strategy.as_ref()?.key.clone()
}

fn merge_member(
    map: &mut Map<String, Value>,
    name: &str,
    value: &Value,
    schema: Option<&Schema>,
) -> Result<(), PatchError> {
    match value {
        Value::Null => {
            map.remove(name);
        }
        Value::Object(patch) => {
            if patch.get(DIRECTIVE).and_then(Value::as_str) == Some("delete") {
                map.remove(name);
            } else {
                merge_map(
                    map.entry(name.to_owned()).or_insert(Value::Null),
                    patch,
                    schema,
                )?;
            }
        }
        Value::Array(items) if merges(schema) => {
            let target = map
                .entry(name.to_owned())
                .or_insert_with(|| Value::Array(Vec::new()));
            if !target.is_array() {
                *target = Value::Array(Vec::new());
            }
            if let Value::Array(target) = target {
                merge_list(target, items, schema)?;
            }
        }
        other => {
            map.insert(name.to_owned(), other.clone());
        }
    }
    Ok(())
}

fn merges(schema: Option<&Schema>) -> bool {
    schema
        .and_then(|schema| schema.patch_strategy.as_ref())
        .is_some_and(|strategy| strategy.merge)
}

fn merge_list(
    target: &mut Vec<Value>,
    patch: &[Value],
    schema: Option<&Schema>,
) -> Result<(), PatchError> {
    let is_replace = |item: &Value| item.get(DIRECTIVE).and_then(Value::as_str) == Some("replace");
    if patch.iter().any(is_replace) {
        *target = patch
            .iter()
            .filter(|item| !is_replace(item))
            .cloned()
            .collect();
        return Ok(());
    }
    let Some(key) = merge_key(schema) else {
        for item in patch {
            if !target.contains(item) {
                target.push(item.clone());
            }
        }
        return Ok(());
    };
    let item_schema = schema.and_then(|schema| schema.items.as_deref());
    for item in patch {
        let wanted = item.get(&key).ok_or_else(|| {
            malformed(format!(
                "map: {item} does not contain declared merge key: {key}"
            ))
        })?;
        if item.get(DIRECTIVE).and_then(Value::as_str) == Some("delete") {
            target.retain(|known| known.get(&key) != Some(wanted));
            continue;
        }
        let Some(members) = item.as_object() else {
            continue;
        };
        match target
            .iter_mut()
            .find(|known| known.get(&key) == Some(wanted))
        {
            Some(known) => merge_map(known, members, item_schema)?,
            None => {
                let mut fresh = Value::Object(Map::new());
                merge_map(&mut fresh, members, item_schema)?;
                target.push(fresh);
            }
        }
    }
    Ok(())
}

/// Puts the items named in `order` into that order; the places of the others stay.
fn set_order(items: &mut [Value], order: &[Value], key: Option<&str>) {
    let identity = |item: &Value| match key {
        Some(key) => item.get(key).cloned().unwrap_or(Value::Null),
        None => item.clone(),
    };
    let wanted: Vec<Value> = order.iter().map(identity).collect();
    let rank = |item: &Value| {
        let own = identity(item);
        wanted.iter().position(|other| *other == own)
    };
    let slots: Vec<usize> = (0..items.len())
        .filter(|index| rank(&items[*index]).is_some())
        .collect();
    let mut named: Vec<Value> = slots.iter().map(|index| items[*index].clone()).collect();
    named.sort_by_key(|item| rank(item));
    for (slot, item) in slots.into_iter().zip(named) {
        items[slot] = item;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::core::testing::any_json;

    fn schema() -> Schema {
        let item = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
        let document = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true, "properties": {
            "containers": {"type": "array", "items": item, "x-kubernetes-patch-strategy": "merge", "x-kubernetes-patch-merge-key": "name"},
            "finalizers": {"type": "array", "items": {"type": "string"}, "x-kubernetes-patch-strategy": "merge"},
            "args": {"type": "array", "items": {"type": "string"}},
        }});
        Schema::parse(&document, "").expect("structural")
    }

    fn patched(mut target: Value, patch: &Value) -> Result<Value, PatchError> {
        apply(&mut target, patch, &schema()).map(|()| target)
    }

    #[test]
    fn lists_merge_by_key_or_value_or_are_replaced() {
        for (target, patch, expected) in [
            (
                json!({"containers": [{"name": "a", "image": "1"}, {"name": "b"}]}),
                json!({"containers": [{"name": "a", "image": "2"}, {"name": "c"}]}),
                json!({"containers": [{"name": "a", "image": "2"}, {"name": "b"}, {"name": "c"}]}),
            ),
            (
                json!({"containers": [{"name": "a"}, {"name": "b"}]}),
                json!({"containers": [{"name": "a", "$patch": "delete"}]}),
                json!({"containers": [{"name": "b"}]}),
            ),
            (
                json!({"containers": [{"name": "a"}]}),
                json!({"containers": [{"$patch": "replace"}, {"name": "z"}]}),
                json!({"containers": [{"name": "z"}]}),
            ),
            (
                json!({"containers": [{"name": "a"}, {"name": "b"}]}),
                json!({"$setElementOrder/containers": [{"name": "b"}, {"name": "a"}], "containers": [{"name": "b", "x": 1}]}),
                json!({"containers": [{"name": "b", "x": 1}, {"name": "a"}]}),
            ),
            (
                json!({"finalizers": ["a"]}),
                json!({"finalizers": ["a", "b"]}),
                json!({"finalizers": ["a", "b"]}),
            ),
            (
                json!({"finalizers": ["a", "b"]}),
                json!({"$deleteFromPrimitiveList/finalizers": ["a"]}),
                json!({"finalizers": ["b"]}),
            ),
            (
                json!({"args": ["a"]}),
                json!({"args": ["b"]}),
                json!({"args": ["b"]}),
            ),
        ] {
            assert_eq!(patched(target, &patch), Ok(expected));
        }
    }

    #[test]
    fn maps_merge_and_follow_directives() {
        for (target, patch, expected) in [
            (
                json!({"m": {"a": 1, "b": 2}}),
                json!({"m": {"a": null, "c": 3}}),
                json!({"m": {"b": 2, "c": 3}}),
            ),
            (
                json!({"m": {"a": 1}}),
                json!({"m": {"$patch": "replace", "b": 2}}),
                json!({"m": {"b": 2}}),
            ),
            (
                json!({"m": {"a": 1}, "n": 1}),
                json!({"m": {"$patch": "delete"}}),
                json!({"n": 1}),
            ),
            (
                json!({"m": {"a": 1, "b": 2}}),
                json!({"m": {"$retainKeys": ["b"]}}),
                json!({"m": {"b": 2}}),
            ),
        ] {
            assert_eq!(patched(target, &patch), Ok(expected));
        }
        assert!(patched(json!({}), &json!({"containers": [{"image": "x"}]})).is_err());
        assert!(patched(json!({}), &json!({"m": {"$patch": "smash"}})).is_err());
        assert!(patched(json!({}), &json!([])).is_err());
    }

    proptest! {
        #[test]
        fn without_directives_and_lists_it_is_a_merge_patch(target in any_json(), patch in any_json()) {
            prop_assume!(patch.is_object());
            let mut plain = target.clone();
            crate::core::patch::merge::apply(&mut plain, &patch);
            prop_assert_eq!(patched(target, &patch), Ok(plain));
        }
    }
}
