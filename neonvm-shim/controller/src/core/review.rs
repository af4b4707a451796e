//! Admission of VM objects and sets in front of a real API server: the response to an
//! `AdmissionReview`. The rules are those that the embedded API server applies itself
//! (`protocol::admission`, `protocol::policy`). Source: docs/compatibility/neonvm.md §1.9.
//!
//! A change that leaves the spec as it is (labels, finalizers, owners) always passes: an object
//! that is older than the rules must still be deletable.

use std::collections::BTreeSet;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use protocol::admission::{self, FieldError, Writer};
use protocol::permit::NamespacedName;
use protocol::policy::{self, SET_KIND};
use serde_json::{Value, json};

/// The version of reviews that is spoken.
const API_VERSION: &str = "admission.k8s.io/v1";
/// The status code of an object that breaks a rule.
const INVALID: u16 = 422;

/// The two calls of an admission webhook.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Task {
    /// Bring the object into the form it is kept in.
    Mutate,
    /// Accept or refuse the object.
    Validate,
}

/// VMs whose changes pass although they break a rule: the flag `--skip-update-validation-for`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Excused(BTreeSet<NamespacedName>);

impl Excused {
    /// Of names as `NAMESPACE/NAME`, or `NAME` in the namespace `default`.
    #[must_use]
    pub fn of<'a>(names: impl IntoIterator<Item = &'a str>) -> Self {
        let key = |name: &str| {
            let (namespace, name) = name.split_once('/').unwrap_or(("default", name));
            NamespacedName {
                namespace: namespace.to_owned(),
                name: name.to_owned(),
            }
        };
        let names = names.into_iter().map(str::trim);
        Self(names.filter(|name| !name.is_empty()).map(key).collect())
    }
}

/// A broken rule that was let pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Skipped {
    /// Namespace and name of the excused VM.
    pub key: NamespacedName,
    /// Uid of the VM, for the event about it.
    pub uid: String,
    /// Rule that the change breaks.
    pub message: String,
}

/// Response of the webhook to one review.
#[derive(Debug, Clone, PartialEq)]
pub struct ReviewResponse {
    /// The `AdmissionReview` to send back.
    pub review: Value,
    /// The broken rule that was let pass; `None` for a dry run.
    pub skipped: Option<Skipped>,
}

/// Why a request gets no response: it is no review.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NoReview {
    /// It is of another version or kind.
    #[error("not an AdmissionReview of {API_VERSION}")]
    OtherKind,
    /// It has no request with a uid, a kind and an object.
    #[error("the review lacks a request, or its request lacks its uid, its kind or its object")]
    Incomplete,
}

/// Answers a review.
///
/// # Errors
/// [`NoReview`]; the sender made a mistake.
pub fn respond(task: Task, review: &Value, excused: &Excused) -> Result<ReviewResponse, NoReview> {
    if review["apiVersion"] != API_VERSION || review["kind"] != "AdmissionReview" {
        return Err(NoReview::OtherKind);
    }
    let request = &review["request"];
    let (Some(uid), Some(kind)) = (request["uid"].as_str(), request["kind"]["kind"].as_str())
    else {
        return Err(NoReview::Incomplete);
    };
    if !request["object"].is_object() {
        return Err(NoReview::Incomplete);
    }
    let mut response = match task {
        Task::Mutate => mutated(kind, request),
        Task::Validate => validated(kind, request, excused),
    };
    response.review["uid"] = uid.into();
    response.review =
        json!({"apiVersion": API_VERSION, "kind": "AdmissionReview", "response": response.review});
    Ok(response)
}

/// Each changed member of the object as a whole: there are three or four.
fn mutated(kind: &str, request: &Value) -> ReviewResponse {
    let object = &request["object"];
    let mut after = object.clone();
    if let Err(errors) = admission::normalise(kind, &mut after) {
        return denied(&errors);
    }
    let old = (request["operation"] == "UPDATE").then(|| kept(kind, &request["oldObject"]).0);
    let warnings = admission::settle_size(kind, old.as_ref(), writer(request), &mut after);
    let members = after.as_object().into_iter().flatten();
    let changed = members.filter(|(name, value)| object.get(name) != Some(value));
    let patch: Vec<Value> = changed
        .map(|(name, value)| json!({"op": "add", "path": format!("/{name}"), "value": value}))
        .collect();
    let mut response = allowed(warnings);
    if !patch.is_empty() {
        response["patchType"] = "JSONPatch".into();
        response["patch"] = STANDARD.encode(Value::from(patch).to_string()).into();
    }
    passed(response)
}

fn writer(request: &Value) -> Writer {
    Writer::of(
        request["userInfo"]["username"].as_str(),
        request["options"]["fieldManager"].as_str(),
    )
}

fn validated(kind: &str, request: &Value, excused: &Excused) -> ReviewResponse {
    let (new, readable) = kept(kind, &request["object"]);
    let mut warnings = Vec::new();
    let checked = if request["operation"] == "UPDATE" {
        // The old object may be malformed, and is compared as it is.
        let (old, _) = kept(kind, &request["oldObject"]);
        if old["spec"] == new["spec"] {
            Ok(())
        } else {
            readable.and_then(|()| {
                if kind == SET_KIND {
                    policy::validate(kind, &new)
                } else {
                    admission::validate_update(kind, &old, &new)
                }
            })
        }
    } else {
        warnings = admission::warnings(kind, &new);
        readable.and_then(|()| {
            if kind == SET_KIND {
                policy::validate(kind, &new)
            } else {
                admission::validate_create(kind, &new)
            }
        })
    };
    let Err(errors) = checked else {
        return passed(allowed(warnings));
    };
    let text = |name: &str| request[name].as_str().unwrap_or_default().to_owned();
    let key = NamespacedName {
        namespace: text("namespace"),
        name: text("name"),
    };
    let may_be_excused = request["operation"] == "UPDATE" && kind != SET_KIND;
    if !may_be_excused || !excused.0.contains(&key) {
        return denied(&errors);
    }
    let message = joined(&errors);
    let warning = format!("{key} may not be so, and passes because it is excused: {message}");
    let uid = new["metadata"]["uid"].as_str().unwrap_or_default();
    let skipped = Skipped {
        key,
        uid: uid.to_owned(),
        message,
    };
    ReviewResponse {
        review: json!({"allowed": true, "warnings": [warning]}),
        skipped: (request["dryRun"] != true).then_some(skipped),
    }
}

/// The object in its stored form, and the members that are malformed. The mutating webhook may not
/// have seen it: `webhook.yaml` does not send it a resize that changes nothing else.
fn kept(kind: &str, object: &Value) -> (Value, Result<(), Vec<FieldError>>) {
    let mut kept = object.clone();
    match admission::normalise(kind, &mut kept) {
        Ok(()) => (kept, Ok(())),
        Err(errors) => (object.clone(), Err(errors)),
    }
}

fn allowed(warnings: Vec<String>) -> Value {
    let mut response = json!({"allowed": true});
    if !warnings.is_empty() {
        response["warnings"] = warnings.into();
    }
    response
}

fn passed(review: Value) -> ReviewResponse {
    ReviewResponse {
        review,
        skipped: None,
    }
}

fn denied(errors: &[FieldError]) -> ReviewResponse {
    let causes = errors.iter().map(|error| {
        json!({"reason": error.kind.as_str(), "message": error.to_message(), "field": error.field})
    });
    let causes: Vec<Value> = causes.collect();
    passed(json!({"allowed": false, "status": {
        "code": INVALID, "reason": "Invalid", "message": joined(errors), "details": {"causes": causes},
    }}))
}

/// All errors in one line, in the form of the API server's own messages.
fn joined(errors: &[FieldError]) -> String {
    let texts = errors
        .iter()
        .map(|error| format!("{}: {}", error.field, error.to_message()));
    match &texts.collect::<Vec<_>>()[..] {
        [one] => one.clone(),
        many => format!("[{}]", many.join(", ")),
    }
}

#[cfg(test)]
mod tests;
