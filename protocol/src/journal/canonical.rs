//! Values to canonical JSON.

use serde::Serialize;
use serde_json::Value;

/// Largest magnitude of a number: every reader of JSON holds it exactly. Larger ones are written as
/// this.
pub const MAX_INTEGER: i64 = (1 << 53) - 1;

/// The canonical text of a value.
///
/// Records hold text, whole numbers, lists and maps with text keys only, so writing cannot fail;
/// the tests write every kind.
pub(super) fn text<T: Serialize>(value: &T) -> String {
    let value = serde_json::to_value(value).expect("a record is plain JSON");
    let mut out = String::new();
    write(&value, &mut out);
    out
}

fn write(value: &Value, out: &mut String) {
    match value {
        Value::Null => unreachable!("absent members are left out"),
        Value::Bool(true) => out.push_str("true"),
        Value::Bool(false) => out.push_str("false"),
        Value::Number(number) => {
            let above = if number.is_u64() {
                MAX_INTEGER
            } else {
                -MAX_INTEGER
            };
            let number = number.as_i64().unwrap_or(above);
            out.push_str(&number.clamp(-MAX_INTEGER, MAX_INTEGER).to_string());
        }
        Value::String(text) => quote(text, out),
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
            let mut members: Vec<(&String, &Value)> = map.iter().collect();
            members.sort_unstable_by(|one, other| one.0.as_bytes().cmp(other.0.as_bytes()));
            out.push('{');
            for (index, (key, member)) in members.into_iter().enumerate() {
                if index > 0 {
                    out.push(',');
                }
                quote(key, out);
                out.push(':');
                write(member, out);
            }
            out.push('}');
        }
    }
}

/// A text with the shortest escapes: only quote, backslash and control characters are escaped, by
/// letter where there is one.
fn quote(text: &str, out: &mut String) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\u{8}' => out.push_str("\\b"),
            '\t' => out.push_str("\\t"),
            '\n' => out.push_str("\\n"),
            '\u{c}' => out.push_str("\\f"),
            '\r' => out.push_str("\\r"),
            c if c < ' ' => out.push_str(&format!("\\u{:04x}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn keys_are_sorted_by_bytes_and_escapes_are_the_shortest() {
        let value =
            json!({"é": 1, "z": [true, false, -3], "a": {"b": 0, "A": "\u{1}\t\u{7f}\"\\/é\n"}});
        assert_eq!(
            text(&value),
            "{\"a\":{\"A\":\"\\u0001\\t\u{7f}\\\"\\\\/é\\n\",\"b\":0},\"z\":[true,false,-3],\"é\":1}"
        );
    }

    #[test]
    fn numbers_stay_below_two_to_the_53() {
        assert_eq!(text(&u64::MAX), "9007199254740991");
        assert_eq!(text(&i64::MIN), "-9007199254740991");
    }
}
