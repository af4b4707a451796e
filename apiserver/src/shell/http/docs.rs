//! Paths that are no objects: version, discovery, OpenAPI.

use std::sync::Arc;

use axum::http::{Method, StatusCode, header};
use axum::response::Response;
use serde_json::{Value, json};

use super::accept::Accept;
use super::exchange::App;
use super::output;
use crate::core::discovery;
use crate::core::error::ApiError;
use crate::core::store::method_not_allowed;

/// Version of the Kubernetes API that clients are told.
const MAJOR: &str = "1";
const MINOR: &str = "32";

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
    Ok(output::json(StatusCode::OK, &value))
}

fn aggregated_response(value: &Value) -> Response {
    let mut response = output::json(StatusCode::OK, value);
    let content = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
    response.headers_mut().insert(
        header::CONTENT_TYPE,
        axum::http::HeaderValue::from_static(content),
    );
    response
}
