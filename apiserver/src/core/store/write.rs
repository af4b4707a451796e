//! Create, update and patch.

use std::sync::Arc;

use serde_json::{Value, json};

use super::rules::{
    check_finalizers, check_name, check_precondition, keep_member, keep_system_metadata,
    report_dropped, settle_by_kind, settle_namespace, spec_part, with_status_of,
};
use super::{Body, Context, NAMESPACE_KIND, POD_KIND, Store, crd};
use crate::core::error::{ApiError, Cause, Reason};
use crate::core::hooks;
use crate::core::metadata;
use crate::core::native;
use crate::core::object::{Object, finalizers, is_deleting, meta, remove_meta};
use crate::core::ownership;
use crate::core::patch::{self, PatchError};
use crate::core::request::PatchKind;
use crate::core::schema::{apply_defaults, prune, validate};
use crate::core::view::{CRD_KIND, ObjectKey};

/// How often a generated name is tried when it is taken.
const NAME_ATTEMPTS: usize = 8;

impl Context {
    pub(super) fn writer<'a>(&'a self, api_version: &'a str) -> ownership::Writer<'a> {
        ownership::Writer {
            name: &self.options.manager,
            api_version,
            subresource: self.subresource.as_deref().unwrap_or_default(),
            now: self.now,
        }
    }
}

impl Store {
    /// The object a call names.
    pub(super) fn existing(&self, context: &Context, name: &str) -> Result<Arc<Object>, ApiError> {
        let found = self.view.get(&context.form.key(), &context.namespace, name);
        found.cloned().ok_or_else(|| context.not_found(name))
    }

    pub(super) fn create(
        &mut self,
        context: &mut Context,
        body: Value,
    ) -> Result<(u16, Body), ApiError> {
        let mut value = context.form.decode(body)?;
        settle_namespace(context, &mut value)?;
        let generated = meta(&value, "name").is_none_or(str::is_empty);
        for attempt in 0.. {
            if generated {
                generate_name(context, &mut value);
            }
            match self.create_named(context, value.clone()) {
                Err(error)
                    if generated
                        && error.reason == Reason::AlreadyExists
                        && attempt < NAME_ATTEMPTS => {}
                result => return result.map(|object| (201, Body::Object(object))),
            }
        }
        Err(ApiError::new(
            Reason::InternalError,
            "no free name was found",
        ))
    }

    pub(super) fn create_named(
        &mut self,
        context: &mut Context,
        mut value: Value,
    ) -> Result<Arc<Object>, ApiError> {
        let kind = Arc::clone(&context.form.stored);
        let name = meta(&value, "name").unwrap_or_default().to_owned();
        if meta(&value, "resourceVersion").is_some_and(|version| !version.is_empty()) {
            return Err(ApiError::bad_request(
                "resourceVersion should not be set on objects to be created",
            ));
        }
        self.settle(context, &mut value)?;
        settle_by_kind(context, None, &mut value);
        if kind.namespaced {
            self.check_namespace(&context.namespace)?;
        }
        let key = kind.key();
        if self.view.get(&key, &context.namespace, &name).is_some() {
            return Err(ApiError::already_exists(
                &context.form.asked.group,
                &context.form.asked.resource,
                &name,
            ));
        }
        for member in [
            "deletionTimestamp",
            "deletionGracePeriodSeconds",
            "generation",
            "resourceVersion",
        ] {
            remove_meta(&mut value, member);
        }
        value["metadata"]["uid"] = Value::from(context.entropy.uid());
        value["metadata"]["creationTimestamp"] = Value::from(context.now.to_string());
        if kind.has_generation() {
            value["metadata"]["generation"] = Value::from(1);
        }
        if kind.storage_version().has_status
            && !kind.extras().is_some_and(|extras| extras.status_on_create)
        {
            value.as_object_mut().map(|map| map.remove("status"));
        }
        self.first_state(context, &key, &mut value)?;
        self.check(context, &name, &value)?;
        hooks::refuse(&kind, &name, hooks::validate_create(&kind, &value))?;
        context.warnings.extend(hooks::warnings(&kind, &value));
        self.own(context, None, &mut value);
        Ok(self.write(&key, (context.namespace.clone(), name), value))
    }

    /// What the server itself states about a new object of some core kinds.
    fn first_state(&self, context: &Context, key: &str, value: &mut Value) -> Result<(), ApiError> {
        match key {
            NAMESPACE_KIND => {
                value["status"] = json!({"phase": "Active"});
                let name = value["metadata"]["name"].clone();
                value["metadata"]["labels"]["kubernetes.io/metadata.name"] = name;
            }
            POD_KIND => value["status"] = json!({"phase": "Pending"}),
            CRD_KIND => crd::admit(context, &self.view.registry, value, None)?,
            _ => {}
        }
        Ok(())
    }

    fn check_namespace(&self, namespace: &str) -> Result<(), ApiError> {
        let found = self.view.get(NAMESPACE_KIND, "", namespace);
        let found = found.ok_or_else(|| ApiError::not_found("", NAMESPACE_KIND, namespace))?;
        if is_deleting(&found.value) {
            let why = format!(
                "unable to create new content in namespace {namespace} because it is being terminated"
            );
            return Err(ApiError::new(Reason::Forbidden, why));
        }
        Ok(())
    }

    pub(super) fn update(
        &mut self,
        context: &mut Context,
        name: &str,
        body: Value,
    ) -> Result<(u16, Body), ApiError> {
        let mut value = context.form.decode(body)?;
        settle_namespace(context, &mut value)?;
        match meta(&value, "name") {
            None | Some("") => value["metadata"]["name"] = Value::from(name),
            Some(other) if other != name => {
                return Err(ApiError::bad_request(format!(
                    "the name of the object ({other}) does not match the name on the URL ({name})"
                )));
            }
            Some(_) => {}
        }
        let extras = context.form.stored.extras();
        let old = match self.existing(context, name) {
            Ok(old) => old,
            Err(_)
                if extras.is_some_and(|extras| extras.create_on_update)
                    && context.subresource.is_none() =>
            {
                return Ok((201, Body::Object(self.create_named(context, value)?)));
            }
            Err(error) => return Err(error),
        };
        let version = meta(&value, "resourceVersion").unwrap_or_default();
        if version.is_empty() && extras.is_none() {
            let cause = Cause {
                reason: "FieldValueInvalid".to_owned(),
                message: "Invalid value: 0x0: must be specified for an update".to_owned(),
                field: "metadata.resourceVersion".to_owned(),
            };
            return Err(context.invalid(name, vec![cause]));
        }
        let object = self.replace(context, &old, value)?;
        Ok((200, Body::Object(object)))
    }

    pub(super) fn patch(
        &mut self,
        context: &mut Context,
        name: &str,
        kind: PatchKind,
        body: Value,
    ) -> Result<(u16, Body), ApiError> {
        if kind == PatchKind::Apply {
            return self.apply_config(context, name, body);
        }
        let old = self.existing(context, name)?;
        let mut value = context.form.encode(&old.value).into_owned();
        let schema = &context.form.stored.storage_version().schema;
        match kind {
            PatchKind::Json => patch::json::apply(&mut value, &body),
            PatchKind::Strategic if context.form.stored.builtin.is_none() => {
                let why = "the body of the request was in an unknown format - custom resources do not take \
                    application/strategic-merge-patch+json; use application/merge-patch+json";
                return Err(ApiError::new(Reason::UnsupportedMediaType, why));
            }
            PatchKind::Strategic => patch::strategic::apply(&mut value, &body, schema),
            _ if !body.is_object() => Err(PatchError::Malformed("a merge patch must be an object".to_owned())),
            _ => {
                patch::merge::apply(&mut value, &body);
                Ok(())
            }
        }
        .map_err(|error| match error {
            PatchError::Malformed(why) => ApiError::bad_request(why),
            PatchError::DoesNotApply(why) => ApiError::unprocessable(format!(
                "the server rejected our request due to an error in our request: {why}"
            )),
        })?;
        let mut value = context.form.decode(value)?;
        settle_namespace(context, &mut value)?;
        check_name(context, name, &value)?;
        let object = self.replace(context, &old, value)?;
        Ok((200, Body::Object(object)))
    }

    /// From the old state and a wanted one to what is kept.
    pub(super) fn replace(
        &mut self,
        context: &mut Context,
        old: &Arc<Object>,
        mut value: Value,
    ) -> Result<Arc<Object>, ApiError> {
        let kind = Arc::clone(&context.form.stored);
        let name = meta(&old.value, "name").unwrap_or_default().to_owned();
        check_precondition(context, &name, old, &value)?;
        self.settle(context, &mut value)?;
        if context.subresource.is_some() {
            value = with_status_of(&old.value, &mut value);
        } else {
            settle_by_kind(context, Some(&old.value), &mut value);
            if kind.storage_version().has_status {
                keep_member(&mut value, &old.value, "status");
            }
        }
        keep_system_metadata(&old.value, &mut value);
        if kind.key() == CRD_KIND {
            crd::admit(context, &self.view.registry, &mut value, Some(&old.value))?;
        }
        if is_deleting(&old.value) {
            check_finalizers(context, &name, &old.value, &value)?;
        }
        self.check(context, &name, &value)?;
        if context.subresource.is_none() {
            hooks::refuse(
                &kind,
                &name,
                hooks::validate_update(&kind, &old.value, &value),
            )?;
        }
        if kind.has_generation() && spec_part(&old.value) != spec_part(&value) {
            let generation = old.value["metadata"]["generation"].as_i64().unwrap_or(0);
            value["metadata"]["generation"] = Value::from(generation + 1);
        }
        self.own(context, Some(&old.value), &mut value);
        // Owners count too: applying what is already there still makes the applier an owner.
        if value == old.value {
            return Ok(Arc::clone(old));
        }
        let place: ObjectKey = (context.namespace.clone(), name);
        let waits = !finalizers(&value).is_empty()
            || value["metadata"]["deletionGracePeriodSeconds"]
                .as_i64()
                .unwrap_or(0)
                > 0;
        if is_deleting(&value) && !waits && !self.has_contents(&kind.key(), &value) {
            return Ok(self.erase(context.now, &kind.key(), &place, value));
        }
        Ok(self.write(&kind.key(), place, value))
    }

    /// Prunes, defaults and normalises an object on its way in.
    fn settle(&self, context: &mut Context, value: &mut Value) -> Result<(), ApiError> {
        let kind = Arc::clone(&context.form.stored);
        let schema = Arc::clone(&kind.storage_version().schema);
        let mut dropped = Vec::new();
        // Definitions hold schemas, in which `null` may be a value.
        if kind.builtin.is_some() && kind.key() != CRD_KIND {
            native::drop_nulls(value);
        }
        prune(value, &schema, true, &mut dropped);
        metadata::prune(value, &mut dropped);
        report_dropped(context, &dropped)?;
        apply_defaults(value, &schema);
        let name = meta(value, "name").unwrap_or_default().to_owned();
        hooks::refuse(&kind, &name, hooks::normalise(&kind, value))?;
        native::check(&kind.key(), value).map_err(|why| {
            let (asked, version) = (&context.form.asked.kind, &context.form.version);
            ApiError::bad_request(format!(
                "{asked} in version \"{version}\" cannot be handled as a {asked}: {why}"
            ))
        })
    }

    /// Checks an object against its schema and the metadata rules.
    fn check(&self, context: &Context, name: &str, value: &Value) -> Result<(), ApiError> {
        let kind = &context.form.stored;
        let mut problems = metadata::validate(value, kind.namespaced);
        problems.extend(validate(value, &kind.storage_version().schema, ""));
        if problems.is_empty() {
            Ok(())
        } else {
            Err(context.invalid(name, problems))
        }
    }

    fn own(&self, context: &Context, old: Option<&Value>, value: &mut Value) {
        let api_version = context.form.api_version();
        let schema = &context.form.stored.storage_version().schema;
        let managers = context.applied.clone().unwrap_or_else(|| {
            let known = old
                .map(|old| ownership::managers_after(old, value))
                .unwrap_or_default();
            ownership::after_update(known, old, value, schema, context.writer(&api_version))
        });
        ownership::set_managers(value, &managers);
    }
}

/// Longest base of a generated name, so that the suffix fits a label.
const MAX_GENERATED_BASE: usize = 58;

fn generate_name(context: &mut Context, value: &mut Value) {
    let Some(base) = meta(value, "generateName").filter(|base| !base.is_empty()) else {
        return;
    };
    let base: String = base.chars().take(MAX_GENERATED_BASE).collect();
    value["metadata"]["name"] = Value::from(format!("{base}{}", context.entropy.suffix()));
}
