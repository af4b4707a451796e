//! Requests as data: the path, the query and what is asked.

use std::collections::BTreeMap;

use serde_json::Value;

use super::error::ApiError;
use super::selector::{FieldSelector, LabelSelector};

/// The decoded segments of a path.
///
/// # Errors
/// 400 for a segment that is not UTF-8.
pub fn segments(path: &str) -> Result<Vec<String>, ApiError> {
    let decode = |segment: &str| {
        percent_encoding::percent_decode_str(segment)
            .decode_utf8()
            .map(std::borrow::Cow::into_owned)
            .map_err(|_| ApiError::bad_request("the path is not UTF-8"))
    };
    path.trim_matches('/').split('/').map(decode).collect()
}

/// The target of a path of objects. `None` for any other path, `Some(None)` for one that names no
/// kind.
#[must_use]
pub fn target(segments: &[String]) -> Option<Option<Target>> {
    let names: Vec<&str> = segments.iter().map(String::as_str).collect();
    match names.as_slice() {
        ["api", version, _, ..] => Some(Target::parse("", version, &segments[2..])),
        ["apis", group, version, _, ..] => Some(Target::parse(group, version, &segments[3..])),
        _ => None,
    }
}

/// Kind, namespace and object that a path names.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Target {
    /// API group, `""` for core.
    pub group: String,
    /// API version in the path.
    pub version: String,
    /// Plural of the kind, as in the path.
    pub resource: String,
    /// Namespace in the path, if any.
    pub namespace: Option<String>,
    /// Name of the object in the path; `None` for a collection.
    pub name: Option<String>,
    /// Subresource in the path, as `status` or `binding`.
    pub subresource: Option<String>,
}

impl Target {
    /// Reads the path segments behind `/api/VERSION` or `/apis/GROUP/VERSION`.
    #[must_use]
    pub fn parse(group: &str, version: &str, segments: &[String]) -> Option<Self> {
        let mut target = Self {
            group: group.to_owned(),
            version: version.to_owned(),
            ..Self::default()
        };
        let rest = match segments {
            // `namespaces/x/pods` is inside a namespace; `namespaces/x` and `namespaces/x/status`
            // are the object itself.
            [first, namespace, rest @ ..]
                if first == "namespaces"
                    && !rest.is_empty()
                    && !(group.is_empty()
                        && matches!(rest[0].as_str(), "status" | "finalize")
                        && rest.len() == 1) =>
            {
                target.namespace = Some(namespace.clone());
                rest
            }
            all => all,
        };
        match rest {
            [resource] => target.resource.clone_from(resource),
            [resource, name] => {
                target.resource.clone_from(resource);
                target.name = Some(name.clone());
            }
            [resource, name, subresource] => {
                target.resource.clone_from(resource);
                target.name = Some(name.clone());
                target.subresource = Some(subresource.clone());
            }
            _ => return None,
        }
        let named = |text: &Option<String>| text.as_deref() != Some("");
        let whole = !target.resource.is_empty() && named(&target.name) && named(&target.namespace);
        whole.then_some(target)
    }
}

/// Which objects of a kind are meant.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Selection {
    /// Selects objects of this namespace; `None` selects all.
    pub namespace: Option<String>,
    /// Selects objects with matching labels.
    pub labels: LabelSelector,
    /// Selects objects with matching fields.
    pub fields: FieldSelector,
}

impl Selection {
    /// Whether an object is meant, apart from its namespace.
    #[must_use]
    pub fn matches(&self, object: &Value) -> bool {
        self.labels.matches(object) && self.fields.matches(object)
    }

    /// Whether an object in `namespace` is meant.
    #[must_use]
    pub fn matches_in(&self, namespace: &str, object: &Value) -> bool {
        self.namespace
            .as_deref()
            .is_none_or(|wanted| wanted == namespace)
            && self.matches(object)
    }
}

/// What happens to members the schema does not know.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FieldValidation {
    /// Such members are dropped without a warning.
    Ignore,
    /// Drops unknown fields and returns a warning.
    #[default]
    Warn,
    /// A request with such a member is refused.
    Strict,
}

/// Query options that all writes share.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct WriteOptions {
    /// Whether the write is only checked, not stored.
    pub dry_run: bool,
    /// Field manager, for `managedFields`.
    pub manager: String,
    /// What happens to members that the schema does not have.
    pub field_validation: FieldValidation,
    /// Take fields over from their owners (server-side apply).
    pub force: bool,
}

impl WriteOptions {
    /// Reads them from a query. `agent` is the `User-Agent`, whose first word names the writer by
    /// default.
    ///
    /// # Errors
    /// 400 for values that do not exist; 422 for a manager name over 128 characters.
    pub fn parse(query: &Query, agent: &str) -> Result<Self, ApiError> {
        let dry_run = match query.get("dryRun") {
            None | Some("") => false,
            Some("All") => true,
            Some(other) => {
                let why = format!("invalid dryRun value {other:?}: supported values: All");
                return Err(ApiError::bad_request(why));
            }
        };
        let field_validation = match query.get("fieldValidation") {
            None | Some("" | "Warn") => FieldValidation::Warn,
            Some("Ignore") => FieldValidation::Ignore,
            Some("Strict") => FieldValidation::Strict,
            Some(other) => {
                let why = format!(
                    "invalid fieldValidation value {other:?}: supported values: Ignore, Strict, Warn"
                );
                return Err(ApiError::bad_request(why));
            }
        };
        let default = agent.split(['/', ' ']).next().unwrap_or_default();
        let default = if default.is_empty() {
            "unknown"
        } else {
            default
        };
        let manager = query
            .get("fieldManager")
            .filter(|name| !name.is_empty())
            .unwrap_or(default);
        if manager.chars().count() > 128 {
            return Err(ApiError::unprocessable(
                "fieldManager: may not be more than 128 bytes",
            ));
        }
        let force = query.flag("force")?;
        Ok(Self {
            dry_run,
            manager: manager.to_owned(),
            field_validation,
            force,
        })
    }
}

/// A decoded query string; of repeated names the first wins.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Query(BTreeMap<String, String>);

impl Query {
    /// Reads the query string of a URL.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        Self::from_pairs(form_urlencoded::parse(text.as_bytes()).into_owned())
    }

    /// Makes a query of decoded pairs.
    pub fn from_pairs(pairs: impl IntoIterator<Item = (String, String)>) -> Self {
        let mut map = BTreeMap::new();
        for (name, value) in pairs {
            map.entry(name).or_insert(value);
        }
        Self(map)
    }

    /// Returns the first value of `name`.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// A boolean; absent = false, empty = true (`?watch`).
    ///
    /// # Errors
    /// 400 for anything but a boolean.
    pub fn flag(&self, name: &str) -> Result<bool, ApiError> {
        match self.get(name) {
            None | Some("0" | "f" | "F" | "false" | "False" | "FALSE") => Ok(false),
            Some("" | "1" | "t" | "T" | "true" | "True" | "TRUE") => Ok(true),
            Some(other) => Err(ApiError::bad_request(format!(
                "invalid value {other:?} of query parameter {name:?}"
            ))),
        }
    }

    /// A whole number.
    ///
    /// # Errors
    /// 400 for anything but a non-negative number.
    pub fn number(&self, name: &str) -> Result<Option<u64>, ApiError> {
        let Some(text) = self.get(name).filter(|text| !text.is_empty()) else {
            return Ok(None);
        };
        let bad = |_| {
            ApiError::bad_request(format!(
                "invalid value {text:?} of query parameter {name:?}"
            ))
        };
        text.parse().map(Some).map_err(bad)
    }
}

/// How the body of a patch is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PatchKind {
    /// JSON Patch, `application/json-patch+json`: a list of operations.
    Json,
    /// JSON Merge Patch, `application/merge-patch+json`: lists are replaced whole.
    Merge,
    /// Strategic merge, `application/strategic-merge-patch+json`: lists merge by key. Only built-in
    /// kinds take it.
    Strategic,
    /// Server-side apply, `application/apply-patch+yaml`: merges by field ownership, and creates
    /// what is absent.
    Apply,
}

impl PatchKind {
    /// From a media type without parameters.
    #[must_use]
    pub fn from_media_type(media_type: &str) -> Option<Self> {
        Some(match media_type {
            "application/json-patch+json" => Self::Json,
            "application/merge-patch+json" => Self::Merge,
            "application/strategic-merge-patch+json" => Self::Strategic,
            "application/apply-patch+yaml" => Self::Apply,
            _ => return None,
        })
    }
}

/// What happens to dependents of a deleted object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Propagation {
    /// Dependents are deleted after the object.
    #[default]
    Background,
    /// Dependents are deleted before the object.
    Foreground,
    /// They stay, without the reference.
    Orphan,
}

/// Options of a delete, from its body and query.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DeleteOptions {
    /// Overrides the object's own grace period.
    pub grace_seconds: Option<u64>,
    /// Only if the object has this uid.
    pub uid: Option<String>,
    /// Only if the object is at this resourceVersion.
    pub resource_version: Option<String>,
    /// What happens to the objects that name this one as their owner.
    pub propagation: Propagation,
    /// Whether the delete is only checked, not carried out.
    pub dry_run: bool,
}

impl DeleteOptions {
    /// Reads a `DeleteOptions` body (may be `null`) and the query.
    ///
    /// # Errors
    /// 400 for values that do not exist.
    pub fn parse(body: &Value, query: &Query) -> Result<Self, ApiError> {
        let from_body = |name: &str| body.get(name).filter(|value| !value.is_null());
        let grace_seconds = match from_body("gracePeriodSeconds") {
            Some(value) => Some(value.as_u64().ok_or_else(|| {
                ApiError::bad_request("gracePeriodSeconds must be a non-negative integer")
            })?),
            None => query.number("gracePeriodSeconds")?,
        };
        let policy = from_body("propagationPolicy")
            .and_then(Value::as_str)
            .or_else(|| query.get("propagationPolicy"));
        let orphan = from_body("orphanDependents")
            .and_then(Value::as_bool)
            .unwrap_or(false);
        let propagation = match policy {
            None | Some("") if orphan || query.flag("orphanDependents")? => Propagation::Orphan,
            None | Some("" | "Background") => Propagation::Background,
            Some("Foreground") => Propagation::Foreground,
            Some("Orphan") => Propagation::Orphan,
            Some(other) => {
                return Err(ApiError::bad_request(format!(
                    "invalid propagationPolicy {other:?}"
                )));
            }
        };
        let dry_run = from_body("dryRun").and_then(Value::as_array);
        let dry_run = dry_run.is_some_and(|list| list.iter().any(|item| item == "All"));
        let precondition = |name: &str| {
            body["preconditions"]
                .get(name)
                .and_then(Value::as_str)
                .map(str::to_owned)
        };
        Ok(Self {
            grace_seconds,
            uid: precondition("uid"),
            resource_version: precondition("resourceVersion"),
            propagation,
            dry_run: dry_run || query.get("dryRun") == Some("All"),
        })
    }
}

/// What is asked of the store.
#[derive(Debug, Clone, PartialEq)]
pub enum Verb {
    /// POST of a new object.
    Create(Value),
    /// PUT of a whole object.
    Update(Value),
    /// PATCH of one object, with the parsed body.
    Patch(PatchKind, Value),
    /// DELETE of one object.
    Delete(DeleteOptions),
    /// DELETE of all that match.
    DeleteCollection(Selection, DeleteOptions),
    /// POST to `pods/binding`.
    Bind(Value),
}

#[cfg(test)]
mod tests;
