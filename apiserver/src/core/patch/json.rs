//! JSON Patch (RFC 6902) with the leniency the Kubernetes API server has for members of objects.
//!
//! Differences from the RFC: `replace` of an absent object member sets it, `test` of an absent
//! member against `null` succeeds. `remove` of an absent member fails. Array indices are strict.

use serde_json::Value;

use super::PatchError;
use crate::core::depth;

/// Most operations in one patch, as the real server bounds it.
const MAX_OPERATIONS: usize = 10_000;
/// Most bytes `copy` operations of one patch may add, so that doubling cannot exhaust memory.
const MAX_COPIED_BYTES: usize = 3 << 20;

/// Most values that `copy` and `move` operations of one patch may carry: each is walked to see how
/// deep it is.
const MAX_CARRIED_VALUES: usize = 1 << 20;

/// Applies `patch` (the array of operations) to `document`.
///
/// # Errors
/// [`PatchError::Malformed`] when `patch` is not a list of operations; [`PatchError::DoesNotApply`]
/// naming the first operation that failed. `document` is then half changed and must be thrown away.
pub fn apply(document: &mut Value, patch: &Value) -> Result<(), PatchError> {
    let malformed = |why: &str| PatchError::Malformed(why.to_owned());
    let operations = patch
        .as_array()
        .ok_or_else(|| malformed("a JSON patch must be an array of operations"))?;
    if operations.len() > MAX_OPERATIONS {
        return Err(malformed("a JSON patch may have at most 10000 operations"));
    }
    let (mut copied_bytes, mut carried) = (0, 0);
    let mut carry = |value: &Value| {
        carried += depth::nodes(value);
        match carried {
            0..=MAX_CARRIED_VALUES => Ok(()),
            _ => Err(malformed(
                "copy and move operations carry more than 1048576 values",
            )),
        }
    };
    for operation in operations {
        let text = |key: &str| operation.get(key).and_then(Value::as_str);
        let name = text("op").ok_or_else(|| malformed("an operation needs \"op\""))?;
        let path = text("path").ok_or_else(|| malformed("an operation needs \"path\""))?;
        let path = Pointer::parse(path)?;
        let value = || operation.get("value").cloned().unwrap_or(Value::Null);
        let from = || Pointer::parse(text("from").ok_or_else(|| malformed("\"from\" is missing"))?);
        match name {
            "add" => add(document, &path, value())?,
            "remove" => drop(remove(document, &path)?),
            "replace" => replace(document, &path, value())?,
            "move" => {
                let moved = remove(document, &from()?)?;
                carry(&moved)?;
                add(document, &path, moved)?;
            }
            "copy" => {
                let copy = from()?.find(document)?.clone();
                carry(&copy)?;
                copied_bytes += copy.to_string().len();
                if copied_bytes > MAX_COPIED_BYTES {
                    return Err(malformed("copy operations add more than 3 MiB"));
                }
                add(document, &path, copy)?;
            }
            "test" => test(document, &path, &value())?,
            other => {
                return Err(malformed(&format!(
                    "unexpected kind of operation: {other:?}"
                )));
            }
        }
    }
    Ok(())
}

/// A parsed JSON pointer.
struct Pointer {
    text: String,
    parts: Vec<String>,
}

impl Pointer {
    fn parse(text: &str) -> Result<Self, PatchError> {
        let parts = match text.strip_prefix('/') {
            Some(rest) => rest
                .split('/')
                .map(|part| part.replace("~1", "/").replace("~0", "~"))
                .collect(),
            None if text.is_empty() => Vec::new(),
            None => {
                return Err(PatchError::Malformed(format!(
                    "path {text:?} must start with \"/\""
                )));
            }
        };
        Ok(Self {
            text: text.to_owned(),
            parts,
        })
    }

    fn missing(&self) -> PatchError {
        PatchError::DoesNotApply(format!("path {:?} does not exist", self.text))
    }

    /// Refuses a value that would nest the document deeper than an object may be.
    fn check_depth(&self, value: &Value) -> Result<(), PatchError> {
        let left = depth::MAX_DEPTH.checked_sub(self.parts.len());
        if left.is_some_and(|left| depth::is_within(value, left)) {
            return Ok(());
        }
        let start: String = self.text.chars().take(100).collect();
        let most = depth::MAX_DEPTH;
        Err(PatchError::Malformed(format!(
            "the value for {start:?} would be nested deeper than {most} levels"
        )))
    }

    fn find<'a>(&self, document: &'a Value) -> Result<&'a Value, PatchError> {
        self.parts
            .iter()
            .try_fold(document, |at, part| match at {
                Value::Object(map) => map.get(part),
                Value::Array(items) => items.get(index_of(part)?),
                _ => None,
            })
            .ok_or_else(|| self.missing())
    }

    /// The container of the last part, and that part.
    fn parent<'a>(&self, document: &'a mut Value) -> Result<(&'a mut Value, &str), PatchError> {
        let Some((last, before)) = self.parts.split_last() else {
            return Err(self.missing());
        };
        let container = before.iter().try_fold(document, |at, part| match at {
            Value::Object(map) => map.get_mut(part),
            Value::Array(items) => items.get_mut(index_of(part)?),
            _ => None,
        });
        Ok((container.ok_or_else(|| self.missing())?, last))
    }
}

/// Array indices have no sign and no leading zero.
fn index_of(part: &str) -> Option<usize> {
    let plain =
        part == "0" || (part.bytes().all(|byte| byte.is_ascii_digit()) && !part.starts_with('0'));
    if plain { part.parse().ok() } else { None }
}

fn add(document: &mut Value, path: &Pointer, value: Value) -> Result<(), PatchError> {
    path.check_depth(&value)?;
    if path.parts.is_empty() {
        *document = value;
        return Ok(());
    }
    match path.parent(document)? {
        (Value::Object(map), name) => {
            map.insert(name.to_owned(), value);
        }
        (Value::Array(items), "-") => items.push(value),
        (Value::Array(items), part) => {
            let index = index_of(part).filter(|index| *index <= items.len());
            items.insert(index.ok_or_else(|| path.missing())?, value);
        }
        _ => return Err(path.missing()),
    }
    Ok(())
}

fn remove(document: &mut Value, path: &Pointer) -> Result<Value, PatchError> {
    let removed = match path.parent(document)? {
        (Value::Object(map), name) => map.remove(name),
        (Value::Array(items), part) => index_of(part)
            .filter(|index| *index < items.len())
            .map(|index| items.remove(index)),
        _ => None,
    };
    removed.ok_or_else(|| path.missing())
}

fn replace(document: &mut Value, path: &Pointer, value: Value) -> Result<(), PatchError> {
    path.check_depth(&value)?;
    if path.parts.is_empty() {
        *document = value;
        return Ok(());
    }
    match path.parent(document)? {
        (Value::Object(map), name) => {
            map.insert(name.to_owned(), value);
            Ok(())
        }
        (Value::Array(items), part) => {
            let slot = index_of(part).and_then(|index| items.get_mut(index));
            *slot.ok_or_else(|| path.missing())? = value;
            Ok(())
        }
        _ => Err(path.missing()),
    }
}

fn test(document: &mut Value, path: &Pointer, wanted: &Value) -> Result<(), PatchError> {
    let found = if path.parts.is_empty() {
        Some(&*document)
    } else {
        match path.parent(document)? {
            (Value::Object(map), name) => map.get(name),
            (Value::Array(items), part) => {
                let index = index_of(part).ok_or_else(|| path.missing())?;
                Some(items.get(index).ok_or_else(|| path.missing())?)
            }
            _ => return Err(path.missing()),
        }
    };
    if found.unwrap_or(&Value::Null) == wanted {
        Ok(())
    } else {
        Err(PatchError::DoesNotApply(format!(
            "testing path {:?} failed",
            path.text
        )))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::core::testing::any_json;

    fn patched(mut document: Value, patch: &Value) -> Result<Value, PatchError> {
        apply(&mut document, patch).map(|()| document)
    }

    /// The agent's first patch replaces `/spec/targetRevision`, which is absent then.
    #[test]
    fn replace_of_an_absent_member_sets_it() {
        let patch = json!([
            {"op": "replace", "path": "/spec/guest/cpus/use", "value": "500m"},
            {"op": "replace", "path": "/spec/targetRevision", "value": {"revision": {"value": 1, "flags": 0}}}
        ]);
        let result =
            patched(json!({"spec": {"guest": {"cpus": {"use": 1}}}}), &patch).expect("applies");
        assert_eq!(result["spec"]["guest"]["cpus"]["use"], "500m");
        assert_eq!(result["spec"]["targetRevision"]["revision"]["value"], 1);
    }

    #[test]
    fn absent_members_equal_null_in_a_test_and_cannot_be_removed() {
        let test_null = json!([{"op": "test", "path": "/a/b", "value": null}]);
        assert!(patched(json!({"a": {}}), &test_null).is_ok());
        assert!(patched(json!({"a": {"b": 1}}), &test_null).is_err());
        assert!(
            patched(json!({}), &test_null).is_err(),
            "the parent must exist"
        );
        let remove = json!([{"op": "remove", "path": "/a/b"}]);
        assert!(matches!(
            patched(json!({"a": {}}), &remove),
            Err(PatchError::DoesNotApply(_))
        ));
        let replace = json!([{"op": "replace", "path": "/a/b/c", "value": 1}]);
        assert!(
            patched(json!({"a": {}}), &replace).is_err(),
            "the parent must exist"
        );
    }

    #[test]
    fn the_other_operations_follow_the_rfc() {
        for (document, patch, expected) in [
            (
                json!({"a": [1, 3]}),
                json!([{"op": "add", "path": "/a/1", "value": 2}]),
                json!({"a": [1, 2, 3]}),
            ),
            (
                json!({"a": [1]}),
                json!([{"op": "add", "path": "/a/-", "value": 2}]),
                json!({"a": [1, 2]}),
            ),
            (
                json!({"a": [1, 2]}),
                json!([{"op": "remove", "path": "/a/0"}]),
                json!({"a": [2]}),
            ),
            (
                json!({"a/b": 1}),
                json!([{"op": "replace", "path": "/a~1b", "value": 2}]),
                json!({"a/b": 2}),
            ),
            (
                json!({"a": 1}),
                json!([{"op": "move", "from": "/a", "path": "/b"}]),
                json!({"b": 1}),
            ),
            (
                json!({"a": [1]}),
                json!([{"op": "copy", "from": "/a/0", "path": "/b"}]),
                json!({"a": [1], "b": 1}),
            ),
            (
                json!({"a": 1}),
                json!([{"op": "add", "path": "", "value": []}]),
                json!([]),
            ),
        ] {
            assert_eq!(patched(document, &patch).expect("applies"), expected);
        }
        for patch in [
            json!([{"op": "add", "path": "/a/3", "value": 2}]),
            json!([{"op": "add", "path": "/a/01", "value": 2}]),
            json!([{"op": "replace", "path": "/a/-", "value": 2}]),
            json!([{"op": "test", "path": "/a/0", "value": 2}]),
            json!([{"op": "test", "path": "/a/9", "value": null}]),
            json!([{"op": "add", "path": "/x/y", "value": 2}]),
        ] {
            let result = patched(json!({"a": [1]}), &patch);
            assert!(
                matches!(result, Err(PatchError::DoesNotApply(_))),
                "{patch}: {result:?}"
            );
        }
        for patch in [
            json!({}),
            json!([{}]),
            json!([{"op": "x", "path": ""}]),
            json!([{"op": "add", "path": "a"}]),
        ] {
            let result = patched(json!({"a": [1]}), &patch);
            assert!(
                matches!(result, Err(PatchError::Malformed(_))),
                "{patch}: {result:?}"
            );
        }
    }

    #[test]
    fn doubling_copies_are_bounded() {
        let mut operations =
            vec![json!({"op": "add", "path": "/a", "value": ["0123456789abcdef"]})];
        for _ in 0..40 {
            operations.push(json!({"op": "copy", "from": "/a", "path": "/a/-"}));
        }
        let result = patched(json!({}), &Value::from(operations));
        assert!(matches!(result, Err(PatchError::Malformed(_))));
    }

    proptest! {
        #[test]
        fn adding_then_removing_gives_the_object_back(document in any_json(), value in any_json()) {
            let document = json!({"o": document});
            let patch = json!([{"op": "add", "path": "/new", "value": value}, {"op": "remove", "path": "/new"}]);
            prop_assert_eq!(patched(document.clone(), &patch), Ok(document));
        }

        #[test]
        fn any_document_is_refused_or_applied_without_a_panic(document in any_json(), patch in any_json()) {
            let _ = patched(document, &patch);
        }
    }
}
