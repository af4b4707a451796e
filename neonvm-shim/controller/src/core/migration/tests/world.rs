//! An API server, nodes, and runners that do what they are told, for one VM and its migrations.
//! QEMU is modelled by where the guest is, so that it can be counted how many run.

mod api_server;
mod runners;

use std::collections::BTreeMap;

use protocol::annotations::{FINALIZER, LABEL_VM_NAME};
use protocol::core::Core as _;
use protocol::migration::{
    Destination, DiskTravel, IncomingReport, IncomingStage, OutgoingReport, OutgoingStage, Progress,
};
use protocol::object::{ContainerStatus, Pod};
use protocol::runner::{ExitReason, ExitReport, RunnerPhase, RunnerState};
use protocol::time::{Span, Timestamp, WallTime};
use protocol::vm::{VirtualMachine, VirtualMachineMigration, VmPhase};
use serde_json::{Value, json};

use crate::core::container::CONTAINER;
use crate::core::metadata::PatchOp;
use crate::core::migration::{Action, ActionResponse, Event, MigrationCore};
use crate::core::refusal::Refusal;
use crate::core::testing::{ready_pod, runner_at, sample_vm, wall};
use crate::core::{Moment, Settings};

/// Where the guest goes from.
pub(super) const SOURCE: &str = "example-first";
pub(super) const MOVE: &str = "m";

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Qemu {
    pub(super) state: RunnerState,
    /// Its guest runs.
    pub(super) runs: bool,
}

pub(super) struct World {
    pub(super) core: MigrationCore,
    pub(super) vm: Option<Value>,
    pub(super) moves: BTreeMap<String, Value>,
    pub(super) pods: BTreeMap<String, Value>,
    pub(super) qemus: BTreeMap<String, Qemu>,
    pub(super) at: Moment,
    pub(super) settings: Settings,
    /// What was asked of whom, in order.
    pub(super) log: Vec<String>,
    /// No target pod finds a node.
    pub(super) full: bool,
    /// Writes that are refused as resting on an old version.
    pub(super) conflicts: u32,
    /// A label that a webhook takes off each pod whose metadata are written.
    pub(super) strips: Option<&'static str>,
    /// Why the target's runner cannot take the guest.
    pub(super) refuses: Option<String>,
    /// How the target was told that the disk comes.
    pub(super) travel: Option<DiskTravel>,
    version: u64,
    seed: u64,
}

impl World {
    pub(super) fn new(spec: &Value) -> Self {
        Self::with(spec, Settings::one_machine())
    }

    pub(super) fn with(spec: &Value, settings: Settings) -> Self {
        let mut vm = serde_json::to_value(sample_vm()).expect("a VM");
        vm["status"] = json!({"phase": "Running", "restartCount": 0, "podName": SOURCE,
            "podIP": "127.9.1.1", "node": "here"});
        let mut world = Self {
            core: MigrationCore::new(settings.clone(), 7),
            vm: Some(vm),
            moves: BTreeMap::new(),
            pods: BTreeMap::new(),
            qemus: BTreeMap::new(),
            at: Moment {
                now: Timestamp(1_000_000),
                wall: wall(),
            },
            settings,
            log: Vec::new(),
            full: false,
            conflicts: 0,
            strips: None,
            refuses: None,
            travel: None,
            version: 100,
            seed: 7,
        };
        let pod = serde_json::to_value(ready_pod(&world.vm(), SOURCE)).expect("a pod");
        world.pods.insert(SOURCE.into(), pod);
        let qemu = Qemu {
            state: runner_at(250, 1),
            runs: true,
        };
        world.qemus.insert(SOURCE.into(), qemu);
        world.migrate(MOVE, spec);
        world
    }

    /// Somebody asks for a migration.
    pub(super) fn migrate(&mut self, name: &str, spec: &Value) {
        let mut all = json!({"vmName": "example"});
        merge(&mut all, spec);
        let object = json!({
            "apiVersion": "vm.neon.tech/v1", "kind": "VirtualMachineMigration",
            "metadata": {"name": name, "namespace": "default", "uid": format!("uid-{name}"),
                "creationTimestamp": self.at.wall},
            "spec": all,
        });
        self.moves.insert(name.into(), object);
        self.touch_move(name);
        self.show();
    }

    pub(super) fn restart_controller(&mut self) {
        self.seed += 1;
        self.core = MigrationCore::new(self.settings.clone(), self.seed);
        self.show();
    }

    pub(super) fn vm(&self) -> VirtualMachine {
        serde_json::from_value(self.vm.clone().expect("the VM is there")).expect("a VM")
    }

    pub(super) fn vm_phase(&self) -> VmPhase {
        self.vm().status.unwrap_or_default().phase
    }

    /// The pod the VM says it runs in.
    pub(super) fn home(&self) -> String {
        self.vm().status.unwrap_or_default().pod_name
    }

    pub(super) fn migration(&self, name: &str) -> VirtualMachineMigration {
        serde_json::from_value(self.moves[name].clone()).expect("a migration")
    }

    pub(super) fn phase(&self, name: &str) -> String {
        self.migration(name).status.unwrap_or_default().phase
    }

    pub(super) fn message(&self, name: &str) -> String {
        let status = self.migration(name).status.unwrap_or_default();
        let found = status.conditions.iter().find(|one| one.kind == "Available");
        found.map(|one| one.message.clone()).unwrap_or_default()
    }

    pub(super) fn target(&self) -> Option<String> {
        self.pods.keys().find(|name| *name != SOURCE).cloned()
    }

    /// Pods whose guest runs.
    pub(super) fn running(&self) -> Vec<String> {
        let runs = self.qemus.iter().filter(|(_, qemu)| qemu.runs);
        runs.map(|(name, _)| name.clone()).collect()
    }

    pub(super) fn pass(&mut self, time: Span) {
        self.at.now = self.at.now + time;
        self.at.wall = WallTime(self.at.wall.0 + i64::try_from(time.0).expect("small"));
    }

    /// One thing happens: an action of the core if it has one, else something of the world. `false`
    /// when nothing is left.
    pub(super) fn step(&mut self) -> bool {
        let mut acted = false;
        if let Some(action) = self.core.poll_action(self.at) {
            let kind = action.kind();
            let result = self.carry_out(action);
            self.log.push(format!("{kind:?}"));
            self.core.handle(self.at, Event::Done { kind, result });
            acted = true;
        } else if self.turn() {
            acted = true;
        }
        let running = self.running();
        assert!(running.len() <= 1, "{running:?} run: {:#?}", self.log);
        self.show();
        acted
    }

    /// Everything happens that may, time included.
    pub(super) fn settle(&mut self) {
        let mut idle = 0;
        for _ in 0..400 {
            if self.step() {
                idle = 0;
            } else {
                idle += 1;
                if idle == 3 {
                    return;
                }
                self.pass(Span::from_secs(20));
            }
        }
        panic!("it never rests: {:#?}", &self.log[self.log.len() - 12..]);
    }

    /// A QEMU dies; its runner and its node say so.
    pub(super) fn kill(&mut self, name: &str) {
        let qemu = self.qemus.get_mut(name).expect("it is there");
        qemu.runs = false;
        qemu.state.exit = Some(ExitReport {
            success: false,
            reason: ExitReason::QemuDied,
            code: None,
            message: "killed".into(),
        });
        qemu.state.generation += 1;
        if name != SOURCE
            && let Some(source) = self.qemus.get_mut(SOURCE)
            && let Some(report) = source.state.outgoing.as_mut()
            && report.stage == OutgoingStage::Sending
        {
            // The stream broke: it goes on by itself.
            report.stage = OutgoingStage::Failed;
            report.problem = Some("the peer is gone".into());
            source.state.generation += 1;
        }
        let pod = self.pods.get_mut(name).expect("it is there");
        pod["status"]["phase"] = json!("Failed");
        self.touch_pod(name);
        self.show();
    }

    /// Somebody takes away the label by which the watch finds a pod, which shows it no more.
    pub(super) fn take_label(&mut self, name: &str) {
        let pod = self.pods.get_mut(name).expect("it is there");
        let labels = pod["metadata"]["labels"].as_object_mut();
        labels.expect("it has labels").remove(LABEL_VM_NAME);
        self.touch_pod(name);
        let name = name.to_owned();
        self.core
            .handle(self.at, Event::PodUnseen { name, uid: None });
    }

    pub(super) fn remove_pod(&mut self, name: &str) {
        self.pods.remove(name);
        self.qemus.remove(name);
        let name = name.to_owned();
        self.core
            .handle(self.at, Event::PodUnseen { name, uid: None });
    }

    /// The VM has failed, and its own core has begun it anew in a pod of this name.
    pub(super) fn begin_anew(&mut self, name: &str) {
        let vm = self.vm.as_mut().expect("it is there");
        vm["status"]["phase"] = json!("Running");
        vm["status"]["podName"] = json!(name);
        self.touch_vm();
        let pod = serde_json::to_value(ready_pod(&self.vm(), name)).expect("a pod");
        self.pods.insert(name.to_owned(), pod);
        self.touch_pod(name);
        let qemu = Qemu {
            state: runner_at(250, 1),
            runs: true,
        };
        self.qemus.insert(name.to_owned(), qemu);
        self.show();
    }

    pub(super) fn delete_move(&mut self, name: &str) {
        let wall = self.at.wall;
        let object = self.moves.get_mut(name).expect("it is there");
        object["metadata"]["deletionTimestamp"] = json!(wall);
        self.touch_move(name);
        self.show();
    }

    /// Somebody writes something into the VM that changes nothing of this.
    pub(super) fn touch_vm(&mut self) {
        self.version += 1;
        if let Some(vm) = self.vm.as_mut() {
            vm["metadata"]["resourceVersion"] = json!(self.version.to_string());
        }
    }

    fn touch_move(&mut self, name: &str) {
        self.version += 1;
        let object = self.moves.get_mut(name).expect("it is there");
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
    }

    fn touch_pod(&mut self, name: &str) {
        self.version += 1;
        let pod = self.pods.get_mut(name).expect("it is there");
        pod["metadata"]["resourceVersion"] = json!(self.version.to_string());
    }

    pub(super) fn pod(&self, name: &str) -> Pod {
        serde_json::from_value(self.pods[name].clone()).expect("a pod")
    }

    pub(super) fn show(&mut self) {
        self.moves.retain(|_, object| {
            let meta = &object["metadata"];
            let held = meta["finalizers"]
                .as_array()
                .is_some_and(|all| !all.is_empty());
            held || meta.get("deletionTimestamp").is_none()
        });
        let at = self.at;
        let vm = match &self.vm {
            Some(_) => Event::Vm(Box::new(self.vm())),
            None => Event::VmGone,
        };
        self.core.handle(at, vm);
        let known = [MOVE, "n"].map(str::to_owned);
        for name in known {
            let event = if self.moves.contains_key(&name) {
                Event::Migration(Box::new(self.migration(&name)))
            } else {
                Event::MigrationGone { name, uid: None }
            };
            self.core.handle(at, event);
        }
        for name in self.pods.keys().cloned().collect::<Vec<_>>() {
            let pod = self.pod(&name);
            if pod.metadata.labels.contains_key(LABEL_VM_NAME) {
                self.core.handle(at, Event::Pod(Box::new(pod)));
            }
        }
        for pod in self.core.link_targets() {
            let event = match self.qemus.get(&pod) {
                Some(qemu) => Event::Runner {
                    pod,
                    state: Box::new(qemu.state.clone()),
                },
                None => Event::RunnerSilent {
                    pod,
                    error: "connection refused".into(),
                },
            };
            self.core.handle(at, event);
        }
    }

    /// Nothing of the migration is left but what it did.
    pub(super) fn assert_tidy(&self) {
        let home = self.home();
        assert_eq!(self.vm_phase(), VmPhase::Running);
        for (name, pod) in &self.pods {
            assert_eq!(*name, home, "a pod is left over");
            let owners = pod["metadata"]["ownerReferences"]
                .as_array()
                .expect("owners");
            let kinds: Vec<&str> = owners
                .iter()
                .filter_map(|one| one["kind"].as_str())
                .collect();
            assert_eq!(kinds, ["VirtualMachine"], "of pod {name}");
            assert_eq!(owners[0]["controller"], true);
        }
    }
}

pub(super) fn merge(target: &mut Value, patch: &Value) {
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

/// Whether an object is held by us.
pub(super) fn has_finalizer(object: &Value) -> bool {
    let all = object["metadata"]["finalizers"].as_array();
    all.is_some_and(|all| all.iter().any(|one| one == FINALIZER))
}
