//! Reads a structural schema from a CRD document and reports all problems at once.

use regex::Regex;
use serde_json::Value;

use super::model::{Checks, ListType, NodeType, PatchStrategy, Schema, SchemaError};

/// Deepest nesting of schemas accepted, so that no document can exhaust the stack.
const MAX_DEPTH: usize = 64;
/// Longest pattern accepted, and the bound on its compiled size.
const MAX_PATTERN_BYTES: usize = 4096;
const MAX_PATTERN_PROGRAM_BYTES: usize = 1 << 20;

impl Schema {
    /// Reads an `openAPIV3Schema` document. `path` names it in errors.
    ///
    /// # Errors
    /// Every problem found, each with its place.
    pub fn parse(document: &Value, path: &str) -> Result<Self, Vec<SchemaError>> {
        let mut reader = Reader { errors: Vec::new() };
        let schema = reader.node(document, path, 0, true);
        if reader.errors.is_empty() {
            Ok(schema)
        } else {
            Err(reader.errors)
        }
    }
}

/// Collects all problems of one document.
struct Reader {
    errors: Vec<SchemaError>,
}

impl Reader {
    fn error(&mut self, path: &str, why: impl Into<String>) {
        self.errors.push(SchemaError {
            path: path.to_owned(),
            why: why.into(),
        });
    }

    fn node(&mut self, doc: &Value, path: &str, depth: usize, structural: bool) -> Schema {
        let Some(map) = doc.as_object() else {
            self.error(path, "must be an object");
            return Schema::default();
        };
        if depth > MAX_DEPTH {
            self.error(path, format!("nested deeper than {MAX_DEPTH}"));
            return Schema::default();
        }
        if map.contains_key("$ref") {
            self.error(&format!("{path}.$ref"), "references are not allowed");
        }
        let flag = |key: &str| doc.get(key).and_then(Value::as_bool).unwrap_or(false);
        let node_type = doc
            .get("type")
            .and_then(Value::as_str)
            .and_then(NodeType::parse);
        let mut schema = Schema {
            node_type,
            default: doc.get("default").cloned(),
            nullable: flag("nullable"),
            preserve_unknown: flag("x-kubernetes-preserve-unknown-fields"),
            int_or_string: flag("x-kubernetes-int-or-string"),
            embedded: flag("x-kubernetes-embedded-resource"),
            atomic_map: doc.get("x-kubernetes-map-type").and_then(Value::as_str) == Some("atomic"),
            list_type: self.list_type(doc, path),
            patch_strategy: patch_strategy(doc),
            ..Schema::default()
        };
        self.check_type(doc, &schema, path, structural);
        self.children(doc, &mut schema, path, depth);
        schema.checks = self.checks(doc, path, depth);
        schema
    }

    fn check_type(&mut self, doc: &Value, schema: &Schema, path: &str, structural: bool) {
        if let Some(text) = doc.get("type").filter(|text| {
            text.as_str()
                .is_none_or(|text| !text.is_empty() && NodeType::parse(text).is_none())
        }) {
            self.error(
                &format!("{path}.type"),
                format!("Unsupported value: {text}: supported values: array, boolean, integer, number, object, string"),
            );
        } else if structural
            && schema.node_type.is_none()
            && !schema.int_or_string
            && !schema.preserve_unknown
        {
            self.error(
                &format!("{path}.type"),
                "Required value: must not be empty for specified object fields",
            );
        }
    }

    fn list_type(&mut self, doc: &Value, path: &str) -> ListType {
        match doc.get("x-kubernetes-list-type").and_then(Value::as_str) {
            None | Some("atomic") => ListType::Atomic,
            Some("set") => ListType::Set,
            Some("map") => {
                let keys = doc
                    .get("x-kubernetes-list-map-keys")
                    .and_then(Value::as_array);
                let keys: Vec<String> = keys
                    .into_iter()
                    .flatten()
                    .filter_map(Value::as_str)
                    .map(str::to_owned)
                    .collect();
                if keys.is_empty() {
                    self.error(
                        &format!("{path}.x-kubernetes-list-map-keys"),
                        "Required value: must not be empty for list type map",
                    );
                }
                ListType::Map(keys)
            }
            Some(other) => {
                self.error(
                    &format!("{path}.x-kubernetes-list-type"),
                    format!("Unsupported value: {other:?}: supported values: atomic, map, set"),
                );
                ListType::Atomic
            }
        }
    }

    fn children(&mut self, doc: &Value, schema: &mut Schema, path: &str, depth: usize) {
        if let Some(properties) = doc.get("properties").and_then(Value::as_object) {
            for (name, child) in properties {
                let at = format!("{path}.properties[{name}]");
                let child = self.node(child, &at, depth + 1, true);
                schema.properties.insert(name.clone(), child);
            }
        }
        match doc.get("additionalProperties") {
            None | Some(Value::Bool(false)) => {}
            Some(Value::Bool(true)) => schema.additional = Some(Box::new(Schema::anything())),
            Some(child) => {
                let at = format!("{path}.additionalProperties");
                schema.additional = Some(Box::new(self.node(child, &at, depth + 1, true)));
            }
        }
        if let Some(child) = doc.get("items") {
            let at = format!("{path}.items");
            schema.items = Some(Box::new(self.node(child, &at, depth + 1, true)));
        } else if schema.node_type == Some(NodeType::Array) && !schema.preserve_unknown {
            self.error(
                &format!("{path}.items"),
                "Required value: must be specified",
            );
        }
    }

    fn checks(&mut self, doc: &Value, path: &str, depth: usize) -> Checks {
        let bound = |key: &str| doc.get(key).and_then(Value::as_u64);
        let exclusive = |key: &str| doc.get(key).and_then(Value::as_bool).unwrap_or(false);
        let number = |key: &str| doc.get(key).and_then(Value::as_f64);
        let strings = |key: &str| -> Vec<String> {
            let list = doc.get(key).and_then(Value::as_array);
            list.into_iter()
                .flatten()
                .filter_map(Value::as_str)
                .map(str::to_owned)
                .collect()
        };
        Checks {
            minimum: number("minimum").map(|value| (value, exclusive("exclusiveMinimum"))),
            maximum: number("maximum").map(|value| (value, exclusive("exclusiveMaximum"))),
            multiple_of: number("multipleOf"),
            min_length: bound("minLength"),
            max_length: bound("maxLength"),
            min_items: bound("minItems"),
            max_items: bound("maxItems"),
            min_properties: bound("minProperties"),
            max_properties: bound("maxProperties"),
            unique_items: exclusive("uniqueItems"),
            pattern: self.pattern(doc, path),
            one_of_values: doc.get("enum").and_then(Value::as_array).cloned(),
            format: doc.get("format").and_then(Value::as_str).map(str::to_owned),
            required: strings("required"),
            all_of: self.alternatives(doc, "allOf", path, depth),
            any_of: self.alternatives(doc, "anyOf", path, depth),
            one_of: self.alternatives(doc, "oneOf", path, depth),
            not: doc
                .get("not")
                .map(|child| Box::new(self.node(child, &format!("{path}.not"), depth + 1, false))),
        }
    }

    fn alternatives(&mut self, doc: &Value, key: &str, path: &str, depth: usize) -> Vec<Schema> {
        let list = doc.get(key).and_then(Value::as_array);
        let mut schemas = Vec::new();
        for (index, child) in list.into_iter().flatten().enumerate() {
            // Only value checks live here; the structure is given outside.
            schemas.push(self.node(child, &format!("{path}.{key}[{index}]"), depth + 1, false));
        }
        schemas
    }

    fn pattern(&mut self, doc: &Value, path: &str) -> Option<Regex> {
        let text = doc.get("pattern").and_then(Value::as_str)?;
        let compiled = if text.len() > MAX_PATTERN_BYTES {
            Err("longer than allowed".to_owned())
        } else {
            regex::RegexBuilder::new(text)
                .size_limit(MAX_PATTERN_PROGRAM_BYTES)
                .build()
                .map_err(|error| error.to_string())
        };
        match compiled {
            Ok(pattern) => Some(pattern),
            Err(why) => {
                self.error(
                    &format!("{path}.pattern"),
                    format!("Invalid value: {text:?}: must be a valid regular expression, but isn't: {why}"),
                );
                None
            }
        }
    }
}

fn patch_strategy(doc: &Value) -> Option<PatchStrategy> {
    let text = doc
        .get("x-kubernetes-patch-strategy")
        .and_then(Value::as_str)?;
    let key = doc
        .get("x-kubernetes-patch-merge-key")
        .and_then(Value::as_str);
    Some(PatchStrategy {
        merge: text.split(',').any(|word| word == "merge"),
        retain_keys: text.split(',').any(|word| word == "retainKeys"),
        key: key.map(str::to_owned),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_problem_of_a_document_is_reported_with_its_place() {
        let document = json!({"type": "object", "properties": {
            "a": {"type": "text"},
            "b": {"type": "array"},
            "c": {"type": "string", "pattern": "("},
            "d": {},
            "e": {"type": "array", "items": {"type": "object"}, "x-kubernetes-list-type": "map"},
        }});
        let errors = Schema::parse(&document, "s").expect_err("five problems");
        let paths: Vec<&str> = errors.iter().map(|error| error.path.as_str()).collect();
        assert_eq!(
            paths,
            [
                "s.properties[a].type",
                "s.properties[b].items",
                "s.properties[c].pattern",
                "s.properties[d].type",
                "s.properties[e].x-kubernetes-list-map-keys",
            ]
        );
    }

    #[test]
    fn a_document_nested_without_end_is_refused() {
        let mut document = json!({"type": "string"});
        for _ in 0..200 {
            document = json!({"type": "object", "properties": {"a": document}});
        }
        assert!(Schema::parse(&document, "s").is_err());
    }
}
