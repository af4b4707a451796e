//! Two nodes, VMs that may be migrated, their agents, an API server and a controller, as a system
//! of small steps that a model checker can take in every order. Sizes are counted in units of 1 CPU
//! / 1 GiB.

mod effects;
mod oracle;
mod state;
mod views;

use std::collections::VecDeque;

use protocol::core::Core as _;
use protocol::permit::AgentRequest;
use protocol::time::Timestamp;
use protocol::units::Resources;
use scheduler::config::Config;
use scheduler::core::Core;
use scheduler::core::event::{Action, CallOutcome, Event, MigrationOutcome};
use scheduler::core::view::NodeView;
use serde_json::json;

use effects::{advance, event_of, fail, land};
pub(crate) use oracle::{Broken, Oracle};
pub(crate) use state::{Bounds, Reached, State, Step, Vm};
use state::{Brain, Call, Phase, Role};
pub(crate) use views::node_name;
use views::{key, of_pod, pod_name, pod_view, units, vm_view};

/// Units of each node.
pub(crate) const TOTAL: u32 = 4;
/// Units of the watermark.
pub(crate) const WATERMARK: u32 = 3;
/// What a VM may want: less than some have, and more than there is.
const WANTS: [u32; 2] = [1, TOTAL];
/// Seconds by which pressure that can be relieved is: longer than any pause here.
const HORIZON: u64 = 600;

#[derive(Debug, Clone)]
pub(crate) struct System {
    pub(crate) bounds: Bounds,
}

pub(crate) fn time(now: u64) -> Timestamp {
    Timestamp(1_000_000_000 + now * 1_000_000)
}

impl System {
    pub(crate) const fn new(bounds: Bounds) -> Self {
        Self { bounds }
    }

    /// All VMs on the first node, one unit above its watermark.
    pub(crate) fn first(&self) -> State {
        let config = Config {
            watermark: f64::from(WATERMARK) / f64::from(TOTAL),
            migration: self.bounds.rule,
            ..Config::default()
        };
        let mut core = Core::new(config.settings(false, true));
        let node = |node: usize| {
            let object = json!({"metadata": {"name": node_name(node), "uid": node_name(node)},
                "status": {"allocatable": {"cpu": TOTAL, "memory": format!("{TOTAL}Gi")}}});
            NodeView::read(&object).expect("reads")
        };
        let vm = Vm {
            size: 1,
            version: 1,
            pod: 0,
            node: 0,
        };
        let mut vms = vec![vm; self.bounds.vms];
        vms[self.bounds.vms - 1].size = TOTAL + 1 - u32::try_from(vms.len()).expect("is small");
        let pods = (0..vms.len()).map(|vm| pod_view(vm, 0, 0, Role::Settled));
        let objects = vms.iter().enumerate().map(|(vm, it)| vm_view(vm, it));
        for event in [
            Event::NodesListed(vec![node(0), node(1)]),
            Event::PodsListed(pods.collect()),
            Event::VmsListed(objects.collect()),
            Event::MigrationsListed(vec![]),
        ] {
            core.handle(time(0), event);
        }
        let mut state = State {
            now: 0,
            vms,
            objects: Vec::new(),
            calls: Vec::new(),
            pods: VecDeque::new(),
            migrations: VecDeque::new(),
            brain: Brain::new(core.clone()),
            last_uid: 0,
            asks: 0,
            failures: 0,
            losses: 0,
            pauses: 0,
            oracle: Oracle::default(),
            broken: Broken::default(),
            reached: Reached::default(),
        };
        self.act(&mut state, core);
        state
    }

    pub(crate) fn steps(&self, state: &State, steps: &mut Vec<Step>) {
        if state.asks < self.bounds.asks {
            for (vm, it) in state.vms.iter().enumerate() {
                let wants = WANTS.iter().filter(|wants| **wants != it.size);
                steps.extend(wants.map(|wants| Step::Ask(vm, *wants)));
            }
        }
        for (index, call) in state.calls.iter().enumerate() {
            let creates = matches!(call, Call::Create(..));
            if creates && state.last_uid >= self.bounds.objects {
                continue;
            }
            steps.push(Step::Land(index));
            if state.losses < self.bounds.losses {
                steps.extend([Step::LandUnheard(index), Step::Lose(index)]);
            }
        }
        for (index, object) in state.objects.iter().enumerate() {
            if matches!(object.phase, Phase::Pending | Phase::Running) {
                steps.push(Step::Move(index));
                if state.failures < self.bounds.failures {
                    steps.push(Step::Fail(index));
                }
            }
        }
        if !state.pods.is_empty() {
            steps.push(Step::SeePods);
        }
        if !state.migrations.is_empty() {
            steps.push(Step::SeeMigration);
        }
        if state.pauses < self.bounds.pauses {
            steps.push(Step::Pass(self.bounds.pause));
        }
    }

    pub(crate) fn after(&self, before: &State, step: Step) -> State {
        let mut state = before.clone();
        let mut core = Core::clone(&before.brain.0);
        let event = match step {
            Step::Ask(vm, wants) => {
                state.asks += 1;
                Some(ask(&state, vm, wants))
            }
            Step::Land(index) => Some(land(&mut state, index, MigrationOutcome::Done)),
            Step::LandUnheard(index) => {
                state.losses += 1;
                let lost = MigrationOutcome::Unclear("lost".into());
                Some(land(&mut state, index, lost))
            }
            Step::Lose(index) => {
                state.losses += 1;
                let (Call::Create(id, ..) | Call::Delete(id, ..)) = state.calls.remove(index);
                let lost = MigrationOutcome::Unclear("lost".into());
                Some(Event::MigrationDone(id, lost))
            }
            Step::Move(index) => {
                advance(&mut state, index);
                None
            }
            Step::Fail(index) => {
                fail(&mut state, index);
                None
            }
            Step::SeePods => None,
            Step::SeeMigration => state.migrations.pop_front().map(event_of),
            Step::Pass(seconds) => {
                state.pauses += 1;
                state.now += seconds;
                None
            }
        };
        let events = if step == Step::SeePods {
            state.pods.drain(..).map(event_of).collect()
        } else {
            Vec::from_iter(event)
        };
        for event in events {
            state.oracle.before(state.now, &event);
            core.handle(time(state.now), event);
        }
        self.act(&mut state, core);
        state
    }

    /// Carries out all that the core asks for.
    fn act(&self, state: &mut State, mut core: Core) {
        let now = state.now;
        state.oracle.pass(now, &state.calls_of_creation());
        while let Some(action) = core.poll_action(time(now)) {
            match action {
                Action::WriteVm(write) => {
                    let vm = of_pod(&format!("{}-0", write.vm.name)).0;
                    let approved: Resources =
                        serde_json::from_str(&write.approved).expect("is written");
                    let it = &mut state.vms[vm];
                    it.size = approved.cpu.0 / 1000;
                    it.version += 1;
                    let view = Box::new(vm_view(vm, it));
                    core.handle(
                        time(now),
                        Event::WriteDone(write.id, CallOutcome::Done(view)),
                    );
                }
                Action::RespondPermit(answer) => state.oracle.answered(now, &answer),
                Action::MigrationTriggered { node, picked, .. } => {
                    let (broken, reached) = (&mut state.broken, &mut state.reached);
                    state
                        .oracle
                        .begun(now, &core, &self.bounds.rule, (&node, &picked), broken);
                    reached.for_denied |= state.oracle.has_wish(now, &picked.vm);
                }
                Action::CreateMigration { id, migration } => {
                    let pod = migration.key.name.trim_start_matches("schedplugin-");
                    let (vm, pod) = of_pod(pod);
                    state.calls.push(Call::Create(id, vm, pod));
                }
                Action::DeleteMigration {
                    id, migration, uid, ..
                } => {
                    let pod = migration.name.trim_start_matches("schedplugin-");
                    let uid = uid.parse().expect("is numbered");
                    state.calls.push(Call::Delete(id, of_pod(pod).0, uid));
                }
                _ => {}
            }
        }
        assert_eq!(core.ledger().audit(), Ok(()));
        state.brain = Brain::new(core);
    }

    /// Whether nothing is under way, there is pressure that somebody could relieve, and nobody is
    /// sent however long one waits.
    pub(crate) fn sleeps(&self, state: &State) -> bool {
        if !state.is_quiet() {
            return false;
        }
        let mut core = Core::clone(&state.brain.0);
        // What is above the watermark stays; wishes end by themselves.
        if !(0..2).any(|node| oracle::could_relieve(&core, &node_name(node))) {
            return false;
        }
        let end = time(state.now + HORIZON);
        while let Some(at) = core.poll_deadline().filter(|at| *at <= end) {
            while let Some(action) = core.poll_action(at) {
                if matches!(action, Action::CreateMigration { .. }) {
                    return false;
                }
            }
        }
        true
    }
}

impl State {
    /// Pods whose migration is being created.
    fn calls_of_creation(&self) -> Vec<String> {
        let creations = self.calls.iter().filter_map(|call| match call {
            Call::Create(_, vm, pod) => Some(pod_name(*vm, *pod)),
            Call::Delete(..) => None,
        });
        creations.collect()
    }
}

fn ask(state: &State, vm: usize, wants: u32) -> Event {
    let it = &state.vms[vm];
    let request = AgentRequest {
        proto_version: 7,
        pod: key(pod_name(vm, it.pod)),
        compute_unit: units(1),
        resources: units(wants),
        last_permit: Some(units(it.size)),
        metrics: None,
    };
    // A request is answered before the next is made, so that its number need not differ.
    Event::PermitRequest(1, request)
}
