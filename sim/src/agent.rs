//! The agent's side: which VMs it has in hand, and for each the shipped core with its four peers.
//!
//! What the shell of the agent does between core and wire is done here in the same order: an object
//! that is still the same VM in the same pod feeds its task, any other ends it
//! (`agent/src/shell/vms.rs`); nothing is decided before the first input
//! (`agent/src/shell/driver.rs`).

use agent::core::actions::{PermitRequest, VmPatch};
use agent::core::revision::StampedRevision;
use agent::core::vm::{Ownership, Placement, placement};
use agent::core::{
    Action, Core, CoreConfig, Event as CoreEvent, Failure, PatchBase, RequestId, ScalingConfig,
    SystemMetrics, Timers, VmInfo, VmUpdate,
};
use protocol::core::Core as _;
use protocol::permit::{AgentRequest, NamespacedName, PROTO_VERSION};
use protocol::revision::RevisionWithTime;
use protocol::time::{Span, Timestamp};

use crate::build::{SCHEDULER, node_name};
use crate::drive::{Rest, Turn};
use crate::event::{ApiResponse, Call, Caller, Event, Operation, Sleeper};
use crate::faults::Link;
use crate::journal::{Note, Part};
use crate::options::Sabotage;
use crate::policy::TaskPolicy;
use crate::recording::{TaskRecorder, output_of};
use crate::store::{NAMESPACE, Object};
use crate::world::{UNIT, World};

/// Between two scrapes (`metrics.system.secondsBetweenRequests`).
pub(crate) const SCRAPE_PERIOD: Span = Span::from_secs(5);
/// A page that takes longer is none (`metrics.system.requestTimeoutSeconds`).
pub(crate) const SCRAPE_PATIENCE: Span = Span::from_secs(2);
/// Age from which metrics are stale: three periods and a time-out, as configured by default.
pub(crate) const METRICS_MAX_AGE: Span = Span::from_secs(17);
/// Actions a core may start at one instant; more means that it never stops.
const ACTIONS_AT_ONCE: usize = 16;

/// The task of one VM.
pub struct AgentTask {
    /// Number of this task; events addressed to an earlier task of the VM are dropped.
    pub id: u64,
    /// The node of its agent.
    pub node: usize,
    /// The shipped core.
    pub core: Core,
    /// Runner's pod that the VM's status named when the task began; its permits are for it.
    pub pod: NamespacedName,
    /// Uid of the VM.
    pub uid: String,
    /// Version of the object it began with.
    version: u64,
    /// The connection to the monitor, once it is up.
    pub connection: Option<u64>,
    /// When the newest attempt to connect began.
    pub dialled_at: Timestamp,
    /// When metrics last came.
    pub metrics_at: Option<Timestamp>,
    /// When a permit was last asked for.
    pub asked_at: Option<Timestamp>,
    /// When the task began.
    pub began_at: Timestamp,
    /// When to wake up.
    pub alarm: Option<Timestamp>,
    /// Writes its journal, where one is kept.
    pub(crate) recorder: Option<TaskRecorder>,
    /// Its policy, where it has one.
    pub(crate) policy: TaskPolicy,
    is_started: bool,
}

pub(crate) fn config(jitter: Span) -> CoreConfig {
    let timers = Timers::default();
    CoreConfig {
        compute_unit: UNIT,
        default_scaling: ScalingConfig::default(),
        timers: Timers {
            permit_request_tick: Span(timers.permit_request_tick.0 - jitter.0),
            ..timers
        },
        system_max_age: Some(METRICS_MAX_AGE),
        lfc_max_age: None,
    }
}

impl World {
    /// The task of that number, if it is still there.
    pub(crate) fn agent_task(&mut self, vm: usize, id: u64) -> Option<&mut AgentTask> {
        self.vms[vm]
            .agent_task
            .as_mut()
            .filter(|agent_task| agent_task.id == id)
    }

    pub(crate) fn agent_lists(&mut self, node: usize, objects: &[Object]) {
        let listed: Vec<usize> = objects
            .iter()
            .filter_map(|object| self.vm_named(object.meta("name")))
            .collect();
        for object in objects {
            self.agent_sees(node, object, false);
        }
        for vm in 0..self.vms.len() {
            let has = self.vms[vm]
                .agent_task
                .as_ref()
                .is_some_and(|agent_task| agent_task.node == node);
            if has && !listed.contains(&vm) {
                self.close_agent_task(vm);
            }
        }
    }

    /// Brings the task of a VM in line with its object.
    pub(crate) fn agent_sees(&mut self, node: usize, object: &Object, gone: bool) {
        let Some(vm) = self.vm_named(object.meta("name")) else {
            return;
        };
        let name = node_name(node);
        let ours = Ownership {
            node: &name,
            scheduler_name: SCHEDULER,
        };
        let agent_task = self.vms[vm].agent_task.as_ref();
        let has = agent_task.is_some_and(|agent_task| agent_task.node == node);
        if agent_task.is_some_and(|agent_task| {
            agent_task.node != node && object.version < agent_task.version
        }) {
            // Old news of a VM that has gone to another node: its agent would begin a task beside
            // that of the other one, and end it by the next news. There is one task of a VM here,
            // and that one goes on.
            return;
        }
        let Some(place) = placement(&object.value, ours).filter(|_| !gone) else {
            if has {
                self.close_agent_task(vm);
            }
            return;
        };
        // What does not read hurts its own VM only; the last good settings stay in force.
        let Ok(info) = VmInfo::from_object(object.vm(), &ScalingConfig::default()) else {
            return;
        };
        let is_same = self.vms[vm].agent_task.as_ref().is_some_and(|agent_task| {
            has && agent_task.uid == object.meta("uid") && agent_task.pod.name == place.pod_name
        });
        if is_same {
            self.feed_agent_task(vm, info);
        } else {
            self.close_agent_task(vm);
            self.open_agent_task(vm, node, object, place, info);
        }
    }

    fn feed_agent_task(&mut self, vm: usize, info: VmInfo) {
        let now = self.now;
        let current_revision = info.current_revision.map(|current| StampedRevision {
            revision: current.revision,
            at: now,
        });
        let update = VmUpdate {
            info,
            current_revision,
            is_pre_migrating: false,
        };
        self.tell_agent_task(vm, CoreEvent::VmUpdated(Box::new(update)));
    }

    fn open_agent_task(
        &mut self,
        vm: usize,
        node: usize,
        object: &Object,
        place: Placement,
        info: VmInfo,
    ) {
        let id = self.number();
        let jitter = self.rng.millis(0, 99);
        let recorder = self.recorder(id);
        let mut config = config(jitter);
        if self.cheats(Sabotage::HalfUnits) {
            config.compute_unit.cpu.0 /= 2;
            config.compute_unit.mem.0 /= 2;
        }
        let mut core = Core::new(config, info);
        let uid = object.meta("uid");
        let left = self.left.remove(&(node, vm)).filter(|(of, _)| of == uid);
        if let Some((_, left)) = left {
            core.resume_from(&left);
        }
        let size = core.using();
        self.vms[vm].agent_task = Some(AgentTask {
            id,
            node,
            core,
            pod: NamespacedName {
                namespace: NAMESPACE.into(),
                name: place.pod_name,
            },
            uid: uid.to_owned(),
            version: object.version,
            connection: None,
            dialled_at: self.now,
            metrics_at: None,
            asked_at: None,
            began_at: self.now,
            alarm: None,
            recorder,
            policy: TaskPolicy::default(),
            is_started: false,
        });
        self.checks.agent_task_opened(vm, size);
        self.note(Note::AgentManages { vm, desk: id });
        let first = Span::from_secs(self.rng.below(5));
        self.after(first, Event::Scrape { vm, agent_task: id });
        self.after(Span(0), Event::Dial { vm, agent_task: id });
    }

    /// Ends a task; what it sent is still on its way.
    pub(crate) fn close_agent_task(&mut self, vm: usize) {
        self.end_recording(vm);
        let Some(agent_task) = self.vms[vm].agent_task.take() else {
            return;
        };
        self.note(Note::AgentLetsGo { vm });
        self.left.insert(
            (agent_task.node, vm),
            (agent_task.uid, agent_task.core.handoff()),
        );
        if let Some(connection) = agent_task.connection {
            self.hang_up(vm, connection);
        }
    }

    /// Tells the core of a VM something and lets it decide.
    pub(crate) fn tell_agent_task(&mut self, vm: usize, event: CoreEvent) {
        let is_policys = matches!(event, CoreEvent::Advised(_) | CoreEvent::Bound(_));
        let is_metrics = matches!(event, CoreEvent::SystemMetrics(_));
        let now = self.record_event(vm, &event);
        self.policy_shrank(vm, &event);
        if let Some(agent_task) = self.vms[vm].agent_task.as_mut() {
            agent_task.is_started = true;
            agent_task.core.handle(now, event);
        }
        self.drive_agent_task(vm, now);
        if !is_policys {
            self.policy_hears(vm, is_metrics);
        }
    }

    pub(crate) fn agent_task_tick(&mut self, vm: usize) {
        self.tell_agent_task(vm, CoreEvent::Tick);
        let id = self.vms[vm]
            .agent_task
            .as_ref()
            .map(|agent_task| agent_task.id);
        if let Some(id) = id.filter(|_| self.cheats(Sabotage::Spin)) {
            self.set_alarm(Sleeper::AgentTask(vm, id), Some(self.now));
        }
    }

    fn drive_agent_task(&mut self, vm: usize, now: Timestamp) {
        let turn = Turn::new("agent", Some(vm), now, ACTIONS_AT_ONCE);
        let (mut first, mut started) = (None, Vec::new());
        let act = |world: &mut Self, (id, action): (RequestId, Action)| {
            if let Some(core) = world.recorded_core(vm) {
                first = first.take().or_else(|| core.last_evaluation().cloned());
                started.push((id, action.clone()));
            }
            world.launch(vm, id, action);
        };
        let rest = self.drive(&turn, |world| world.started_core(vm), act);
        let Some(Rest { deadline }) = rest else {
            return;
        };
        let output = self.recorded_core(vm).and_then(|core| {
            let first = first.or_else(|| core.last_evaluation().cloned())?;
            Some(output_of(core, &first, started, deadline))
        });
        let Some(agent_task) = self.vms[vm].agent_task.as_mut() else {
            return;
        };
        while agent_task.core.poll_observation().is_some() {}
        let id = agent_task.id;
        if let Some(output) = output {
            self.record_output(vm, &output);
        }
        self.desired_is_whole_units_in_bounds(vm);
        self.core_counts_no_fault(vm);
        self.advice_stays_within_its_limits(vm);
        self.set_alarm(Sleeper::AgentTask(vm, id), deadline);
    }

    /// The core of a VM's task that has had an input.
    fn started_core(&mut self, vm: usize) -> Option<&mut Core> {
        let agent_task = self.vms[vm].agent_task.as_mut()?;
        agent_task.is_started.then_some(&mut agent_task.core)
    }

    /// The core of a VM's task whose steps are recorded.
    fn recorded_core(&self, vm: usize) -> Option<&Core> {
        let agent_task = self.vms[vm].agent_task.as_ref()?;
        agent_task.recorder.is_some().then_some(&agent_task.core)
    }

    fn launch(&mut self, vm: usize, id: RequestId, action: Action) {
        self.checks.touch(vm);
        match action {
            Action::Permit(request) => self.ask_permit(vm, id, request),
            Action::VmPatch(request) => {
                self.policy_shrinks(vm, id, &request);
                self.patch(vm, id, request);
            }
            Action::MonitorUpscale(request) => {
                self.note(Note::TellsMonitor {
                    vm,
                    target: request.target,
                });
                let target = if self.cheats(Sabotage::TellTooMuch) {
                    request.target.saturating_mul(3)
                } else {
                    request.target
                };
                self.call_monitor(vm, id, target, true);
            }
            Action::MonitorDownscale(request) => {
                self.note(Note::AsksMonitor {
                    vm,
                    target: request.target,
                });
                self.call_monitor(vm, id, request.target, false);
            }
        }
    }

    fn ask_permit(&mut self, vm: usize, id: RequestId, request: PermitRequest) {
        let mut target = request.target;
        let is_first = self.vms[vm]
            .agent_task
            .as_ref()
            .is_some_and(|agent_task| agent_task.asked_at.is_none());
        if self.cheats(Sabotage::NoHeartbeat) && !is_first {
            return;
        }
        if self.cheats(Sabotage::ReportTooLittle) {
            target = target.saturating_sub(UNIT);
        }
        self.requests_never_report_less_than_is_used(vm, target);
        self.note(Note::Asks {
            vm,
            last: request.last_permit,
            asked: target,
        });
        let Some(agent_task) = self.vms[vm].agent_task.as_mut() else {
            return;
        };
        agent_task.asked_at = Some(self.now);
        let body = AgentRequest {
            proto_version: PROTO_VERSION,
            pod: agent_task.pod.clone(),
            compute_unit: UNIT,
            resources: target,
            last_permit: request.last_permit,
            metrics: request.metrics,
        };
        let agent_task = agent_task.id;
        self.send_permit(vm, agent_task, id, body);
    }

    fn patch(&mut self, vm: usize, id: RequestId, mut request: VmPatch) {
        if self.cheats(Sabotage::PatchAbovePermit)
            && request.target.has_field_above(request.current)
        {
            request.target = request.target.field_max(request.current.saturating_mul(2));
        }
        if self.cheats(Sabotage::PatchBelowApproval)
            && request.target.has_field_below(request.current)
        {
            request.target = request.target.saturating_sub(UNIT).field_max(UNIT);
        }
        self.patches_stay_between_approval_and_permit(vm, request.target);
        self.shrinks_are_never_blind(vm, &request);
        self.note(Note::Patches {
            vm,
            target: request.target,
        });
        let wall = self.wall();
        let Some(agent_task) = self.vms[vm].agent_task.as_ref() else {
            return;
        };
        let revision = RevisionWithTime {
            revision: request.revision,
            updated_at: wall,
        };
        let base = if self.cheats(Sabotage::PatchUntested) {
            PatchBase::default()
        } else {
            agent_task.core.patch_base()
        };
        let slot = agent_task.core.vm().mem.slot_size;
        let operations = base.operations(request.target, slot, revision);
        let caller = Caller::AgentTask {
            vm,
            agent_task: agent_task.id,
            id,
            landed: self.checks.truth[vm].landed,
        };
        let operation = Operation::PatchVm(self.vms[vm].name.clone(), operations);
        self.call(Call {
            caller,
            operation,
            target: Some((vm, request.target)),
        });
    }

    pub(crate) fn patch_ended(
        &mut self,
        vm: usize,
        agent_task: u64,
        id: RequestId,
        answer: &ApiResponse,
    ) {
        if self.agent_task(vm, agent_task).is_none() {
            return;
        }
        let result = match answer {
            ApiResponse::Object(object) => Ok(Some(object.version)),
            ApiResponse::Status(400..=499, _) => Err(Failure::NotApplied),
            ApiResponse::Status(..) | ApiResponse::Nothing => Err(Failure::Unknown),
        };
        self.note(Note::PatchEnds {
            vm,
            worked: result.is_ok(),
        });
        self.tell_agent_task(vm, CoreEvent::VmPatchDone(id, result));
    }

    // ---- scrapes ----

    pub(crate) fn scrape(&mut self, vm: usize, agent_task: u64) {
        if self.agent_task(vm, agent_task).is_none() {
            return;
        }
        let page = self.page_of(vm);
        let delay = self
            .delivery(Link::Scrape)
            .first()
            .filter(|delay| *delay < SCRAPE_PATIENCE);
        let page = page.filter(|_| delay.is_some() && !self.cheats(Sabotage::ShrinkBlind));
        self.after(
            delay.unwrap_or(SCRAPE_PATIENCE),
            Event::Scraped {
                vm,
                agent_task,
                page,
            },
        );
    }

    pub(crate) fn scraped(&mut self, vm: usize, id: u64, page: Option<SystemMetrics>) {
        let now = self.now;
        if self.agent_task(vm, id).is_none() {
            return;
        }
        self.heartbeats_are_never_missed(vm);
        let Some(agent_task) = self.agent_task(vm, id) else {
            return;
        };
        if let Some(page) = page {
            let before = agent_task.metrics_at.replace(now);
            self.policy_sees_metrics(vm, before);
            self.tell_agent_task(vm, CoreEvent::SystemMetrics(page));
        } else if self.cheats(Sabotage::ShrinkBlind) {
            let idle = SystemMetrics::default();
            self.tell_agent_task(vm, CoreEvent::SystemMetrics(idle));
        }
        self.after(SCRAPE_PERIOD, Event::Scrape { vm, agent_task: id });
    }

    // ---- the process ----

    pub(crate) fn start_agent(&mut self, node: usize) {
        self.agents[node] = true;
        self.open_streams(Part::Agent(node), Span::from_millis(5));
    }

    pub(crate) fn crash_agent(&mut self, node: usize) {
        self.agents[node] = false;
        self.close_streams(Part::Agent(node));
        for vm in 0..self.vms.len() {
            if self.vms[vm]
                .agent_task
                .as_ref()
                .is_some_and(|agent_task| agent_task.node == node)
            {
                // What was gathered and not written dies with the process.
                if let Some(agent_task) = self.vms[vm].agent_task.as_mut() {
                    agent_task.recorder = None;
                }
                self.close_agent_task(vm);
            }
        }
        self.left.retain(|(of, _), _| *of != node);
    }
}
