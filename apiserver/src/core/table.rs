//! Server-side tables: what `kubectl get` prints without knowing the kind.

use serde_json::{Value, json};

use super::cells;
use super::jsonpath::printed;
use super::kind::{CellSource, Column};
use super::time::WallTime;

/// How much of each object a row carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum IncludeObject {
    /// Rows hold cells and no object.
    None,
    /// Rows carry the object's metadata, as `PartialObjectMetadata`.
    #[default]
    Metadata,
    /// Rows hold the whole object.
    Object,
}

impl IncludeObject {
    /// Parses the query parameter `includeObject`.
    #[must_use]
    pub fn parse(text: Option<&str>) -> Option<Self> {
        match text {
            None | Some("" | "Metadata") => Some(Self::Metadata),
            Some("None") => Some(Self::None),
            Some("Object") => Some(Self::Object),
            Some(_) => None,
        }
    }
}

/// The `columnDefinitions` of a table.
#[must_use]
pub fn definitions(columns: &[Column]) -> Value {
    let one = |column: &Column| {
        json!({
            "name": column.name,
            "type": column.column_type,
            "format": column.format,
            "description": column.description,
            "priority": column.priority,
        })
    };
    columns.iter().map(one).collect()
}

/// One row of a table: a cell for each column, and as much of the object as `include` asks for.
#[must_use]
pub fn row(columns: &[Column], object: &Value, include: IncludeObject, now: WallTime) -> Value {
    let cells: Vec<Value> = columns
        .iter()
        .map(|column| cell(column, object, now))
        .collect();
    match include {
        IncludeObject::None => json!({"cells": cells}),
        IncludeObject::Object => json!({"cells": cells, "object": object}),
        IncludeObject::Metadata => json!({"cells": cells, "object": partial(object)}),
    }
}

/// Returns the `PartialObjectMetadata` of an object.
#[must_use]
pub fn partial(object: &Value) -> Value {
    json!({
        "kind": "PartialObjectMetadata",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": object["metadata"],
    })
}

fn cell(column: &Column, object: &Value, now: WallTime) -> Value {
    let path = match &column.source {
        CellSource::Computed(rule) => return cells::compute(rule, object, now),
        CellSource::Path(path) => path,
    };
    let Some(found) = path
        .find(object)
        .first()
        .copied()
        .filter(|found| !found.is_null())
    else {
        return Value::Null;
    };
    match column.column_type.as_str() {
        "string" => printed(found).into(),
        "date" => match found.as_str().map(WallTime::parse) {
            Some(Ok(_)) => cells::age(Some(found), now),
            _ => "<invalid>".into(),
        },
        "integer" if found.is_number() => found.as_i64().map_or_else(|| found.clone(), Value::from),
        "number" if found.is_number() => found.clone(),
        "boolean" if found.is_boolean() => found.clone(),
        _ => Value::Null,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::jsonpath::JsonPath;

    #[test]
    fn cells_follow_the_column_type() {
        let object =
            json!({"s": "t", "n": 1, "b": true, "d": "2023-11-14T22:13:15Z", "o": {"x": 1}});
        let now = WallTime(1_700_000_000_000_000);
        for (path, column_type, expected) in [
            (".s", "string", json!("t")),
            (".n", "string", json!("1")),
            (".o", "string", json!("{\"x\":1}")),
            (".missing", "string", Value::Null),
            (".n", "integer", json!(1)),
            (".s", "integer", Value::Null),
            (".b", "boolean", json!(true)),
            (".d", "date", json!("5s")),
            (".s", "date", json!("<invalid>")),
        ] {
            let column = Column {
                name: String::new(),
                column_type: column_type.to_owned(),
                format: String::new(),
                description: String::new(),
                priority: 0,
                source: CellSource::Path(JsonPath::parse(path).expect("path")),
            };
            assert_eq!(
                cell(&column, &object, now),
                expected,
                "{path} as {column_type}"
            );
        }
    }
}
