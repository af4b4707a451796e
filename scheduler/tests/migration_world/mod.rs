//! Two nodes, VMs that may be migrated, their agents, an API server and a controller, as a system
//! of small steps that a model checker can take in every order. Sizes are counted in units of 1 CPU
//! / 1 GiB.

mod oracle;

use std::collections::VecDeque;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use protocol::permit::{AgentRequest, NamespacedName};
use protocol::time::Timestamp;
use protocol::units::Resources;
use scheduler::config::Config;
use scheduler::core::Core;
use scheduler::core::event::{Action, CallId, CallOutcome, Event, MigrationOutcome};
use scheduler::core::migrate::{MigrationRule, MigrationView};
use scheduler::core::view::{NodeView, PodView, VmView};
use serde_json::json;

pub(crate) use oracle::{Broken, Oracle};

/// Units of each node.
pub(crate) const TOTAL: u32 = 4;
/// Units of the watermark.
pub(crate) const WATERMARK: u32 = 3;
/// What a VM may want: less than some have, and more than there is.
const WANTS: [u32; 2] = [1, TOTAL];
/// Seconds by which pressure that can be relieved is: longer than any pause here.
const HORIZON: u64 = 600;

/// How far the model goes.
#[derive(Debug, Clone)]
pub(crate) struct Bounds {
    pub(crate) vms: usize,
    pub(crate) rule: MigrationRule,
    /// Requests of agents that differ from what is.
    pub(crate) asks: u8,
    /// Migrations that fail.
    pub(crate) failures: u8,
    /// Calls whose answer is lost.
    pub(crate) losses: u8,
    /// Times that time passes.
    pub(crate) pauses: u8,
    /// Seconds that pass at once.
    pub(crate) pause: u64,
    /// Migration objects that are made.
    pub(crate) objects: u32,
}

/// How far a migration is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Phase {
    Pending,
    Running,
    Succeeded,
    Failed,
}

/// A VM and its pods.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Vm {
    pub(crate) size: u32,
    version: u64,
    /// Its pod, numbered anew with each move.
    pod: u32,
    node: usize,
}

/// A migration object.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Object {
    vm: usize,
    pod: u32,
    uid: u32,
    phase: Phase,
}

/// An update that a watch has not delivered.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum WatchUpdate {
    Pod {
        vm: usize,
        pod: u32,
        node: usize,
        role: Role,
    },
    PodGone {
        vm: usize,
        pod: u32,
    },
    Migration(Object),
    MigrationGone(Object),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Role {
    Settled,
    Source,
    Target,
}

/// A call at the API server.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Call {
    Create(CallId, usize, u32),
    Delete(CallId, usize, u32),
}

impl Hash for Call {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // The number names the call and says nothing of it.
        match self {
            Self::Create(_, vm, pod) => (0, vm, *pod).hash(state),
            Self::Delete(_, vm, uid) => (1, vm, *uid).hash(state),
        }
    }
}

/// A core, told apart by its digest.
#[derive(Clone)]
struct Brain(Arc<Core>, u64);

impl Brain {
    fn new(core: Core) -> Self {
        let mut hasher = DefaultHasher::new();
        core.digest(&mut hasher);
        Self(Arc::new(core), hasher.finish())
    }
}

impl fmt::Debug for Brain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "core {:016x}", self.1)
    }
}

impl PartialEq for Brain {
    fn eq(&self, other: &Self) -> bool {
        self.1 == other.1
    }
}

impl Hash for Brain {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.1.hash(state);
    }
}

/// What a run has seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) struct Reached {
    pub(crate) for_denied: bool,
    pub(crate) arrived: bool,
    pub(crate) failed: bool,
}

/// The whole system.
#[derive(Debug, Clone, PartialEq, Hash)]
pub(crate) struct State {
    now: u64,
    vms: Vec<Vm>,
    objects: Vec<Object>,
    calls: Vec<Call>,
    pods: VecDeque<WatchUpdate>,
    migrations: VecDeque<WatchUpdate>,
    brain: Brain,
    last_uid: u32,
    asks: u8,
    failures: u8,
    losses: u8,
    pauses: u8,
    oracle: Oracle,
    pub(crate) broken: Broken,
    pub(crate) reached: Reached,
}

impl State {
    /// Whether two live migrations move one VM.
    pub(crate) fn moves_twice(&self) -> bool {
        let live = |object: &&Object| matches!(object.phase, Phase::Pending | Phase::Running);
        let mut vms: Vec<usize> = self.objects.iter().filter(live).map(|it| it.vm).collect();
        vms.sort_unstable();
        vms.windows(2).any(|pair| pair[0] == pair[1])
    }

    fn is_quiet(&self) -> bool {
        self.calls.is_empty()
            && self.pods.is_empty()
            && self.migrations.is_empty()
            && self.objects.is_empty()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// The agent of a VM asks for so much.
    Ask(usize, u32),
    /// A call takes effect and is answered.
    Land(usize),
    /// A call takes effect and its answer is lost.
    LandUnheard(usize),
    /// A call is lost.
    Lose(usize),
    /// The controller takes the next step with a migration.
    Move(usize),
    /// A migration fails.
    Fail(usize),
    /// The watch of pods tells all that it has to.
    SeePods,
    /// The watch of migrations tells the next.
    SeeMigration,
    /// So many seconds pass.
    Pass(u64),
}

#[derive(Debug, Clone)]
pub(crate) struct System {
    pub(crate) bounds: Bounds,
}

pub(crate) fn time(now: u64) -> Timestamp {
    Timestamp(1_000_000_000 + now * 1_000_000)
}

pub(crate) fn node_name(node: usize) -> String {
    format!("n{node}")
}

fn key(name: String) -> NamespacedName {
    let namespace = "d".into();
    NamespacedName { namespace, name }
}

fn pod_name(vm: usize, pod: u32) -> String {
    format!("v{vm}-{pod}")
}

/// The VM and the number in a pod's name.
fn of_pod(name: &str) -> (usize, u32) {
    let (vm, pod) = name.split_once('-').expect("is a pod's name");
    let vm = vm.trim_start_matches('v').parse().expect("is numbered");
    (vm, pod.parse().expect("is numbered"))
}

fn units(units: u32) -> Resources {
    Resources::new(1000 * units, u64::from(units) << 30)
}

const GUEST: &str = r#"{"cpus":{"min":1,"max":4,"use":1},"memorySlots":{"min":1,"max":4,"use":1},"memorySlotSize":"1Gi"}"#;

fn vm_view(vm: usize, it: &Vm) -> VmView {
    let name = format!("v{vm}");
    let approved = serde_json::to_string(&units(it.size)).expect("encodes");
    let guest: serde_json::Value = serde_json::from_str(GUEST).expect("is JSON");
    let object = json!({"metadata": {"name": name, "namespace": "d", "uid": name,
            "resourceVersion": it.version.to_string(), "labels": {"autoscaling.neon.tech/enabled": "true"},
            "annotations": {"internal.autoscaling.neon.tech/resources-approved": approved}},
        "spec": {"guest": guest}});
    VmView::read(&object).expect("reads")
}

fn pod_view(vm: usize, pod: u32, node: usize, role: Role) -> PodView {
    let name = pod_name(vm, pod);
    let owner = |kind: &str, name: &str, controller: bool| json!({"apiVersion": "vm.neon.tech/v1", "kind": kind, "name": name, "uid": name, "controller": controller});
    let mut owners = vec![owner(
        "VirtualMachine",
        &format!("v{vm}"),
        role != Role::Target,
    )];
    if role != Role::Settled {
        owners.push(owner("VirtualMachineMigration", "m", role == Role::Target));
    }
    let object = json!({
        "metadata": {"name": name, "namespace": "d", "uid": name,
            "creationTimestamp": format!("2026-01-01T00:{pod:02}:{vm:02}Z"),
            "labels": {"autoscaling.neon.tech/enabled": "true",
                "autoscaling.neon.tech/auto-migration-enabled": "true"},
            "annotations": {"vm.neon.tech/resources": GUEST}, "ownerReferences": owners},
        "spec": {"schedulerName": "autoscale-scheduler", "nodeName": node_name(node)}});
    PodView::read(&object).expect("reads")
}

fn migration_view(object: &Object) -> MigrationView {
    let name = format!("schedplugin-{}", pod_name(object.vm, object.pod));
    let phase = format!("{:?}", object.phase);
    let object = json!({"metadata": {"name": name, "namespace": "d", "uid": object.uid.to_string(),
            "labels": {"autoscaling.neon.tech/created-by-scheduler": "true"}},
        "spec": {"vmName": format!("v{}", object.vm)}, "status": {"phase": phase}});
    MigrationView::read(&object).expect("reads")
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

fn land(state: &mut State, index: usize, outcome: MigrationOutcome) -> Event {
    match state.calls.remove(index) {
        Call::Create(id, vm, pod) => {
            let is_there = |object: &Object| (object.vm, object.pod) == (vm, pod);
            let has_pod = state.vms[vm].pod == pod;
            if has_pod && !state.objects.iter().any(is_there) {
                state.last_uid += 1;
                let object = Object {
                    vm,
                    pod,
                    uid: state.last_uid,
                    phase: Phase::Pending,
                };
                state
                    .migrations
                    .push_back(WatchUpdate::Migration(object.clone()));
                state.objects.push(object);
            }
            Event::MigrationDone(id, outcome)
        }
        Call::Delete(id, _, uid) => {
            if let Some(at) = state.objects.iter().position(|object| object.uid == uid) {
                let object = state.objects.remove(at);
                if object.phase == Phase::Running {
                    undo(state, &object);
                }
                state
                    .migrations
                    .push_back(WatchUpdate::MigrationGone(object));
            }
            Event::MigrationDone(id, outcome)
        }
    }
}

/// The target pod goes, the source is as before.
fn undo(state: &mut State, object: &Object) {
    let (vm, pod) = (object.vm, object.pod);
    let node = state.vms[vm].node;
    state
        .pods
        .push_back(WatchUpdate::PodGone { vm, pod: pod + 1 });
    state.pods.push_back(WatchUpdate::Pod {
        vm,
        pod,
        node,
        role: Role::Settled,
    });
}

/// The controller's next step.
fn advance(state: &mut State, index: usize) {
    let object = &mut state.objects[index];
    let (vm, pod) = (object.vm, object.pod);
    let from = state.vms[vm].node;
    let pod_update = |pod: u32, node: usize, role: Role| WatchUpdate::Pod {
        vm,
        pod,
        node,
        role,
    };
    if object.phase == Phase::Pending {
        object.phase = Phase::Running;
        state.pods.push_back(pod_update(pod, from, Role::Source));
        state
            .pods
            .push_back(pod_update(pod + 1, 1 - from, Role::Target));
    } else {
        object.phase = Phase::Succeeded;
        state.vms[vm].pod = pod + 1;
        state.vms[vm].node = 1 - from;
        state
            .pods
            .push_back(pod_update(pod + 1, 1 - from, Role::Settled));
        state.pods.push_back(WatchUpdate::PodGone { vm, pod });
        state.reached.arrived = true;
    }
    let object = state.objects[index].clone();
    state.migrations.push_back(WatchUpdate::Migration(object));
}

fn fail(state: &mut State, index: usize) {
    state.failures += 1;
    state.reached.failed = true;
    let object = state.objects[index].clone();
    if object.phase == Phase::Running {
        undo(state, &object);
    }
    state.objects[index].phase = Phase::Failed;
    let object = state.objects[index].clone();
    state.migrations.push_back(WatchUpdate::Migration(object));
}

fn event_of(update: WatchUpdate) -> Event {
    match update {
        WatchUpdate::Pod {
            vm,
            pod,
            node,
            role,
        } => Event::PodApplied(pod_view(vm, pod, node, role)),
        WatchUpdate::PodGone { vm, pod } => Event::PodDeleted(pod_name(vm, pod)),
        WatchUpdate::Migration(object) => Event::MigrationApplied(migration_view(&object)),
        WatchUpdate::MigrationGone(object) => {
            let view = migration_view(&object);
            Event::MigrationDeleted(view.key, view.uid)
        }
    }
}
