//! The next thing that happens, drawn by the seed.

use serde_json::json;

use super::api::Kind;
use super::world::{MigrationWorld, ROOM, node_name, vm_name};
use crate::rng::MILLION;

impl MigrationWorld {
    /// One thing happens. Whether anything did.
    pub(super) fn step(&mut self) -> bool {
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
}
