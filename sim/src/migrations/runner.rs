//! Nodes, runners and QEMUs: the two shipped cores of a move, over QEMUs made up here.
//!
//! A QEMU does what its lab notes say of the real one: it stops its guest when all is sent, goes on
//! by itself when the stream breaks before, and not after; a receiving one is stopped until it is
//! told to go on.

use neonvm_controller::core::{Refusal, migration};
use neonvm_runner::config::Accel;
use neonvm_runner::core::shape::{CpuControl, shape};
use neonvm_runner::core::transfer::{
    Arrival, Disk, Incoming, IncomingAction, IncomingEvent, Leaving, Manifest, Outgoing,
    OutgoingAction, OutgoingEvent, View,
};
use protocol::core::Core as _;
use protocol::migration::{Destination, IncomingReport, IncomingStage, Progress};
use protocol::runner::{
    CpuState, ExitReason, ExitReport, MemoryState, QuotaState, RunnerPhase, RunnerState,
};
use protocol::units::{Bytes, MilliCpu};
use serde_json::json;

use super::api::Kind;
use super::{Cheat, MigrationWorld};
use crate::drive::step;

#[derive(Debug, Clone)]
struct Qemu {
    migration: &'static str,
    run: &'static str,
    /// Whom it sends to.
    peer: Option<String>,
    /// All of the guest is in it.
    whole: bool,
}

/// A pod's directory, runner and QEMU.
#[derive(Debug, Clone)]
pub(crate) struct Machine {
    pub(crate) vm: String,
    uid: String,
    number: u16,
    qemu: Option<Qemu>,
    exit: Option<ExitReport>,
    /// The runner's process, and what it holds in memory.
    up: bool,
    outgoing: Option<Outgoing>,
    incoming: Option<Incoming>,
    /// What is written down.
    leaving: Option<Leaving>,
    arrival: Option<Arrival>,
    receives: bool,
    answers: bool,
    generation: u64,
}

impl Machine {
    /// Its guest runs.
    pub(crate) fn runs(&self) -> bool {
        self.qemu.as_ref().is_some_and(|qemu| qemu.run == "running")
    }

    /// Sizes stand still.
    pub(crate) fn is_held(&self) -> bool {
        self.outgoing.is_some() || self.leaving.is_some()
    }

    /// What its runner says, if it is there.
    pub(crate) fn state(&self) -> Option<RunnerState> {
        let waits = IncomingReport {
            id: String::new(),
            stage: IncomingStage::Waiting,
            destination: None,
            problem: None,
            began_unix_us: None,
        };
        let incoming = match &self.incoming {
            Some(incoming) => Some(incoming.report()),
            None => self.receives.then_some(waits),
        };
        let cpu = MilliCpu(1000);
        self.up.then(|| RunnerState {
            generation: self.generation,
            phase: match (&self.exit, self.answers) {
                (Some(_), _) => RunnerPhase::Exited,
                (None, true) => RunnerPhase::Running,
                (None, false) if self.receives => RunnerPhase::Receiving,
                (None, false) => RunnerPhase::Booting,
            },
            qemu_pid: None,
            qemu_version: None,
            accel: "kvm".into(),
            boot_id: None,
            guest_kernel: None,
            boot_ms: None,
            cpus: CpuState {
                limit: cpu,
                plugged: 1,
                guest_online: Some(1),
                ahead: None,
            },
            memory: MemoryState {
                base: Bytes::gib(1),
                ..MemoryState::default()
            },
            resize: None,
            orders: None,
            exit: self.exit.clone(),
            quota: QuotaState::Unset,
            outgoing: self.outgoing.as_ref().map(Outgoing::report),
            incoming,
            guest_silent: None,
            programs: Vec::new(),
            disk_full: None,
        })
    }

    fn end(&mut self, reason: ExitReason, success: bool) {
        self.qemu = None;
        self.answers = false;
        self.exit.get_or_insert(ExitReport {
            success,
            reason,
            code: None,
            message: String::new(),
        });
        self.generation += 1;
    }

    fn destination(&self) -> Destination {
        let [high, low] = self.number.to_be_bytes();
        Destination {
            stream: std::net::SocketAddrV4::new([127, 1, high, low].into(), 20187),
            disk: None,
            encrypted: false,
            sockets: None,
        }
    }
}

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
    /// A node or a machine does the next thing.
    pub(super) fn machine_moves(&mut self) -> bool {
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

    /// Whoever is at the other end of a machine that is gone notices.
    fn stream_breaks(&mut self, gone: &str, machine: &Machine) {
        let peer = machine.qemu.as_ref().and_then(|qemu| qemu.peer.clone());
        for (name, other) in &mut self.machines {
            let is_target = peer.as_ref() == Some(name);
            let Some(qemu) = other.qemu.as_mut() else {
                continue;
            };
            if is_target && !qemu.whole {
                qemu.migration = "failed";
            }
            if qemu.peer.as_deref() == Some(gone) && qemu.migration == "active" {
                // It goes on by itself.
                (qemu.migration, qemu.run) = ("failed", "running");
            }
        }
    }

    /// A QEMU gets on.
    fn qemu_moves(&mut self, name: &str) -> bool {
        let cheat = self.cheat;
        let Some(qemu) = self
            .machines
            .get(name)
            .and_then(|machine| machine.qemu.clone())
        else {
            return false;
        };
        if qemu.migration != "active" {
            return false;
        }
        let Some(peer) = qemu.peer.clone() else {
            return false;
        };
        let target = self.machines.get_mut(&peer).and_then(|to| to.qemu.as_mut());
        let Some(target) = target.filter(|to| to.run == "inmigrate" && to.migration == "active")
        else {
            if let Some(own) = self
                .machines
                .get_mut(name)
                .and_then(|own| own.qemu.as_mut())
            {
                (own.migration, own.run) = ("failed", "running");
            }
            return true;
        };
        (target.migration, target.run, target.whole) = ("completed", "paused", true);
        if cheat == Some(Cheat::BeginUnasked) {
            target.run = "running";
        }
        if let Some(own) = self
            .machines
            .get_mut(name)
            .and_then(|own| own.qemu.as_mut())
        {
            own.migration = "completed";
            if cheat != Some(Cheat::BeginUnasked) {
                own.run = "postmigrate";
            }
        }
        true
    }

    /// A runner does the next thing, as its supervisor does.
    fn runner_moves(&mut self, name: &str) -> bool {
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

    fn outgoing_acts(&mut self, name: &str, action: OutgoingAction) {
        let now = self.now;
        let to = |machine: &Machine| {
            let leaving = machine.leaving.as_ref();
            leaving.and_then(|leaving| leaving.order.to.clone())
        };
        let peer = self.machines.get(name).and_then(to).and_then(|to| {
            let mut all = self.machines.iter();
            let found = all.find(|(_, other)| other.destination().stream == to.stream);
            found.map(|(name, _)| name.clone())
        });
        let listens = peer.as_ref().is_some_and(|peer| {
            let target = self.machines.get(peer).and_then(|to| to.qemu.as_ref());
            target.is_some_and(|to| to.run == "inmigrate" && to.migration == "setup")
        });
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

    /// The controller tells a runner something.
    pub(super) fn order(
        &mut self,
        action: migration::Action,
    ) -> Result<migration::ActionResponse, Refusal> {
        use migration::Action as A;
        let now = self.now;
        let refused = |message: &str| {
            Err(Refusal::Failed {
                message: message.to_owned(),
                permanent: false,
            })
        };
        let (A::Send { pod, .. }
        | A::Recall { pod, .. }
        | A::Quit { pod, .. }
        | A::Receive { pod, .. }
        | A::Begin { pod, .. }) = &action
        else {
            return refused("this is the API server's business");
        };
        let Some(machine) = self.machines.get_mut(pod).filter(|machine| machine.up) else {
            return refused("connection refused");
        };
        machine.generation += 1;
        match action {
            A::Send { order, .. } => {
                if machine.qemu.is_none() {
                    return refused("it has ended");
                }
                if machine.incoming.as_ref().is_some_and(|at| !at.is_begun()) {
                    return refused("the guest is not here yet");
                }
                match &mut machine.outgoing {
                    Some(outgoing) if outgoing.id() == order.id => {
                        outgoing.handle(now, OutgoingEvent::Order(order));
                    }
                    Some(_) => return refused("another migration is not over"),
                    None => machine.outgoing = Some(Outgoing::new(order)),
                }
            }
            A::Recall { id, .. } => {
                if let Some(outgoing) = machine.outgoing.as_mut().filter(|at| at.id() == id) {
                    outgoing.handle(now, OutgoingEvent::Recall);
                }
            }
            A::Quit { id, .. } => {
                let outgoing = machine.outgoing.as_ref().filter(|at| at.id() == id);
                if !outgoing.is_some_and(Outgoing::is_handed_over) {
                    return refused("the guest has not left");
                }
                machine.end(ExitReason::Moved, true);
            }
            A::Receive { order, .. }
                if machine.incoming.is_none() && machine.receives && machine.exit.is_none() =>
            {
                let arrival = Arrival {
                    order: *order,
                    shares_disk: true,
                    listening: false,
                    begun: false,
                    ran: false,
                };
                machine.arrival = Some(arrival.clone());
                machine.incoming = Some(Incoming::new(arrival, machine.destination()));
                machine.qemu = Some(Qemu {
                    migration: "none",
                    run: "inmigrate",
                    peer: None,
                    whole: false,
                });
            }
            A::Begin { id, .. } => {
                let incoming = machine.incoming.as_mut().filter(|at| at.id() == id);
                if !incoming.is_some_and(|incoming| incoming.begin(now)) {
                    return refused("the guest is not here yet");
                }
            }
            _ => {}
        }
        match machine.state() {
            Some(state) => Ok(migration::ActionResponse::Runner(Box::new(state))),
            None => refused("connection refused"),
        }
    }

    /// A runner's process dies; its QEMU does not.
    pub(super) fn crash_a_runner(&mut self) {
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
    pub(super) fn kill_a_qemu(&mut self) {
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
