//! The objects, and calls on their way to them. A watch is a place in the record of changes: it
//! sees all of them, in order, and as late as the seed says.

use std::collections::BTreeMap;

use neonvm_controller::core::{Kind as Doing, Moment, migration};
use protocol::annotations::LABEL_VM_NAME;
use protocol::time::WallTime;
use serde_json::{Value, json};

use super::{Broken, Cheat, MigrationWorld, ROOM};
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

impl MigrationWorld {
    /// A call reaches the API server.
    pub(super) fn call_arrives(&mut self) -> bool {
        if self.calls.is_empty() {
            return false;
        }
        let index = self.rng.index(self.calls.len());
        let Call { caller, operation } = self.calls.remove(index);
        let answer = self.serve(operation);
        self.answers.push((caller, answer));
        true
    }

    fn serve(&mut self, operation: Operation) -> ApiResponse {
        let wall = self.wall();
        let told = |kind, result: Result<Value, u16>| match result {
            Ok(value) => ApiResponse::Object(kind, value),
            Err(status) => ApiResponse::Status(status),
        };
        match operation {
            Operation::Get(kind, name) => {
                let found = self.objects.get(kind, &name).cloned();
                told(kind, found.ok_or(404))
            }
            Operation::Merge(kind, name, patch) => {
                told(kind, self.objects.merge(kind, &name, &patch))
            }
            Operation::Patch(kind, name, ops) => told(kind, self.objects.patch(kind, &name, &ops)),
            Operation::Create(kind, value) => {
                let name = value["metadata"]["name"]
                    .as_str()
                    .unwrap_or_default()
                    .to_owned();
                match self.objects.create(kind, value, wall) {
                    Some(value) => ApiResponse::Object(kind, value),
                    // The controller's shell reads what is there then.
                    None => told(kind, self.objects.get(kind, &name).cloned().ok_or(404)),
                }
            }
            Operation::DeletePod(name, uid) => self.delete(Kind::Pod, &name, &uid),
            Operation::DeleteMove(name, uid) => self.delete(Kind::Move, &name, &uid),
            Operation::Bind(pod, uid, node) => self.bind(&pod, &uid, &node),
        }
    }

    fn delete(&mut self, kind: Kind, name: &str, uid: &str) -> ApiResponse {
        let Some(found) = self.objects.get(kind, name) else {
            return ApiResponse::Status(404);
        };
        if found["metadata"]["uid"] != uid {
            return ApiResponse::Status(409);
        }
        let bound = found["spec"]["nodeName"].is_string();
        if kind == Kind::Pod && !bound {
            // No node holds it.
            self.objects.remove(kind, name);
            return ApiResponse::Status(404);
        }
        let wall = self.wall();
        match self.objects.ask_deletion(kind, name, wall) {
            Some(value) => ApiResponse::Object(kind, value),
            None => ApiResponse::Status(404),
        }
    }

    fn bind(&mut self, pod: &str, uid: &str, node: &str) -> ApiResponse {
        let Some(found) = self.objects.get(Kind::Pod, pod) else {
            return ApiResponse::Status(404);
        };
        if found["metadata"]["uid"] != uid || found["spec"]["nodeName"].is_string() {
            return ApiResponse::Status(409);
        }
        let there = self.objects.list(Kind::Pod);
        let there = there.iter().filter(|pod| {
            let phase = pod["status"]["phase"].as_str();
            pod["spec"]["nodeName"] == node && !matches!(phase, Some("Succeeded" | "Failed"))
        });
        if there.count() >= usize::try_from(ROOM).unwrap_or(0) {
            self.break_rule(Broken::Overcommitted {
                pod: pod.to_owned(),
            });
        }
        let patch = json!({"spec": {"nodeName": node}});
        match self.objects.merge(Kind::Pod, pod, &patch) {
            Ok(value) => ApiResponse::Object(Kind::Pod, value),
            Err(status) => ApiResponse::Status(status),
        }
    }

    /// An answer reaches who asked.
    pub(super) fn answer_arrives(&mut self) -> bool {
        if self.answers.is_empty() {
            return false;
        }
        let index = self.rng.index(self.answers.len());
        let (caller, answer) = self.answers.remove(index);
        self.answered(caller, answer);
        true
    }

    /// One answer is never heard: who asked knows nothing.
    pub(super) fn lose_an_answer(&mut self) {
        if !self.answers.is_empty() {
            let index = self.rng.index(self.answers.len());
            self.answers[index].1 = ApiResponse::Nothing;
        }
    }

    fn answered(&mut self, caller: Caller, answer: ApiResponse) {
        match caller {
            Caller::Vm(vm, epoch, kind, began, pod) => {
                self.vm_answered(vm, epoch, kind, began, &pod, answer);
            }
            Caller::Mover(vm, epoch, kind, name) => {
                self.mover_answered(vm, epoch, kind, &name, answer);
            }
            other => self.scheduler_answered(&other, &answer),
        }
    }

    /// The VM of a pod or migration.
    pub(super) fn vm_of(change: &Change) -> Option<usize> {
        let name = match change.kind {
            Kind::Vm => change.name.as_str(),
            Kind::Pod => change.value["metadata"]["labels"][LABEL_VM_NAME].as_str()?,
            Kind::Move => change.value["spec"]["vmName"].as_str()?,
            Kind::Node => return None,
        };
        name.strip_prefix("vm-")?.parse().ok()
    }

    /// Pods are placed without asking for room.
    pub(super) fn binds_blindly(&self) -> bool {
        self.cheat == Some(Cheat::BindBlindly)
    }
}
