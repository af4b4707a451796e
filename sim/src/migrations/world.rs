//! The world of migrations: objects, components and machines, and what was done to them.

use std::collections::BTreeMap;

use neonvm_controller::Settings;
use neonvm_controller::core::Moment;
use protocol::time::{Timestamp, WallTime};
use serde_json::{Value, json};

use super::api::{ApiResponse, Call, Caller, Kind, Objects};
use super::controller::ControllerPart;
use super::outcome::{Broken, Cheat, Outcome};
use super::runner::Machine;
use super::scheduler::SchedulerPart;
use crate::rng::{Rng, Stream};

const EPOCH_US: i64 = 1_767_225_600_000_000;
/// What each node has: room for this many VMs, all of one size.
pub(crate) const ROOM: u32 = 4;

/// See the module.
pub(crate) struct MigrationWorld {
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
    pub(super) vms: usize,
    pub(super) nodes: usize,
    pub(super) faults_active: bool,
    /// Migrations that somebody asked for.
    pub(super) asked: u32,
    pub(super) outcome: Outcome,
}

impl MigrationWorld {
    pub(super) fn new(seed: u64, cheat: Option<Cheat>) -> Self {
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
}

pub(crate) fn vm_name(vm: usize) -> String {
    format!("vm-{vm:04}")
}

pub(super) fn node_name(node: usize) -> String {
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
