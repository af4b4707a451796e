//! Checking a value against a schema; all problems at once, each with its field path.

use serde_json::Value;

use super::model::{ListType, NodeType, Schema};
use crate::core::error::Cause;
use crate::core::time::WallTime;

/// Most problems reported of one object: enough to mend it, bounded against a hostile one.
const MAX_PROBLEMS: usize = 100;

/// A problem in the form the API reports it.
pub type Problem = Cause;

/// All problems of `value` (at most 100). `path` is the field path of `value` itself, empty at the
/// root.
#[must_use]
pub fn validate(value: &Value, schema: &Schema, path: &str) -> Vec<Problem> {
    let mut problems = Vec::new();
    check(value, schema, path, &mut problems);
    problems
}

fn problem(reason: &str, path: &str, message: String) -> Problem {
    let field = if path.is_empty() { "<nil>" } else { path };
    Cause {
        reason: reason.to_owned(),
        message,
        field: field.to_owned(),
    }
}

fn invalid(value: &Value, path: &str, why: &str) -> Problem {
    let shown = match value {
        Value::Object(_) => "\"object\"".to_owned(),
        Value::Array(_) => "\"array\"".to_owned(),
        other => other.to_string(),
    };
    problem(
        "FieldValueInvalid",
        path,
        format!("Invalid value: {shown}: {path} in body {why}"),
    )
}

fn check(value: &Value, schema: &Schema, path: &str, out: &mut Vec<Problem>) {
    if out.len() >= MAX_PROBLEMS || (value.is_null() && schema.nullable) {
        return;
    }
    if let Some(wrong) = type_problem(value, schema, path) {
        out.push(wrong);
        return;
    }
    match value {
        Value::Object(map) => {
            check_object(map, value, schema, path, out);
        }
        Value::Array(items) => check_array(items, value, schema, path, out),
        Value::String(text) => check_text(text, value, schema, path, out),
        Value::Number(number) => {
            check_number(
                number.as_f64().unwrap_or(f64::NAN),
                value,
                schema,
                path,
                out,
            );
        }
        _ => {}
    }
    check_enum(value, schema, path, out);
    check_alternatives(value, schema, path, out);
}

fn type_problem(value: &Value, schema: &Schema, path: &str) -> Option<Problem> {
    let actual = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if is_whole(number) => "integer",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    let wanted = if schema.int_or_string {
        if matches!(actual, "integer" | "string") {
            return None;
        }
        "integer,string"
    } else {
        let node_type = schema.node_type?;
        let fits =
            actual == node_type.as_str() || (node_type == NodeType::Number && actual == "integer");
        if fits {
            return None;
        }
        node_type.as_str()
    };
    let message = format!(
        "Invalid value: {:?}: {path} in body must be of type {wanted}: {actual:?}",
        actual
    );
    Some(problem("FieldValueTypeInvalid", path, message))
}

/// Whole numbers may be written `1.0`.
fn is_whole(number: &serde_json::Number) -> bool {
    number.is_i64() || number.is_u64() || number.as_f64().is_some_and(|float| float.fract() == 0.0)
}

fn check_object(
    map: &serde_json::Map<String, Value>,
    value: &Value,
    schema: &Schema,
    path: &str,
    out: &mut Vec<Problem>,
) {
    let checks = &schema.checks;
    for name in &checks.required {
        if !map.contains_key(name) {
            out.push(problem(
                "FieldValueRequired",
                &join(path, name),
                "Required value".to_owned(),
            ));
        }
    }
    let count = map.len() as u64;
    if let Some(least) = checks.min_properties.filter(|least| count < *least) {
        out.push(invalid(
            value,
            path,
            &format!("should have at least {least} properties"),
        ));
    }
    if let Some(most) = checks.max_properties.filter(|most| count > *most) {
        let message = format!("Too many: {count}: must have at most {most} items");
        out.push(problem("FieldValueTooMany", path, message));
    }
    for (name, member) in map {
        if let Some(child) = schema.member(name) {
            check(member, child, &join(path, name), out);
        }
    }
}

fn join(path: &str, name: &str) -> String {
    if path.is_empty() {
        name.to_owned()
    } else {
        format!("{path}.{name}")
    }
}

fn check_array(
    items: &[Value],
    value: &Value,
    schema: &Schema,
    path: &str,
    out: &mut Vec<Problem>,
) {
    let checks = &schema.checks;
    let count = items.len() as u64;
    if let Some(least) = checks.min_items.filter(|least| count < *least) {
        out.push(invalid(
            value,
            path,
            &format!("should have at least {least} items"),
        ));
    }
    if let Some(most) = checks.max_items.filter(|most| count > *most) {
        let message = format!("Too many: {count}: must have at most {most} items");
        out.push(problem("FieldValueTooMany", path, message));
        return;
    }
    if let Some(child) = &schema.items {
        for (index, item) in items.iter().enumerate() {
            check(item, child, &format!("{path}[{index}]"), out);
        }
    }
    let keys: Vec<Value> = match &schema.list_type {
        ListType::Map(names) => items.iter().map(|item| list_key(item, names)).collect(),
        ListType::Set => items.to_vec(),
        ListType::Atomic if checks.unique_items => items.to_vec(),
        ListType::Atomic => return,
    };
    let mut seen = std::collections::BTreeSet::new();
    for (index, key) in keys.iter().enumerate() {
        if !seen.insert(key.to_string()) {
            let message = format!("Duplicate value: {key}");
            out.push(problem(
                "FieldValueDuplicate",
                &format!("{path}[{index}]"),
                message,
            ));
        }
    }
}

/// The members of `item` that identify it, as an object.
fn list_key(item: &Value, names: &[String]) -> Value {
    let members = names
        .iter()
        .filter_map(|name| Some((name.clone(), item.get(name)?.clone())));
    Value::Object(members.collect())
}

fn check_text(text: &str, value: &Value, schema: &Schema, path: &str, out: &mut Vec<Problem>) {
    let checks = &schema.checks;
    let length = text.chars().count() as u64;
    if let Some(least) = checks.min_length.filter(|least| length < *least) {
        out.push(invalid(
            value,
            path,
            &format!("should be at least {least} chars long"),
        ));
    }
    if let Some(most) = checks.max_length.filter(|most| length > *most) {
        let message = format!("Too long: may not be more than {most} bytes");
        out.push(problem("FieldValueTooLong", path, message));
    }
    if let Some(pattern) = checks
        .pattern
        .as_ref()
        .filter(|pattern| !pattern.is_match(text))
    {
        out.push(invalid(
            value,
            path,
            &format!("should match '{}'", pattern.as_str()),
        ));
    }
    // An int-or-string carries the format of its integer form.
    if schema.int_or_string {
        return;
    }
    let fits = match checks.format.as_deref() {
        Some("date-time") => WallTime::parse(text).is_ok(),
        _ => true,
    };
    if !fits {
        let format = checks.format.as_deref().unwrap_or_default();
        out.push(invalid(
            value,
            path,
            &format!("must be of type {format}: {text:?}"),
        ));
    }
}

fn check_number(number: f64, value: &Value, schema: &Schema, path: &str, out: &mut Vec<Problem>) {
    let checks = &schema.checks;
    if let Some((least, exclusive)) = checks.minimum
        && (number < least || (exclusive && number <= least))
    {
        let word = if exclusive {
            "greater than"
        } else {
            "greater than or equal to"
        };
        out.push(invalid(value, path, &format!("should be {word} {least}")));
    }
    if let Some((most, exclusive)) = checks.maximum
        && (number > most || (exclusive && number >= most))
    {
        let word = if exclusive {
            "less than"
        } else {
            "less than or equal to"
        };
        out.push(invalid(value, path, &format!("should be {word} {most}")));
    }
    if let Some(divisor) = checks.multiple_of.filter(|divisor| *divisor > 0.0) {
        let quotient = number / divisor;
        if (quotient - quotient.round()).abs() > 1e-9 {
            out.push(invalid(
                value,
                path,
                &format!("should be a multiple of {divisor}"),
            ));
        }
    }
    let range = match checks.format.as_deref() {
        Some("int32") => Some((f64::from(i32::MIN), f64::from(i32::MAX))),
        _ => None,
    };
    if range.is_some_and(|(low, high)| !(low..=high).contains(&number)) {
        out.push(invalid(value, path, "should be a 32-bit integer (int32)"));
    }
}

fn check_enum(value: &Value, schema: &Schema, path: &str, out: &mut Vec<Problem>) {
    let Some(allowed) = &schema.checks.one_of_values else {
        return;
    };
    if !allowed.contains(value) {
        let list: Vec<String> = allowed.iter().map(Value::to_string).collect();
        let message = format!(
            "Unsupported value: {value}: supported values: {}",
            list.join(", ")
        );
        out.push(problem("FieldValueNotSupported", path, message));
    }
}

fn check_alternatives(value: &Value, schema: &Schema, path: &str, out: &mut Vec<Problem>) {
    let checks = &schema.checks;
    for part in &checks.all_of {
        check(value, part, path, out);
    }
    let holds = |part: &&Schema| validate(value, part, path).is_empty();
    if !checks.any_of.is_empty() && !checks.any_of.iter().any(|part| holds(&part)) {
        out.push(invalid(
            value,
            path,
            "must validate at least one schema (anyOf)",
        ));
    }
    if !checks.one_of.is_empty() && checks.one_of.iter().filter(holds).count() != 1 {
        out.push(invalid(
            value,
            path,
            "must validate one and only one schema (oneOf)",
        ));
    }
    if checks.not.as_deref().is_some_and(|part| holds(&part)) {
        out.push(invalid(value, path, "must not validate the schema (not)"));
    }
}

#[cfg(test)]
mod tests;
