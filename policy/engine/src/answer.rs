//! From what a policy returned to JSON, bounded in size and depth. The contract's table of fields
//! judges the members.

use mlua::{Table, Value};
use policy_contract::{Refusal, number_value};
use serde_json::{Map, Value as Json};

/// Longest answer, bytes of its texts and numbers.
pub const MAX_ANSWER: usize = 64 << 10;
/// Deepest nesting of an answer.
pub const MAX_DEPTH: usize = 16;

/// Bytes that are still allowed, and where the reader stands.
struct Reader {
    left: usize,
    path: Vec<String>,
}

/// Reads an answer.
///
/// # Errors
/// The answer is too long or too deep, or it has a value that no answer has.
pub(crate) fn read(value: &Value) -> Result<Json, Refusal> {
    let mut reader = Reader {
        left: MAX_ANSWER,
        path: Vec::new(),
    };
    reader.value(value)
}

impl Reader {
    fn value(&mut self, value: &Value) -> Result<Json, Refusal> {
        match value {
            Value::Nil => Ok(Json::Null),
            Value::Boolean(truth) => self.take(1).map(|()| Json::Bool(*truth)),
            Value::Integer(whole) => self.take(8).map(|()| Json::from(*whole)),
            Value::Number(number) => self.take(8).map(|()| number_value(*number)),
            Value::String(text) => {
                self.take(text.as_bytes().len())?;
                let text = text.to_str().map(|text| text.to_owned());
                let text = text.map_err(|_| self.refusal("bytes", "UTF-8"))?;
                Ok(Json::String(text))
            }
            Value::Table(table) => self.table(table),
            other => Err(self.refusal(other.type_name(), "a number, a text, true or a table")),
        }
    }

    fn table(&mut self, table: &Table) -> Result<Json, Refusal> {
        if self.path.len() >= MAX_DEPTH {
            return Err(self.refusal("a table", "at most 16 tables deep"));
        }
        let mut members = Map::new();
        for pair in table.pairs::<Value, Value>() {
            let (key, value) = pair.map_err(|_| self.refusal("a table", "readable"))?;
            let name = self.name(&key)?;
            self.path.push(name.clone());
            let value = self.value(&value)?;
            self.path.pop();
            members.insert(name, value);
        }
        Ok(Json::Object(members))
    }

    /// A key as text. Keys that are no text are members that no answer has.
    fn name(&mut self, key: &Value) -> Result<String, Refusal> {
        let name = match key {
            Value::String(text) => text.to_string_lossy(),
            Value::Integer(whole) => format!("[{whole}]"),
            Value::Number(number) => format!("[{number}]"),
            other => format!("[{}]", other.type_name()),
        };
        self.take(name.len())?;
        Ok(name)
    }

    fn take(&mut self, bytes: usize) -> Result<(), Refusal> {
        let left = self.left.checked_sub(bytes);
        self.left = left.ok_or_else(|| self.refusal("an answer", "at most 64 KiB"))?;
        Ok(())
    }

    fn refusal(&self, value: &str, rule: &'static str) -> Refusal {
        let path = match self.path.as_slice() {
            [] => "answer".to_owned(),
            path => path.join("."),
        };
        Refusal::of(path, value, rule)
    }
}
