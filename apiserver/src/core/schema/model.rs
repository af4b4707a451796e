//! A structural schema and its parts.

use std::collections::BTreeMap;

use regex::Regex;
use serde_json::Value;

/// JSON type of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeType {
    /// A JSON object, spelled `object`.
    Object,
    /// A JSON array, spelled `array`.
    Array,
    /// A JSON string, spelled `string`.
    String,
    /// A JSON number without a fraction, spelled `integer`.
    Integer,
    /// Any JSON number, spelled `number`.
    Number,
    /// `true` or `false`, spelled `boolean`.
    Boolean,
}

impl NodeType {
    pub(super) fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "object" => Self::Object,
            "array" => Self::Array,
            "string" => Self::String,
            "integer" => Self::Integer,
            "number" => Self::Number,
            "boolean" => Self::Boolean,
            _ => return None,
        })
    }

    /// The spelling in a schema.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Object => "object",
            Self::Array => "array",
            Self::String => "string",
            Self::Integer => "integer",
            Self::Number => "number",
            Self::Boolean => "boolean",
        }
    }
}

/// How lists merge: whole, by value, or by the keys of their items.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum ListType {
    /// One owner for the whole list.
    #[default]
    Atomic,
    /// Each scalar item has its own owner.
    Set,
    /// Items are found by these members.
    Map(Vec<String>),
}

/// How a strategic merge treats a list of core kinds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PatchStrategy {
    /// The list is merged, not replaced.
    pub merge: bool,
    /// Members not named in the patch's `$retainKeys` are dropped.
    pub retain_keys: bool,
    /// Member that identifies an item; absent for lists of scalars.
    pub key: Option<String>,
}

/// Bounds and forms of one node's value.
#[derive(Debug, Clone, Default)]
pub struct Checks {
    /// Least value, and whether it is itself excluded.
    pub minimum: Option<(f64, bool)>,
    /// Greatest value, and whether it is itself excluded.
    pub maximum: Option<(f64, bool)>,
    /// A number must be a multiple of this. Divisors of zero and below are not checked.
    pub multiple_of: Option<f64>,
    /// Fewest characters of a string.
    pub min_length: Option<u64>,
    /// Most characters of a string.
    pub max_length: Option<u64>,
    /// Fewest items of an array.
    pub min_items: Option<u64>,
    /// Most items of an array.
    pub max_items: Option<u64>,
    /// Fewest members of an object.
    pub min_properties: Option<u64>,
    /// Most members of an object.
    pub max_properties: Option<u64>,
    /// Whether no two items may be equal.
    pub unique_items: bool,
    /// Pattern that a string must contain a match of; it is not anchored.
    pub pattern: Option<Regex>,
    /// Values of `enum`; the value must equal one of them.
    pub one_of_values: Option<Vec<Value>>,
    /// `int32`, `int64`, `date-time`, …
    pub format: Option<String>,
    /// Members that must be present.
    pub required: Vec<String>,
    /// Schemas that must all match.
    pub all_of: Vec<Schema>,
    /// At least one must hold.
    pub any_of: Vec<Schema>,
    /// Schemas of which exactly one must match.
    pub one_of: Vec<Schema>,
    /// Schema that must not match.
    pub not: Option<Box<Schema>>,
}

/// One node of a structural schema.
#[derive(Debug, Clone, Default)]
pub struct Schema {
    /// JSON type; absent under `x-kubernetes-int-or-string` and
    /// `x-kubernetes-preserve-unknown-fields`.
    pub node_type: Option<NodeType>,
    /// Schemas of the members that the schema names.
    pub properties: BTreeMap<String, Schema>,
    /// Schema of members that are not named; `None` = there are none.
    pub additional: Option<Box<Schema>>,
    /// Schema of a list's items.
    pub items: Option<Box<Schema>>,
    /// Value of an absent member.
    pub default: Option<Value>,
    /// Whether `null` is a valid value.
    pub nullable: bool,
    /// Members that are not named are kept.
    pub preserve_unknown: bool,
    /// A number or a string.
    pub int_or_string: bool,
    /// Holds `apiVersion`, `kind`, `metadata` of its own.
    pub embedded: bool,
    /// Rule by which two lists merge.
    pub list_type: ListType,
    /// The map or object has one owner as a whole.
    pub atomic_map: bool,
    /// How a strategic merge treats it.
    pub patch_strategy: Option<PatchStrategy>,
    /// Bounds and forms that a value must satisfy besides its type.
    pub checks: Checks,
}

/// Why a document is not a structural schema.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{path}: {why}")]
pub struct SchemaError {
    /// Path inside the schema.
    pub path: String,
    /// Rule that the schema breaks there.
    pub why: String,
}

impl Schema {
    /// A schema that takes anything.
    #[must_use]
    pub fn anything() -> Self {
        Self {
            preserve_unknown: true,
            ..Self::default()
        }
    }

    /// Schema of the member `name`: a named one, else that of further members.
    #[must_use]
    pub fn member(&self, name: &str) -> Option<&Schema> {
        self.properties.get(name).or(self.additional.as_deref())
    }
}
