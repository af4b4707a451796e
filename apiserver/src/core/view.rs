//! The objects as readers see them: what has been committed, in order of kind, namespace and name.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::kind::Kind;
use super::object::Object;
use super::registry::Registry;
use super::request::Selection;
use super::schema::{Schema, apply_defaults};

/// Kind key of the objects that define further kinds.
pub const CRD_KIND: &str = "customresourcedefinitions.apiextensions.k8s.io";

/// Namespace (empty for cluster-wide kinds) and name.
pub type ObjectKey = (String, String);

/// An object with the defaults of a schema, the same one if it has them all.
#[must_use]
pub fn with_defaults(object: &Arc<Object>, schema: &Schema) -> Arc<Object> {
    let mut value = object.value.clone();
    apply_defaults(&mut value, schema);
    if value == object.value {
        Arc::clone(object)
    } else {
        Object::new(value, object.revision)
    }
}

/// One committed step of one object.
#[derive(Debug, Clone)]
pub struct Change {
    /// Kind key (`pods`, `virtualmachines.vm.neon.tech`).
    pub kind: String,
    /// Namespace and name of the object.
    pub place: ObjectKey,
    /// State before; `None` = the object is new.
    pub before: Option<Arc<Object>>,
    /// State after; for a removal the last state, at the revision of the removal.
    pub after: Arc<Object>,
    /// Whether the change deletes the object.
    pub removed: bool,
}

/// Committed objects of all kinds.
#[derive(Debug, Clone, Default)]
pub struct View {
    /// Kinds that the server serves now.
    pub registry: Arc<Registry>,
    /// Revision of the last change.
    pub revision: u64,
    kinds: BTreeMap<String, BTreeMap<ObjectKey, Arc<Object>>>,
}

impl View {
    /// No objects yet. `revision` is the last one given out.
    #[must_use]
    pub fn new(registry: Registry, revision: u64) -> Self {
        Self {
            registry: Arc::new(registry),
            revision,
            kinds: BTreeMap::new(),
        }
    }

    /// The object of this kind, namespace and name, or `None`. `kind` is the key of the stored
    /// kind.
    #[must_use]
    pub fn get(&self, kind: &str, namespace: &str, name: &str) -> Option<&Arc<Object>> {
        self.kinds
            .get(kind)?
            .get(&(namespace.to_owned(), name.to_owned()))
    }

    /// Objects of one kind from `after` (exclusive) on, in order of namespace and name.
    pub fn iter<'a>(
        &'a self,
        kind: &str,
        namespace: Option<&'a str>,
        after: Option<&ObjectKey>,
    ) -> impl Iterator<Item = (&'a ObjectKey, &'a Arc<Object>)> {
        use std::ops::Bound;
        let start = match (after, namespace) {
            (Some(place), _) => Bound::Excluded(place.clone()),
            (None, Some(namespace)) => Bound::Included((namespace.to_owned(), String::new())),
            (None, None) => Bound::Unbounded,
        };
        let objects = self.kinds.get(kind).into_iter();
        objects
            .flat_map(move |objects| objects.range((start.clone(), Bound::Unbounded)))
            .take_while(move |(place, _)| namespace.is_none_or(|namespace| place.0 == namespace))
    }

    /// Objects of one kind that a request selects.
    pub fn select<'a>(
        &'a self,
        kind: &str,
        selection: &'a Selection,
        after: Option<&ObjectKey>,
    ) -> impl Iterator<Item = (&'a ObjectKey, &'a Arc<Object>)> {
        self.iter(kind, selection.namespace.as_deref(), after)
            .filter(|(_, object)| selection.matches(&object.value))
    }

    /// Number of objects of one kind.
    #[must_use]
    pub fn count(&self, kind: &str) -> usize {
        self.kinds.get(kind).map_or(0, BTreeMap::len)
    }

    /// Number of objects of all kinds.
    #[must_use]
    pub fn total(&self) -> usize {
        self.kinds.values().map(BTreeMap::len).sum()
    }

    /// Keys of kinds with at least one object.
    pub fn kind_keys(&self) -> impl Iterator<Item = &String> {
        self.kinds.keys()
    }

    /// Puts an object in its place and returns what was there. A CRD's kind is served from then on.
    pub fn put(
        &mut self,
        kind: &str,
        place: ObjectKey,
        object: Arc<Object>,
    ) -> Option<Arc<Object>> {
        if kind == CRD_KIND
            && let Ok(defined) = Kind::parse(&object.value, false)
        {
            self.redefine(defined);
        }
        self.kinds
            .entry(kind.to_owned())
            .or_default()
            .insert(place, object)
    }

    /// Serves a kind, and gives its objects the defaults its schema has now. Their revisions stay:
    /// to clients it is as if the defaults were filled in when reading.
    fn redefine(&mut self, defined: Kind) {
        let schema = Arc::clone(&defined.storage_version().schema);
        let objects = self.kinds.get_mut(&defined.key());
        // A definition whose names clash is refused before it comes here; an old one that does is
        // not served.
        if Arc::make_mut(&mut self.registry).insert(defined).is_err() {
            return;
        }
        for object in objects.into_iter().flat_map(BTreeMap::values_mut) {
            *object = with_defaults(object, &schema);
        }
    }

    /// Removes an object and returns it.
    pub fn take(&mut self, kind: &str, place: &ObjectKey) -> Option<Arc<Object>> {
        let objects = self.kinds.get_mut(kind)?;
        let taken = objects.remove(place);
        if objects.is_empty() {
            self.kinds.remove(kind);
        }
        if kind == CRD_KIND
            && let Some(defined) = taken
                .as_ref()
                .and_then(|crd| Kind::parse(&crd.value, false).ok())
        {
            Arc::make_mut(&mut self.registry).remove(&defined.group, &defined.resource);
        }
        taken
    }

    /// Applies a committed change to the view.
    pub fn replay(&mut self, change: &Change) {
        if change.removed {
            self.take(&change.kind, &change.place);
        } else {
            self.put(
                &change.kind,
                change.place.clone(),
                Arc::clone(&change.after),
            );
        }
        self.revision = self.revision.max(change.after.revision);
    }
}
