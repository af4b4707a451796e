//! Paths that are no objects: version, discovery, OpenAPI.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use axum::http::{Method, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use serde_json::{Value, json};

use super::App;
use super::accept::Accept;
use crate::core::discovery;
use crate::core::error::ApiError;
use crate::core::openapi;
use crate::core::registry::Registry;
use crate::core::store::method_not_allowed;

/// Version of the Kubernetes API that clients are told.
const MAJOR: &str = "1";
const MINOR: &str = "32";

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
    fn answer(&self, registry: &Arc<Registry>, path: &[&str]) -> Result<Response, ApiError> {
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

/// Answers a path of this module.
pub(super) fn answer(
    app: &Arc<App>,
    method: &Method,
    path: &[&str],
    accept: &Accept,
) -> Result<Response, ApiError> {
    if method != Method::GET {
        return Err(match path {
            ["version" | "api" | "apis" | "openapi", ..] => method_not_allowed(),
            _ => ApiError::unknown_path(),
        });
    }
    let registry = app.hub.with(|view| Arc::clone(&view.registry));
    let aggregated = accept.wants_aggregated_discovery();
    let value = match path {
        ["version"] => json!({
            "major": MAJOR,
            "minor": MINOR,
            "gitVersion": format!("v{MAJOR}.{MINOR}.0+bellows-{}", env!("CARGO_PKG_VERSION")),
            "platform": format!("{}/{}", std::env::consts::OS, std::env::consts::ARCH),
        }),
        ["api"] if aggregated => {
            return Ok(aggregated_response(&discovery::aggregated(&registry, true)));
        }
        ["apis"] if aggregated => {
            return Ok(aggregated_response(&discovery::aggregated(
                &registry, false,
            )));
        }
        ["api"] => discovery::core_versions(),
        ["apis"] => discovery::groups(&registry),
        ["apis", group] => discovery::group(&registry, group).ok_or_else(ApiError::unknown_path)?,
        ["api", version] => {
            discovery::resources(&registry, "", version).ok_or_else(ApiError::unknown_path)?
        }
        ["apis", group, version] => {
            discovery::resources(&registry, group, version).ok_or_else(ApiError::unknown_path)?
        }
        ["openapi", "v3", rest @ ..] => return app.documents.answer(&registry, rest),
        [""] => {
            json!({"paths": ["/api", "/api/v1", "/apis", "/healthz", "/livez", "/openapi/v2", "/openapi/v3", "/readyz", "/version"]})
        }
        _ => return Err(ApiError::unknown_path()),
    };
    Ok(super::json(StatusCode::OK, &value))
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

fn aggregated_response(value: &Value) -> Response {
    let mut response = super::json(StatusCode::OK, value);
    let content = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
    response.headers_mut().insert(
        header::CONTENT_TYPE,
        axum::http::HeaderValue::from_static(content),
    );
    response
}
