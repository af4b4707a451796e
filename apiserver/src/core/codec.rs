//! Between the form a client asks for and the form objects are kept in: versions of a kind, and
//! aliases of a kind.

use std::borrow::Cow;

use serde_json::Value;

use super::error::ApiError;
use super::kind::{Alias, Kind};

/// A kind and version as a client names it, beside the kind its objects are kept as.
#[derive(Debug, Clone)]
pub struct Form {
    /// The kind in the path.
    pub asked: std::sync::Arc<Kind>,
    /// The version in the path.
    pub version: String,
    /// The kind the objects are kept as; the same as `asked` but for aliases.
    pub stored: std::sync::Arc<Kind>,
}

impl Form {
    fn alias(&self) -> Option<&Alias> {
        self.asked.extras().and_then(|extras| extras.alias.as_ref())
    }

    /// Key of the objects in the store.
    #[must_use]
    pub fn key(&self) -> String {
        self.stored.key()
    }

    /// `apiVersion` in the version that the client asked for.
    #[must_use]
    pub fn api_version(&self) -> String {
        self.asked.api_version(&self.version)
    }

    /// Whether a stored object is already in the form asked for.
    #[must_use]
    pub fn is_stored_form(&self) -> bool {
        self.alias().is_none() && self.stored.storage_version().name == self.version
    }

    /// Checks a client's object and turns it into the stored form. Absent `apiVersion` and `kind`
    /// are filled in.
    ///
    /// # Errors
    /// 400 when the object is none, or of another kind or version than the path.
    pub fn decode(&self, mut value: Value) -> Result<Value, ApiError> {
        let Some(map) = value.as_object_mut() else {
            return Err(ApiError::bad_request(
                "the body must be a JSON or YAML object",
            ));
        };
        let text = |name: &str| map.get(name).and_then(Value::as_str).unwrap_or_default();
        let (api_version, kind) = (text("apiVersion"), text("kind"));
        if !api_version.is_empty() && api_version != self.api_version() {
            return Err(ApiError::bad_request(format!(
                "the API version in the data ({api_version}) does not match the expected API version ({})",
                self.api_version()
            )));
        }
        if !kind.is_empty() && kind != self.asked.kind {
            return Err(ApiError::bad_request(format!(
                "the kind in the data ({kind}) does not match the expected kind ({})",
                self.asked.kind
            )));
        }
        if let Some(alias) = self.alias() {
            for (ours, stored) in &alias.rename {
                if let Some(member) = map.remove(ours) {
                    map.insert(stored.clone(), member);
                }
            }
        }
        let stored_version = self.stored.api_version(&self.stored.storage_version().name);
        map.insert("apiVersion".to_owned(), Value::from(stored_version));
        map.insert("kind".to_owned(), Value::from(self.stored.kind.clone()));
        let metadata = map
            .entry("metadata")
            .or_insert_with(|| Value::Object(serde_json::Map::new()));
        if metadata.is_null() {
            *metadata = Value::Object(serde_json::Map::new());
        }
        if !metadata.is_object() {
            return Err(ApiError::bad_request("metadata must be an object"));
        }
        Ok(value)
    }

    /// A field selector in the members of the stored form.
    #[must_use]
    pub fn stored_fields<'a>(&self, selector: &'a str) -> Cow<'a, str> {
        let Some(alias) = self.alias().filter(|_| !selector.is_empty()) else {
            return Cow::Borrowed(selector);
        };
        let renamed = selector.split(',').map(|term| {
            let end = term.find(['.', '=', '!']).unwrap_or(term.len());
            match alias.rename.get(&term[..end]) {
                Some(stored) => format!("{stored}{}", &term[end..]),
                None => term.to_owned(),
            }
        });
        Cow::Owned(renamed.collect::<Vec<_>>().join(","))
    }

    /// Turns a stored object into the form asked for.
    #[must_use]
    pub fn encode<'a>(&self, value: &'a Value) -> Cow<'a, Value> {
        if self.is_stored_form() {
            return Cow::Borrowed(value);
        }
        let mut value = value.clone();
        if let Some(map) = value.as_object_mut() {
            map.insert("apiVersion".to_owned(), Value::from(self.api_version()));
            map.insert("kind".to_owned(), Value::from(self.asked.kind.clone()));
            for (ours, stored) in self.alias().into_iter().flat_map(|alias| &alias.rename) {
                if let Some(member) = map.remove(stored) {
                    map.insert(ours.clone(), member);
                }
            }
        }
        Cow::Owned(value)
    }
}
