//! One text per value: keys sorted by bytes, no blanks, numbers as ECMAScript prints them.

use serde::Serialize;
use serde_json::Value;

/// Canonical text of a value. Absent members (`null`) are left out.
pub(crate) fn text<T: Serialize>(value: &T) -> String {
    let value = serde_json::to_value(value).unwrap_or(Value::Null);
    let mut out = String::new();
    write(&value, &mut out);
    out
}

fn write(value: &Value, out: &mut String) {
    match value {
        Value::Number(number) => {
            let number = number.as_f64().unwrap_or_default();
            out.push_str(ryu_js::Buffer::new().format(number));
        }
        Value::Array(items) => {
            out.push('[');
            for (index, item) in items.iter().enumerate() {
                if index > 0 {
                    out.push(',');
                }
                write(item, out);
            }
            out.push(']');
        }
        Value::Object(map) => {
            let mut members: Vec<_> = map.iter().filter(|(_, value)| !value.is_null()).collect();
            members.sort_unstable_by(|one, other| one.0.as_bytes().cmp(other.0.as_bytes()));
            out.push('{');
            for (index, (key, member)) in members.into_iter().enumerate() {
                if index > 0 {
                    out.push(',');
                }
                out.push_str(&Value::from(key.as_str()).to_string());
                out.push(':');
                write(member, out);
            }
            out.push('}');
        }
        plain => out.push_str(&plain.to_string()),
    }
}
