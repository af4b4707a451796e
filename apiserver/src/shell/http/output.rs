//! The form of a response, and the pieces that every handler uses.

use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use serde_json::Value;

/// What an answer is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Shape {
    /// The objects themselves.
    #[default]
    Object,
    /// A table for people.
    Table,
    Metadata,
}

/// How to answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Output {
    pub(super) shape: Shape,
    pub(super) yaml: bool,
}

pub(in crate::shell) fn text_header<'a>(
    headers: &'a HeaderMap,
    name: &header::HeaderName,
) -> &'a str {
    headers
        .get(name)
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default()
}

/// JSON as a response.
pub(super) fn json(code: StatusCode, value: &Value) -> Response {
    let text = value.to_string();
    (code, [(header::CONTENT_TYPE, "application/json")], text).into_response()
}
