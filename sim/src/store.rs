//! The objects of the world: a tiny Kubernetes API with versions, conflicts and a record of
//! changes. It is the world, not a copy of the product's API server: one namespace, three kinds,
//! only the operations the parts use.

mod patch;

use std::cell::OnceCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use neonvm_controller::core::pod::CONTAINER;
use protocol::object::Pod;
use protocol::time::WallTime;
use protocol::units::{Bytes, MilliCpu, Resources};
use protocol::vm::VirtualMachine;
use scheduler::core::view::{NodeView, PodView, VmView};
use serde::Deserialize as _;
use serde_json::{Value, json};

pub(crate) use patch::{apply, merge};

/// The one namespace.
pub(crate) const NAMESPACE: &str = "default";

/// Kind of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    Node,
    /// A runner's pod.
    Pod,
    Vm,
}

/// One state of one object. What the parts read from it is read once for all of them.
#[derive(Debug)]
pub struct Stored {
    /// The whole object.
    pub value: Value,
    /// `metadata.resourceVersion` as a number. Each write of any object takes the next one.
    pub version: u64,
    vm: OnceCell<VirtualMachine>,
    pod: OnceCell<Pod>,
    vm_view: OnceCell<VmView>,
    pod_view: OnceCell<PodView>,
}

/// A state, shared by all who were told of it.
pub(crate) type Object = Rc<Stored>;

impl Stored {
    fn new(value: Value, version: u64) -> Object {
        Rc::new(Self {
            value,
            version,
            vm: OnceCell::new(),
            pod: OnceCell::new(),
            vm_view: OnceCell::new(),
            pod_view: OnceCell::new(),
        })
    }

    /// As a VirtualMachine.
    pub fn vm(&self) -> &VirtualMachine {
        self.vm.get_or_init(|| {
            VirtualMachine::deserialize(&self.value).expect("the world's VMs are sound")
        })
    }

    /// As a pod.
    pub fn pod(&self) -> &Pod {
        self.pod
            .get_or_init(|| Pod::deserialize(&self.value).expect("the world's pods are sound"))
    }

    /// What the runner requests of its node, if this is a pod.
    pub fn requested(&self) -> Resources {
        let mut containers = self.pod().spec.containers.iter();
        let runner = containers.find(|container| container.name == CONTAINER);
        let of = |name: &str| runner.and_then(|runner| runner.resources.requests.get(name));
        let cpu = of("cpu").map_or(0, |cpu| cpu.milli_value());
        Resources {
            cpu: MilliCpu(u32::try_from(cpu).unwrap_or(0)),
            mem: Bytes(of("memory").and_then(|mem| mem.as_u64()).unwrap_or(0)),
        }
    }

    /// As the scheduler reads a VM.
    pub fn vm_view(&self) -> &VmView {
        self.vm_view
            .get_or_init(|| VmView::read(&self.value).expect("it has a name"))
    }

    /// As the scheduler reads a pod.
    pub fn pod_view(&self) -> &PodView {
        self.pod_view
            .get_or_init(|| PodView::read(&self.value).expect("it has a name"))
    }

    /// As the scheduler reads a node.
    pub fn node_view(&self) -> NodeView {
        NodeView::read(&self.value).expect("it has a name")
    }

    /// A member of the metadata.
    pub fn meta(&self, member: &str) -> &str {
        self.value["metadata"][member].as_str().unwrap_or_default()
    }
}

/// Something that happened to an object.
#[derive(Debug, Clone)]
pub struct Change {
    /// Kind of the object, by which the change finds its watches.
    pub kind: Kind,
    /// The state after it; the last state if it is gone.
    pub object: Object,
    /// Whether it is gone.
    pub gone: bool,
    /// The version of the change.
    pub version: u64,
}

/// Why an operation was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refused {
    NotFound,
    /// 409: it rests on an old version, or the name is taken.
    Conflict,
    /// 422: a test of a JSON patch failed.
    Invalid(String),
}

/// See the module.
#[derive(Debug, Default)]
pub struct Store {
    objects: BTreeMap<(Kind, String), Object>,
    version: u64,
    changes: VecDeque<Change>,
}

impl Store {
    /// The newest state of an object.
    #[must_use]
    pub fn get(&self, kind: Kind, name: &str) -> Option<&Object> {
        // The key needs an owned text; names are short and this is not the hot path.
        self.objects.get(&(kind, name.to_owned()))
    }

    /// The version of the newest change.
    #[must_use]
    pub const fn version(&self) -> u64 {
        self.version
    }

    /// All objects of a kind, by name.
    pub fn all(&self, kind: Kind) -> impl Iterator<Item = &Object> {
        let from = (kind, String::new());
        self.objects
            .range(from..)
            .take_while(move |((found, _), _)| *found == kind)
            .map(|(_, object)| object)
    }

    /// The next change nobody was told of yet.
    pub fn next_change(&mut self) -> Option<Change> {
        self.changes.pop_front()
    }

    /// Creates an object; uid and time are the server's.
    ///
    /// # Errors
    /// The name is taken.
    pub fn create(
        &mut self,
        kind: Kind,
        mut value: Value,
        wall: WallTime,
    ) -> Result<Object, Refused> {
        let name = value["metadata"]["name"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        if self.get(kind, &name).is_some() {
            return Err(Refused::Conflict);
        }
        value["metadata"]["uid"] = json!(format!("uid-{}", self.version + 1));
        value["metadata"]["creationTimestamp"] = json!(wall);
        value["metadata"]["generation"] = json!(1);
        Ok(self.put(kind, name, value))
    }

    /// Merge-patches an object; a version in the patch must be the newest.
    ///
    /// # Errors
    /// It is gone, or has moved on.
    pub fn merge(&mut self, kind: Kind, name: &str, patch: &Value) -> Result<Object, Refused> {
        let old = self.get(kind, name).ok_or(Refused::NotFound)?;
        let base = &patch["metadata"]["resourceVersion"];
        if !base.is_null() && base.as_str() != Some(old.meta("resourceVersion")) {
            return Err(Refused::Conflict);
        }
        let mut value = old.value.clone();
        merge(&mut value, patch);
        Ok(self.change(kind, name, value))
    }

    /// JSON-patches an object.
    ///
    /// # Errors
    /// It is gone, or the patch does not apply.
    pub fn patch(&mut self, kind: Kind, name: &str, operations: &Value) -> Result<Object, Refused> {
        let mut value = self.get(kind, name).ok_or(Refused::NotFound)?.value.clone();
        apply(&mut value, operations).map_err(|error| Refused::Invalid(error.0))?;
        Ok(self.change(kind, name, value))
    }

    /// Binds a pod.
    ///
    /// # Errors
    /// It is gone, another one, or bound already.
    pub fn bind(&mut self, name: &str, uid: &str, node: &str) -> Result<Object, Refused> {
        let old = self.get(Kind::Pod, name).ok_or(Refused::NotFound)?;
        if old.meta("uid") != uid || old.value["spec"].get("nodeName").is_some() {
            return Err(Refused::Conflict);
        }
        self.merge(Kind::Pod, name, &json!({"spec": {"nodeName": node}}))
    }

    /// Asks for the deletion of a pod.
    ///
    /// # Errors
    /// It is gone, or another one.
    pub fn ask_deletion(
        &mut self,
        name: &str,
        uid: &str,
        wall: WallTime,
    ) -> Result<Object, Refused> {
        let old = self.get(Kind::Pod, name).ok_or(Refused::NotFound)?;
        if old.meta("uid") != uid {
            return Err(Refused::Conflict);
        }
        if !old.meta("deletionTimestamp").is_empty() {
            return Ok(Rc::clone(old));
        }
        self.merge(
            Kind::Pod,
            name,
            &json!({"metadata": {"deletionTimestamp": wall}}),
        )
    }

    /// Takes an object away.
    pub fn remove(&mut self, kind: Kind, name: &str) {
        if let Some(object) = self.objects.remove(&(kind, name.to_owned())) {
            self.version += 1;
            self.changes.push_back(Change {
                kind,
                object,
                gone: true,
                version: self.version,
            });
        }
    }

    fn change(&mut self, kind: Kind, name: &str, mut value: Value) -> Object {
        if let Some(old) = self.get(kind, name) {
            if old.value == value {
                return Rc::clone(old);
            }
            if old.value["spec"] != value["spec"] {
                let generation = old.value["metadata"]["generation"].as_i64().unwrap_or(0);
                value["metadata"]["generation"] = json!(generation + 1);
            }
        }
        self.put(kind, name.to_owned(), value)
    }

    fn put(&mut self, kind: Kind, name: String, mut value: Value) -> Object {
        self.version += 1;
        value["metadata"]["resourceVersion"] = json!(self.version.to_string());
        let object = Stored::new(value, self.version);
        self.objects.insert((kind, name), Rc::clone(&object));
        self.changes.push_back(Change {
            kind,
            object: Rc::clone(&object),
            gone: false,
            version: self.version,
        });
        object
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store() -> Store {
        let mut store = Store::default();
        let pod = json!({"metadata": {"name": "p"}, "spec": {}});
        store
            .create(Kind::Pod, pod, WallTime(1_000_000))
            .expect("is new");
        store
    }

    #[test]
    fn a_write_on_an_old_version_is_refused() {
        let mut store = store();
        let old = store
            .get(Kind::Pod, "p")
            .expect("there")
            .meta("resourceVersion")
            .to_owned();
        let patch = json!({"metadata": {"resourceVersion": old, "labels": {"a": "b"}}});
        assert!(store.merge(Kind::Pod, "p", &patch).is_ok());
        assert_eq!(
            store.merge(Kind::Pod, "p", &patch).err(),
            Some(Refused::Conflict)
        );
    }

    #[test]
    fn a_pod_is_bound_once_and_changes_are_told_in_order() {
        let mut store = store();
        let uid = store
            .get(Kind::Pod, "p")
            .expect("there")
            .meta("uid")
            .to_owned();
        assert!(store.bind("p", &uid, "n1").is_ok());
        assert_eq!(store.bind("p", &uid, "n2").err(), Some(Refused::Conflict));
        store.remove(Kind::Pod, "p");
        let gone: Vec<bool> = std::iter::from_fn(|| store.next_change())
            .map(|change| change.gone)
            .collect();
        assert_eq!(gone, [false, false, true]);
        assert_eq!(store.all(Kind::Pod).count(), 0);
    }
}
