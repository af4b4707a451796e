//! The runner of a machine does the next thing.

use neonvm_runner::config::Accel;
use neonvm_runner::core::shape::{CpuControl, shape};
use neonvm_runner::core::transfer::{
    Arrival, Disk, Incoming, IncomingAction, IncomingEvent, Manifest, Outgoing, OutgoingAction,
    OutgoingEvent, View,
};
use protocol::core::Core as _;
use protocol::migration::Progress;
use protocol::runner::ExitReason;
use serde_json::json;

use super::{Machine, Qemu};
use crate::drive::step;
use crate::migrations::world::MigrationWorld;

fn manifest() -> Manifest {
    let guest = serde_json::from_value(json!({"cpus": {"min": 1, "use": 1, "max": 1},
        "memorySlotSize": "1Gi", "memorySlots": {"min": 1, "use": 1, "max": 1}, "rootDisk": {"image": "i"}}));
    let shape = shape(&guest.expect("sound"), CpuControl::Plug, Accel::Kvm);
    Manifest {
        qemu: "10.0.2".into(),
        machine: "pc-q35-10.0".into(),
        accel: Accel::Kvm,
        shape: shape.expect("sound"),
        cpus: Vec::new(),
        overlay_mac: None,
        bridged: false,
        passt: false,
        queues: 1,
        mac: String::new(),
        cmdline: String::new(),
        order: None,
        boot_ms: None,
        disk: Disk {
            host_boot_id: String::new(),
            path: "d".into(),
            device: 0,
            inode: 0,
            bytes: 0,
            image: String::new(),
        },
        drives: Vec::new(),
        encrypts: false,
        guestd_key: None,
        dials_sockets: true,
    }
}

impl MigrationWorld {
    /// A runner does the next thing, as its supervisor does.
    pub(super) fn runner_moves(&mut self, name: &str) -> bool {
        let now = self.now;
        let Some(machine) = self.machines.get_mut(name) else {
            return false;
        };
        if !machine.up {
            // Its node starts it again.
            machine.up = true;
            machine.generation += 1;
            machine.outgoing = machine.leaving.clone().map(Outgoing::found);
            let at = machine.destination();
            let has_left = machine.leaving.is_some();
            machine.incoming = machine.arrival.clone().map(|arrival| {
                let ran = arrival.ran || has_left;
                Incoming::new(Arrival { ran, ..arrival }, at)
            });
            return true;
        }
        if machine.qemu.is_none() {
            return false;
        }
        machine.generation += 1;
        if let Some(action) = step(machine.outgoing.as_mut(), now) {
            self.outgoing_acts(name, action);
            return true;
        }
        if machine.outgoing.as_ref().is_some_and(Outgoing::is_over) {
            (machine.outgoing, machine.leaving) = (None, None);
            return true;
        }
        if let Some(action) = step(machine.incoming.as_mut(), now) {
            self.incoming_acts(name, action);
            return true;
        }
        let answers = machine.runs();
        std::mem::replace(&mut machine.answers, answers) != answers && answers
    }

    fn view(qemu: &Qemu) -> View {
        View {
            migration: qemu.migration.to_owned(),
            error: None,
            run: qemu.run.to_owned(),
            copy: None,
            progress: Progress {
                status: qemu.migration.to_owned(),
                ..Progress::default()
            },
        }
    }

    /// The machine to which this one is ordered to send its guest.
    fn peer_of(&self, name: &str) -> Option<String> {
        let leaving = self.machines.get(name)?.leaving.as_ref()?;
        let stream = leaving.order.to.as_ref()?.stream;
        let mut all = self.machines.iter();
        let found = all.find(|(_, other)| other.destination().stream == stream);
        found.map(|(name, _)| name.clone())
    }

    fn listens(&self, name: &str) -> bool {
        let qemu = self.machines.get(name).and_then(|to| to.qemu.as_ref());
        qemu.is_some_and(|qemu| qemu.run == "inmigrate" && qemu.migration == "setup")
    }

    fn outgoing_acts(&mut self, name: &str, action: OutgoingAction) {
        let now = self.now;
        let peer = self.peer_of(name);
        let listens = peer.as_ref().is_some_and(|peer| self.listens(peer));
        if action == OutgoingAction::Send
            && listens
            && let Some(peer) = &peer
            && let Some(target) = self.machines.get_mut(peer).and_then(|to| to.qemu.as_mut())
        {
            target.migration = "active";
        }
        let Some(machine) = self.machines.get_mut(name) else {
            return;
        };
        let Machine {
            qemu: Some(qemu),
            outgoing: Some(outgoing),
            leaving,
            ..
        } = machine
        else {
            return;
        };
        let mut left = None;
        let event = match action {
            OutgoingAction::Save(what) => {
                *leaving = Some(what);
                return;
            }
            OutgoingAction::Describe => OutgoingEvent::Described(Ok(Box::new(manifest()))),
            OutgoingAction::Look => OutgoingEvent::Viewed(Ok(Self::view(qemu))),
            OutgoingAction::Send => {
                qemu.peer = peer.filter(|_| listens);
                qemu.migration = if listens { "active" } else { "failed" };
                OutgoingEvent::Done(action, Ok(()))
            }
            OutgoingAction::Cancel => {
                if qemu.migration == "active" {
                    (qemu.migration, qemu.run) = ("cancelled", "running");
                }
                left = qemu.peer.take();
                OutgoingEvent::Done(action, Ok(()))
            }
            OutgoingAction::Continue => {
                qemu.run = "running";
                OutgoingEvent::Done(action, Ok(()))
            }
            OutgoingAction::Copy | OutgoingAction::Switch | OutgoingAction::Abandon => {
                OutgoingEvent::Done(action, Err("no disk is copied here".into()))
            }
        };
        outgoing.handle(now, event);
        if let Some(target) = left
            .and_then(|peer| self.machines.get_mut(&peer))
            .and_then(|to| to.qemu.as_mut())
            .filter(|to| !to.whole)
        {
            target.migration = "failed";
        }
    }

    fn incoming_acts(&mut self, name: &str, action: IncomingAction) {
        let now = self.now;
        let Some(machine) = self.machines.get_mut(name) else {
            return;
        };
        let Machine {
            qemu: Some(qemu),
            incoming: Some(incoming),
            arrival,
            ..
        } = machine
        else {
            return;
        };
        let event = match action {
            IncomingAction::Save(what) => {
                *arrival = Some(what);
                return;
            }
            IncomingAction::Look => IncomingEvent::Viewed(Ok(Self::view(qemu))),
            IncomingAction::Listen => {
                qemu.migration = "setup";
                IncomingEvent::Done(action, Ok(()))
            }
            IncomingAction::Begin => {
                qemu.run = "running";
                IncomingEvent::Done(action, Ok(()))
            }
            IncomingAction::GiveUp => return machine.end(ExitReason::StartFailed, false),
        };
        incoming.handle(now, event);
    }
}
