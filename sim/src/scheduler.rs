//! The scheduler's processes: the shipped core, its lists and watches, its calls. One without a
//! Lease, or two replicas that hold one in turn ([`crate::election`]).

use std::collections::BTreeMap;

use clap::Parser as _;
use protocol::core::Core as _;
use protocol::permit::AgentRequest;
use protocol::time::{Span, Timestamp};
use scheduler::config::Config;
use scheduler::core::Core;
use scheduler::core::event::{
    Action, BindOutcome, CallOutcome, Event as CoreEvent, ObjectKind, PermitResponse, RequestId,
    VmWrite, WatchProgress,
};
use serde_json::json;

use crate::api::SCHEDULER_PATIENCE;
use crate::drive::Turn;
use crate::election::Election;
use crate::event::{ApiResponse, Call, Caller, Event, Incarnation, Operation, Sleeper};
use crate::journal::{Note, Part};
use crate::options::Sabotage;
use crate::store::{Change, Kind, Object};
use crate::watch::number_of;
use crate::world::{UNIT, World};

/// Counts of those that began to lead: with what they knew already, and with lists.
pub(crate) const TAKEN_WARM: &str = "lead taken over warm";
pub(crate) const TAKEN_COLD: &str = "lead taken over with lists";
/// Actions a core may start at one instant.
const ACTIONS_AT_ONCE: usize = 4_096;

/// One replica's process, with the permit requests it has not answered.
#[derive(Default)]
pub struct SchedulerPart {
    /// The shipped core, while it runs.
    pub core: Option<Core>,
    /// Number of the replica's process. Each start raises it.
    pub epoch: u64,
    /// When to wake up.
    pub alarm: Option<Timestamp>,
    /// Its part in the election, if there is another replica.
    pub(crate) election: Option<Election>,
    /// Lists were asked for since it was last ready.
    pub(crate) lists: bool,
    was_ready: bool,
    requests: BTreeMap<RequestId, (u64, AgentRequest)>,
    last_request: RequestId,
}

impl SchedulerPart {
    /// Whether it has its lists.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.core.as_ref().is_some_and(Core::is_ready)
    }

    /// Whether its server takes requests.
    #[must_use]
    pub fn serves(&self) -> bool {
        let retires = self.election.as_ref().is_some_and(Election::retires);
        self.core.is_some() && !retires
    }
}

/// Pause of a new scheduler before it lists, by the options of one machine.
fn takeover_wait() -> Span {
    let options = ["autoscale-scheduler", "--embedded-bind"];
    let args = scheduler::args::Args::try_parse_from(options);
    args.expect("they are an operator's").takeover_wait()
}

impl World {
    pub(crate) fn build_schedulers(&mut self) {
        self.schedulers
            .resize_with(self.options.replicas, SchedulerPart::default);
    }

    pub(crate) fn start_scheduler(&mut self, replica: usize) {
        let settings = Config::default().settings(true, true);
        if self.schedulers.len() > 1 {
            return self.start_replica(replica, settings);
        }
        let part = &mut self.schedulers[replica];
        part.core = Some(Core::new(settings));
        part.alarm = None;
        self.open_streams(Part::Scheduler(replica), takeover_wait());
    }

    pub(crate) fn crash_scheduler(&mut self, replica: usize) {
        let part = &mut self.schedulers[replica];
        part.core = None;
        part.election = None;
        part.epoch += 1;
        let requests = std::mem::take(&mut part.requests);
        self.close_streams(Part::Scheduler(replica));
        // Its connections end with it.
        for (_, (flight, _)) in requests {
            let delay = self.rng.millis(1, 50);
            self.after(delay, Event::PermitBreaks(flight));
        }
    }

    /// The core that answers permits now, if any.
    pub(crate) fn leading_core(&self) -> Option<&Core> {
        let parts = self.schedulers.iter().filter(|part| part.serves());
        let mut cores = parts.filter_map(|part| part.core.as_ref());
        cores.find(|core| core.may_permit(self.now))
    }

    /// The scheduler that an agent sends a request to: the one that answers, as far as is known.
    pub(crate) fn serving_replica(&mut self) -> usize {
        if self.schedulers.len() == 1 {
            return 0;
        }
        let now = self.now;
        let leads =
            |part: &SchedulerPart| part.core.as_ref().is_some_and(|core| core.may_permit(now));
        // Who is ready is told by a watch of pods, which may be late.
        let is_late = self.rng.chance(self.rates.late);
        match self.schedulers.iter().position(leads).filter(|_| !is_late) {
            Some(replica) => replica,
            None => self.rng.index(self.schedulers.len()),
        }
    }

    /// The current process of a replica.
    pub(crate) fn incarnation(&self, replica: usize) -> Incarnation {
        let epoch = self.schedulers[replica].epoch;
        Incarnation { replica, epoch }
    }

    /// Whether this process of a replica still runs.
    pub(crate) fn lives(&self, of: Incarnation) -> bool {
        self.incarnation(of.replica) == of && self.schedulers[of.replica].core.is_some()
    }

    /// How long a call may take that begins now: no longer than the lead.
    pub(crate) fn patience_of(&self, replica: usize) -> Span {
        let core = self.schedulers[replica].core.as_ref();
        let bound = core.and_then(|core| core.call_bound(self.now));
        bound.map_or(SCHEDULER_PATIENCE, |bound| bound.min(SCHEDULER_PATIENCE))
    }

    pub(crate) fn tell_scheduler(&mut self, replica: usize, event: CoreEvent) {
        let now = self.now;
        if let Some(core) = self.schedulers[replica].core.as_mut() {
            core.handle(now, event);
        }
        self.drive_scheduler(replica);
    }

    /// A watch has come so far.
    fn scheduler_reached(&mut self, replica: usize, kind: Kind, progress: WatchProgress) {
        if self.schedulers[replica].election.is_some() {
            let kind = match kind {
                Kind::Node => ObjectKind::Nodes,
                Kind::Pod => ObjectKind::Pods,
                Kind::Vm => ObjectKind::VirtualMachines,
            };
            self.tell_scheduler(replica, CoreEvent::WatchProgress(kind, Some(progress)));
        }
    }

    pub(crate) fn scheduler_sees(&mut self, replica: usize, change: &Change) {
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
                    view.plugged.1.mem.0 = view.in_use.mem.0 + UNIT.mem.0;
                }
                CoreEvent::VmApplied(view)
            }
            (Kind::Vm, true) => CoreEvent::VmDeleted(key(), object.meta("uid").to_owned()),
        };
        self.tell_scheduler(replica, event);
        if self.cheats(Sabotage::ForgetPod) && change.kind == Kind::Pod && !change.gone {
            let event = CoreEvent::PodDeleted(object.meta("uid").to_owned());
            self.tell_scheduler(replica, event);
        }
        let told = change.version;
        let newest = if change.gone { 0 } else { told };
        self.scheduler_reached(
            replica,
            change.kind,
            WatchProgress {
                observed: told,
                newest,
            },
        );
    }

    pub(crate) fn scheduler_lists(
        &mut self,
        replica: usize,
        kind: Kind,
        objects: &[Object],
        told: u64,
    ) {
        let newest = objects.iter().map(|object| object.version).max();
        let all = objects.iter();
        let event = match kind {
            Kind::Node => CoreEvent::NodesListed(all.map(|object| object.node_view()).collect()),
            Kind::Pod => {
                CoreEvent::PodsListed(all.map(|object| object.pod_view().clone()).collect())
            }
            Kind::Vm => CoreEvent::VmsListed(all.map(|object| object.vm_view().clone()).collect()),
        };
        self.tell_scheduler(replica, event);
        let newest = newest.unwrap_or(0);
        self.scheduler_reached(
            replica,
            kind,
            WatchProgress {
                observed: told,
                newest,
            },
        );
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
            // Whoever ends begins nothing any more.
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
