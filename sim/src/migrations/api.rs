//! The objects, and calls on their way to them. A watch is a place in the record of changes: it
//! sees all of them, in order, and as late as the seed says.

mod calls;

use std::collections::BTreeMap;

use neonvm_controller::core::{Kind as Doing, Moment, migration};
use protocol::time::WallTime;
use serde_json::{Value, json};

use crate::store::{apply, merge};

/// Kind of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Node,
    Pod,
    Vm,
    Move,
}

/// Something that happened to an object.
#[derive(Debug, Clone)]
pub(crate) struct Change {
    pub(crate) kind: Kind,
    pub(crate) name: String,
    pub(crate) value: Value,
    pub(crate) before: Option<Value>,
    pub(crate) gone: bool,
}

/// What is asked of the API server.
#[derive(Debug, Clone)]
pub(crate) enum Operation {
    Get(Kind, String),
    Merge(Kind, String, Value),
    Patch(Kind, String, Value),
    Create(Kind, Value),
    DeletePod(String, String),
    DeleteMove(String, String),
    Bind(String, String, String),
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Caller {
    Vm(usize, u64, Doing, Moment, String),
    Mover(usize, u64, migration::Kind, String),
    Write(u64, u64),
    Read(u64, u64),
    Bind(u64, u64),
    Migrate(u64, u64),
}

/// A call on its way.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    pub(crate) caller: Caller,
    pub(crate) operation: Operation,
}

/// How a call ended.
#[derive(Debug, Clone)]
pub(crate) enum ApiResponse {
    Object(Kind, Value),
    Status(u16),
    Nothing,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Objects {
    all: BTreeMap<(Kind, String), Value>,
    log: Vec<Change>,
    version: u64,
}

impl Objects {
    pub(crate) fn get(&self, kind: Kind, name: &str) -> Option<&Value> {
        self.all.get(&(kind, name.to_owned()))
    }

    pub(crate) fn names(&self, kind: Kind) -> Vec<String> {
        let of_kind = self.all.keys().filter(|(found, _)| *found == kind);
        of_kind.map(|(_, name)| name.clone()).collect()
    }

    pub(crate) fn list(&self, kind: Kind) -> Vec<Value> {
        let of_kind = self.all.iter().filter(|((found, _), _)| *found == kind);
        of_kind.map(|(_, value)| value.clone()).collect()
    }

    pub(crate) fn log(&self) -> &[Change] {
        &self.log
    }

    pub(crate) fn create(&mut self, kind: Kind, mut value: Value, wall: WallTime) -> Option<Value> {
        let name = value["metadata"]["name"].as_str()?.to_owned();
        if self.get(kind, &name).is_some() {
            return None;
        }
        value["metadata"]["uid"] = json!(format!("uid-{}", self.version + 1));
        value["metadata"]["creationTimestamp"] = json!(wall);
        value["metadata"]["generation"] = json!(1);
        Some(self.put(kind, name, value))
    }

    pub(crate) fn merge(&mut self, kind: Kind, name: &str, patch: &Value) -> Result<Value, u16> {
        let old = self.get(kind, name).ok_or(404_u16)?;
        let base = &patch["metadata"]["resourceVersion"];
        if !base.is_null() && *base != old["metadata"]["resourceVersion"] {
            return Err(409);
        }
        let mut value = old.clone();
        merge(&mut value, patch);
        Ok(self.put(kind, name.to_owned(), value))
    }

    pub(crate) fn patch(&mut self, kind: Kind, name: &str, ops: &Value) -> Result<Value, u16> {
        let mut value = self.get(kind, name).ok_or(404_u16)?.clone();
        apply(&mut value, ops).map_err(|_| 422_u16)?;
        Ok(self.put(kind, name.to_owned(), value))
    }

    /// Deletes what nobody holds, and marks what somebody does. Pods are held by their nodes.
    pub(crate) fn ask_deletion(&mut self, kind: Kind, name: &str, wall: WallTime) -> Option<Value> {
        let old = self.get(kind, name)?;
        if old["metadata"]["deletionTimestamp"].is_string() {
            return Some(old.clone());
        }
        let patch = json!({"metadata": {"deletionTimestamp": wall}});
        self.merge(kind, name, &patch).ok()
    }

    pub(crate) fn remove(&mut self, kind: Kind, name: &str) {
        if let Some(value) = self.all.remove(&(kind, name.to_owned())) {
            self.log.push(Change {
                kind,
                name: name.to_owned(),
                value,
                before: None,
                gone: true,
            });
        }
    }

    fn put(&mut self, kind: Kind, name: String, mut value: Value) -> Value {
        let key = (kind, name.clone());
        let before = self.all.get(&key).cloned();
        value["metadata"]["resourceVersion"] = json!(null);
        let same = before.as_ref().is_some_and(|before| {
            let mut before = before.clone();
            before["metadata"]["resourceVersion"] = json!(null);
            before == value
        });
        if let (true, Some(before)) = (same, &before) {
            return before.clone();
        }
        self.version += 1;
        value["metadata"]["resourceVersion"] = json!(self.version.to_string());
        let held = |value: &Value| {
            let all = value["metadata"]["finalizers"].as_array();
            all.is_some_and(|all| !all.is_empty())
        };
        self.all.insert(key, value.clone());
        self.log.push(Change {
            kind,
            name: name.clone(),
            value: value.clone(),
            before,
            gone: false,
        });
        // What is to go, goes with the last who held it.
        if kind == Kind::Move && value["metadata"]["deletionTimestamp"].is_string() && !held(&value)
        {
            self.remove(kind, &name);
        }
        value
    }
}
