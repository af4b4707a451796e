//! Responses that the test makes.

use axum::Json;
use axum::body::Body;
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use serde_json::{Value, json};

pub(crate) fn refusal(code: u16) -> Response {
    respond(code, &failure(code, "as ordered"))
}

/// A `Status` that reports a failure.
pub(crate) fn failure(code: u16, message: &str) -> Value {
    let reason = match code {
        404 => "NotFound",
        410 => "Expired",
        _ => "Ordered",
    };
    json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "reason": reason, "message": message, "code": code,
    })
}

pub(crate) fn respond(code: u16, body: &Value) -> Response {
    let code = StatusCode::from_u16(code).expect("is a status");
    (code, Json(body)).into_response()
}

/// The body of a response as a stream of whole lines.
pub(crate) fn lines(lines: impl futures::Stream<Item = Bytes> + Send + 'static) -> Body {
    use futures::StreamExt as _;
    Body::from_stream(lines.map(Ok::<_, std::convert::Infallible>))
}
