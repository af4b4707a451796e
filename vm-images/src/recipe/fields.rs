//! Reads a TOML table field by field. It collects every problem, including unknown fields.

use std::collections::BTreeMap;

use toml::{Table, Value};

use super::problem::Problem;

/// A table that is being read. Each method removes its field. [`Fields::finish`] reports the rest
/// as unknown.
pub(super) struct Fields {
    path: String,
    table: Table,
    known: Vec<&'static str>,
}

impl Fields {
    pub(super) fn new(path: &str, table: Table) -> Self {
        Self {
            path: path.to_owned(),
            table,
            known: Vec::new(),
        }
    }

    /// Full path of a field of this table.
    pub(super) fn at(&self, key: &str) -> String {
        if self.path.is_empty() {
            key.to_owned()
        } else {
            format!("{}.{key}", self.path)
        }
    }

    fn take(&mut self, key: &'static str) -> Option<Value> {
        self.known.push(key);
        self.table.remove(key)
    }

    fn wrong(&self, key: &str, found: &Value, rule: &str, problems: &mut Vec<Problem>) {
        problems.push(Problem {
            at: self.at(key),
            problem: format!("is {} {}", article(found.type_str()), found.type_str()),
            rule: rule.to_owned(),
        });
    }

    pub(super) fn text(
        &mut self,
        key: &'static str,
        problems: &mut Vec<Problem>,
    ) -> Option<String> {
        match self.take(key)? {
            Value::String(text) => Some(text),
            other => {
                self.wrong(key, &other, "must be a string", problems);
                None
            }
        }
    }

    /// A required text. Empty if it is missing, which is recorded as a problem.
    pub(super) fn needed_text(&mut self, key: &'static str, problems: &mut Vec<Problem>) -> String {
        let present = self.table.contains_key(key);
        let text = self.text(key, problems);
        if !present {
            problems.push(self.missing(key));
        }
        text.unwrap_or_default()
    }

    pub(super) fn missing(&self, key: &str) -> Problem {
        Problem {
            at: self.at(key),
            problem: "is missing".into(),
            rule: "it must be given".into(),
        }
    }

    pub(super) fn flag(&mut self, key: &'static str, problems: &mut Vec<Problem>) -> bool {
        match self.take(key) {
            None => false,
            Some(Value::Boolean(flag)) => flag,
            Some(other) => {
                self.wrong(key, &other, "must be true or false", problems);
                false
            }
        }
    }

    /// An integer in `range`. `default` if it is missing or invalid.
    pub(super) fn number(
        &mut self,
        key: &'static str,
        range: std::ops::RangeInclusive<u32>,
        default: Option<u32>,
        problems: &mut Vec<Problem>,
    ) -> u32 {
        let fallback = default.unwrap_or(*range.start());
        let rule = format!(
            "must be an integer from {} to {}",
            range.start(),
            range.end()
        );
        match self.take(key) {
            None => {
                if default.is_none() {
                    problems.push(self.missing(key));
                }
                fallback
            }
            Some(Value::Integer(n)) => match u32::try_from(n).ok().filter(|n| range.contains(n)) {
                Some(n) => n,
                None => {
                    let at = self.at(key);
                    problems.push(Problem {
                        at,
                        problem: format!("is {n}"),
                        rule,
                    });
                    fallback
                }
            },
            Some(other) => {
                self.wrong(key, &other, &rule, problems);
                fallback
            }
        }
    }

    pub(super) fn texts(&mut self, key: &'static str, problems: &mut Vec<Problem>) -> Vec<String> {
        let Some(value) = self.take(key) else {
            return Vec::new();
        };
        let rule = "must be a list of strings";
        let Value::Array(items) = value else {
            self.wrong(key, &value, rule, problems);
            return Vec::new();
        };
        let mut texts = Vec::with_capacity(items.len());
        for item in items {
            match item {
                Value::String(text) => texts.push(text),
                other => self.wrong(key, &other, rule, problems),
            }
        }
        texts
    }

    /// A table of `name = value`, with the values as texts.
    pub(super) fn settings(
        &mut self,
        key: &'static str,
        problems: &mut Vec<Problem>,
    ) -> BTreeMap<String, String> {
        let Some(table) = self.table(key, problems) else {
            return BTreeMap::new();
        };
        let mut settings = BTreeMap::new();
        for (name, value) in table.table {
            let text = match value {
                Value::String(text) => text,
                Value::Integer(n) => n.to_string(),
                Value::Boolean(flag) => if flag { "on" } else { "off" }.to_owned(),
                other => {
                    self.wrong(
                        &format!("{key}.{name}"),
                        &other,
                        "must be a string, integer or boolean",
                        problems,
                    );
                    continue;
                }
            };
            settings.insert(name, text);
        }
        settings
    }

    pub(super) fn table(&mut self, key: &'static str, problems: &mut Vec<Problem>) -> Option<Self> {
        match self.take(key)? {
            Value::Table(table) => Some(Self::new(&self.at(key), table)),
            other => {
                self.wrong(key, &other, "must be a table", problems);
                None
            }
        }
    }

    /// A list of tables (`[[key]]`). Each is named by its position.
    pub(super) fn tables(&mut self, key: &'static str, problems: &mut Vec<Problem>) -> Vec<Self> {
        let Some(value) = self.take(key) else {
            return Vec::new();
        };
        let rule = "must be a list of tables";
        let Value::Array(items) = value else {
            self.wrong(key, &value, rule, problems);
            return Vec::new();
        };
        let mut tables = Vec::with_capacity(items.len());
        for (place, item) in items.into_iter().enumerate() {
            match item {
                Value::Table(table) => {
                    tables.push(Self::new(&format!("{}[{place}]", self.at(key)), table))
                }
                other => self.wrong(key, &other, rule, problems),
            }
        }
        tables
    }

    /// Records the fields that were not read.
    pub(super) fn finish(self, problems: &mut Vec<Problem>) {
        for key in self.table.keys() {
            let mut known = self.known.clone();
            known.sort_unstable();
            known.dedup();
            problems.push(Problem {
                at: self.at(key),
                problem: "is unknown".into(),
                rule: format!("the fields here are {}", known.join(", ")),
            });
        }
    }
}

fn article(word: &str) -> &'static str {
    if word.starts_with(['a', 'i']) {
        "an"
    } else {
        "a"
    }
}
