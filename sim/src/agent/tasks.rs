//! Processes of agents, and the tasks that begin and end with what they see.
//!
//! An object that is still the same VM in the same pod feeds its task, any other ends it, as in
//! `agent/src/shell/vms.rs`.

use agent::core::revision::StampedRevision;
use agent::core::vm::{Ownership, Placement, placement};
use agent::core::{Core, CoreConfig, Event as CoreEvent, ScalingConfig, Timers, VmInfo, VmUpdate};
use protocol::permit::NamespacedName;
use protocol::time::Span;

use super::AgentTask;
use super::times::METRICS_MAX_AGE;
use crate::build::{SCHEDULER, node_name};
use crate::event::Event;
use crate::journal::{Note, Part};
use crate::options::Sabotage;
use crate::policy::TaskPolicy;
use crate::store::{NAMESPACE, Object};
use crate::world::{UNIT, World};

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
