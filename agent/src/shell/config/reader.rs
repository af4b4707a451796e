//! Reads a JSON object key by key and collects all problems.

use std::collections::BTreeSet;
use std::path::PathBuf;

use serde_json::{Map, Value};

use super::sections::Seconds;
use crate::core::config::Problem;

/// Longest piece of a value in a problem, characters.
const SHOWN_CHARS: usize = 80;

const UNSIGNED: &str = "must be a whole number, 0 or more";
const NON_ZERO: &str = "must be a whole number above 0";

/// Reader of one object. [`Self::finish`] reports keys that were never read.
pub(super) struct Reader<'a> {
    path: String,
    object: &'a Map<String, Value>,
    known: BTreeSet<&'static str>,
    problems: &'a mut Vec<Problem>,
}

impl<'a> Reader<'a> {
    pub(super) fn new(object: &'a Map<String, Value>, problems: &'a mut Vec<Problem>) -> Self {
        Self {
            path: String::new(),
            object,
            known: BTreeSet::new(),
            problems,
        }
    }

    fn full(&self, key: &str) -> String {
        if self.path.is_empty() {
            key.to_owned()
        } else {
            format!("{}.{key}", self.path)
        }
    }

    pub(super) fn problem(&mut self, key: &str, value: &str, rule: &'static str) {
        let (key, value) = (self.full(key), value.chars().take(SHOWN_CHARS).collect());
        self.problems.push(Problem { key, value, rule });
    }

    pub(super) fn has_problem(&self, key: &str) -> bool {
        let full = self.full(key);
        self.problems.iter().any(|problem| problem.key == full)
    }

    /// The value of a key; `null` is the same as absent.
    fn get(&mut self, key: &'static str) -> Option<&'a Value> {
        self.known.insert(key);
        self.object.get(key).filter(|value| !value.is_null())
    }

    /// The value of a key; `None` when it is absent, or of a wrong type, which is reported.
    fn typed<T>(
        &mut self,
        key: &'static str,
        rule: &'static str,
        read: impl FnOnce(&Value) -> Option<T>,
    ) -> Option<T> {
        let value = self.get(key)?;
        let got = read(value);
        if got.is_none() {
            self.problem(key, &value.to_string(), rule);
        }
        got
    }

    pub(super) fn parsed<T>(
        &mut self,
        key: &'static str,
        rule: &'static str,
        read: impl FnOnce(&Value) -> Result<T, String>,
    ) -> Option<T> {
        self.typed(key, rule, |value| read(value).ok())
    }

    pub(super) fn optional_number(&mut self, key: &'static str) -> Option<u64> {
        self.typed(key, UNSIGNED, Value::as_u64)
    }

    pub(super) fn number(&mut self, key: &'static str) -> u64 {
        self.optional_number(key).unwrap_or(0)
    }

    pub(super) fn non_zero_number(&mut self, key: &'static str) -> u64 {
        let is_broken = self.get(key).is_some_and(|value| value.as_u64().is_none());
        let value = self.typed(key, NON_ZERO, Value::as_u64).unwrap_or(0);
        if value == 0 && !is_broken {
            let shown = if self.object.contains_key(key) {
                "0"
            } else {
                "absent"
            };
            self.problem(key, shown, NON_ZERO);
        }
        value
    }

    pub(super) fn seconds(&mut self, key: &'static str) -> Seconds {
        Seconds(self.non_zero_number(key))
    }

    pub(super) fn port(&mut self, key: &'static str) -> u16 {
        let value = self.non_zero_number(key);
        u16::try_from(value).unwrap_or_else(|_| {
            self.problem(key, &value.to_string(), "must be a port from 1 to 65535");
            0
        })
    }

    /// The whole object, for another reader. `keys` count as read.
    pub(super) fn members(&mut self, keys: &[&'static str]) -> &'a Map<String, Value> {
        self.known.extend(keys);
        self.object
    }

    pub(super) fn positive_float(&mut self, key: &'static str) -> f64 {
        const RULE: &str = "must be a number above 0";
        let is_broken = self.get(key).is_some_and(|value| !value.is_number());
        let value = self.typed(key, RULE, Value::as_f64).unwrap_or(0.0);
        if value <= 0.0 && !is_broken {
            let shown = self.object.get(key).filter(|value| !value.is_null());
            let shown = shown.map_or_else(|| "absent".to_owned(), Value::to_string);
            self.problem(key, &shown, RULE);
        }
        value
    }

    pub(super) fn optional_text(&mut self, key: &'static str) -> String {
        self.typed(key, "must be a text", |value| {
            value.as_str().map(str::to_owned)
        })
        .unwrap_or_default()
    }

    /// A path that may be absent but not empty.
    pub(super) fn optional_path(&mut self, key: &'static str) -> Option<PathBuf> {
        self.get(key)?;
        Some(self.text(key).into())
    }

    pub(super) fn text(&mut self, key: &'static str) -> String {
        let is_broken = self.get(key).is_some_and(|value| !value.is_string());
        let text = self.optional_text(key);
        if text.is_empty() && !is_broken {
            let shown = if self.object.contains_key(key) {
                "\"\""
            } else {
                "absent"
            };
            self.problem(key, shown, "must not be empty");
        }
        text
    }

    pub(super) fn raw(&mut self, key: &'static str) -> Value {
        self.get(key)
            .cloned()
            .unwrap_or_else(|| Value::Object(Map::new()))
    }

    /// Reads a nested object. An absent one counts as empty, so its required keys are reported.
    pub(super) fn object<T>(
        &mut self,
        key: &'static str,
        read: impl FnOnce(&mut Reader<'_>) -> T,
    ) -> T {
        let empty = Map::new();
        let object = match self.get(key) {
            Some(Value::Object(object)) => object,
            None => &empty,
            Some(other) => {
                self.problem(key, &other.to_string(), "must be an object");
                &empty
            }
        };
        let mut nested = Reader {
            path: self.full(key),
            object,
            known: BTreeSet::new(),
            problems: self.problems,
        };
        let value = read(&mut nested);
        nested.finish();
        value
    }

    /// Reads a nested object without required keys.
    pub(super) fn object_or_empty(
        &mut self,
        key: &'static str,
        read: impl FnOnce(&mut Reader<'_>),
    ) {
        self.object(key, read);
    }

    pub(super) fn optional_object<T>(
        &mut self,
        key: &'static str,
        read: impl FnOnce(&mut Reader<'_>) -> T,
    ) -> Option<T> {
        self.get(key)?;
        Some(self.object(key, read))
    }

    /// Reports keys that were never read.
    pub(super) fn finish(&mut self) {
        let unknown: Vec<(&String, &Value)> = self
            .object
            .iter()
            .filter(|(key, _)| !self.known.contains(key.as_str()))
            .collect();
        for (key, value) in unknown {
            self.problem(key, &value.to_string(), "is not a known key");
        }
    }
}
