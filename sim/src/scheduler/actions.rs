//! Drives the scheduler's core and carries out what it decides.

use protocol::core::Core as _;
use protocol::permit::AgentRequest;
use protocol::time::Span;
use scheduler::core::event::{
    Action, BindOutcome, CallOutcome, Event as CoreEvent, PermitResponse, VmWrite,
};
use serde_json::json;

use super::{TAKEN_COLD, TAKEN_WARM};
use crate::drive::Turn;
use crate::event::{ApiResponse, Call, Caller, Incarnation, Operation, Sleeper};
use crate::journal::{Note, Part};
use crate::options::Sabotage;
use crate::store::Kind;
use crate::watch::number_of;
use crate::world::{UNIT, World};

/// Actions a core may start at one instant.
const ACTIONS_AT_ONCE: usize = 4_096;

impl World {
    pub(crate) fn tell_scheduler(&mut self, replica: usize, event: CoreEvent) {
        let now = self.now;
        if let Some(core) = self.schedulers[replica].core.as_mut() {
            core.handle(now, event);
        }
        self.drive_scheduler(replica);
    }

    pub(crate) fn scheduler_asked(&mut self, replica: usize, flight: u64, request: AgentRequest) {
        let part = &mut self.schedulers[replica];
        part.last_request += 1;
        let request_id = part.last_request;
        part.requests.insert(request_id, (flight, request.clone()));
        self.tell_scheduler(replica, CoreEvent::PermitRequest(request_id, request));
    }

    pub(crate) fn drive_scheduler(&mut self, replica: usize) {
        let turn = Turn::new("scheduler", None, self.now, ACTIONS_AT_ONCE);
        let rest = self.drive(
            &turn,
            |world| world.schedulers[replica].core.as_mut(),
            |world, action| world.carry_out_scheduler(replica, action),
        );
        let (Some(rest), Some(core)) = (rest, self.schedulers[replica].core.as_mut()) else {
            return;
        };
        for node in core.take_touched() {
            if let Some(node) = number_of(&node) {
                self.checks.touch_node(node);
            }
        }
        self.scheduler_turned(replica);
        let part = &self.schedulers[replica];
        let sleeper = Sleeper::Scheduler(replica, part.epoch);
        // A scheduler without its lists has no timers to serve but those of its lead.
        let has_timers = part.is_ready() || part.election.is_some();
        self.set_alarm(sleeper, rest.deadline.filter(|_| has_timers));
    }

    /// What it knows may have become what permits rest on.
    fn scheduler_turned(&mut self, replica: usize) {
        let part = &mut self.schedulers[replica];
        let is_ready = part.is_ready();
        if std::mem::replace(&mut part.was_ready, is_ready) == is_ready {
            return;
        }
        self.checks.touch_all_nodes();
        let lists = std::mem::take(&mut self.schedulers[replica].lists);
        if is_ready && self.schedulers.len() > 1 {
            let how = if lists { TAKEN_COLD } else { TAKEN_WARM };
            self.tally.count(how);
        }
    }

    fn carry_out_scheduler(&mut self, replica: usize, action: Action) {
        let of = self.incarnation(replica);
        let retires = !self.schedulers[replica].serves();
        match action {
            Action::RespondPermit(answer) => self.answer_permit(replica, answer),
            // A replica that ends begins nothing more.
            _ if retires => {}
            Action::List => {
                // Those of a replica in waiting are of no term.
                let core = self.schedulers[replica].core.as_ref();
                let leads = core.is_some_and(|core| core.may_act(self.now));
                self.schedulers[replica].lists = leads;
                self.open_streams(Part::Scheduler(replica), Span(0));
            }
            Action::WriteVm(write) => self.write_vm(of, write),
            Action::ReadVm { id, vm } => self.call(Call {
                caller: Caller::Read { of, id },
                operation: Operation::Get(Kind::Vm, vm.name),
                target: None,
            }),
            Action::Bind { id, pod, uid, node } => self.call(Call {
                caller: Caller::Bind { of, id },
                operation: Operation::Bind(pod.name, uid, node),
                target: None,
            }),
            // For people; for one of several schedulers, and beside a kube-scheduler, which this
            // one is not.
            Action::Unschedulable { .. }
            | Action::RespondExtender { .. }
            | Action::RoomAppeared { .. }
            | Action::ReadPod { .. }
            | Action::ScaleUpDenied { .. }
            | Action::WarnOnPod { .. }
            | Action::WarnOnNode { .. } => {}
            // Begun only once migrations were listed, and nobody lists them here.
            Action::CreateMigration { .. }
            | Action::DeleteMigration { .. }
            | Action::MigrationTriggered { .. } => {}
        }
    }

    fn write_vm(&mut self, of: Incarnation, mut write: VmWrite) {
        if let Some(vm) = self.vm_named(&write.vm.name)
            && let Ok(approved) = serde_json::from_str(&write.approved)
        {
            self.note(Note::Writes { vm, approved });
        }
        if self.cheats(Sabotage::DoubleGrant)
            && let Ok(approved) =
                serde_json::from_str::<protocol::units::Resources>(&write.approved)
        {
            write.approved = json!(approved.saturating_mul(64)).to_string();
        }
        let operation = Operation::PatchVm(write.vm.name.clone(), write.operations());
        self.call(Call {
            caller: Caller::Write { of, id: write.id },
            operation,
            target: None,
        });
    }

    fn answer_permit(&mut self, replica: usize, answer: PermitResponse) {
        let requests = &mut self.schedulers[replica].requests;
        let Some((flight, request)) = requests.remove(&answer.request_id) else {
            return;
        };
        let vm = self.vm_named(&request.pod.name);
        let mut result = answer.result;
        if let (Ok(response), Some(vm)) = (&mut result, vm) {
            let first = request.last_permit.is_none();
            if self.cheats(Sabotage::AnswerBeforeWrite) {
                response.permit = request.resources;
            }
            if self.cheats(Sabotage::CutFirstContact) && first {
                response.permit = response.permit.saturating_sub(UNIT);
            }
            self.note(Note::Permitted {
                vm,
                permit: response.permit,
            });
            let is_awaited = self.is_awaited(flight);
            self.permits_stay_between_old_and_asked(vm, &request, response.permit, is_awaited);
            self.permits_are_durable_before_said(vm, &request, response.permit);
        } else if let (Err(refusal), Some(vm)) = (&result, vm) {
            self.note(Note::Refused {
                vm,
                status: refusal.status(),
            });
        }
        self.send_answer(flight, result);
    }

    pub(crate) fn scheduler_write_ended(
        &mut self,
        of: Incarnation,
        id: u64,
        answer: &ApiResponse,
        is_read: bool,
    ) {
        if !self.lives(of) {
            return;
        }
        let outcome = match answer {
            ApiResponse::Object(object) => CallOutcome::Done(Box::new(object.vm_view().clone())),
            ApiResponse::Status(404, _) => CallOutcome::NotFound,
            ApiResponse::Status(409 | 422, _) => CallOutcome::Conflict,
            ApiResponse::Status(400..=499, why) => CallOutcome::Refused(why.clone()),
            ApiResponse::Status(_, why) => CallOutcome::Unclear(why.clone()),
            ApiResponse::Nothing => CallOutcome::Unclear("no answer".into()),
        };
        let event = if is_read {
            CoreEvent::ReadDone(id, outcome)
        } else {
            CoreEvent::WriteDone(id, outcome)
        };
        self.tell_scheduler(of.replica, event);
    }

    pub(crate) fn bind_ended(&mut self, of: Incarnation, id: u64, answer: &ApiResponse) {
        if !self.lives(of) {
            return;
        }
        let outcome = match answer {
            ApiResponse::Object(_) => BindOutcome::Bound,
            ApiResponse::Status(409, _) => BindOutcome::Conflict,
            ApiResponse::Status(400..=499, why) => BindOutcome::Refused(why.clone()),
            ApiResponse::Status(_, why) => BindOutcome::Unclear(why.clone()),
            ApiResponse::Nothing => BindOutcome::Unclear("no answer".into()),
        };
        self.tell_scheduler(of.replica, CoreEvent::BindDone(id, outcome));
    }
}
