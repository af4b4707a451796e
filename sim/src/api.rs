//! Calls to the API server: the way there, what the server does, the way back, and what the caller
//! makes of silence.

use neonvm_controller::core::metadata::PatchOp;
use neonvm_controller::core::metadata::rest_on_others;
use neonvm_controller::core::requests::rest_on_another;
use protocol::time::{Span, Timestamp};
use serde_json::json;

use crate::event::{ApiResponse, Call, Caller, Event, Operation};
use crate::faults::{Delivery, Link};
use crate::journal::Note;
use crate::options::Sabotage;
use crate::rng::MILLION;
use crate::store::{Kind, Object, Refused};
use crate::world::World;

/// After this an agent gives up on a patch (`neonvm.requestTimeoutSeconds`).
pub(crate) const AGENT_PATIENCE: Span = Span::from_secs(10);
/// After this the scheduler gives up on a call (`k8sCRUDTimeoutSeconds`).
pub(crate) const SCHEDULER_PATIENCE: Span = Span::from_secs(1);
/// After this the controller gives up on a call.
const CONTROLLER_PATIENCE: Span = Span::from_secs(10);
/// A call of a scheduler arrives within this time or never: less than the pause of the next
/// scheduler before it lists (`--takeover-wait-ms`).
const SCHEDULER_LATEST: Span = Span::from_millis(1_800);
/// A patch of an agent arrives within this time or never.
const AGENT_LATEST: Span = Span::from_secs(8);
/// A server that refuses to resize a pod does so for this long at the most.
const REFUSES_FOR: Span = Span::from_secs(30);

impl World {
    /// Sends a call. The caller hears of it once, within its patience.
    pub(crate) fn send_call(&mut self, call: Call) {
        let number = self.number();
        let (patience, latest) = match call.caller {
            Caller::AgentTask { .. } => (AGENT_PATIENCE, AGENT_LATEST),
            Caller::Controller { .. } => (CONTROLLER_PATIENCE, CONTROLLER_PATIENCE),
            Caller::Write { of, .. } | Caller::Read { of, .. } | Caller::Bind { of, .. } => {
                (self.patience_of(of.replica), SCHEDULER_LATEST)
            }
        };
        let deadline = self.now + patience;
        self.calls.insert(number, (call.caller, deadline));
        if self.fault_schedule.api_is_away(self.now) {
            // Nobody listens there: that is known at once.
            return self.after(
                Span::from_millis(1),
                Event::CallAnswers(number, ApiResponse::Nothing),
            );
        }
        if call.target.is_some() && self.cheats(Sabotage::DeafApi) {
            return self.put(deadline, Event::CallAnswers(number, ApiResponse::Nothing));
        }
        let delivery = self.delivery(Link::Api);
        if delivery == Delivery::Lost {
            return self.silence(number, deadline);
        }
        if self.rng.chance(self.rates.stalled) {
            return self.stall(number, deadline, call);
        }
        if let Some(patch) = call.target {
            self.patches.insert(number, patch);
            self.checks.touch(patch.0);
        }
        // Clients of this API do not repeat a patch by themselves; of what is conditional a
        // repetition does no harm.
        if let (Delivery::Twice(_, again), None) = (delivery, call.target) {
            self.checks.is_repeated(&call.operation);
            self.after(
                Span(again.0.min(latest.0)),
                Event::CallArrives(0, Box::new(call.clone())),
            );
        }
        let delay = Span(delivery.first().unwrap_or_default().0.min(latest.0));
        if delay > patience {
            self.put(deadline, Event::CallAnswers(number, ApiResponse::Nothing));
        }
        self.after(delay, Event::CallArrives(number, Box::new(call)));
    }

    /// The caller will not get an answer: it learns so when the connection breaks, or when its
    /// patience ends.
    fn silence(&mut self, number: u64, deadline: Timestamp) {
        let at = if self.rng.chance(MILLION / 2) {
            deadline
        } else {
            let early = self.rng.millis(1, 500);
            deadline.min(self.now + early)
        };
        self.put(at, Event::CallAnswers(number, ApiResponse::Nothing));
    }

    pub(crate) fn call_arrives(&mut self, number: u64, call: Call) {
        self.patches.remove(&number);
        let deadline = self
            .calls
            .get(&number)
            .map_or(self.now, |(_, deadline)| *deadline);
        if self.fault_schedule.api_is_away(self.now) {
            self.touch_target(&call);
            return self.silence(number, deadline);
        }
        let broken = self.rng.chance(self.rates.broken);
        let before = broken && self.rng.chance(MILLION / 2);
        let answer = if before {
            ApiResponse::Status(500, "the server fails before it acts".into())
        } else {
            self.execute(&call)
        };
        self.touch_target(&call);
        let answer = if broken {
            self.tally.count("api 500");
            ApiResponse::Status(500, "the server fails".into())
        } else {
            answer
        };
        if let ApiResponse::Status(status, _) = &answer {
            self.note(Note::ApiRefused(call.operation.name(), *status));
        }
        match self.delivery(Link::Api).first() {
            Some(delay) if self.now + delay < deadline => {
                self.after(delay, Event::CallAnswers(number, answer));
            }
            _ => self.silence(number, deadline),
        }
    }

    fn touch_target(&mut self, call: &Call) {
        if let Some((vm, _)) = call.target {
            self.checks.touch(vm);
        }
    }

    pub(crate) fn execute(&mut self, call: &Call) -> ApiResponse {
        let wall = self.wall();
        let priority = self.priority_of(&call.operation);
        let store = &mut self.store;
        let result = match &call.operation {
            Operation::PatchVm(name, operations) => store.patch(Kind::Vm, name, operations),
            Operation::PatchPod(name, operations) => store.patch(Kind::Pod, name, operations),
            Operation::SyncPod(name, ops) => {
                let patched = store.patch(Kind::Pod, name, &json!(ops));
                // The client looks whether the pod has changed meanwhile.
                let now = store.get(Kind::Pod, name);
                let another = now.filter(|pod| rest_on_others(ops, &pod.pod().metadata));
                match (patched, another) {
                    (Err(Refused::Invalid(_)), Some(pod)) => {
                        self.tally.count("late sync refused");
                        return ApiResponse::Object(Object::clone(pod));
                    }
                    (patched, _) => patched,
                }
            }
            Operation::ResizePod(name, ops) => {
                let current = self.controller.epoch;
                let is_late =
                    !matches!(call.caller, Caller::Controller { epoch, .. } if epoch == current);
                return self.resize_pod(name, ops, is_late);
            }
            Operation::MergeVm(name, patch) => store.merge(Kind::Vm, name, patch),
            Operation::Get(kind, name) => store.get(*kind, name).cloned().ok_or(Refused::NotFound),
            Operation::Bind(name, uid, node) => store.bind(name, uid, node),
            Operation::CreatePod(pod) => {
                let mut pod = pod.clone();
                if let Some(priority) = priority {
                    pod["spec"]["priority"] = json!(priority);
                }
                let name = pod["metadata"]["name"].as_str().unwrap_or_default();
                let name = name.to_owned();
                match store.create(Kind::Pod, pod, wall) {
                    // The client reads whose it is.
                    Err(Refused::Conflict) => {
                        let pod = store.get(Kind::Pod, &name);
                        pod.cloned().ok_or(Refused::NotFound)
                    }
                    created => created,
                }
            }
            Operation::DeletePod(name, uid) => store.ask_deletion(name, uid, wall),
        };
        if let Caller::AgentTask {
            agent_task, landed, ..
        } = call.caller
            && let (Some((vm, size)), Ok(_)) = (call.target, &result)
        {
            self.late_patches_are_refused(vm, landed);
            self.patch_lands(vm, agent_task, size);
        }
        self.look_at_pod_writes(&call.operation, &result);
        match result {
            Ok(object) => ApiResponse::Object(object),
            Err(Refused::NotFound) => ApiResponse::Status(404, "not found".into()),
            Err(Refused::Conflict) => ApiResponse::Status(409, "conflict".into()),
            Err(Refused::Invalid(why)) => ApiResponse::Status(422, why),
        }
    }

    /// Changes what a pod requests, where the server does so at all: an older one does not know of
    /// it, a webhook or a quota of the namespace may have none of it. A late change is one that its
    /// controller has given up, or whose controller has ended.
    fn resize_pod(&mut self, name: &str, ops: &[PatchOp], is_late: bool) -> ApiResponse {
        let Some(vm) = self.vm_named(name) else {
            return ApiResponse::Status(404, "not found".into());
        };
        if self.rng.chance(self.rates.refused) {
            let last = self.rng.span(Span(0), REFUSES_FOR);
            self.vms[vm].guest_faults.refuses_until =
                (self.now + last).min(self.fault_schedule.faults_end);
        }
        if self.vms[vm].guest_faults.refuses_until >= self.now {
            self.tally.count("resize refused");
            let status = [403, 404, 422][self.rng.index(3)];
            return ApiResponse::Status(status, "this pod is not resized".into());
        }
        match self.store.patch(Kind::Pod, name, &json!(ops)) {
            Ok(pod) => {
                let size = pod.requested();
                self.note(Note::Requests { vm, size });
                if is_late {
                    self.checks.truth[vm].unrequested = true;
                    self.requests_cover_again(vm);
                }
                ApiResponse::Object(pod)
            }
            Err(Refused::Invalid(why)) => {
                // The client looks whether the pod has changed meanwhile.
                let now = self.store.get(Kind::Pod, name);
                let another = now.filter(|pod| rest_on_another(ops, pod.pod()));
                another.map_or(ApiResponse::Status(422, why), |pod| {
                    ApiResponse::Object(Object::clone(pod))
                })
            }
            Err(_) => ApiResponse::Status(404, "not found".into()),
        }
    }

    fn look_at_pod_writes(&mut self, operation: &Operation, result: &Result<Object, Refused>) {
        let Ok(pod) = result else { return };
        if matches!(operation, Operation::CreatePod(_)) {
            self.pod_names_are_never_reused(pod);
        }
        let (vm, uid) = (self.vm_named(pod.meta("name")), pod.meta("uid"));
        let uid = uid.trim_start_matches("uid-").parse().unwrap_or(0);
        let Some(vm) = vm else { return };
        match operation {
            Operation::CreatePod(_) => {
                self.note(Note::PodMade { vm, uid });
                self.never_two_pods(pod);
            }
            Operation::DeletePod(..) => {
                self.note(Note::PodToGo { vm, uid });
                self.guests_never_restart_because_of_us(pod);
            }
            _ => {}
        }
    }

    pub(crate) fn call_answers(&mut self, number: u64, answer: ApiResponse) {
        let Some((caller, _)) = self.calls.remove(&number) else {
            return;
        };
        match caller {
            Caller::AgentTask {
                vm, agent_task, id, ..
            } => self.patch_ended(vm, agent_task, id, &answer),
            Caller::Write { of, id } => self.scheduler_write_ended(of, id, &answer, false),
            Caller::Read { of, id } => self.scheduler_write_ended(of, id, &answer, true),
            Caller::Bind { of, id } => self.bind_ended(of, id, &answer),
            Caller::Controller {
                vm,
                epoch,
                kind,
                began,
            } => self.task_call_ended(vm, epoch, kind, began, answer),
        }
    }

    /// Somebody else writes something that concerns nobody: only the version moves on.
    pub(crate) fn touch_object(&mut self, vm: usize) {
        let name = self.vms[vm].name.clone();
        let mark = json!({"metadata": {"labels": {"somebody/else": self.number().to_string()}}});
        // A VM is never deleted here.
        let _there = self.store.merge(Kind::Vm, &name, &mark);
    }
}

impl Operation {
    fn name(&self) -> &'static str {
        match self {
            Self::PatchVm(..) => "patch vm",
            Self::PatchPod(..) => "patch pod",
            Self::SyncPod(..) => "sync pod",
            Self::ResizePod(..) => "resize pod",
            Self::MergeVm(..) => "merge vm",
            Self::Get(..) => "get",
            Self::Bind(..) => "bind",
            Self::CreatePod(_) => "create pod",
            Self::DeletePod(..) => "delete pod",
        }
    }
}
