//! Live migrations with the shipped cores. The scheduler chooses and places, the controller carries
//! out, and two runners move the guest between their QEMUs. The world loses, delays and reorders
//! messages, and kills components.
//!
//! This world is separate from [`crate::world`]. A VM there has one machine, and its size matters.
//! A VM here has two machines, and their ownership of the guest matters. Sizes do not change. The
//! seed draws the next step from all that are possible, so that every order of messages occurs.
//!
//! Invariants, checked after every step: no VM has two guests that run ([`Broken::TwoGuests`]). A
//! guest is lost only if its QEMU was killed ([`Broken::LostGuest`]). No pod is bound to a node
//! that lacks room for it ([`Broken::Overcommitted`]). After the fault phase every VM has one guest
//! that runs, and no migration has left a trace ([`Broken::Unsettled`]).

mod api;
mod controller;
mod runner;
mod scheduler;

use std::collections::BTreeMap;
use std::fmt;

use neonvm_controller::Settings;
use neonvm_controller::core::Moment;
use protocol::time::{Span, Timestamp, WallTime};
use protocol::vm::VirtualMachineMigration;
use serde_json::{Value, json};

use crate::rng::{MILLION, Rng, Stream};
use api::{ApiResponse, Call, Caller, Change, Kind, Objects};
use controller::ControllerPart;
use runner::Machine;
use scheduler::SchedulerPart;

const EPOCH_US: i64 = 1_767_225_600_000_000;
/// What each node has: room for this many VMs, all of one size.
const ROOM: u32 = 4;
/// Steps without a fault after which all must be at rest.
const CALM_STEPS: u32 = 60_000;
/// Rounds in which nothing happened after which it is.
const AT_REST: u32 = 40;
/// Rounds in which nothing happened after which seconds pass.
const IDLE: u32 = 32;

/// What must not be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Broken {
    /// Two QEMUs run one VM's guest.
    TwoGuests {
        /// Number of the VM, from 0.
        vm: usize,
    },
    /// A VM began anew though no QEMU of it was killed.
    LostGuest {
        /// Number of the VM, from 0.
        vm: usize,
    },
    /// A pod was bound to a node that has no room for it.
    Overcommitted {
        /// Name of the pod whose binding filled the node past its room.
        pod: String,
    },
    /// The world did not converge after the fault phase.
    Unsettled {
        /// Sentence that names the VM or migration, and its state.
        what: String,
    },
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TwoGuests { vm } => write!(f, "VM {vm} has two guests that run"),
            Self::LostGuest { vm } => {
                write!(f, "the guest of VM {vm} is lost, and nobody killed it")
            }
            Self::Overcommitted { pod } => write!(f, "pod {pod} was bound where there is no room"),
            Self::Unsettled { what } => write!(f, "not settled: {what}"),
        }
    }
}

/// How one seed ended.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Outcome {
    /// What broke, and at which step.
    pub broken: Option<(u64, Broken)>,
    /// Number of steps, those of the quiescent phase at the end included.
    pub steps: u64,
    /// Migrations that succeeded, failed, and were called off.
    pub moved: [u32; 3],
    /// Of them begun by the scheduler.
    pub by_scheduler: u32,
    /// Guests lost with a QEMU that was killed.
    pub lost: u32,
    /// Faults by name.
    pub faults: BTreeMap<&'static str, u32>,
}

/// A cheat that a checker must see.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cheat {
    /// A source does not stop its guest, and a target lets it run as soon as it is there.
    BeginUnasked,
    /// Pods are bound without asking for room.
    BindBlindly,
}

/// See the module.
pub struct MigrationWorld {
    pub(crate) rng: Rng,
    pub(crate) now: Timestamp,
    pub(crate) objects: Objects,
    pub(crate) controller: ControllerPart,
    pub(crate) scheduler: SchedulerPart,
    /// QEMUs and their runners, by pod.
    pub(crate) machines: BTreeMap<String, Machine>,
    pub(crate) calls: Vec<Call>,
    pub(crate) answers: Vec<(Caller, ApiResponse)>,
    pub(crate) cheat: Option<Cheat>,
    /// By VM: QEMUs killed with its guest, or half of it, in them.
    pub(crate) killed: Vec<u32>,
    /// By VM: guests that were booted.
    pub(crate) booted: Vec<u32>,
    vms: usize,
    nodes: usize,
    faults_active: bool,
    asked: u32,
    outcome: Outcome,
}

impl MigrationWorld {
    fn new(seed: u64, cheat: Option<Cheat>) -> Self {
        let mut rng = Rng::new(seed, Stream::World);
        let nodes = 3;
        let vms = 4 + rng.index(4);
        let mut moves = Self {
            rng: Rng::new(seed, Stream::Fault),
            now: Timestamp(1_000_000),
            objects: Objects::default(),
            controller: ControllerPart::default(),
            scheduler: SchedulerPart::default(),
            machines: BTreeMap::new(),
            calls: Vec::new(),
            answers: Vec::new(),
            cheat,
            killed: vec![0; vms],
            booted: vec![0; vms],
            vms,
            nodes,
            faults_active: true,
            asked: 0,
            outcome: Outcome::default(),
        };
        for node in 0..nodes {
            let name = node_name(node);
            let object = json!({"metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}}, "spec": {},
                "status": {"allocatable": {"cpu": ROOM.to_string(), "memory": format!("{ROOM}Gi"), "pods": "110"},
                    "conditions": [{"type": "Ready", "status": "True"}]}});
            moves.objects.create(Kind::Node, object, moves.wall());
        }
        for vm in 0..vms {
            moves.objects.create(Kind::Vm, vm_object(vm), moves.wall());
        }
        moves.start_controller();
        moves.start_scheduler();
        moves
    }

    pub(crate) fn wall(&self) -> WallTime {
        WallTime(EPOCH_US + i64::try_from(self.now.0).unwrap_or(i64::MAX))
    }

    pub(crate) fn moment(&self) -> Moment {
        Moment {
            now: self.now,
            wall: self.wall(),
        }
    }

    pub(crate) fn fault(&mut self, name: &'static str) {
        *self.outcome.faults.entry(name).or_default() += 1;
    }

    pub(crate) fn break_rule(&mut self, broken: Broken) {
        let step = self.outcome.steps;
        self.outcome.broken.get_or_insert((step, broken));
    }

    /// One thing happens. Whether anything did.
    fn step(&mut self) -> bool {
        self.outcome.steps += 1;
        let acted = match self.rng.below(12) {
            0 | 1 => self.controller_sees(),
            2 => self.scheduler_sees(),
            3 | 4 => self.controller_acts(),
            5 => self.scheduler_acts(),
            6 => self.call_arrives(),
            7 => self.answer_arrives(),
            8 | 9 => self.machine_moves(),
            10 => self.controller_hears(),
            _ => {
                let span = self.rng.millis(1, 400);
                self.now = self.now + span;
                if self.faults_active {
                    self.inject_fault();
                }
                false
            }
        };
        self.check();
        acted
    }

    /// Something goes wrong, or somebody wants something.
    fn inject_fault(&mut self) {
        if !self.rng.chance(MILLION / 3) {
            return;
        }
        match self.rng.below(20) {
            0..=6 => self.somebody_migrates(),
            7 => self.somebody_cancels(),
            8 | 9 => {
                self.fault("controller crash");
                self.crash_controller();
                self.start_controller();
            }
            10 => {
                self.fault("scheduler crash");
                self.crash_scheduler();
                self.start_scheduler();
            }
            11..=13 => self.crash_a_runner(),
            14 => self.kill_a_qemu(),
            15 | 16 => self.squeeze_a_node(),
            17 => {
                self.fault("lost answer");
                self.lose_an_answer();
            }
            _ => {}
        }
    }

    fn somebody_migrates(&mut self) {
        let vm = self.rng.index(self.vms);
        self.asked += 1;
        let object = json!({
            "apiVersion": "vm.neon.tech/v1", "kind": "VirtualMachineMigration",
            "metadata": {"name": format!("m-{:04}", self.asked), "namespace": "default"},
            "spec": {"vmName": vm_name(vm), "preventMigrationToSameHost": self.rng.chance(MILLION / 2),
                "completionTimeout": self.rng.between(30, 300), "allowPostCopy": false},
        });
        self.objects.create(Kind::Move, object, self.wall());
    }

    fn somebody_cancels(&mut self) {
        let all = self.objects.names(Kind::Move);
        if !all.is_empty() {
            let name = all[self.rng.index(all.len())].clone();
            self.objects.ask_deletion(Kind::Move, &name, self.wall());
            self.outcome.moved[2] += 1;
        }
    }

    /// What a node has for pods changes.
    fn squeeze_a_node(&mut self) {
        let node = node_name(self.rng.index(self.nodes));
        let room = self.rng.between(2, u64::from(ROOM));
        let patch = json!({"status": {"allocatable": {"cpu": room.to_string(), "memory": format!("{room}Gi")}}});
        self.objects.merge(Kind::Node, &node, &patch).ok();
    }

    /// What must hold at every moment.
    fn check(&mut self) {
        for vm in 0..self.vms {
            let name = vm_name(vm);
            let of_it = self.machines.values().filter(|machine| machine.vm == name);
            if of_it.filter(|machine| machine.runs()).count() > 1 {
                self.break_rule(Broken::TwoGuests { vm });
            }
            // The first boot is nobody's loss.
            if self.booted[vm] > self.killed[vm] + 1 {
                self.break_rule(Broken::LostGuest { vm });
            }
        }
    }

    /// Ends the fault phase: repairs everything, and all work must come to an end.
    fn settle(&mut self) {
        self.faults_active = false;
        for node in 0..self.nodes {
            let patch = json!({"status": {"allocatable": {"cpu": ROOM.to_string(), "memory": format!("{ROOM}Gi")}}});
            self.objects
                .merge(Kind::Node, &node_name(node), &patch)
                .ok();
        }
        let mut quiet = 0;
        for step in 0..CALM_STEPS {
            if self.outcome.broken.is_some() {
                return;
            }
            if self.step() {
                quiet = 0;
            } else {
                quiet += 1;
            }
            if quiet > 0 && quiet % IDLE == 0 {
                // Timers are long against steps. But no call, watch or core is so slow that they
                // run out while it has something to do: a migration that is given up for want of
                // progress would be begun again for ever.
                self.now = self.now + Span::from_secs(5);
            }
            if quiet > AT_REST && step % 16 == 0 && self.unsettled().is_none() {
                return;
            }
        }
        if let Some(what) = self.unsettled() {
            self.break_rule(Broken::Unsettled { what });
        }
    }

    fn unsettled(&self) -> Option<String> {
        for name in self.objects.names(Kind::Move) {
            let object: VirtualMachineMigration =
                serde_json::from_value(self.objects.get(Kind::Move, &name)?.clone()).ok()?;
            let status = object.status.unwrap_or_default();
            let is_over = matches!(status.phase.as_str(), "Succeeded" | "Failed");
            if !is_over || object.metadata.deletion_timestamp.is_some() {
                return Some(format!(
                    "migration {name} is {:?}: {:?}",
                    status.phase, status.conditions
                ));
            }
        }
        for vm in 0..self.vms {
            let name = vm_name(vm);
            let object = self.objects.get(Kind::Vm, &name)?;
            let home = object["status"]["podName"].as_str().unwrap_or_default();
            let phase = object["status"]["phase"].as_str().unwrap_or_default();
            let of_it = self
                .machines
                .iter()
                .filter(|(_, machine)| machine.vm == name);
            let running: Vec<&String> = of_it
                .filter(|(_, machine)| machine.runs())
                .map(|(pod, _)| pod)
                .collect();
            if phase != "Running" || running != [home] {
                return Some(format!(
                    "VM {name} is {phase} in {home}, and {running:?} run"
                ));
            }
            let pods = self.objects.names(Kind::Pod);
            let pods: Vec<&String> = pods.iter().filter(|pod| pod.starts_with(&name)).collect();
            if pods.len() != 1 {
                return Some(format!("VM {name} has pods {pods:?}"));
            }
            let machine = &self.machines[home];
            if machine.is_held() {
                return Some(format!("the size of VM {name} still stands still"));
            }
        }
        None
    }
}

pub(crate) fn vm_name(vm: usize) -> String {
    format!("vm-{vm:04}")
}

fn node_name(node: usize) -> String {
    format!("node-{node:03}")
}

/// The controller's settings.
pub(crate) fn settings() -> Settings {
    Settings::one_machine()
}

fn vm_object(vm: usize) -> Value {
    json!({
        "apiVersion": "vm.neon.tech/v1", "kind": "VirtualMachine",
        "metadata": {"name": vm_name(vm), "namespace": "default", "labels": {
            "autoscaling.neon.tech/enabled": "true", "autoscaling.neon.tech/auto-migration-enabled": "true"}},
        "spec": {"schedulerName": "autoscale-scheduler", "enableSSH": false, "guest": {
            "cpus": {"min": 1, "use": 1, "max": 1}, "memorySlotSize": "1Gi",
            "memorySlots": {"min": 1, "use": 1, "max": 1}, "rootDisk": {"image": "i"}}},
    })
}

/// Runs one seed for `steps` steps of faults, and then until the world is at rest.
#[must_use]
pub fn run(seed: u64, steps: u64, cheat: Option<Cheat>) -> Outcome {
    let mut moves = MigrationWorld::new(seed, cheat);
    while moves.outcome.steps < steps && moves.outcome.broken.is_none() {
        moves.step();
    }
    if moves.outcome.broken.is_none() {
        moves.settle();
    }
    moves.outcome.lost = moves
        .booted
        .iter()
        .map(|count| count.saturating_sub(1))
        .sum();
    moves.outcome.by_scheduler = moves.scheduler.begun;
    for change in moves.objects.log() {
        let Change {
            kind,
            value,
            gone,
            before,
            ..
        } = change;
        if *kind == Kind::Move && !gone {
            let phase = |value: &Value| {
                value["status"]["phase"]
                    .as_str()
                    .unwrap_or_default()
                    .to_owned()
            };
            let (was, is) = (before.as_ref().map(phase), phase(value));
            if was.as_deref() != Some(is.as_str()) {
                match is.as_str() {
                    "Succeeded" => moves.outcome.moved[0] += 1,
                    "Failed" => moves.outcome.moved[1] += 1,
                    _ => {}
                }
            }
        }
    }
    moves.outcome
}
