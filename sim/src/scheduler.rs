//! The scheduler's process: the shipped core, its lists and watches, its calls.

use std::collections::BTreeMap;

use protocol::permit::AgentRequest;
use protocol::time::{Span, Timestamp};
use scheduler::config::Config;
use scheduler::core::Core;
use scheduler::core::event::{
    Action, Answer as PermitAnswer, BindOutcome, CallOutcome, Event as CoreEvent, TicketId, VmWrite,
};
use serde_json::json;

use crate::event::{Answer, Call, Caller, Event, Operation, Sleeper};
use crate::journal::{Note, Part};
use crate::options::Sabotage;
use crate::store::{Change, Kind, Object};
use crate::watch::number_of;
use crate::world::{UNIT, World};

/// Pause of a new scheduler before it lists, so that no call of the one before is under way (`--takeover-wait-ms`).
const TAKEOVER_WAIT: Span = Span::from_secs(2);
/// Actions a core may start at one instant.
const ACTIONS_AT_ONCE: usize = 4_096;

/// The process.
#[derive(Default)]
pub struct SchedulerPart {
    /// The shipped core, while it runs.
    pub core: Option<Core>,
    /// Counts its lives.
    pub epoch: u64,
    /// When to wake up.
    pub alarm: Option<Timestamp>,
    tickets: BTreeMap<TicketId, (u64, AgentRequest)>,
    last_ticket: TicketId,
}

impl SchedulerPart {
    /// Whether it answers permits.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.core.as_ref().is_some_and(Core::is_ready)
    }
}

impl World {
    pub(crate) fn start_scheduler(&mut self) {
        self.scheduler.core = Some(Core::new(Config::default().settings(true, true)));
        self.scheduler.alarm = None;
        self.open_streams(Part::Scheduler, TAKEOVER_WAIT);
    }

    pub(crate) fn crash_scheduler(&mut self) {
        self.scheduler.core = None;
        self.scheduler.epoch += 1;
        self.close_streams(Part::Scheduler);
        // Its connections end with it.
        for (_, (flight, _)) in std::mem::take(&mut self.scheduler.tickets) {
            let delay = self.dice.millis(1, 50);
            self.after(delay, Event::PermitBreaks(flight));
        }
    }

    fn tell_scheduler(&mut self, event: CoreEvent) {
        let now = self.now;
        if let Some(core) = self.scheduler.core.as_mut() {
            core.handle(now, event);
        }
        self.drive_scheduler();
    }

    pub(crate) fn scheduler_sees(&mut self, change: &Change) {
        let object = &change.object;
        let key = || object.vm_view().key.clone();
        let event = match (change.kind, change.gone) {
            (Kind::Node, false) => CoreEvent::NodeApplied(object.node_view()),
            (Kind::Node, true) => CoreEvent::NodeDeleted(object.meta("name").to_owned()),
            (Kind::Pod, false) => CoreEvent::PodApplied(object.pod_view().clone()),
            (Kind::Pod, true) => CoreEvent::PodDeleted(object.meta("uid").to_owned()),
            (Kind::Vm, false) => {
                let mut view = object.vm_view().clone();
                if self.cheats(Sabotage::LeakHold) {
                    view.in_use.mem.0 += UNIT.mem.0;
                }
                CoreEvent::VmApplied(view)
            }
            (Kind::Vm, true) => CoreEvent::VmDeleted(key(), object.meta("uid").to_owned()),
        };
        self.tell_scheduler(event);
        if self.cheats(Sabotage::ForgetPod) && change.kind == Kind::Pod && !change.gone {
            self.tell_scheduler(CoreEvent::PodDeleted(object.meta("uid").to_owned()));
        }
    }

    pub(crate) fn scheduler_lists(&mut self, kind: Kind, objects: &[Object]) {
        let objects = objects.iter();
        let was_ready = self.scheduler.is_ready();
        self.tell_scheduler(match kind {
            Kind::Node => {
                CoreEvent::NodesListed(objects.map(|object| object.node_view()).collect())
            }
            Kind::Pod => {
                CoreEvent::PodsListed(objects.map(|object| object.pod_view().clone()).collect())
            }
            Kind::Vm => {
                CoreEvent::VmsListed(objects.map(|object| object.vm_view().clone()).collect())
            }
        });
        if !was_ready && self.scheduler.is_ready() {
            self.checks.touch_all_nodes();
        }
    }

    pub(crate) fn scheduler_asked(&mut self, flight: u64, request: AgentRequest) {
        self.scheduler.last_ticket += 1;
        let ticket = self.scheduler.last_ticket;
        self.scheduler
            .tickets
            .insert(ticket, (flight, request.clone()));
        self.tell_scheduler(CoreEvent::Permit(ticket, request));
    }

    pub(crate) fn drive_scheduler(&mut self) {
        let now = self.now;
        for _ in 0..ACTIONS_AT_ONCE {
            let Some(core) = self.scheduler.core.as_mut() else {
                return;
            };
            let Some(action) = core.poll_action(now) else {
                for node in core.take_touched() {
                    if let Some(node) = number_of(&node) {
                        self.checks.touch_node(node);
                    }
                }
                let deadline = self.scheduler.core.as_ref().and_then(Core::poll_deadline);
                let epoch = self.scheduler.epoch;
                // A scheduler without its lists has no timers to serve.
                let deadline = deadline.filter(|_| self.scheduler.is_ready());
                return self.set_alarm(Sleeper::Scheduler(epoch), deadline);
            };
            self.carry_out_scheduler(action);
        }
        self.checks.fail(
            "n05_level_triggered_without_spinning",
            None,
            "the scheduler's core never stops".into(),
        );
    }

    fn carry_out_scheduler(&mut self, action: Action) {
        let epoch = self.scheduler.epoch;
        match action {
            Action::Answer(answer) => self.answer_permit(answer),
            Action::WriteVm(write) => self.write_vm(epoch, write),
            Action::ReadVm { id, vm } => self.call(Call {
                caller: Caller::Read { epoch, id },
                operation: Operation::Get(Kind::Vm, vm.name),
                target: None,
            }),
            Action::Bind { id, pod, uid, node } => self.call(Call {
                caller: Caller::Bind { epoch, id },
                operation: Operation::Bind(pod.name, uid, node),
                target: None,
            }),
            // For people; and for one of several schedulers, which this one is not.
            Action::Unschedulable { .. }
            | Action::ScaleUpDenied { .. }
            | Action::Remark { .. }
            | Action::List => {}
        }
    }

    fn write_vm(&mut self, epoch: u64, mut write: VmWrite) {
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
            caller: Caller::Write {
                epoch,
                id: write.id,
            },
            operation,
            target: None,
        });
    }

    fn answer_permit(&mut self, answer: PermitAnswer) {
        let Some((flight, request)) = self.scheduler.tickets.remove(&answer.ticket) else {
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
            self.permits_stay_between_old_and_asked(vm, &request, response.permit);
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
        epoch: u64,
        id: u64,
        answer: &Answer,
        is_read: bool,
    ) {
        if epoch != self.scheduler.epoch {
            return;
        }
        let outcome = match answer {
            Answer::Object(object) => CallOutcome::Done(Box::new(object.vm_view().clone())),
            Answer::Status(404, _) => CallOutcome::NotFound,
            Answer::Status(409 | 422, _) => CallOutcome::Conflict,
            Answer::Status(400..=499, why) => CallOutcome::Refused(why.clone()),
            Answer::Status(_, why) => CallOutcome::Unclear(why.clone()),
            Answer::Nothing => CallOutcome::Unclear("no answer".into()),
        };
        self.tell_scheduler(if is_read {
            CoreEvent::ReadDone(id, outcome)
        } else {
            CoreEvent::WriteDone(id, outcome)
        });
    }

    pub(crate) fn bind_ended(&mut self, epoch: u64, id: u64, answer: &Answer) {
        if epoch != self.scheduler.epoch {
            return;
        }
        let outcome = match answer {
            Answer::Object(_) => BindOutcome::Bound,
            Answer::Status(409, _) => BindOutcome::Conflict,
            Answer::Status(400..=499, why) => BindOutcome::Refused(why.clone()),
            Answer::Status(_, why) => BindOutcome::Unclear(why.clone()),
            Answer::Nothing => BindOutcome::Unclear("no answer".into()),
        };
        self.tell_scheduler(CoreEvent::BindDone(id, outcome));
    }
}
