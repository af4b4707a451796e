//! Server-side apply.

use std::sync::Arc;

use serde_json::{Value, json};

use super::rules::{check_name, report_dropped, settle_namespace};
use super::{Body, Context, Store};
use crate::core::error::{ApiError, Cause, Reason};
use crate::core::hooks;
use crate::core::metadata;
use crate::core::object::meta;
use crate::core::ownership;
use crate::core::schema::prune;

impl Store {
    pub(super) fn apply_config(
        &mut self,
        context: &mut Context,
        name: &str,
        body: Value,
    ) -> Result<(u16, Body), ApiError> {
        let mut config = context.form.decode(body)?;
        settle_namespace(context, &mut config)?;
        if meta(&config, "name").is_none_or(str::is_empty) {
            config["metadata"]["name"] = Value::from(name);
        }
        check_name(context, name, &config)?;
        if config["metadata"]
            .get("managedFields")
            .is_some_and(|fields| !fields.is_null())
        {
            return Err(ApiError::bad_request("metadata.managedFields must be nil"));
        }
        let old = match self.existing(context, name) {
            Ok(old) => Some(old),
            Err(_) if context.subresource.is_none() => None,
            Err(error) => return Err(error),
        };
        keep_part(context, old.is_none(), &mut config);
        self.settle_config(context, &mut config)?;
        let schema = Arc::clone(&context.form.stored.storage_version().schema);
        let live = old
            .as_ref()
            .map_or_else(|| json!({}), |old| old.value.clone());
        let api_version = context.form.api_version();
        let result = ownership::apply(
            &live,
            &config,
            &schema,
            context.writer(&api_version),
            context.options.force,
        );
        let applied = result.map_err(conflicts)?;
        context.applied = Some(applied.managers);
        match old {
            Some(old) => {
                let object = self.replace(context, &old, applied.object)?;
                Ok((200, Body::Object(object)))
            }
            None => {
                if meta(&config, "uid").is_some_and(|uid| !uid.is_empty()) {
                    return Err(
                        context.conflict(name, "uid mismatch: the object does not exist any more")
                    );
                }
                Ok((
                    201,
                    Body::Object(self.create_named(context, applied.object)?),
                ))
            }
        }
    }

    /// Prunes a config and brings its amounts into the form they are kept in, without adding
    /// members: what is added would be owned by its manager.
    fn settle_config(&self, context: &mut Context, config: &mut Value) -> Result<(), ApiError> {
        let kind = Arc::clone(&context.form.stored);
        let mut dropped = Vec::new();
        prune(config, &kind.storage_version().schema, true, &mut dropped);
        metadata::prune(config, &mut dropped);
        report_dropped(context, &dropped)?;
        let mut formed = config.clone();
        let name = meta(config, "name").unwrap_or_default().to_owned();
        hooks::refuse(&kind, &name, hooks::normalise(&kind, &mut formed))?;
        if kind.builtin.is_none() {
            take_scalars(config, &formed);
        } else {
            *config = formed;
        }
        ownership::default_whole_fields(config, Some(&kind.storage_version().schema));
        Ok(())
    }
}

/// Leaves only what this path can write: the status, or everything else. What is left out is not
/// owned either.
fn keep_part(context: &Context, is_new: bool, config: &mut Value) {
    let kind = &context.form.stored;
    let Some(map) = config.as_object_mut() else {
        return;
    };
    if context.subresource.is_some() {
        map.retain(|name, _| {
            matches!(name.as_str(), "apiVersion" | "kind" | "metadata" | "status")
        });
        if let Some(metadata) = map.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.retain(|name, _| {
                matches!(
                    name.as_str(),
                    "name" | "namespace" | "resourceVersion" | "uid"
                )
            });
        }
        return;
    }
    let keeps = is_new && kind.extras().is_some_and(|extras| extras.status_on_create);
    if kind.storage_version().has_status && !keeps {
        map.remove("status");
    }
}

/// Takes over the scalars of `from` that `value` has too.
fn take_scalars(value: &mut Value, from: &Value) {
    match (value, from) {
        (Value::Object(map), Value::Object(from)) => {
            for (name, member) in map.iter_mut() {
                if let Some(other) = from.get(name) {
                    take_scalars(member, other);
                }
            }
        }
        (Value::Array(items), Value::Array(from)) => {
            for (item, other) in items.iter_mut().zip(from) {
                take_scalars(item, other);
            }
        }
        (value, other) => value.clone_from(other),
    }
}

/// 409 that names every field somebody else has.
fn conflicts(causes: Vec<Cause>) -> ApiError {
    let fields: Vec<String> = causes
        .iter()
        .map(|cause| format!("{}: {}", cause.message, cause.field))
        .collect();
    let plural = if causes.len() == 1 { "" } else { "s" };
    let message = format!(
        "Apply failed with {} conflict{plural}: {}",
        causes.len(),
        fields.join(", ")
    );
    let mut error = ApiError::new(Reason::Conflict, message).about("", "", "");
    if let Some(details) = &mut error.details {
        details.causes = causes;
    }
    error
}
