//! The objects as the test reads and writes them, past admission.

use std::sync::Arc;

use apiserver::core::object::Object;
use apiserver::core::request::{DeleteOptions, Target, Verb, WriteOptions};
use apiserver::core::store::WriteRequest;
use apiserver::core::view::{CRD_KIND, View};
use futures::executor::block_on;
use serde_json::{Value, json};
use tokio::task::coop::unconstrained;

use crate::api::TestApi;

/// The definition of a kind in version `v1` that takes any object.
#[must_use]
pub fn define(group: &str, kind: &str, plural: &str, is_namespaced: bool) -> Value {
    let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let version = json!({
        "name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema},
    });
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.{group}")},
        "spec": {
            "group": group,
            "scope": if is_namespaced { "Namespaced" } else { "Cluster" },
            "names": {"kind": kind, "plural": plural, "singular": kind.to_lowercase()},
            "versions": [version],
        },
    })
}

/// Key of the kind with this plural. A plural that is not served is a key of its own: only the test
/// sees its objects.
fn kind_key(view: &View, plural: &str) -> String {
    let mut kinds = view.registry.kinds();
    let known = kinds.find(|kind| kind.resource == plural);
    known.map_or_else(|| plural.to_owned(), |kind| kind.key())
}

fn text<'a>(object: &'a Value, name: &str) -> &'a str {
    object["metadata"][name].as_str().unwrap_or_default()
}

/// Waits for the store's thread, which needs nothing of this one.
fn wait_for<T>(answer: impl Future<Output = Option<T>>) -> T {
    block_on(unconstrained(answer)).expect("the store takes every change")
}

impl TestApi {
    fn object(&self, plural: &str, namespace: &str, name: &str) -> Option<Arc<Object>> {
        let read = |view: &View| view.get(&kind_key(view, plural), namespace, name).cloned();
        self.inner.memory.hub.with(read)
    }

    /// An object as it is stored. `namespace` is empty for a kind without.
    #[must_use]
    pub fn get(&self, plural: &str, namespace: &str, name: &str) -> Option<Value> {
        let object = self.object(plural, namespace, name)?;
        Some(object.value.clone())
    }

    /// All objects of a kind, in order of namespace and name.
    #[must_use]
    pub fn list(&self, plural: &str) -> Vec<Value> {
        let read = |view: &View| -> Vec<Value> {
            let kind = kind_key(view, plural);
            let objects = view.iter(&kind, None, None);
            objects.map(|(_, object)| object.value.clone()).collect()
        };
        self.inner.memory.hub.with(read)
    }

    /// Puts a state in the place of an object that is at this revision, 0 = absent. `None` takes
    /// the object away. `false` if it is at another.
    fn plant(
        &self,
        plural: &str,
        (namespace, name): (&str, &str),
        rests_on: u64,
        value: Option<Value>,
    ) -> bool {
        let kind = self.inner.memory.hub.with(|view| kind_key(view, plural));
        let place = (namespace.to_owned(), name.to_owned());
        let planting = self.inner.memory.engine.plant(move |store| {
            let now = store.view().get(&kind, &place.0, &place.1);
            let is_so = now.map_or(0, |object| object.revision) == rests_on;
            if is_so {
                store.plant(&kind, place, value);
            }
            is_so
        });
        let is_so = wait_for(planting);
        self.inner.mark_changed();
        is_so
    }

    /// Creates or replaces an object, status and all. It keeps the uid that it has, else gets the
    /// one it brings, else a new one. A definition makes its kind served.
    pub fn put(&self, plural: &str, mut object: Value) {
        let (namespace, name) = (
            text(&object, "namespace").to_owned(),
            text(&object, "name").to_owned(),
        );
        loop {
            let old = self.object(plural, &namespace, &name);
            if let Some(old) = &old {
                object["metadata"]["uid"] = json!(old.uid());
            } else if text(&object, "uid").is_empty() {
                let next = self.inner.memory.hub.with(|view| view.revision) + 1;
                object["metadata"]["uid"] = json!(format!("uid-{next}"));
            }
            let rests_on = old.map_or(0, |old| old.revision);
            let place = (namespace.as_str(), name.as_str());
            if self.plant(plural, place, rests_on, Some(object.clone())) {
                return;
            }
        }
    }

    /// Serves a further kind; see [`define`].
    pub fn serve_kind(&self, definition: Value) {
        self.put(CRD_KIND.split('.').next().unwrap_or_default(), definition);
    }

    /// Changes an object in place and returns what it is then. `change` may run more than once.
    ///
    /// # Panics
    /// When there is no such object.
    pub fn edit(
        &self,
        plural: &str,
        namespace: &str,
        name: &str,
        mut change: impl FnMut(&mut Value),
    ) -> Value {
        loop {
            let old = self.object(plural, namespace, name).expect("it exists");
            let mut value = old.value.clone();
            change(&mut value);
            if self.plant(plural, (namespace, name), old.revision, Some(value)) {
                return self.get(plural, namespace, name).unwrap_or_default();
            }
        }
    }

    /// Takes an object away at once, and nothing that belongs to it.
    pub fn take(&self, plural: &str, namespace: &str, name: &str) {
        while let Some(old) = self.object(plural, namespace, name) {
            self.plant(plural, (namespace, name), old.revision, None);
        }
    }

    /// Deletes an object as a client does, with what belongs to it. Without grace neither
    /// finalizers nor its node hold it.
    pub fn delete(&self, plural: &str, namespace: &str, name: &str, has_grace: bool) {
        if !has_grace && self.object(plural, namespace, name).is_some() {
            self.edit(plural, namespace, name, |object| {
                let metadata = object["metadata"].as_object_mut();
                metadata.map(|metadata| metadata.remove("finalizers"));
            });
        }
        let named = |view: &View| {
            let mut kinds = view.registry.kinds();
            let kind = kinds.find(|kind| kind.resource == plural)?;
            Some((kind.group.clone(), kind.storage_version().name.clone()))
        };
        let (group, version) = self.inner.memory.hub.with(named).expect("a served kind");
        let options = DeleteOptions {
            grace_seconds: (!has_grace).then_some(0),
            ..DeleteOptions::default()
        };
        let call = WriteRequest {
            now: apiserver::shell::now(),
            seed: 0,
            target: Target {
                group,
                version,
                resource: plural.to_owned(),
                namespace: Some(namespace.to_owned()).filter(|name| !name.is_empty()),
                name: Some(name.to_owned()),
                subresource: None,
            },
            verb: Verb::Delete(options),
            options: WriteOptions::default(),
        };
        let engine = &self.inner.memory.engine;
        // One that is not there is gone, too.
        let _gone = wait_for(async { Some(engine.call(call).await) });
        self.inner.mark_changed();
    }
}
