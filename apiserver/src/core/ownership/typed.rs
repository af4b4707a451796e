//! Objects seen as sets of fields: which there are, which differ, merging them and taking some
//! away.
//!
//! The schema says what is one field: scalars, atomic maps and lists are; granular maps, keyed
//! lists and sets are not. Below unknown members maps are granular and lists are atomic.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::set::{FieldSet, field, item_key, item_value};
use crate::core::schema::{ListType, Schema, apply_defaults};

/// What distinguishes two states of an object.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Comparison {
    /// Fields new or of another value in the new state.
    pub changed: FieldSet,
    /// Fields that the new object lacks.
    pub removed: FieldSet,
}

/// How a value is taken apart.
enum Parts<'a> {
    /// Not at all.
    Whole,
    /// Into named members.
    Members(&'a Map<String, Value>),
    /// Into items, each with the element that names it.
    Items(Vec<(String, &'a Value)>),
}

fn parts<'a>(value: &'a Value, schema: Option<&Schema>) -> Parts<'a> {
    match value {
        Value::Object(map) if !schema.is_some_and(|schema| schema.atomic_map) => {
            Parts::Members(map)
        }
        Value::Array(items) => {
            let Some(schema) = schema else {
                return Parts::Whole;
            };
            let named: Option<Vec<(String, &Value)>> = match &schema.list_type {
                ListType::Atomic => None,
                ListType::Set => Some(items.iter().map(|item| (item_value(item), item)).collect()),
                ListType::Map(keys) => {
                    let item_schema = schema.items.as_deref();
                    items
                        .iter()
                        .map(|item| Some((key_of(item, keys, item_schema)?, item)))
                        .collect()
                }
            };
            named.map_or(Parts::Whole, Parts::Items)
        }
        _ => Parts::Whole,
    }
}

/// The element of a keyed item; a missing key takes its default. `None` if the item has no key at
/// all.
fn key_of(item: &Value, keys: &[String], schema: Option<&Schema>) -> Option<String> {
    let map = item.as_object()?;
    let mut found = Map::new();
    for key in keys {
        let default = || schema?.properties.get(key)?.default.clone();
        if let Some(value) = map.get(key).cloned().or_else(default) {
            found.insert(key.clone(), value);
        }
    }
    (!found.is_empty()).then(|| item_key(found))
}

fn member_schema<'a>(schema: Option<&'a Schema>, name: &str) -> Option<&'a Schema> {
    schema.and_then(|schema| schema.member(name))
}

fn item_schema(schema: Option<&Schema>) -> Option<&Schema> {
    schema.and_then(|schema| schema.items.as_deref())
}

/// Whether the schema names this member itself, so that the way to its parts is not a field of its
/// own.
fn is_named(schema: Option<&Schema>, name: &str) -> bool {
    schema.is_some_and(|schema| schema.properties.contains_key(name))
}

/// All fields of a value.
#[must_use]
pub fn fields_of(value: &Value, schema: Option<&Schema>) -> FieldSet {
    match parts(value, schema) {
        Parts::Whole => FieldSet::leaf(),
        Parts::Members(map) if map.is_empty() => FieldSet::leaf(),
        Parts::Members(map) => {
            let mut set = FieldSet::default();
            for (name, member) in map {
                let mut part = fields_of(member, member_schema(schema, name));
                part.member |= !is_named(schema, name);
                set.insert(field(name), part);
            }
            set
        }
        Parts::Items(items) if items.is_empty() => FieldSet::leaf(),
        Parts::Items(items) => {
            let mut set = FieldSet::default();
            for (element, item) in items {
                let mut part = fields_of(item, item_schema(schema));
                part.member = true;
                set.insert(element, part);
            }
            set
        }
    }
}

/// Fills in defaults inside the fields of a config that have one owner as a whole: their owner
/// states those too, and the live object has them.
pub fn default_whole_fields(config: &mut Value, schema: Option<&Schema>) {
    let whole = matches!(parts(config, schema), Parts::Whole);
    match config {
        _ if whole => {
            if let Some(schema) = schema {
                apply_defaults(config, schema);
            }
        }
        Value::Object(map) => {
            for (name, member) in map.iter_mut() {
                default_whole_fields(member, member_schema(schema, name));
            }
        }
        Value::Array(items) => {
            for item in items {
                default_whole_fields(item, item_schema(schema));
            }
        }
        _ => {}
    }
}

/// One part of two states.
struct Child<'a> {
    element: String,
    before: Option<&'a Value>,
    after: Option<&'a Value>,
    schema: Option<&'a Schema>,
    /// The part is a field of its own, beside what is inside it.
    own: bool,
}

/// The parts of two states, or `None` when they are not taken apart alike.
fn children<'a>(
    old: &'a Value,
    new: &'a Value,
    schema: Option<&'a Schema>,
) -> Option<Vec<Child<'a>>> {
    match (parts(old, schema), parts(new, schema)) {
        (Parts::Members(before), Parts::Members(after)) => {
            let fresh = after.keys().filter(|name| !before.contains_key(*name));
            let child = |name: &String| Child {
                element: field(name),
                before: before.get(name),
                after: after.get(name),
                schema: member_schema(schema, name),
                own: !is_named(schema, name),
            };
            Some(before.keys().chain(fresh).map(child).collect())
        }
        (Parts::Items(before), Parts::Items(after)) => {
            let before: BTreeMap<String, &Value> = before.into_iter().collect();
            let after: BTreeMap<String, &Value> = after.into_iter().collect();
            let fresh = after
                .keys()
                .filter(|element| !before.contains_key(*element));
            let child = |element: &String| Child {
                element: element.clone(),
                before: before.get(element).copied(),
                after: after.get(element).copied(),
                schema: item_schema(schema),
                own: true,
            };
            Some(before.keys().chain(fresh).map(child).collect())
        }
        _ => None,
    }
}

/// What changed from `old` to `new`.
#[must_use]
pub fn compare(old: &Value, new: &Value, schema: Option<&Schema>) -> Comparison {
    if old == new {
        return Comparison::default();
    }
    let Some(children) = children(old, new, schema) else {
        // Another form, or one field as a whole.
        return Comparison {
            changed: fields_of(new, schema),
            removed: FieldSet::default(),
        };
    };
    let mut comparison = Comparison::default();
    // An empty map or list is a field of its own.
    comparison.changed.member = is_empty(new) && !is_empty(old);
    comparison.removed.member = is_empty(old) && !is_empty(new);
    for child in children {
        let whole = |value: &Value| {
            let mut set = fields_of(value, child.schema);
            set.member |= child.own;
            set
        };
        match (child.before, child.after) {
            (Some(before), Some(after)) => {
                let inner = compare(before, after, child.schema);
                comparison
                    .changed
                    .insert(child.element.clone(), inner.changed);
                comparison.removed.insert(child.element, inner.removed);
            }
            (None, Some(after)) => comparison.changed.insert(child.element, whole(after)),
            (Some(before), None) => comparison.removed.insert(child.element, whole(before)),
            (None, None) => {}
        }
    }
    comparison
}

fn is_empty(value: &Value) -> bool {
    value.as_object().is_some_and(Map::is_empty) || value.as_array().is_some_and(Vec::is_empty)
}

/// `live` with everything `config` says.
#[must_use]
pub fn merge(live: &Value, config: &Value, schema: Option<&Schema>) -> Value {
    match (parts(live, schema), parts(config, schema)) {
        (Parts::Members(before), Parts::Members(wanted)) => {
            let mut merged = before.clone();
            for (name, member) in wanted {
                let schema = member_schema(schema, name);
                let value = match before.get(name) {
                    Some(known) => merge(known, member, schema),
                    None => member.clone(),
                };
                merged.insert(name.clone(), value);
            }
            Value::Object(merged)
        }
        (Parts::Items(before), Parts::Items(wanted)) => {
            let known: BTreeMap<&str, &Value> = before
                .iter()
                .map(|(element, item)| (element.as_str(), *item))
                .collect();
            let stated: BTreeMap<&str, &Value> = wanted
                .iter()
                .map(|(element, item)| (element.as_str(), *item))
                .collect();
            let kept = before
                .iter()
                .map(|(element, item)| match stated.get(element.as_str()) {
                    Some(config) => merge(item, config, item_schema(schema)),
                    None => (*item).clone(),
                });
            let fresh = wanted
                .iter()
                .filter(|(element, _)| !known.contains_key(element.as_str()));
            kept.chain(fresh.map(|(_, item)| (*item).clone())).collect()
        }
        _ => config.clone(),
    }
}

/// `value` without the fields of `gone`. A map or list that becomes empty by it goes too (`None`).
#[must_use]
pub fn without(value: &Value, gone: &FieldSet, schema: Option<&Schema>) -> Option<Value> {
    match parts(value, schema) {
        Parts::Whole => Some(value.clone()),
        Parts::Members(map) => {
            let mut left = Map::new();
            for (name, member) in map {
                let kept = keep(
                    member,
                    gone.child(&field(name)),
                    member_schema(schema, name),
                );
                if let Some(kept) = kept {
                    left.insert(name.clone(), kept);
                }
            }
            (!left.is_empty() || map.is_empty()).then_some(Value::Object(left))
        }
        Parts::Items(items) => {
            let kept = items
                .iter()
                .filter_map(|(element, item)| keep(item, gone.child(element), item_schema(schema)));
            let left: Vec<Value> = kept.collect();
            (!left.is_empty() || items.is_empty()).then_some(Value::Array(left))
        }
    }
}

fn keep(value: &Value, gone: Option<&FieldSet>, schema: Option<&Schema>) -> Option<Value> {
    match gone {
        None => Some(value.clone()),
        Some(gone) if gone.member => None,
        Some(gone) => without(value, gone, schema),
    }
}

#[cfg(test)]
mod tests;
