//! A reader of one JSON object that reports all problems at once.
//!
//! The caller takes each member out by its name and receives a placeholder for a bad one. Members
//! that are left at the end are problems too.

use serde_json::{Map, Value};

/// The members of one object that are not taken out, and the problems found so far.
pub(super) struct Reader {
    prefix: &'static str,
    members: Map<String, Value>,
    problems: Vec<String>,
}

impl Reader {
    pub(super) fn new(prefix: &'static str, members: Map<String, Value>) -> Self {
        Self {
            prefix,
            members,
            problems: Vec::new(),
        }
    }

    pub(super) fn take(&mut self, key: &str) -> Option<Value> {
        let names = self
            .members
            .keys()
            .filter(|name| name.eq_ignore_ascii_case(key));
        let names: Vec<String> = names.cloned().collect();
        if names.len() > 1 {
            self.problems
                .push(format!("{}{key} is given more than once", self.prefix));
        }
        let mut last = None;
        for name in names {
            last = self.members.remove(&name);
        }
        last.filter(|value| !value.is_null())
    }

    fn need<T>(
        &mut self,
        key: &str,
        what: &str,
        read: impl FnOnce(&Value) -> Option<T>,
    ) -> Option<T> {
        let Some(value) = self.take(key) else {
            self.problems
                .push(format!("{}{key} is missing", self.prefix));
            return None;
        };
        let found = read(&value);
        if found.is_none() {
            self.problems
                .push(format!("{}{key} must be {what}, not {value}", self.prefix));
        }
        found
    }

    pub(super) fn number(&mut self, key: &str, valid: impl Fn(f64) -> bool, range: &str) -> f64 {
        let what = format!("a number {range}");
        self.need(key, &what, |value| value.as_f64().filter(|n| valid(*n)))
            .unwrap_or_default()
    }

    pub(super) fn positive(&mut self, key: &str) -> u64 {
        let read = |value: &Value| value.as_u64().filter(|n| *n > 0);
        self.need(key, "a whole number above 0", read)
            .unwrap_or_default()
    }

    pub(super) fn text(&mut self, key: &str) -> String {
        let read = |value: &Value| {
            value
                .as_str()
                .filter(|text| !text.is_empty())
                .map(str::to_owned)
        };
        self.need(key, "a text that is not empty", read)
            .unwrap_or_default()
    }

    pub(super) fn optional<T: Default + for<'de> serde::Deserialize<'de>>(
        &mut self,
        key: &str,
        what: &str,
    ) -> T {
        let Some(value) = self.take(key) else {
            return T::default();
        };
        T::deserialize(&value).unwrap_or_else(|_| {
            self.problems
                .push(format!("{}{key} must be {what}, not {value}", self.prefix));
            T::default()
        })
    }

    pub(super) fn finish(mut self) -> Vec<String> {
        let unknown = self
            .members
            .keys()
            .map(|key| format!("{}{key} is not known", self.prefix));
        let unknown: Vec<String> = unknown.collect();
        self.problems.extend(unknown);
        self.problems
    }
}
