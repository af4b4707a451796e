//! A kind of object, read from a CustomResourceDefinition document.
//!
//! Built-in kinds use the same document form plus one extra member, `builtin`, for what a CRD
//! cannot say (graceful deletion, computed printer cells, …); a document that arrives at run time
//! has no such member.

mod parse;

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value;

use super::jsonpath::JsonPath;
use super::schema::Schema;

/// How a column gets its cell.
#[derive(Debug, Clone)]
pub enum CellSource {
    /// First value at a path.
    Path(JsonPath),
    /// Computed; the name picks the rule in [`super::cells`].
    Computed(String),
}

/// One column of the server-side table.
#[derive(Debug, Clone)]
pub struct Column {
    /// Title above the column; `kubectl` prints it in capitals.
    pub name: String,
    /// `string`, `integer`, `number`, `boolean`, `date`.
    pub column_type: String,
    /// `name` on the name column, else often empty.
    pub format: String,
    /// Text that says what the column shows; the table's `columnDefinitions` carry it.
    pub description: String,
    /// 0 = always shown, else only in wide output.
    pub priority: i64,
    /// Where the cell comes from.
    pub source: CellSource,
}

/// What built-in documents say beyond a CRD.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Builtin {
    /// A new object may bring its status.
    pub status_on_create: bool,
    /// Deletion of a bound object waits for its node.
    pub graceful_deletion: bool,
    /// Whether the server counts `metadata.generation`.
    pub generation: bool,
    /// PUT of an absent object creates it.
    pub create_on_update: bool,
    /// Further subresources, as `binding`.
    pub subresources: Vec<String>,
    /// The columns are complete; no name column is put in front.
    pub full_columns: bool,
    /// `stringData` is folded into `data`.
    pub string_data: bool,
    /// Objects go this long after they were last seen (events).
    pub ttl_seconds: Option<u64>,
    /// This kind is another spelling of the objects of a stored kind.
    pub alias: Option<Alias>,
}

/// Another spelling of a stored kind.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Alias {
    /// Group of the stored kind (`""` = core).
    pub group: String,
    /// Plural of the stored kind.
    pub resource: String,
    /// Top-level members: the alias's name → the stored name.
    pub rename: std::collections::BTreeMap<String, String>,
}

/// One version of a kind.
#[derive(Debug, Clone)]
pub struct Version {
    /// Name as in `apiVersion` and in paths, such as `v1`.
    pub name: String,
    /// Whether clients may use this version.
    pub served: bool,
    /// The version objects are kept in.
    pub storage: bool,
    /// Schema in parsed form, which objects are pruned, defaulted and validated by.
    pub schema: Arc<Schema>,
    /// The schema as written, for OpenAPI.
    pub schema_document: Arc<Value>,
    /// `/status` is a resource of its own.
    pub has_status: bool,
    /// All columns of the table for `kubectl get`.
    pub columns: Vec<Column>,
    /// Field selector paths beyond name and namespace.
    pub selectable: BTreeSet<String>,
}

/// A kind of object with all its versions.
#[derive(Debug, Clone)]
pub struct Kind {
    /// API group, `""` for core.
    pub group: String,
    /// Plural, lower case: the path segment.
    pub resource: String,
    /// Singular name in lower case.
    pub singular: String,
    /// CamelCase name, as in the member `kind` of objects.
    pub kind: String,
    /// Kind of a list, as `PodList`.
    pub list_kind: String,
    /// Short names for `kubectl`.
    pub short_names: Vec<String>,
    /// Categories for `kubectl`.
    pub categories: Vec<String>,
    /// Whether objects of the kind live in namespaces.
    pub namespaced: bool,
    /// Versions in the order of the document.
    pub versions: Vec<Version>,
    /// Extras of built-in kinds; `None` for a kind made at run time and for the project's own CRDs.
    pub builtin: Option<Builtin>,
}

impl Kind {
    /// Returns the version `name` if it is served.
    #[must_use]
    pub fn version(&self, name: &str) -> Option<&Version> {
        self.versions
            .iter()
            .find(|version| version.served && version.name == name)
    }

    /// The version objects are kept in.
    #[must_use]
    pub fn storage_version(&self) -> &Version {
        let stored = self.versions.iter().find(|version| version.storage);
        stored.expect("parse accepts exactly one storage version")
    }

    /// `group/version`, or the version alone in the core group.
    #[must_use]
    pub fn api_version(&self, version: &str) -> String {
        if self.group.is_empty() {
            version.to_owned()
        } else {
            format!("{}/{version}", self.group)
        }
    }

    /// `virtualmachines.vm.neon.tech`: the key of the kind in the store.
    #[must_use]
    pub fn key(&self) -> String {
        if self.group.is_empty() {
            self.resource.clone()
        } else {
            format!("{}.{}", self.resource, self.group)
        }
    }

    /// What the built-in document says beyond a CRD, if it is one.
    #[must_use]
    pub fn extras(&self) -> Option<&Builtin> {
        self.builtin.as_ref()
    }

    /// Whether `metadata.generation` is kept: always for kinds from CRDs.
    #[must_use]
    pub fn has_generation(&self) -> bool {
        self.builtin
            .as_ref()
            .is_none_or(|builtin| builtin.generation)
    }
}
