//! Does a write change one field of a stored object, and no other?

use serde_json::Value;

/// Members of `metadata` that a server changes with each write.
const OF_SERVER: [&str; 3] = ["resourceVersion", "generation", "managedFields"];

/// Checks that an object after a write differs from the one before in one field.
///
/// # Errors
/// The paths that differ, if they are not this one.
pub fn only(before: &Value, after: &Value, path: &str) -> Result<(), String> {
    let found = changed_paths(before, after);
    if found == [path] {
        return Ok(());
    }
    let paths = match found.len() {
        0 => "nothing".to_owned(),
        _ => found.join(", "),
    };
    Err(format!("the write would change {paths}, not {path} alone"))
}

/// Paths of the values that differ, as `/spec/runnerImage`.
#[must_use]
pub fn changed_paths(before: &Value, after: &Value) -> Vec<String> {
    let mut found = Vec::new();
    collect(before, after, String::new(), &mut found);
    found
}

fn collect(before: &Value, after: &Value, at: String, found: &mut Vec<String>) {
    match (before, after) {
        (Value::Object(old), Value::Object(new)) => {
            let added = new.keys().filter(|key| !old.contains_key(*key));
            for key in old.keys().chain(added) {
                if at == "/metadata" && OF_SERVER.contains(&key.as_str()) {
                    continue;
                }
                let absent = &Value::Null;
                let old = old.get(key).unwrap_or(absent);
                let new = new.get(key).unwrap_or(absent);
                collect(old, new, format!("{at}/{key}"), found);
            }
        }
        (Value::Array(old), Value::Array(new)) if old.len() == new.len() => {
            for (index, (old, new)) in old.iter().zip(new).enumerate() {
                collect(old, new, format!("{at}/{index}"), found);
            }
        }
        _ if before == after => {}
        _ => found.push(at),
    }
}
