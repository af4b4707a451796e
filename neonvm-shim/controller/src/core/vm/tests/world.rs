//! An API server, a node and a runner that do what they are told, for one VM.

mod api_server;
mod checks;
mod watches;

use std::collections::BTreeMap;

use protocol::annotations::{ANNOTATION_VM_USAGE, FINALIZER, LABEL_VM_NAME, VmUsage};
use protocol::core::Core as _;
use protocol::object::{ContainerStatus, Pod, Terminated};
use protocol::overtaken;
use protocol::quantity::Quantity;
use protocol::runner::{ResizeReport, RunnerState};
use protocol::time::{Span, Timestamp, WallTime};
use protocol::units::{Bytes, MilliCpu, Resources};
use protocol::vm::{VirtualMachine, VmPhase, VmStatus};
use serde_json::{Value, json};

use crate::core::action::VmEdit;
use crate::core::certificate::Step;
use crate::core::certificate::testing::{Ca, Manner};
use crate::core::container::CONTAINER;
use crate::core::deletion::STUCK_POD_PATIENCE;
use crate::core::metadata::{PatchOp, annotated_size};
use crate::core::observe::{size_of, status_size};
use crate::core::refusal::Refusal;
use crate::core::testing::{runner_at, wall};
use crate::core::vm::{ActionResponse, Event, VmCore};
use crate::core::{Action, Kind, Moment, Settings};

pub(super) struct World {
    pub(super) core: VmCore,
    pub(super) vm: Option<Value>,
    pub(super) pods: BTreeMap<String, Value>,
    pub(super) runners: BTreeMap<String, RunnerState>,
    pub(super) log: Vec<Action>,
    pub(super) at: Moment,
    pub(super) settings: Settings,
    /// Migrations that exist, by name, and their uids.
    pub(super) migrations: BTreeMap<String, String>,
    /// The objects of its certificate, and their issuer.
    pub(super) ca: Ca,
    /// Pods of somebody else, by name. The watch does not show them.
    pub(super) foreign: BTreeMap<String, Value>,
    /// Pods ever created.
    pub(super) created: Vec<String>,
    /// The size that a pod's runner is told to boot with: the spec's when the pod was made.
    boots: BTreeMap<String, Resources>,
    /// What the API server refuses to have done to a pod's metadata.
    pub(super) forbids: Option<fn(&PatchOp) -> bool>,
    /// Whether the namespace admits pods with privileges.
    pub(super) admits_privileges: bool,
    /// What a webhook makes of a pod whose metadata are written; it gets a number that grows.
    pub(super) changes: Option<fn(&mut Value, usize)>,
    /// The most pods alive at once.
    pub(super) most_pods: usize,
    version: u64,
}

impl World {
    /// With every step of a resize written, so that it can be seen.
    pub(super) fn new(vm: &VirtualMachine) -> Self {
        let settings = Settings {
            quick: Span(0),
            ..Settings::one_machine()
        };
        Self::with(vm, settings)
    }

    pub(super) fn with(vm: &VirtualMachine, settings: Settings) -> Self {
        let mut world = Self {
            core: VmCore::new(settings.clone(), 7),
            vm: Some(serde_json::to_value(vm).expect("a VM")),
            pods: BTreeMap::new(),
            runners: BTreeMap::new(),
            log: Vec::new(),
            at: Moment {
                now: Timestamp(1_000_000),
                wall: wall(),
            },
            settings,
            migrations: BTreeMap::new(),
            ca: Ca::default(),
            foreign: BTreeMap::new(),
            created: Vec::new(),
            boots: BTreeMap::new(),
            forbids: None,
            admits_privileges: true,
            changes: None,
            most_pods: 0,
            version: 100,
        };
        world.touch_vm();
        world.show();
        world
    }

    /// The controller is killed; a new one knows nothing.
    pub(super) fn restart_controller(&mut self) {
        self.core = VmCore::new(self.settings.clone(), 8);
        self.show();
    }

    pub(super) fn vm(&self) -> VirtualMachine {
        serde_json::from_value(self.vm.clone().expect("the VM is there")).expect("a VM")
    }

    pub(super) fn status(&self) -> VmStatus {
        self.vm().status.unwrap_or_default()
    }

    pub(super) fn phase(&self) -> VmPhase {
        self.status().phase
    }

    pub(super) fn pod(&self, name: &str) -> Pod {
        serde_json::from_value(self.pods[name].clone()).expect("a pod")
    }

    /// A person or the agent edits the spec.
    pub(super) fn edit(&mut self, edit: impl FnOnce(&mut VirtualMachine)) {
        self.write_vm(edit);
        self.show_vm();
    }

    /// The same, before the watch tells of it.
    pub(super) fn write_vm(&mut self, edit: impl FnOnce(&mut VirtualMachine)) {
        let mut vm = self.vm();
        edit(&mut vm);
        vm.metadata.generation = vm.metadata.generation.map(|generation| generation + 1);
        self.vm = Some(serde_json::to_value(vm).expect("a VM"));
        self.touch_vm();
    }

    /// The node starts the pod: bound, running, ready, its runner at the size its spec asks for.
    pub(super) fn start(&mut self, name: &str) {
        let vm = self.vm();
        let size = self.boots.get(name).copied();
        let size = size.unwrap_or_else(|| vm.spec.guest.in_use());
        let mut state = runner_at(size.cpu.0, size.mem.0 >> 30);
        state.memory.base = vm.spec.guest.smallest().mem;
        state.memory.plugged = Bytes(size.mem.0 - state.memory.base.0);
        state.memory.requested = state.memory.plugged;
        self.runners.insert(name.to_owned(), state);
        let ready = json!([ContainerStatus {
            name: CONTAINER.into(),
            ready: true,
            ..ContainerStatus::default()
        }]);
        let pod = self.pods.get_mut(name).expect("the pod is there");
        pod["spec"]["nodeName"] = json!("here");
        pod["status"] =
            json!({"phase": "Running", "podIP": "127.9.1.1", "containerStatuses": ready});
        self.touch_pod(name);
        self.show();
    }

    /// The runner ends and its node says so.
    pub(super) fn end(&mut self, name: &str, phase: &str, exit_code: i32) {
        self.runners.remove(name);
        let end = Terminated {
            exit_code,
            reason: "Error".into(),
            message: "it broke".into(),
        };
        let pod = self.pods.get_mut(name).expect("the pod is there");
        pod["status"]["phase"] = json!(phase);
        pod["status"]["containerStatuses"] =
            json!([{"name": CONTAINER, "ready": false, "state": {"terminated": end}}]);
        self.touch_pod(name);
        self.show();
    }

    /// The pod vanishes.
    pub(super) fn remove_pod(&mut self, name: &str) {
        self.pods.remove(name);
        self.runners.remove(name);
        self.core.handle(
            self.at,
            Event::PodUnseen {
                name: name.into(),
                uid: None,
            },
        );
        self.show();
        self.collect();
    }

    /// Somebody takes away the label by which the watch finds a pod, which shows it no more.
    pub(super) fn take_label(&mut self, name: &str) {
        let pod = self.pods.get_mut(name).expect("the pod is there");
        let labels = pod["metadata"]["labels"].as_object_mut();
        labels.expect("it has labels").remove(LABEL_VM_NAME);
        self.touch_pod(name);
        self.hide_pod(name);
    }

    /// The watch shows a pod no more.
    pub(super) fn hide_pod(&mut self, name: &str) {
        let (name, uid) = (name.to_owned(), Some(format!("uid-{name}")));
        self.core.handle(self.at, Event::PodUnseen { name, uid });
    }

    /// The runner has carried out what it was told.
    pub(super) fn finish_resize(&mut self, name: &str) {
        let state = self.runners.get_mut(name).expect("the runner is there");
        let Some(report) = state.resize.as_mut() else {
            return;
        };
        report.done = true;
        state.cpus.limit = report.order.cpu;
        state.cpus.plugged = report.order.cpu.rounded_up_cores();
        state.cpus.guest_online = Some(state.cpus.plugged);
        state.memory.plugged = Bytes(report.order.memory.0 - state.memory.base.0);
        state.memory.requested = state.memory.plugged;
        state.generation += 1;
        self.show_runner();
    }

    pub(super) fn pass(&mut self, time: Span) {
        self.at.now = self.at.now + time;
        self.at.wall = WallTime(self.at.wall.0 + i64::try_from(time.0).expect("small"));
    }

    /// Carries out what the core asks until it asks nothing; gives back the kinds in order.
    pub(super) fn settle(&mut self) -> Vec<String> {
        let from = self.log.len();
        for _ in 0..200 {
            let Some(action) = self.core.poll_action(self.at) else {
                return self.log[from..]
                    .iter()
                    .map(|a| format!("{:?}", a.kind()))
                    .collect();
            };
            self.is_on_pod(&action);
            self.log.push(action.clone());
            if self.is_pondered(&action) {
                continue;
            }
            let result = self.carry_out(&action);
            let (kind, began) = (action.kind(), self.at);
            self.is_done(kind, began, result);
            self.is_covered(&action);
            self.show();
        }
        panic!(
            "the core never rests: {:#?}",
            &self.log[self.log.len() - 6..]
        );
    }

    /// The question to the issuer that is under way is answered.
    pub(super) fn issuer_responds(&mut self) {
        let mut all = self.log.iter().rev();
        let asked = all.find(|action| action.kind() == Kind::AwaitCertificate);
        let asked = asked.expect("it was asked").clone();
        let result = self.carry_out(&asked);
        let (kind, began) = (asked.kind(), self.at);
        self.is_done(kind, began, result);
    }

    /// The same, without the reads.
    pub(super) fn settle_writes(&mut self) -> Vec<String> {
        let mut kinds = self.settle();
        kinds.retain(|kind| !kind.starts_with("Read"));
        kinds
    }

    /// Settles with the world moving on by itself: pods start, resizes finish, deleted pods go,
    /// time passes.
    pub(super) fn live(&mut self) {
        for _ in 0..60 {
            let mut acted = !self.settle_writes().is_empty();
            let names: Vec<String> = self.pods.keys().cloned().collect();
            for name in names {
                let pod = self.pod(&name);
                if pod.metadata.deletion_timestamp.is_some() {
                    self.remove_pod(&name);
                    acted = true;
                } else if !pod.is_terminal() && !self.runners.contains_key(&name) {
                    self.start(&name);
                    acted = true;
                } else if self
                    .runners
                    .get(&name)
                    .is_some_and(|state| state.resize.as_ref().is_some_and(|report| !report.done))
                {
                    self.finish_resize(&name);
                    acted = true;
                }
            }
            self.collect();
            if !acted && self.at.now >= Timestamp(3_600_000_000) {
                return;
            }
            self.pass(Span::from_secs(61));
        }
    }

    fn collect(&mut self) {
        let gone = self.vm.as_ref().is_some_and(|vm| {
            vm["metadata"].get("deletionTimestamp").is_some()
                && vm["metadata"]["finalizers"]
                    .as_array()
                    .is_none_or(Vec::is_empty)
        });
        if gone {
            self.vm = None;
        }
    }

    /// The finalizer holds the VM until its pods are gone, or are stuck.
    fn pods_have_gone_before(&self) {
        let asked = self.vm().metadata.deletion_timestamp.unwrap_or_default();
        let patience = i64::try_from(STUCK_POD_PATIENCE.0).expect("small");
        let are_stuck = self.at.wall.0 - asked.0 > patience;
        let is_owned = |pod: &Value| pod["metadata"].get("ownerReferences").is_some();
        let left: Vec<&Value> = self.pods.values().filter(|pod| is_owned(pod)).collect();
        assert!(left.is_empty() || are_stuck, "pods are left: {left:#?}");
    }

    /// Somebody else has a pod of that name.
    pub(super) fn make_foreign_pod(&mut self, name: &str) {
        let pod = json!({
            "metadata": {"name": name, "namespace": "default", "uid": "uid-foreign",
                "resourceVersion": "1", "ownerReferences": [{"apiVersion": "apps/v1",
                    "kind": "ReplicaSet", "name": "other", "uid": "uid-other"}]},
            "spec": {"nodeName": "here", "containers": []},
            "status": {"phase": "Running"},
        });
        self.foreign.insert(name.to_owned(), pod);
    }
}

fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(members) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    for (name, value) in members {
        let object = target.as_object_mut().expect("made above");
        if value.is_null() {
            object.remove(name);
        } else {
            merge(object.entry(name.clone()).or_insert(Value::Null), value);
        }
    }
}

pub(super) fn apply(pod: &mut Value, ops: &[PatchOp]) {
    for op in ops {
        let (parent, key) = op.path().rsplit_once('/').expect("a pointer");
        let key = key.replace("~1", "/").replace("~0", "~");
        let parent = pod
            .pointer_mut(parent)
            .and_then(Value::as_object_mut)
            .expect("a parent");
        match op {
            PatchOp::Add { value, .. } => {
                parent.insert(key, value.clone());
            }
            PatchOp::Remove { .. } => {
                parent.remove(&key).expect("a member to remove");
            }
            PatchOp::Test { value, .. } => assert_eq!(parent.get(&key), Some(value)),
        }
    }
}
