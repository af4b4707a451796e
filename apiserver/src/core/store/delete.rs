//! Deletion: preconditions, finalizers, grace, contents, and the cascade to dependents.

use std::sync::Arc;

use serde_json::Value;

use super::{Body, Context, NAMESPACE_KIND, POD_KIND, Store};
use crate::core::error::{ApiError, success_status};
use crate::core::hooks;
use crate::core::object::{Object, finalizers, is_deleting, meta, owner_uids};
use crate::core::request::{DeleteOptions, Propagation, Selection};
use crate::core::time::{WallTime, seconds_since};
use crate::core::view::{CRD_KIND, Change, ObjectKey};

/// Finalizer of an owner that waits for its dependents.
const FOREGROUND: &str = "foregroundDeletion";
/// Grace of a pod that names none, in seconds.
const POD_GRACE_S: u64 = 30;

impl Store {
    /// DELETE of one object.
    pub(super) fn delete(
        &mut self,
        context: &mut Context,
        name: &str,
        options: &DeleteOptions,
    ) -> Result<(u16, Body), ApiError> {
        let old = self.existing(context, name)?;
        let asked = &context.form.asked;
        let conflict = |why: String| ApiError::conflict(&asked.group, &asked.resource, name, &why);
        if let Some(uid) = options.uid.as_deref().filter(|uid| *uid != old.uid()) {
            return Err(conflict(format!(
                "Precondition failed: UID in precondition: {uid}, UID in object meta: {}",
                old.uid()
            )));
        }
        let revision = old.revision.to_string();
        if let Some(version) = options
            .resource_version
            .as_deref()
            .filter(|version| *version != revision)
        {
            return Err(conflict(format!(
                "Precondition failed: ResourceVersion in precondition: {version}, ResourceVersion in object meta: {revision}"
            )));
        }
        may_delete(context, &old)?;
        let key = context.form.key();
        let place = (context.namespace.clone(), name.to_owned());
        match self.delete_at(context.now, &key, &place, options) {
            Some(waiting) => Ok((200, Body::Object(waiting))),
            None if context
                .form
                .stored
                .extras()
                .is_some_and(|extras| extras.graceful_deletion) =>
            {
                // Pods answer with their last state.
                let last = self
                    .changes
                    .iter()
                    .rev()
                    .find(|change| change.removed && change.kind == key);
                let last = last.map_or(old, |change| Arc::clone(&change.after));
                Ok((200, Body::Object(last)))
            }
            None => {
                let status = success_status(&asked.group, &asked.resource, name, old.uid());
                Ok((200, Body::Status(status)))
            }
        }
    }

    /// DELETE of all that match; answers what they were.
    pub(super) fn delete_collection(
        &mut self,
        context: &mut Context,
        selection: &Selection,
        options: &DeleteOptions,
    ) -> Result<(u16, Body), ApiError> {
        let key = context.form.key();
        let selected: Vec<(ObjectKey, Arc<Object>)> = self
            .view
            .select(&key, selection, None)
            .map(|(place, object)| (place.clone(), Arc::clone(object)))
            .collect();
        for (_, object) in &selected {
            may_delete(context, object)?;
        }
        for (place, _) in &selected {
            self.delete_at(context.now, &key, place, options);
        }
        Ok((
            200,
            Body::List(selected.into_iter().map(|(_, object)| object).collect()),
        ))
    }

    /// Starts or finishes the deletion of an object. Answers its state if it must wait, `None` if
    /// it is gone.
    fn delete_at(
        &mut self,
        now: WallTime,
        key: &str,
        place: &ObjectKey,
        options: &DeleteOptions,
    ) -> Option<Arc<Object>> {
        let old = Arc::clone(self.view.get(key, &place.0, &place.1)?);
        let mut value = old.value.clone();
        if options.propagation == Propagation::Foreground
            && !self.dependents_of(old.uid()).is_empty()
        {
            add_finalizer(&mut value, FOREGROUND);
        }
        if options.propagation == Propagation::Orphan {
            self.orphan_dependents(old.uid());
        }
        let grace_seconds = grace_of(key, &value, options);
        let waits =
            grace_seconds > 0 || !finalizers(&value).is_empty() || self.has_contents(key, &value);
        if !waits {
            self.erase(now, key, place, value);
            return None;
        }
        mark_deleting(now, &mut value, grace_seconds);
        if key == NAMESPACE_KIND {
            value["status"]["phase"] = Value::from("Terminating");
        }
        let object = if value == old.value {
            old
        } else {
            self.write(key, place.clone(), value)
        };
        if finalizers(&object.value).contains(&FOREGROUND) {
            self.delete_dependents(now, object.uid(), options.propagation);
            self.release_foreground(now, &(key.to_owned(), place.clone()));
        }
        self.delete_contents(now, key, &object.value);
        self.view.get(key, &place.0, &place.1).cloned()
    }

    /// Takes an object away for good, with everything that follows from it.
    pub(super) fn erase(
        &mut self,
        now: WallTime,
        key: &str,
        place: &ObjectKey,
        last: Value,
    ) -> Arc<Object> {
        let gone = self.remove(key, place, last);
        self.delete_dependents(now, gone.uid(), Propagation::Background);
        let owners: Vec<String> = owner_uids(&gone.value).map(str::to_owned).collect();
        for owner in owners {
            if let Some(at) = self.by_uid.get(&owner).cloned() {
                self.release_foreground(now, &at);
            }
        }
        self.release_container(now, key, place);
        gone
    }

    fn dependents_of(&self, uid: &str) -> Vec<(String, ObjectKey)> {
        self.dependents
            .get(uid)
            .into_iter()
            .flatten()
            .cloned()
            .collect()
    }

    /// Deletes dependents with no other living owner; the others only lose the reference.
    fn delete_dependents(&mut self, now: WallTime, uid: &str, propagation: Propagation) {
        let owner_lives = self.by_uid.contains_key(uid);
        for (key, place) in self.dependents_of(uid) {
            let Some(object) = self.view.get(&key, &place.0, &place.1).cloned() else {
                continue;
            };
            let has_other = owner_uids(&object.value)
                .any(|owner| owner != uid && self.by_uid.contains_key(owner));
            if !has_other {
                let options = DeleteOptions {
                    propagation,
                    ..DeleteOptions::default()
                };
                self.delete_at(now, &key, &place, &options);
            } else if !owner_lives {
                self.drop_owner(&key, &place, &object, uid);
            }
        }
    }

    fn orphan_dependents(&mut self, uid: &str) {
        for (key, place) in self.dependents_of(uid) {
            if let Some(object) = self.view.get(&key, &place.0, &place.1).cloned() {
                self.drop_owner(&key, &place, &object, uid);
            }
        }
    }

    fn drop_owner(&mut self, key: &str, place: &ObjectKey, object: &Object, uid: &str) {
        let mut value = object.value.clone();
        if let Some(owners) = value["metadata"]["ownerReferences"].as_array_mut() {
            owners.retain(|owner| owner["uid"] != uid);
        }
        self.write(key, place.clone(), value);
    }

    /// An owner that waited for its dependents goes when none of them blocks it any more.
    fn release_foreground(&mut self, now: WallTime, at: &(String, ObjectKey)) {
        let (key, place) = at;
        let Some(owner) = self.view.get(key, &place.0, &place.1).cloned() else {
            return;
        };
        if !is_deleting(&owner.value) || !finalizers(&owner.value).contains(&FOREGROUND) {
            return;
        }
        let blocks = |(key, place): &(String, ObjectKey)| {
            self.view
                .get(key, &place.0, &place.1)
                .is_some_and(|object| {
                    let owners = object.value["metadata"]["ownerReferences"].as_array();
                    owners.into_iter().flatten().any(|reference| {
                        reference["uid"] == owner.uid()
                            && reference["blockOwnerDeletion"] == Value::Bool(true)
                    })
                })
        };
        if self.dependents_of(owner.uid()).iter().any(blocks) {
            return;
        }
        let mut value = owner.value.clone();
        remove_finalizer(&mut value, FOREGROUND);
        let grace = value["metadata"]["deletionGracePeriodSeconds"]
            .as_i64()
            .unwrap_or(0);
        if finalizers(&value).is_empty() && grace == 0 {
            self.erase(now, key, place, value);
        } else {
            self.write(key, place.clone(), value);
        }
    }

    /// Whether a namespace or a definition still holds objects.
    pub(super) fn has_contents(&self, key: &str, value: &Value) -> bool {
        !self.contents(key, value).is_empty()
    }

    fn contents(&self, key: &str, value: &Value) -> Vec<(String, ObjectKey)> {
        let at = |kind: &str, namespace: Option<&str>| -> Vec<(String, ObjectKey)> {
            self.view
                .iter(kind, namespace, None)
                .map(|(place, _)| (kind.to_owned(), place.clone()))
                .collect()
        };
        match key {
            NAMESPACE_KIND => {
                let Some(name) = meta(value, "name") else {
                    return Vec::new();
                };
                self.view
                    .kind_keys()
                    .flat_map(|kind| at(kind, Some(name)))
                    .collect()
            }
            CRD_KIND => at(meta(value, "name").unwrap_or_default(), None),
            _ => Vec::new(),
        }
    }

    fn delete_contents(&mut self, now: WallTime, key: &str, value: &Value) {
        for (key, place) in self.contents(key, value) {
            self.delete_at(now, &key, &place, &DeleteOptions::default());
        }
    }

    /// A terminating namespace or definition goes with its last object.
    fn release_container(&mut self, now: WallTime, key: &str, place: &ObjectKey) {
        for (container, at) in [
            (NAMESPACE_KIND, (String::new(), place.0.clone())),
            (CRD_KIND, (String::new(), key.to_owned())),
        ] {
            let Some(object) = self.view.get(container, &at.0, &at.1).cloned() else {
                continue;
            };
            let done = is_deleting(&object.value)
                && finalizers(&object.value).is_empty()
                && !self.has_contents(container, &object.value);
            if done {
                self.erase(now, container, &at, object.value.clone());
            }
        }
    }

    fn outlived(&self, now: WallTime) -> Vec<(String, ObjectKey)> {
        let mut outlived = Vec::new();
        for kind in self.view.registry.kinds() {
            let Some(ttl) = kind.extras().and_then(|extras| extras.ttl_seconds) else {
                continue;
            };
            let is_old =
                |value: &Value| last_seen(value).is_some_and(|seen| seconds_since(now, seen) > ttl);
            let key = kind.key();
            let objects = self.view.iter(&key, None, None);
            let old = objects.filter(|(_, object)| is_old(&object.value));
            outlived.extend(old.map(|(place, _)| (key.clone(), place.clone())));
        }
        outlived
    }

    /// Deletes objects all of whose owners are gone (those created after their owner went) and
    /// those that outlived their kind's time to live. To be called now and then.
    pub fn collect_garbage(&mut self, now: WallTime) -> Vec<Change> {
        for (key, place) in self.outlived(now) {
            self.delete_at(now, &key, &place, &DeleteOptions::default());
        }
        let lost: Vec<String> = self
            .dependents
            .keys()
            .filter(|uid| !self.by_uid.contains_key(*uid))
            .cloned()
            .collect();
        for uid in lost {
            self.delete_dependents(now, &uid, Propagation::Background);
        }
        std::mem::take(&mut self.changes)
    }
}

/// Members that tell when an event was last seen.
const SEEN: [&str; 3] = ["lastTimestamp", "eventTime", "series.lastObservedTime"];

/// When an object was last seen: its latest time, or its creation.
fn last_seen(value: &Value) -> Option<WallTime> {
    let created = meta(value, "creationTimestamp");
    let seen = SEEN.iter().filter_map(|path| {
        path.split('.')
            .try_fold(value, |at, name| at.get(name))
            .and_then(Value::as_str)
    });
    created
        .into_iter()
        .chain(seen)
        .filter_map(|text| WallTime::parse(text).ok())
        .max()
}

fn grace_of(key: &str, value: &Value, options: &DeleteOptions) -> u64 {
    if key != POD_KIND {
        return 0;
    }
    let bound = value["spec"]["nodeName"]
        .as_str()
        .is_some_and(|node| !node.is_empty());
    let ended = matches!(
        value["status"]["phase"].as_str(),
        Some("Succeeded" | "Failed")
    );
    if !bound || ended {
        return 0;
    }
    let own = value["spec"]["terminationGracePeriodSeconds"]
        .as_u64()
        .unwrap_or(POD_GRACE_S);
    options.grace_seconds.unwrap_or(own)
}

/// Sets the deletion time once; a later, shorter grace moves it forward.
/// Whether the object's kind lets a client delete it in this state.
fn may_delete(context: &Context, object: &Object) -> Result<(), ApiError> {
    let asked = &context.form.asked;
    let name = object.value["metadata"]["name"]
        .as_str()
        .unwrap_or_default();
    hooks::validate_delete(&context.form.stored, &object.value)
        .map_err(|why| ApiError::forbidden(&asked.group, &asked.resource, name, &why))
}

fn mark_deleting(now: WallTime, value: &mut Value, grace_seconds: u64) {
    let known = value["metadata"]["deletionGracePeriodSeconds"].as_u64();
    if is_deleting(value) && known.is_some_and(|known| known <= grace_seconds) {
        return;
    }
    let grace = i64::try_from(grace_seconds.min(u64::from(u32::MAX))).unwrap_or(0);
    let due = WallTime(now.0 + grace * 1_000_000);
    value["metadata"]["deletionTimestamp"] = Value::from(due.to_string());
    value["metadata"]["deletionGracePeriodSeconds"] = Value::from(grace);
    if let Some(generation) = value["metadata"]["generation"].as_i64() {
        value["metadata"]["generation"] = Value::from(generation + 1);
    }
}

fn add_finalizer(value: &mut Value, name: &str) {
    let list = &mut value["metadata"]["finalizers"];
    if !list.is_array() {
        *list = Value::Array(Vec::new());
    }
    if let Some(list) = list.as_array_mut()
        && !list.iter().any(|known| known == name)
    {
        list.push(Value::from(name));
    }
}

fn remove_finalizer(value: &mut Value, name: &str) {
    if let Some(list) = value["metadata"]["finalizers"].as_array_mut() {
        list.retain(|known| known != name);
    }
    if finalizers(value).is_empty() {
        crate::core::object::remove_meta(value, "finalizers");
    }
}
