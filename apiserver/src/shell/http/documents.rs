//! OpenAPI documents, kept once they are made.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use serde_json::Value;

use crate::core::error::ApiError;
use crate::core::openapi;
use crate::core::registry::Registry;

/// OpenAPI documents already made for a registry: they are large, and clients ask for them again
/// and again.
#[derive(Debug, Default)]
pub struct Documents {
    made: Mutex<Made>,
}

#[derive(Debug, Default)]
struct Made {
    registry: Arc<Registry>,
    texts: BTreeMap<String, Arc<str>>,
}

impl Documents {
    /// The index, or the document of a group and version.
    pub(super) fn answer(
        &self,
        registry: &Arc<Registry>,
        path: &[&str],
    ) -> Result<Response, ApiError> {
        let key = path.join("/");
        let known = self.known(registry, &key);
        let text = match known {
            Some(text) => text,
            None => {
                let document = match path {
                    [] => Some(openapi::index(registry, hash)),
                    ["api", version] => openapi::document(registry, "", version),
                    ["apis", group, version] => openapi::document(registry, group, version),
                    _ => None,
                };
                // Only documents that exist are kept, so no client can fill the map.
                let text: Arc<str> = document
                    .ok_or_else(ApiError::unknown_path)?
                    .to_string()
                    .into();
                let mut made = self.lock();
                if Arc::ptr_eq(&made.registry, registry) {
                    made.texts.insert(key, Arc::clone(&text));
                }
                text
            }
        };
        let headers = [(header::CONTENT_TYPE, "application/json")];
        Ok((StatusCode::OK, headers, text.to_string()).into_response())
    }

    fn known(&self, registry: &Arc<Registry>, key: &str) -> Option<Arc<str>> {
        let mut made = self.lock();
        if !Arc::ptr_eq(&made.registry, registry) {
            *made = Made {
                registry: Arc::clone(registry),
                texts: BTreeMap::new(),
            };
        }
        made.texts.get(key).cloned()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Made> {
        self.made
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// A short hash of a document.
fn hash(document: &Value) -> String {
    use sha2::Digest as _;
    let digest = sha2::Sha256::digest(document.to_string());
    digest
        .iter()
        .take(8)
        .map(|byte| format!("{byte:02X}"))
        .collect()
}
