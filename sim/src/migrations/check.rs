//! What must hold after every step, and at rest.

use protocol::time::Span;
use protocol::vm::VirtualMachineMigration;
use serde_json::json;

use super::api::Kind;
use super::outcome::Broken;
use super::world::{MigrationWorld, ROOM, node_name, vm_name};

/// Steps without a fault after which all must be at rest.
const CALM_STEPS: u32 = 60_000;
/// Rounds in which nothing happened after which it is.
const AT_REST: u32 = 40;
/// Rounds in which nothing happened after which seconds pass.
const IDLE: u32 = 32;

impl MigrationWorld {
    /// What must hold at every moment.
    pub(super) fn check(&mut self) {
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
    pub(super) fn settle(&mut self) {
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
