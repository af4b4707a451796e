//! Request bodies, within a bound and a time.

use std::time::Duration;

use axum::extract::Request;
use axum::http::{HeaderMap, header};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use serde_json::Value;
use tokio::time::timeout;

use super::output::text_header;
use crate::core::body::{MAX_BODY_BYTES, parse};
use crate::core::error::{ApiError, Reason};
use crate::core::protobuf::{Messages, ProtobufError};
use crate::core::request::PatchKind;

/// Time for a body to arrive.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);

/// The body's media type without parameters, empty if not given.
pub(super) fn media_type(headers: &HeaderMap) -> &str {
    let text = text_header(headers, &header::CONTENT_TYPE);
    text.split(';').next().unwrap_or_default().trim()
}

/// Reads the body; an empty one is `null`.
///
/// # Errors
/// 413 over the bound, 415 for a media type that is not read (protobuf only of some core kinds),
/// 400 for text that does not parse.
pub(super) async fn read(
    request: Request,
    patch: Option<PatchKind>,
    messages: &Messages,
) -> Result<Value, ApiError> {
    let media_type = media_type(request.headers());
    let is_protobuf = patch.is_none() && media_type == "application/vnd.kubernetes.protobuf";
    let yaml_allowed = match (patch, media_type) {
        (Some(PatchKind::Apply), _) => true,
        (Some(_), _) | (None, "application/json" | "application/vnd.kubernetes.protobuf") => false,
        (None, "" | "*/*" | "application/yaml" | "application/x-yaml" | "text/yaml") => true,
        (None, other) => {
            let why = format!(
                "the body of the request was in an unknown format - accepted media types include: \
                 application/json, application/yaml; got {other:?}"
            );
            return Err(ApiError::new(Reason::UnsupportedMediaType, why));
        }
    };
    let body = Limited::new(request.into_body(), MAX_BODY_BYTES);
    let Ok(body) = timeout(BODY_TIMEOUT, body.collect()).await else {
        let why = format!("the body did not arrive within {BODY_TIMEOUT:?}: send it again");
        return Err(ApiError::new(Reason::Timeout, why));
    };
    let bytes = match body {
        Ok(body) => body.to_bytes(),
        Err(error) if error.is::<LengthLimitError>() => {
            let why = format!("Request entity too large: limit is {MAX_BODY_BYTES}");
            return Err(ApiError::new(Reason::RequestEntityTooLarge, why));
        }
        Err(error) => {
            return Err(ApiError::bad_request(format!(
                "the body could not be read: {error}"
            )));
        }
    };
    if bytes.is_empty() {
        return Ok(Value::Null);
    }
    if is_protobuf {
        return messages.decode(&bytes).map_err(|error| match error {
            ProtobufError::UnknownKind(_) => {
                ApiError::new(Reason::UnsupportedMediaType, error.to_string())
            }
            ProtobufError::Malformed(_) => ApiError::bad_request(error.to_string()),
        });
    }
    parse(&bytes, yaml_allowed)
}
