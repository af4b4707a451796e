//! Sets of fields, as `managedFields` writes them (`FieldsV1`).

use std::collections::BTreeMap;

use serde_json::{Map, Value};

/// Deepest nesting read from a client's document.
const MAX_DEPTH: usize = 64;

/// A set of fields: a tree of path elements, each itself in the set or only on the way to one that
/// is.
///
/// Elements are kept in their wire spelling: `f:<member>`, `k:<keys of a list item as JSON>`,
/// `v:<value as JSON>`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FieldSet {
    /// The element itself is in the set.
    pub member: bool,
    children: BTreeMap<String, FieldSet>,
}

impl FieldSet {
    /// A set of only the root.
    #[must_use]
    pub fn leaf() -> Self {
        Self {
            member: true,
            children: BTreeMap::new(),
        }
    }

    /// Whether no field is in the set.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        !self.member && self.children.values().all(Self::is_empty)
    }

    /// The part below an element.
    #[must_use]
    pub fn child(&self, element: &str) -> Option<&Self> {
        self.children.get(element)
    }

    /// Puts a part below an element; an empty part is left out.
    pub fn insert(&mut self, element: String, part: Self) {
        if part.is_empty() {
            return;
        }
        match self.children.get_mut(&element) {
            Some(known) => *known = known.union(&part),
            None => {
                self.children.insert(element, part);
            }
        }
    }

    /// Returns the fields that are in either set.
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        let mut children = self.children.clone();
        for (element, part) in &other.children {
            let merged = children
                .get(element)
                .map_or_else(|| part.clone(), |known| known.union(part));
            children.insert(element.clone(), merged);
        }
        Self {
            member: self.member || other.member,
            children,
        }
    }

    /// Returns the fields that are in both sets.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        let mut set = Self {
            member: self.member && other.member,
            children: BTreeMap::new(),
        };
        for (element, part) in &self.children {
            if let Some(theirs) = other.children.get(element) {
                set.insert(element.clone(), part.intersection(theirs));
            }
        }
        set
    }

    /// Fields in `self` that are not in `other`.
    #[must_use]
    pub fn difference(&self, other: &Self) -> Self {
        let mut set = Self {
            member: self.member && !other.member,
            children: BTreeMap::new(),
        };
        for (element, part) in &self.children {
            let left = other
                .children
                .get(element)
                .map_or_else(|| part.clone(), |theirs| part.difference(theirs));
            set.insert(element.clone(), left);
        }
        set
    }

    /// Fields in `self` that are neither in `other` nor have a field of `other` below them.
    #[must_use]
    pub fn unheld(&self, other: &Self) -> Self {
        let mut set = Self {
            member: self.member && other.is_empty(),
            children: BTreeMap::new(),
        };
        for (element, part) in &self.children {
            let left = other
                .children
                .get(element)
                .map_or_else(|| part.clone(), |theirs| part.unheld(theirs));
            set.insert(element.clone(), left);
        }
        set
    }

    /// Paths as people read them: `.spec.guest.cpus.use`, `.spec.containers[name="a"].image`.
    #[must_use]
    pub fn paths(&self) -> Vec<String> {
        let mut paths = Vec::new();
        self.collect_paths("", &mut paths);
        paths
    }

    fn collect_paths(&self, prefix: &str, paths: &mut Vec<String>) {
        if self.member {
            paths.push(prefix.to_owned());
        }
        for (element, part) in &self.children {
            part.collect_paths(&format!("{prefix}{}", readable(element)), paths);
        }
    }

    /// Returns the set in the form of `fieldsV1`.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let mut map = Map::new();
        if self.member && !self.children.is_empty() {
            map.insert(".".to_owned(), Value::Object(Map::new()));
        }
        for (element, part) in &self.children {
            map.insert(element.clone(), part.to_json());
        }
        Value::Object(map)
    }

    /// Reads a `fieldsV1` member; `None` if it is none.
    #[must_use]
    pub fn from_json(value: &Value) -> Option<Self> {
        let mut set = Self::read(value, 0)?;
        // At the root an empty map means no fields at all.
        set.member = value.get(".").is_some();
        Some(set)
    }

    fn read(value: &Value, depth: usize) -> Option<Self> {
        let map = value.as_object()?;
        if depth > MAX_DEPTH {
            return None;
        }
        let mut set = Self {
            member: map.is_empty() || map.contains_key("."),
            children: BTreeMap::new(),
        };
        for (element, part) in map.iter().filter(|(element, _)| *element != ".") {
            set.insert(canonical(element)?, Self::read(part, depth + 1)?);
        }
        Some(set)
    }
}

/// The element of an object member.
#[must_use]
pub(super) fn field(name: &str) -> String {
    format!("f:{name}")
}

/// The element of an item of a set.
#[must_use]
pub(super) fn item_value(item: &Value) -> String {
    format!("v:{item}")
}

/// The element of an item of a map-like list.
#[must_use]
pub(super) fn item_key(keys: Map<String, Value>) -> String {
    format!("k:{}", Value::Object(keys))
}

/// One spelling per element: JSON without spaces, members in order.
fn canonical(element: &str) -> Option<String> {
    let (kind, rest) = element.split_at_checked(2)?;
    match kind {
        "f:" | "i:" => Some(element.to_owned()),
        "k:" | "v:" => {
            let value: Value = serde_json::from_str(rest).ok()?;
            Some(format!("{kind}{value}"))
        }
        _ => None,
    }
}

fn readable(element: &str) -> String {
    let (kind, rest) = element.split_at_checked(2).unwrap_or(("", element));
    match (kind, serde_json::from_str::<Value>(rest)) {
        ("k:", Ok(Value::Object(keys))) => {
            let keys: Vec<String> = keys
                .iter()
                .map(|(name, value)| format!("{name}={value}"))
                .collect();
            format!("[{}]", keys.join(","))
        }
        ("v:", _) => format!("[={rest}]"),
        ("i:", _) => format!("[{rest}]"),
        _ => format!(".{rest}"),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    pub(super) fn any_set() -> impl Strategy<Value = FieldSet> {
        let leaf = any::<bool>().prop_map(|member| FieldSet {
            member,
            ..FieldSet::default()
        });
        leaf.prop_recursive(3, 16, 3, |inner| {
            (
                any::<bool>(),
                prop::collection::btree_map("f:[abc]", inner, 0..3),
            )
                .prop_map(|(member, parts)| {
                    let mut set = FieldSet {
                        member,
                        ..FieldSet::default()
                    };
                    for (element, part) in parts {
                        set.insert(element, part);
                    }
                    set
                })
        })
    }

    #[test]
    fn the_wire_form_is_read_and_written() {
        let wire = json!({"f:metadata": {"f:labels": {".": {}, "f:a": {}}},
            "f:spec": {"f:containers": {"k:{\"name\":\"c\"}": {".": {}, "f:image": {}}}, "f:finalizers": {"v:\"x\"": {}}}});
        let set = FieldSet::from_json(&wire).expect("read");
        assert_eq!(set.to_json(), wire);
        assert_eq!(
            set.paths(),
            [
                ".metadata.labels",
                ".metadata.labels.a",
                ".spec.containers[name=\"c\"]",
                ".spec.containers[name=\"c\"].image",
                ".spec.finalizers[=\"x\"]",
            ]
        );
        assert_eq!(FieldSet::from_json(&json!({"x:a": {}})), None);
        assert_eq!(FieldSet::from_json(&json!({})), Some(FieldSet::default()));
    }

    proptest! {
        #[test]
        fn sets_follow_the_laws(a in any_set(), b in any_set()) {
            prop_assert_eq!(a.union(&b).paths(), b.union(&a).paths());
            prop_assert_eq!(a.intersection(&b).paths(), b.intersection(&a).paths());
            prop_assert!(a.difference(&b).intersection(&b).is_empty());
            prop_assert_eq!(a.difference(&b).union(&a.intersection(&b)).paths(), a.paths());
            prop_assert!(a.unheld(&b).difference(&a.difference(&b)).is_empty());
        }

        #[test]
        fn the_wire_form_keeps_every_path(mut a in any_set()) {
            a.member = false;
            prop_assert_eq!(FieldSet::from_json(&a.to_json()).expect("read").paths(), a.paths());
        }
    }
}
