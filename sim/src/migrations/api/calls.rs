//! Calls reach the API server, and their answers reach who asked.

use protocol::annotations::LABEL_VM_NAME;
use serde_json::{Value, json};

use super::{ApiResponse, Call, Caller, Change, Kind, Operation};
use crate::migrations::outcome::{Broken, Cheat};
use crate::migrations::world::{MigrationWorld, ROOM};

impl MigrationWorld {
    /// A call reaches the API server.
    pub(crate) fn call_arrives(&mut self) -> bool {
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
    pub(crate) fn answer_arrives(&mut self) -> bool {
        if self.answers.is_empty() {
            return false;
        }
        let index = self.rng.index(self.answers.len());
        let (caller, answer) = self.answers.remove(index);
        self.answered(caller, answer);
        true
    }

    /// One answer is never heard: who asked knows nothing.
    pub(crate) fn lose_an_answer(&mut self) {
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
    pub(crate) fn vm_of(change: &Change) -> Option<usize> {
        let name = match change.kind {
            Kind::Vm => change.name.as_str(),
            Kind::Pod => change.value["metadata"]["labels"][LABEL_VM_NAME].as_str()?,
            Kind::Move => change.value["spec"]["vmName"].as_str()?,
            Kind::Node => return None,
        };
        name.strip_prefix("vm-")?.parse().ok()
    }

    /// Pods are placed without asking for room.
    pub(crate) fn binds_blindly(&self) -> bool {
        self.cheat == Some(Cheat::BindBlindly)
    }
}
