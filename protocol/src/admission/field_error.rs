//! A broken rule of a field, with the text that the deployed webhook has for it.

use serde_json::Value;

/// Class of a [`FieldError`], which sets its reason and text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FieldErrorKind {
    /// The value is not allowed.
    Invalid,
    /// The value may not be set or changed.
    Forbidden,
    /// The value is too long.
    TooLong,
}

impl FieldErrorKind {
    /// The `reason` of a `details.causes[]` entry of a Kubernetes `Status`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Invalid => "FieldValueInvalid",
            Self::Forbidden => "FieldValueForbidden",
            Self::TooLong => "FieldValueTooLong",
        }
    }
}

/// One broken rule of one field.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{}", self.to_message())]
pub struct FieldError {
    /// Path of the field without a leading dot: `spec.guest.cpus.use`.
    pub field: String,
    /// Class of the error.
    pub kind: FieldErrorKind,
    /// What is wrong, naming the field by its full path with a leading dot.
    pub message: String,
    /// The value that breaks the rule.
    pub value: Value,
}

impl FieldError {
    pub(super) fn new(kind: FieldErrorKind, field: &str, message: String, value: &Value) -> Self {
        Self {
            field: field.to_owned(),
            kind,
            message,
            value: value.clone(),
        }
    }

    /// `Invalid value: 5: .spec.guest.cpus.use must not be above .spec.guest.cpus.max (4)`.
    #[must_use]
    pub fn to_message(&self) -> String {
        match self.kind {
            FieldErrorKind::Invalid => {
                let shown = match &self.value {
                    Value::Object(_) | Value::Array(_) => "\"…\"".to_owned(),
                    other => other.to_string(),
                };
                format!("Invalid value: {shown}: {}", self.message)
            }
            FieldErrorKind::Forbidden => format!("Forbidden: {}", self.message),
            FieldErrorKind::TooLong => format!("Too long: {}", self.message),
        }
    }
}

/// A name that is the VM's or its pod's own.
pub(super) fn reserved(field: &str, name: &Value) -> FieldError {
    let message = format!(".{field} {name} is reserved");
    FieldError::new(FieldErrorKind::Invalid, field, message, name)
}
