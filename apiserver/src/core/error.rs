//! The refusals of the API: each becomes a Kubernetes `Status` object with an HTTP code.

use serde_json::{Map, Value, json};

/// Why a request was refused, as the `reason` member of a `Status`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// No or wrong bearer token.
    Unauthorized,
    /// The object or kind does not exist.
    NotFound,
    /// An object of this name exists.
    AlreadyExists,
    /// Stale resourceVersion, failed precondition, or a field owned by somebody else.
    Conflict,
    /// The object breaks its schema or an admission rule.
    Invalid,
    /// The request itself is malformed.
    BadRequest,
    /// The verb is not offered for this resource.
    MethodNotAllowed,
    /// None of the wanted answer types can be produced.
    NotAcceptable,
    /// The body's type is not understood here.
    UnsupportedMediaType,
    /// A continue token or resourceVersion that is no longer held.
    Expired,
    /// A resourceVersion from the future.
    Timeout,
    /// The body is larger than the bound.
    RequestEntityTooLarge,
    /// A change the object's state forbids.
    Forbidden,
    /// The store cannot take the write (disk full).
    InsufficientStorage,
    /// Anything that is our fault.
    InternalError,
}

impl Reason {
    /// The HTTP status code.
    #[must_use]
    pub fn code(self) -> u16 {
        match self {
            Self::BadRequest => 400,
            Self::Unauthorized => 401,
            Self::Forbidden => 403,
            Self::NotFound => 404,
            Self::MethodNotAllowed => 405,
            Self::NotAcceptable => 406,
            Self::AlreadyExists | Self::Conflict => 409,
            Self::Expired => 410,
            Self::RequestEntityTooLarge => 413,
            Self::UnsupportedMediaType => 415,
            Self::Invalid => 422,
            Self::InternalError => 500,
            Self::Timeout => 504,
            Self::InsufficientStorage => 507,
        }
    }

    /// The spelling on the wire.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unauthorized => "Unauthorized",
            Self::NotFound => "NotFound",
            Self::AlreadyExists => "AlreadyExists",
            Self::Conflict => "Conflict",
            Self::Invalid => "Invalid",
            Self::BadRequest => "BadRequest",
            Self::MethodNotAllowed => "MethodNotAllowed",
            Self::NotAcceptable => "NotAcceptable",
            Self::UnsupportedMediaType => "UnsupportedMediaType",
            Self::Expired => "Expired",
            Self::Timeout => "Timeout",
            Self::RequestEntityTooLarge => "RequestEntityTooLarge",
            Self::Forbidden => "Forbidden",
            Self::InsufficientStorage => "InsufficientStorage",
            Self::InternalError => "InternalError",
        }
    }
}

/// One problem of one field, as in `details.causes[]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cause {
    /// `FieldValueInvalid`, `FieldValueRequired`, `FieldManagerConflict`, …
    pub reason: String,
    /// Sentence for the caller: the bad value and the rule that it breaks.
    pub message: String,
    /// Path of the field (`spec.guest.cpus.use`).
    pub field: String,
}

/// Refusal of a request, as a `Status` object.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ApiError {
    /// Class of the refusal; fixes the HTTP code.
    pub reason: Reason,
    /// Sentence for the caller. `kubectl` prints it as `Error from server (REASON): MESSAGE`.
    pub message: String,
    /// What the request was about, if known. Boxed: refusals travel in every result.
    pub details: Option<Box<Details>>,
}

/// The `details` member of a `Status`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Details {
    /// Name of the object; empty if the request names none.
    pub name: String,
    /// API group of the kind, empty for core.
    pub group: String,
    /// Plural resource name, or kind.
    pub kind: String,
    /// `metadata.uid` of the object.
    pub uid: String,
    /// What is wrong with which field; empty unless validation or field ownership refuses.
    pub causes: Vec<Cause>,
}

impl ApiError {
    /// Creates a refusal without details.
    #[must_use]
    pub fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self {
            reason,
            message: message.into(),
            details: None,
        }
    }

    /// 400: the request cannot be read, or asks for what does not exist.
    #[must_use]
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(Reason::BadRequest, message)
    }

    /// 404 for an object of a known kind.
    #[must_use]
    pub fn not_found(group: &str, resource: &str, name: &str) -> Self {
        let message = format!("{} \"{name}\" not found", qualified(resource, group));
        Self::new(Reason::NotFound, message).about(group, resource, name)
    }

    /// 404 for a path no kind is registered at.
    #[must_use]
    pub fn unknown_path() -> Self {
        let mut error = Self::new(
            Reason::NotFound,
            "the server could not find the requested resource",
        );
        error.details = Some(Box::default());
        error
    }

    /// 409 for a taken name.
    #[must_use]
    pub fn already_exists(group: &str, resource: &str, name: &str) -> Self {
        let message = format!("{} \"{name}\" already exists", qualified(resource, group));
        Self::new(Reason::AlreadyExists, message).about(group, resource, name)
    }

    /// 409 for a stale or contradicted write.
    #[must_use]
    pub fn conflict(group: &str, resource: &str, name: &str, why: &str) -> Self {
        let message = format!(
            "Operation cannot be fulfilled on {} \"{name}\": {why}",
            qualified(resource, group)
        );
        Self::new(Reason::Conflict, message).about(group, resource, name)
    }

    /// 403 for a change that the object's state forbids.
    #[must_use]
    pub fn forbidden(group: &str, resource: &str, name: &str, why: &str) -> Self {
        let message = format!(
            "{} \"{name}\" is forbidden: {why}",
            qualified(resource, group)
        );
        Self::new(Reason::Forbidden, message).about(group, resource, name)
    }

    /// 422 with one cause per problem.
    #[must_use]
    pub fn invalid(group: &str, kind: &str, name: &str, causes: Vec<Cause>) -> Self {
        let each: Vec<String> = causes
            .iter()
            .map(|cause| match cause.field.as_str() {
                "" => cause.message.clone(),
                field => format!("{field}: {}", cause.message),
            })
            .collect();
        let list = match each.as_slice() {
            [one] => one.clone(),
            many => format!("[{}]", many.join(", ")),
        };
        let message = format!("{} \"{name}\" is invalid: {list}", qualified(kind, group));
        let mut error = Self::new(Reason::Invalid, message).about(group, kind, name);
        if let Some(details) = &mut error.details {
            details.causes = causes;
        }
        error
    }

    /// 422 for a patch that cannot be applied.
    #[must_use]
    pub fn unprocessable(message: impl Into<String>) -> Self {
        Self::new(Reason::Invalid, message)
    }

    /// Adds what the request was about.
    #[must_use]
    pub fn about(mut self, group: &str, kind: &str, name: &str) -> Self {
        self.details = Some(Box::new(Details {
            name: name.to_owned(),
            group: group.to_owned(),
            kind: kind.to_owned(),
            ..Details::default()
        }));
        self
    }

    /// The HTTP status code.
    #[must_use]
    pub fn code(&self) -> u16 {
        self.reason.code()
    }

    /// The `Status` object for the wire.
    #[must_use]
    pub fn to_status(&self) -> Value {
        let mut status = json!({
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason.as_str(),
            "code": self.code(),
        });
        if let Some(details) = &self.details {
            status["details"] = details.to_json();
        }
        status
    }
}

impl Details {
    fn to_json(&self) -> Value {
        let mut map = Map::new();
        let texts = [
            ("name", &self.name),
            ("group", &self.group),
            ("kind", &self.kind),
            ("uid", &self.uid),
        ];
        for (key, text) in texts {
            if !text.is_empty() {
                map.insert(key.to_owned(), json!(text));
            }
        }
        if !self.causes.is_empty() {
            let causes = self.causes.iter().map(
                |cause| json!({"reason": cause.reason, "message": cause.message, "field": cause.field}),
            );
            map.insert("causes".to_owned(), causes.collect());
        }
        Value::Object(map)
    }
}

/// `virtualmachines.vm.neon.tech`, or the bare resource in the core group.
fn qualified(resource: &str, group: &str) -> String {
    if group.is_empty() {
        resource.to_owned()
    } else {
        format!("{resource}.{group}")
    }
}

/// The `Status` of a delete that removed its object at once.
#[must_use]
pub fn success_status(group: &str, resource: &str, name: &str, uid: &str) -> Value {
    let details = Details {
        name: name.to_owned(),
        group: group.to_owned(),
        kind: resource.to_owned(),
        uid: uid.to_owned(),
        causes: Vec::new(),
    };
    json!({
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Success",
        "details": details.to_json(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_reads_as_the_real_server_writes_it() {
        let status = ApiError::not_found("vm.neon.tech", "virtualmachines", "pg").to_status();
        assert_eq!(
            status["message"],
            "virtualmachines.vm.neon.tech \"pg\" not found"
        );
        assert_eq!(status["code"], 404);
        assert_eq!(status["details"]["name"], "pg");
        let conflict = ApiError::conflict("", "pods", "p", "stale").to_status();
        assert_eq!(
            conflict["message"],
            "Operation cannot be fulfilled on pods \"p\": stale"
        );
        assert_eq!(conflict["reason"], "Conflict");
    }

    #[test]
    fn causes_are_listed_in_the_message_and_the_details() {
        let cause = |field: &str| Cause {
            reason: "FieldValueInvalid".into(),
            message: "bad".into(),
            field: field.into(),
        };
        let one = ApiError::invalid("", "Pod", "p", vec![cause("spec.a")]);
        assert_eq!(one.message, "Pod \"p\" is invalid: spec.a: bad");
        let two = ApiError::invalid("g", "K", "p", vec![cause("spec.a"), cause("spec.b")]);
        assert_eq!(
            two.message,
            "K.g \"p\" is invalid: [spec.a: bad, spec.b: bad]"
        );
        assert_eq!(two.to_status()["details"]["causes"][1]["field"], "spec.b");
    }
}
