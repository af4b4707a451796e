//! Nodes start and stop machines, and report them.

use protocol::runner::ExitReason;
use serde_json::json;

use super::{Machine, Qemu};
use crate::migrations::api::Kind;
use crate::migrations::world::MigrationWorld;

impl MigrationWorld {
    /// A node or a machine does the next thing.
    pub(crate) fn machine_moves(&mut self) -> bool {
        if self.node_works() {
            return true;
        }
        let names: Vec<String> = self.machines.keys().cloned().collect();
        if names.is_empty() {
            return false;
        }
        let name = &names[self.rng.index(names.len())];
        match self.rng.below(3) {
            0 => self.qemu_moves(name),
            _ => self.runner_moves(name),
        }
    }

    /// Pods that are bound get a machine, those that are to go lose it, and those that ended say
    /// so.
    fn node_works(&mut self) -> bool {
        let names = self.objects.names(Kind::Pod);
        if names.is_empty() {
            return false;
        }
        let name = names[self.rng.index(names.len())].clone();
        let Some(pod) = self.objects.get(Kind::Pod, &name).cloned() else {
            return false;
        };
        if !pod["spec"]["nodeName"].is_string() {
            return false;
        }
        let uid = pod["metadata"]["uid"].as_str().unwrap_or_default();
        if pod["metadata"]["deletionTimestamp"].is_string() {
            if let Some(machine) = self.machines.remove(&name) {
                self.stream_breaks(&name, &machine);
            }
            self.objects.remove(Kind::Pod, &name);
            return true;
        }
        let is_known = self
            .machines
            .get(&name)
            .is_some_and(|machine| machine.uid == uid);
        let phase = pod["status"]["phase"].as_str().unwrap_or_default();
        if !is_known && phase.is_empty() {
            self.boot(&name, uid, &pod);
            return true;
        }
        let Some(machine) = self.machines.get_mut(&name) else {
            return false;
        };
        let phase = match &machine.exit {
            Some(exit) if exit.success => "Succeeded",
            Some(_) => "Failed",
            None => "Running",
        };
        let ready = machine.exit.is_none() && machine.answers;
        let status = json!({"status": {"phase": phase,
            "podIP": machine.destination().stream.ip().to_string(),
            "containerStatuses": [{"name": neonvm_controller::core::pod::CONTAINER, "ready": ready}]}});
        let before = self.objects.log().len();
        self.objects.merge(Kind::Pod, &name, &status).ok();
        self.objects.log().len() > before
    }

    fn boot(&mut self, name: &str, uid: &str, pod: &serde_json::Value) {
        let env = pod["spec"]["containers"][0]["env"].as_array();
        let receives = env.is_some_and(|env| {
            env.iter()
                .any(|one| one["name"] == protocol::migration::RECEIVE_MIGRATION)
        });
        let label = &pod["metadata"]["labels"][protocol::annotations::LABEL_VM_NAME];
        let vm = label.as_str().unwrap_or_default().to_owned();
        if let Some(number) = vm
            .strip_prefix("vm-")
            .and_then(|text| text.parse::<usize>().ok())
            && !receives
        {
            self.booted[number] += 1;
        }
        let number = u16::try_from(self.objects.log().len() % 60_000).unwrap_or(0);
        let machine = Machine {
            vm,
            uid: uid.to_owned(),
            number,
            qemu: (!receives).then_some(Qemu {
                migration: "none",
                run: "running",
                peer: None,
                whole: true,
            }),
            exit: None,
            up: true,
            outgoing: None,
            incoming: None,
            leaving: None,
            arrival: None,
            receives,
            answers: !receives,
            generation: 1,
        };
        self.machines.insert(name.to_owned(), machine);
    }

    /// A runner's process dies; its QEMU does not.
    pub(crate) fn crash_a_runner(&mut self) {
        let names: Vec<String> = self.machines.keys().cloned().collect();
        if names.is_empty() {
            return;
        }
        let name = &names[self.rng.index(names.len())];
        if let Some(machine) = self.machines.get_mut(name) {
            machine.up = false;
            (machine.outgoing, machine.incoming) = (None, None);
            self.fault("runner crash");
        }
    }

    /// A QEMU dies, with what is in it.
    pub(crate) fn kill_a_qemu(&mut self) {
        let names: Vec<String> = self.machines.keys().cloned().collect();
        if names.is_empty() {
            return;
        }
        let name = names[self.rng.index(names.len())].clone();
        let Some(before) = self.machines.get(&name).cloned() else {
            return;
        };
        if before.qemu.is_none() {
            return;
        }
        self.fault("qemu killed");
        if let Some(machine) = self.machines.get_mut(&name) {
            machine.end(ExitReason::QemuDied, false);
        }
        let vm = before
            .vm
            .strip_prefix("vm-")
            .and_then(|text| text.parse::<usize>().ok());
        if let Some(vm) = vm {
            self.killed[vm] += 1;
        }
        self.stream_breaks(&name, &before);
    }
}
