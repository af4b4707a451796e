//! The JSONPath forms that printer columns use: `.a.b`, `.a['b.c']`, `.a\.b`, `[0]`, `[*]`,
//! `[?(@.type=="Ready")]`.

use serde_json::Value;

/// Longest path accepted.
const MAX_TEXT_BYTES: usize = 1024;

#[derive(Debug, Clone, PartialEq, Eq)]
enum Step {
    Member(String),
    Index(i64),
    All,
    /// Items whose member at the path prints as the text.
    Where(Vec<String>, String, bool),
}

/// A parsed path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JsonPath {
    steps: Vec<Step>,
}

/// Why a text is not a path.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("is an invalid JSON path: {0}")]
pub struct JsonPathError(String);

impl JsonPath {
    /// Reads a path; surrounding braces and a leading `$` are allowed.
    ///
    /// # Errors
    /// Naming the first place that is no known form.
    pub fn parse(text: &str) -> Result<Self, JsonPathError> {
        let bad = |why: &str| JsonPathError(format!("{why} in {text:?}"));
        if text.len() > MAX_TEXT_BYTES {
            return Err(bad("too long"));
        }
        let inner = text.trim();
        let inner = inner
            .strip_prefix('{')
            .and_then(|rest| rest.strip_suffix('}'))
            .unwrap_or(inner);
        let mut rest = inner.strip_prefix('$').unwrap_or(inner);
        let mut steps = Vec::new();
        while !rest.is_empty() {
            if let Some(after) = rest.strip_prefix('[') {
                let end = bracket_end(after).ok_or_else(|| bad("missing ']'"))?;
                steps.push(bracket(&after[..end]).ok_or_else(|| bad("unknown [...] form"))?);
                rest = &after[end + 1..];
            } else if let Some(after) = rest.strip_prefix('.') {
                let (name, remaining) = member(after);
                match name.as_str() {
                    "" if after.starts_with('[') || remaining.is_empty() => {}
                    "" => return Err(bad("empty member name")),
                    "*" => steps.push(Step::All),
                    _ => steps.push(Step::Member(name)),
                }
                rest = remaining;
            } else {
                return Err(bad("expected '.' or '['"));
            }
        }
        Ok(Self { steps })
    }

    /// Everything the path leads to, in document order.
    #[must_use]
    pub fn find<'a>(&self, root: &'a Value) -> Vec<&'a Value> {
        let mut found = vec![root];
        for step in &self.steps {
            found = found
                .into_iter()
                .flat_map(|value| step.follow(value))
                .collect();
        }
        found
    }

    /// Member names of a path without brackets, for selectable fields.
    #[must_use]
    pub fn plain_members(&self) -> Option<Vec<&str>> {
        self.steps
            .iter()
            .map(|step| match step {
                Step::Member(name) => Some(name.as_str()),
                _ => None,
            })
            .collect()
    }
}

impl Step {
    fn follow<'a>(&self, value: &'a Value) -> Vec<&'a Value> {
        match (self, value) {
            (Self::Member(name), Value::Object(map)) => map.get(name).into_iter().collect(),
            (Self::Index(index), Value::Array(items)) => {
                let length = i64::try_from(items.len()).unwrap_or(i64::MAX);
                let at = if *index < 0 { index + length } else { *index };
                usize::try_from(at)
                    .ok()
                    .and_then(|at| items.get(at))
                    .into_iter()
                    .collect()
            }
            (Self::All, Value::Array(items)) => items.iter().collect(),
            (Self::All, Value::Object(map)) => map.values().collect(),
            (Self::Where(path, text, equal), Value::Array(items)) => items
                .iter()
                .filter(|item| {
                    let found = path.iter().try_fold(*item, |at, name| at.get(name));
                    found.is_some_and(|found| (printed(found) == *text) == *equal)
                })
                .collect(),
            _ => Vec::new(),
        }
    }
}

/// A value as a column prints it: texts bare, everything else as JSON.
#[must_use]
pub fn printed(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Reads a member name up to the next `.` or `[`; a backslash keeps the next character.
fn member(text: &str) -> (String, &str) {
    let (mut name, mut escaped) = (String::new(), false);
    for (index, character) in text.char_indices() {
        match character {
            '\\' if !escaped => escaped = true,
            '.' | '[' if !escaped => return (name, &text[index..]),
            _ => {
                name.push(character);
                escaped = false;
            }
        }
    }
    (name, "")
}

/// Index of the `]` that closes, outside quotes and parentheses.
fn bracket_end(text: &str) -> Option<usize> {
    let (mut quote, mut depth) = (None, 0_usize);
    for (index, character) in text.char_indices() {
        match (quote, character) {
            (Some(open), _) if open == character => quote = None,
            (Some(_), _) => {}
            (None, '"' | '\'') => quote = Some(character),
            (None, '(') => depth += 1,
            (None, ')') => depth = depth.checked_sub(1)?,
            (None, ']') if depth == 0 => return Some(index),
            _ => {}
        }
    }
    None
}

fn bracket(text: &str) -> Option<Step> {
    let text = text.trim();
    if text == "*" {
        return Some(Step::All);
    }
    if let Some(condition) = text
        .strip_prefix("?(")
        .and_then(|rest| rest.strip_suffix(')'))
    {
        let (left, right, equal) = match condition.split_once("!=") {
            Some((left, right)) => (left, right, false),
            None => condition
                .split_once("==")
                .map(|(left, right)| (left, right, true))?,
        };
        let path = left
            .trim()
            .strip_prefix("@.")?
            .split('.')
            .map(str::to_owned)
            .collect();
        return Some(Step::Where(path, unquoted(right.trim()).to_owned(), equal));
    }
    if let Ok(index) = text.parse() {
        return Some(Step::Index(index));
    }
    let name = unquoted(text);
    (name.len() != text.len()).then(|| Step::Member(name.to_owned()))
}

fn unquoted(text: &str) -> &str {
    ['"', '\'']
        .iter()
        .find_map(|quote| text.strip_prefix(*quote)?.strip_suffix(*quote))
        .unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn the_forms_printer_columns_use_are_followed() {
        let object = json!({
            "status": {"phase": "Running", "conditions": [
                {"type": "Available", "status": "True"}, {"type": "Degraded", "status": "False"}]},
            "metadata": {"annotations": {"a.b/c": "v"}},
        });
        for (path, expected) in [
            (".status.phase", vec![json!("Running")]),
            ("{.status.phase}", vec![json!("Running")]),
            (".status.restarts", vec![]),
            (".status.conditions[1].type", vec![json!("Degraded")]),
            (".status.conditions[-1].type", vec![json!("Degraded")]),
            (
                ".status.conditions[?(@.type==\"Available\")].status",
                vec![json!("True")],
            ),
            (
                ".status.conditions[?(@.type!='Available')].status",
                vec![json!("False")],
            ),
            (
                ".status.conditions[*].type",
                vec![json!("Available"), json!("Degraded")],
            ),
            (".metadata.annotations.a\\.b/c", vec![json!("v")]),
            (".metadata.annotations['a.b/c']", vec![json!("v")]),
        ] {
            let found = JsonPath::parse(path).expect(path);
            let found: Vec<Value> = found.find(&object).into_iter().cloned().collect();
            assert_eq!(found, expected, "{path}");
        }
        for path in ["status", ".a[", ".a[x]", ".a[?(x)]", "..a"] {
            assert!(JsonPath::parse(path).is_err(), "{path}");
        }
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "[.\\[\\]()?@='\"a\\\\*0-]{0,24}") {
            if let Ok(path) = JsonPath::parse(&text) {
                let _ = path.find(&json!({"a": [{"a": 0}]}));
            }
        }
    }
}
