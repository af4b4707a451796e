//! Reading kinds from CustomResourceDefinition documents, with every problem named.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value;

use super::{Builtin, CellSource, Column, Kind, Version};
use crate::core::error::Cause;
use crate::core::jsonpath::JsonPath;
use crate::core::metadata;
use crate::core::schema::Schema;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawKind {
    spec: RawSpec,
    #[serde(default)]
    builtin: Option<Builtin>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawSpec {
    #[serde(default)]
    group: String,
    names: RawNames,
    scope: String,
    #[serde(default)]
    versions: Vec<RawVersion>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawNames {
    #[serde(default)]
    plural: String,
    #[serde(default)]
    kind: String,
    #[serde(default)]
    singular: String,
    #[serde(default)]
    list_kind: String,
    #[serde(default)]
    short_names: Vec<String>,
    #[serde(default)]
    categories: Vec<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawVersion {
    #[serde(default)]
    name: String,
    #[serde(default)]
    served: bool,
    #[serde(default)]
    storage: bool,
    #[serde(default)]
    schema: Option<RawSchema>,
    #[serde(default)]
    subresources: Option<RawSubresources>,
    #[serde(default)]
    additional_printer_columns: Vec<RawColumn>,
    #[serde(default)]
    selectable_fields: Vec<RawSelectable>,
}

#[derive(Deserialize)]
struct RawSchema {
    #[serde(rename = "openAPIV3Schema")]
    open_api: Option<Value>,
}

#[derive(Deserialize)]
struct RawSubresources {
    status: Option<Value>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawSelectable {
    json_path: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawColumn {
    name: String,
    #[serde(rename = "type")]
    column_type: String,
    #[serde(default)]
    format: String,
    #[serde(default)]
    description: String,
    #[serde(default)]
    priority: i64,
    #[serde(default)]
    json_path: String,
    #[serde(default)]
    cell: Option<String>,
}

impl Kind {
    /// Reads a CRD document. With `trusted` the `builtin` member is honoured and the core group
    /// allowed.
    ///
    /// # Errors
    /// Every problem found, as causes with field paths.
    pub fn parse(document: &Value, trusted: bool) -> Result<Self, Vec<Cause>> {
        let raw = RawKind::deserialize(document)
            .map_err(|error| vec![cause("FieldValueInvalid", "spec", &error.to_string())])?;
        let mut problems = Vec::new();
        let names = &raw.spec.names;
        check_names(&raw.spec, document, trusted, &mut problems);
        let builtin = raw.builtin.filter(|_| trusted);
        let full_columns = builtin.as_ref().is_some_and(|builtin| builtin.full_columns);
        let mut versions = Vec::new();
        for (index, version) in raw.spec.versions.iter().enumerate() {
            let path = format!("spec.versions[{index}]");
            if let Some(version) =
                read_version(version, &path, full_columns, trusted, &mut problems)
            {
                versions.push(version);
            }
        }
        if !problems.is_empty() {
            return Err(problems);
        }
        let or = |text: &str, other: String| {
            if text.is_empty() {
                other
            } else {
                text.to_owned()
            }
        };
        Ok(Self {
            group: raw.spec.group.clone(),
            resource: names.plural.clone(),
            singular: or(&names.singular, names.kind.to_lowercase()),
            kind: names.kind.clone(),
            list_kind: or(&names.list_kind, format!("{}List", names.kind)),
            short_names: names.short_names.clone(),
            categories: names.categories.clone(),
            namespaced: raw.spec.scope == "Namespaced",
            versions,
            builtin,
        })
    }
}

fn cause(reason: &str, field: &str, message: &str) -> Cause {
    Cause {
        reason: reason.to_owned(),
        field: field.to_owned(),
        message: message.to_owned(),
    }
}

fn check_names(spec: &RawSpec, document: &Value, trusted: bool, problems: &mut Vec<Cause>) {
    let mut required = |field: &str, text: &str| {
        if text.is_empty() {
            problems.push(cause("FieldValueRequired", field, "Required value"));
        }
    };
    required("spec.names.plural", &spec.names.plural);
    required("spec.names.kind", &spec.names.kind);
    if !trusted {
        required("spec.group", &spec.group);
    }
    let name = document["metadata"]["name"].as_str().unwrap_or_default();
    let wanted = format!("{}.{}", spec.names.plural, spec.group);
    if !trusted && name != wanted {
        let message =
            format!("Invalid value: {name:?}: must be spec.names.plural+\".\"+spec.group");
        problems.push(cause("FieldValueInvalid", "metadata.name", &message));
    }
    if !trusted && !spec.group.is_empty() && !spec.group.contains('.') {
        let message = format!(
            "Invalid value: {:?}: should be a domain with at least one dot",
            spec.group
        );
        problems.push(cause("FieldValueInvalid", "spec.group", &message));
    }
    if !matches!(spec.scope.as_str(), "Namespaced" | "Cluster") {
        let message = format!(
            "Unsupported value: {:?}: supported values: \"Cluster\", \"Namespaced\"",
            spec.scope
        );
        problems.push(cause("FieldValueNotSupported", "spec.scope", &message));
    }
    let stored = spec
        .versions
        .iter()
        .filter(|version| version.storage)
        .count();
    if stored != 1 {
        let message = "Invalid value: must have exactly one version marked as storage version";
        problems.push(cause("FieldValueInvalid", "spec.versions", message));
    }
}

fn read_version(
    raw: &RawVersion,
    path: &str,
    full_columns: bool,
    trusted: bool,
    problems: &mut Vec<Cause>,
) -> Option<Version> {
    if raw.name.is_empty() {
        let field = format!("{path}.name");
        problems.push(cause("FieldValueRequired", &field, "Required value"));
    }
    let schema_path = format!("{path}.schema.openAPIV3Schema");
    let document = raw
        .schema
        .as_ref()
        .and_then(|schema| schema.open_api.as_ref());
    let Some(document) = document else {
        let message = "Required value: schemas are required";
        problems.push(cause("FieldValueRequired", &schema_path, message));
        return None;
    };
    let schema = read_schema(document, &schema_path, problems)?;
    let mut columns = Vec::new();
    if !full_columns {
        columns.push(name_column());
    }
    if raw.additional_printer_columns.is_empty() && !full_columns {
        columns.push(age_column());
    }
    for (index, column) in raw.additional_printer_columns.iter().enumerate() {
        let at = format!("{path}.additionalPrinterColumns[{index}]");
        match read_column(column, &at, trusted) {
            Ok(column) => columns.push(column),
            Err(problem) => problems.push(problem),
        }
    }
    let selectable = raw.selectable_fields.iter();
    let selectable = selectable.map(|field| field.json_path.trim_start_matches('.').to_owned());
    let subresources = raw.subresources.as_ref();
    Some(Version {
        name: raw.name.clone(),
        served: raw.served,
        storage: raw.storage,
        schema: Arc::new(schema),
        schema_document: Arc::new(document.clone()),
        has_status: subresources.is_some_and(|subresources| subresources.status.is_some()),
        columns,
        selectable: selectable.collect(),
    })
}

/// The schema, with that of `metadata` put in: documents leave it out, or restrict names only.
fn read_schema(document: &Value, path: &str, problems: &mut Vec<Cause>) -> Option<Schema> {
    let mut schema = match Schema::parse(document, path) {
        Ok(schema) => schema,
        Err(errors) => {
            let each = errors
                .iter()
                .map(|error| cause("FieldValueInvalid", &error.path, &error.why));
            problems.extend(each);
            return None;
        }
    };
    if let Ok(mut common) = Schema::parse(&metadata::schema_document(), "metadata") {
        let own = schema
            .properties
            .remove("metadata")
            .unwrap_or_default()
            .properties;
        let is_name = |name: &str| matches!(name, "name" | "generateName");
        common
            .properties
            .extend(own.into_iter().filter(|(name, _)| is_name(name)));
        schema.properties.insert("metadata".to_owned(), common);
    }
    Some(schema)
}

fn read_column(raw: &RawColumn, path: &str, trusted: bool) -> Result<Column, Cause> {
    if !matches!(
        raw.column_type.as_str(),
        "string" | "integer" | "number" | "boolean" | "date"
    ) {
        let message = format!(
            "Invalid value: {:?}: must be one of boolean,date,integer,number,string",
            raw.column_type
        );
        return Err(cause(
            "FieldValueInvalid",
            &format!("{path}.type"),
            &message,
        ));
    }
    let source = match &raw.cell {
        Some(cell) if trusted => CellSource::Computed(cell.clone()),
        _ => CellSource::Path(JsonPath::parse(&raw.json_path).map_err(|error| {
            let message = format!("Invalid value: {:?}: {error}", raw.json_path);
            cause("FieldValueInvalid", &format!("{path}.jsonPath"), &message)
        })?),
    };
    Ok(Column {
        name: raw.name.clone(),
        column_type: raw.column_type.clone(),
        format: raw.format.clone(),
        description: raw.description.clone(),
        priority: raw.priority,
        source,
    })
}

fn name_column() -> Column {
    Column {
        name: "Name".to_owned(),
        column_type: "string".to_owned(),
        format: "name".to_owned(),
        description: "Name of the object, unique within its namespace.".to_owned(),
        priority: 0,
        source: CellSource::Computed("name".to_owned()),
    }
}

fn age_column() -> Column {
    Column {
        name: "Age".to_owned(),
        column_type: "date".to_owned(),
        format: String::new(),
        description: "Time since the object was created.".to_owned(),
        priority: 0,
        source: CellSource::Computed("age".to_owned()),
    }
}

#[cfg(test)]
mod tests;
