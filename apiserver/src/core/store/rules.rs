//! Rules of a write about single members: names, namespaces, preconditions, finalizers, and members
//! that a caller cannot change.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{Context, method_not_allowed};
use crate::core::error::{ApiError, Cause};
use crate::core::hooks;
use crate::core::object::{Object, copy_meta, finalizers, meta, remove_meta};
use crate::core::request::FieldValidation;

/// Message for a write that names an older version.
const STALE: &str =
    "the object has been modified; please apply your changes to the latest version and try again";

impl Context {
    pub(super) fn not_found(&self, name: &str) -> ApiError {
        ApiError::not_found(&self.form.asked.group, &self.form.asked.resource, name)
    }

    pub(super) fn conflict(&self, name: &str, why: &str) -> ApiError {
        ApiError::conflict(&self.form.asked.group, &self.form.asked.resource, name, why)
    }

    pub(super) fn invalid(&self, name: &str, causes: Vec<Cause>) -> ApiError {
        ApiError::invalid(&self.form.asked.group, &self.form.asked.kind, name, causes)
    }
}
pub(super) fn settle_by_kind(context: &mut Context, old: Option<&Value>, value: &mut Value) {
    let manager = &context.options.manager;
    let warnings = hooks::settle(&context.form.stored, old, manager, value);
    context.warnings.extend(warnings);
}

/// The name in an object must be that of the path.
pub(super) fn check_name(context: &Context, name: &str, value: &Value) -> Result<(), ApiError> {
    if meta(value, "name") == Some(name) {
        return Ok(());
    }
    let cause = Cause {
        reason: "FieldValueInvalid".to_owned(),
        message: format!(
            "Invalid value: {}: field is immutable",
            value["metadata"]["name"]
        ),
        field: "metadata.name".to_owned(),
    };
    Err(context.invalid(name, vec![cause]))
}

pub(super) fn report_dropped(context: &mut Context, dropped: &[String]) -> Result<(), ApiError> {
    let each = || {
        dropped
            .iter()
            .map(|path| format!("unknown field \"{path}\""))
    };
    match context.options.field_validation {
        _ if dropped.is_empty() => Ok(()),
        FieldValidation::Ignore => Ok(()),
        FieldValidation::Warn => {
            context.warnings.extend(each());
            Ok(())
        }
        FieldValidation::Strict => {
            let list: Vec<String> = each().collect();
            Err(ApiError::bad_request(format!(
                "{} in version \"{}\" cannot be handled as a {}: strict decoding error: {}",
                context.form.asked.kind,
                context.form.version,
                context.form.asked.kind,
                list.join(", ")
            )))
        }
    }
}

/// The namespace of the path and that of the object must agree; an absent one is filled in.
pub(super) fn settle_namespace(context: &Context, value: &mut Value) -> Result<(), ApiError> {
    if !context.form.asked.namespaced {
        // Clients send an empty namespace for cluster-wide kinds.
        if meta(value, "namespace") == Some("") {
            remove_meta(value, "namespace");
        }
        return Ok(());
    }
    if context.namespace.is_empty() {
        return Err(method_not_allowed());
    }
    match meta(value, "namespace") {
        None | Some("") => value["metadata"]["namespace"] = Value::from(context.namespace.clone()),
        Some(namespace) if namespace == context.namespace => {}
        Some(_) => {
            let why = "the namespace of the provided object does not match the namespace sent on the request";
            return Err(ApiError::bad_request(why));
        }
    }
    Ok(())
}

pub(super) fn check_precondition(
    context: &Context,
    name: &str,
    old: &Object,
    new: &Value,
) -> Result<(), ApiError> {
    let version = meta(new, "resourceVersion").unwrap_or_default();
    if !version.is_empty() && version != old.revision.to_string() {
        return Err(context.conflict(name, STALE));
    }
    match meta(new, "uid") {
        Some(uid) if !uid.is_empty() && uid != old.uid() => {
            let why = format!(
                "Precondition failed: UID in precondition: {uid}, UID in object meta: {}",
                old.uid()
            );
            Err(context.conflict(name, &why))
        }
        _ => Ok(()),
    }
}

/// The old object with the new one's status and owner list: all that a `/status` write may change.
pub(super) fn with_status_of(old: &Value, new: &mut Value) -> Value {
    let mut value = old.clone();
    keep_member(&mut value, new, "status");
    copy_meta(&mut value, new, "managedFields");
    value
}

/// Makes a top-level member what it is in `from`.
pub(super) fn keep_member(value: &mut Value, from: &Value, name: &str) {
    let Some(map) = value.as_object_mut() else {
        return;
    };
    match from.get(name) {
        Some(member) => map.insert(name.to_owned(), member.clone()),
        None => map.remove(name),
    };
}

/// Members of `metadata` that only the server sets.
pub(super) fn keep_system_metadata(old: &Value, value: &mut Value) {
    for name in [
        "uid",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "generation",
        "generateName",
        "resourceVersion",
    ] {
        copy_meta(value, old, name);
    }
}

/// An object being deleted takes no further finalizers.
pub(super) fn check_finalizers(
    context: &Context,
    name: &str,
    old: &Value,
    new: &Value,
) -> Result<(), ApiError> {
    let before = finalizers(old);
    let added: Vec<&str> = finalizers(new)
        .into_iter()
        .filter(|finalizer| !before.contains(finalizer))
        .collect();
    if added.is_empty() {
        return Ok(());
    }
    let cause = Cause {
        reason: "FieldValueForbidden".to_owned(),
        message: format!(
            "Forbidden: no new finalizers can be added if the object is being deleted, found new finalizers {added:?}"
        ),
        field: "metadata.finalizers".to_owned(),
    };
    Err(context.invalid(name, vec![cause]))
}

/// Everything that is neither metadata nor status.
pub(super) fn spec_part(value: &Value) -> BTreeMap<&str, &Value> {
    let members = value.as_object().into_iter().flatten();
    let kept = members.filter(|(name, _)| !matches!(name.as_str(), "metadata" | "status"));
    kept.map(|(name, member)| (name.as_str(), member)).collect()
}
