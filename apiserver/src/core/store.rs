//! The state machine of the API: one call in, a reply and the changes it made out.

mod apply;
mod bind;
mod crd;
mod delete;
#[cfg(feature = "testing")]
mod plant;
mod rules;
mod write;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::Value;

use super::codec::Form;
use super::depth;
use super::error::{ApiError, Reason};
use super::object::{Entropy, Object, owner_uids};
use super::ownership::Manager;
use super::registry::Registry;
use super::request::{Target, Verb, WriteOptions};
use super::time::WallTime;
use super::view::{Change, ObjectKey, View, with_defaults};

/// Key of the Namespace kind.
pub const NAMESPACE_KIND: &str = "namespaces";
/// Key of the Pod kind.
pub const POD_KIND: &str = "pods";

/// A write request with all of its inputs: time, random seed, path, body and options.
#[derive(Debug, Clone)]
pub struct WriteRequest {
    /// Time of the write, for the timestamps in the object.
    pub now: WallTime,
    /// Seed of generated names and uids.
    pub seed: u64,
    /// Object or collection that the path names.
    pub target: Target,
    /// Operation, with its body.
    pub verb: Verb,
    /// Query options of the write: dry run, field manager, field validation, force.
    pub options: WriteOptions,
}

/// Response to a write request.
#[derive(Debug, Clone)]
pub struct WriteResponse {
    /// HTTP code: 200 or 201.
    pub code: u16,
    /// Source of the HTTP body.
    pub body: Body,
    /// Texts for `Warning` headers.
    pub warnings: Vec<String>,
}

/// The body of a [`WriteResponse`].
#[derive(Debug, Clone)]
pub enum Body {
    /// One object, in stored form.
    Object(Arc<Object>),
    /// Several objects, in stored form.
    List(Vec<Arc<Object>>),
    /// A `Status` object, where the answer is no stored object.
    Status(Value),
}

/// State of a write request while it runs.
struct Context {
    now: WallTime,
    entropy: Entropy,
    form: Form,
    namespace: String,
    subresource: Option<String>,
    options: WriteOptions,
    warnings: Vec<String>,
    /// Field owners an apply has worked out.
    applied: Option<Vec<Manager>>,
}

/// All objects, committed or about to be.
#[derive(Debug, Clone, Default)]
pub struct Store {
    view: View,
    /// Where the object with a uid is.
    by_uid: BTreeMap<String, (String, ObjectKey)>,
    /// Objects that name a uid as owner.
    dependents: BTreeMap<String, BTreeSet<(String, ObjectKey)>>,
    /// Changes of the running call.
    changes: Vec<Change>,
}

impl Store {
    /// An empty store that serves the built-in kinds. `revision` is the last one ever given out.
    #[must_use]
    pub fn new(registry: Registry, revision: u64) -> Self {
        let view = View::new(registry, revision);
        Self {
            view,
            ..Self::default()
        }
    }

    /// Takes over an object read from disk. CRDs must come before the objects of their kinds, so
    /// that members added to a schema later get their defaults.
    pub fn load(&mut self, kind: &str, place: ObjectKey, object: Arc<Object>) {
        let object = self.defaulted(kind, object);
        self.view.revision = self.view.revision.max(object.revision);
        self.put(kind, place, object);
    }

    /// The object with the defaults of its kind, if that is a defined one.
    fn defaulted(&self, kind: &str, object: Arc<Object>) -> Arc<Object> {
        let mut kinds = self.view.registry.kinds();
        match kinds.find(|known| known.key() == kind) {
            Some(known) if known.builtin.is_none() => {
                with_defaults(&object, &known.storage_version().schema)
            }
            _ => object,
        }
    }

    /// The state, including changes not yet committed.
    #[must_use]
    pub fn view(&self) -> &View {
        &self.view
    }

    /// Applies one write. Changes come in the order of their revisions.
    ///
    /// # Errors
    /// The refusal; the state is then as before.
    pub fn apply(&mut self, call: WriteRequest) -> Result<(WriteResponse, Vec<Change>), ApiError> {
        let dry_run = call.options.dry_run;
        let result = self.run(call).and_then(|reply| {
            self.check_depth()?;
            Ok(reply)
        });
        let changes = std::mem::take(&mut self.changes);
        match result {
            Ok(reply) if !dry_run => Ok((reply, changes)),
            Ok(reply) => {
                self.rollback(changes);
                Ok((reply, Vec::new()))
            }
            Err(refusal) => {
                self.rollback(changes);
                Err(refusal)
            }
        }
    }

    /// Takes changes back that could not be committed. They must be the last ones made.
    pub fn rollback(&mut self, changes: Vec<Change>) {
        for change in changes.into_iter().rev() {
            self.view.revision = self.view.revision.min(change.after.revision - 1);
            match change.before {
                Some(before) => self.put(&change.kind, change.place, before),
                None => drop(self.take(&change.kind, &change.place)),
            }
        }
    }

    /// Takes back what a call that panicked had done so far.
    pub fn abandon(&mut self) {
        let changes = std::mem::take(&mut self.changes);
        self.rollback(changes);
    }

    /// Refuses what could not be read back from the file.
    fn check_depth(&self) -> Result<(), ApiError> {
        let is_deep = |change: &&Change| !depth::is_within(&change.after.value, depth::MAX_DEPTH);
        match self.changes.iter().find(is_deep) {
            Some(change) => Err(ApiError::unprocessable(format!(
                "{} {:?} is nested deeper than {} levels, managedFields included: flatten it",
                change.kind,
                change.place.1,
                depth::MAX_DEPTH
            ))),
            None => Ok(()),
        }
    }

    fn run(&mut self, call: WriteRequest) -> Result<WriteResponse, ApiError> {
        let form = form(&self.view.registry, &call.target)?;
        let target = call.target;
        let mut context = Context {
            now: call.now,
            entropy: Entropy::new(call.seed),
            form,
            namespace: target.namespace.clone().unwrap_or_default(),
            subresource: target.subresource.clone(),
            options: call.options,
            warnings: Vec::new(),
            applied: None,
        };
        let name = target.name.as_deref();
        let (code, body) = match (call.verb, name, context.subresource.as_deref()) {
            (Verb::Create(body), None, None) => self.create(&mut context, body)?,
            (Verb::Bind(body), Some(name), Some("binding")) => self.bind(&context, name, &body)?,
            (Verb::Update(body), Some(name), None | Some("status")) => {
                self.update(&mut context, name, body)?
            }
            (Verb::Patch(kind, body), Some(name), None | Some("status")) => {
                self.patch(&mut context, name, kind, body)?
            }
            (Verb::Delete(options), Some(name), None) => {
                self.delete(&mut context, name, &options)?
            }
            (Verb::DeleteCollection(selection, options), None, None) => {
                self.delete_collection(&mut context, &selection, &options)?
            }
            _ => return Err(method_not_allowed()),
        };
        Ok(WriteResponse {
            code,
            body,
            warnings: context.warnings,
        })
    }

    /// Records a new state of an object under the next revision.
    fn write(&mut self, kind: &str, place: ObjectKey, value: Value) -> Arc<Object> {
        self.view.revision += 1;
        let after = Object::new(value, self.view.revision);
        let before = self.view.get(kind, &place.0, &place.1).cloned();
        self.changes.push(Change {
            kind: kind.to_owned(),
            place: place.clone(),
            before,
            after: Arc::clone(&after),
            removed: false,
        });
        self.put(kind, place, Arc::clone(&after));
        after
    }

    /// Records that an object is gone; its last state carries the revision of the removal.
    fn remove(&mut self, kind: &str, place: &ObjectKey, last: Value) -> Arc<Object> {
        self.view.revision += 1;
        let after = Object::new(last, self.view.revision);
        let before = self.take(kind, place);
        self.changes.push(Change {
            kind: kind.to_owned(),
            place: place.clone(),
            before,
            after: Arc::clone(&after),
            removed: true,
        });
        after
    }

    /// Puts an object in its place and keeps the indices.
    fn put(&mut self, kind: &str, place: ObjectKey, object: Arc<Object>) {
        let at = (kind.to_owned(), place.clone());
        if let Some(before) = self.view.put(kind, place, Arc::clone(&object)) {
            self.forget(&at, &before);
        }
        self.by_uid.insert(object.uid().to_owned(), at.clone());
        for owner in owner_uids(&object.value) {
            self.dependents
                .entry(owner.to_owned())
                .or_default()
                .insert(at.clone());
        }
    }

    fn take(&mut self, kind: &str, place: &ObjectKey) -> Option<Arc<Object>> {
        let taken = self.view.take(kind, place)?;
        self.forget(&(kind.to_owned(), place.clone()), &taken);
        Some(taken)
    }

    fn forget(&mut self, at: &(String, ObjectKey), object: &Object) {
        self.by_uid.remove(object.uid());
        for owner in owner_uids(&object.value) {
            if let Some(set) = self.dependents.get_mut(owner) {
                set.remove(at);
                if set.is_empty() {
                    self.dependents.remove(owner);
                }
            }
        }
    }
}

/// The kind and version a path names.
///
/// # Errors
/// 404 when no such kind is served; 405 for a subresource it does not have.
pub fn form(registry: &Registry, target: &Target) -> Result<Form, ApiError> {
    let asked = registry
        .kind(&target.group, &target.resource)
        .ok_or_else(ApiError::unknown_path)?;
    let version = asked
        .version(&target.version)
        .ok_or_else(ApiError::unknown_path)?;
    // A namespaced kind may be listed over all namespaces, but single objects and creation need
    // one.
    if target.namespace.is_some() && !asked.namespaced {
        return Err(ApiError::unknown_path());
    }
    if target.namespace.is_none() && asked.namespaced && target.name.is_some() {
        return Err(ApiError::unknown_path());
    }
    let extras = asked.extras();
    let has_subresource = match target.subresource.as_deref() {
        None => true,
        Some("status") => version.has_status,
        Some(other) => {
            extras.is_some_and(|extras| extras.subresources.iter().any(|sub| sub == other))
        }
    };
    if !has_subresource {
        return Err(ApiError::unknown_path());
    }
    let stored = match extras.and_then(|extras| extras.alias.as_ref()) {
        Some(alias) => registry
            .kind(&alias.group, &alias.resource)
            .ok_or_else(ApiError::unknown_path)?,
        None => asked,
    };
    Ok(Form {
        asked: Arc::clone(asked),
        version: target.version.clone(),
        stored: Arc::clone(stored),
    })
}

/// 405: the path exists, but does not take this method.
#[must_use]
pub fn method_not_allowed() -> ApiError {
    ApiError::new(
        Reason::MethodNotAllowed,
        "the server does not allow this method on the requested resource",
    )
}

#[cfg(test)]
mod tests;
