//! Errors of fields of `spec`.

use serde_json::Value;

use crate::admission::{FieldError, FieldErrorKind};

pub(super) fn error(kind: FieldErrorKind, path: &str, rule: &str, value: &Value) -> FieldError {
    let field = format!("spec.{path}");
    let message = format!(".{field} {rule}");
    FieldError {
        field,
        kind,
        message,
        value: value.clone(),
    }
}

pub(super) fn invalid(path: &str, rule: &str, value: impl Into<Value>) -> FieldError {
    error(FieldErrorKind::Invalid, path, rule, &value.into())
}
