//! What the controller's watches and its links to runners tell its cores.

use std::collections::BTreeSet;

use neonvm_controller::core::{Event, VmCore, migration};
use protocol::core::Core as _;

use super::read;
use crate::migrations::api::{Change, Kind};
use crate::migrations::runner::Machine;
use crate::migrations::world::{MigrationWorld, settings};

impl MigrationWorld {
    pub(crate) fn start_controller(&mut self) {
        self.controller.epoch += 1;
        self.controller.seen = self.objects.log().len();
        // It lists, in whatever order.
        for kind in [Kind::Move, Kind::Pod, Kind::Vm] {
            for value in self.objects.list(kind) {
                let name = value["metadata"]["name"].as_str().unwrap_or_default();
                let change = Change {
                    kind,
                    name: name.to_owned(),
                    value,
                    before: None,
                    gone: false,
                };
                self.controller_told(&change);
            }
        }
    }

    pub(crate) fn crash_controller(&mut self) {
        self.controller.vms.clear();
        self.controller.movers.clear();
        self.controller.moves.clear();
    }

    /// Its watches show the next change.
    pub(crate) fn controller_sees(&mut self) -> bool {
        let Some(change) = self.objects.log().get(self.controller.seen).cloned() else {
            return false;
        };
        self.controller.seen += 1;
        self.controller_told(&change);
        true
    }

    fn controller_told(&mut self, change: &Change) {
        let Some(vm) = Self::vm_of(change) else {
            return;
        };
        let at = self.moment();
        let seed = self.rng.below(u64::MAX);
        if change.kind == Kind::Vm {
            let core = VmCore::new(settings(), seed);
            self.controller.vms.entry(vm).or_insert(core);
        }
        if change.kind == Kind::Move {
            self.mover_told(vm, change, seed);
        }
        let name = change.name.clone();
        let uid = change.value["metadata"]["uid"].as_str().unwrap_or_default();
        let uid = uid.to_owned();
        if let Some(core) = self.controller.vms.get_mut(&vm) {
            let event = match (change.kind, change.gone) {
                (Kind::Vm, false) => read(&change.value).map(Event::Vm),
                (Kind::Pod, false) => read(&change.value).map(Event::Pod),
                (Kind::Pod, true) => Some(Event::PodUnseen {
                    name: name.clone(),
                    uid: Some(uid.clone()),
                }),
                _ => None,
            };
            if let Some(event) = event {
                core.handle(at, event);
            }
        }
        if let Some(core) = self.controller.movers.get_mut(&vm) {
            let event = match (change.kind, change.gone) {
                (Kind::Vm, false) => read(&change.value).map(migration::Event::Vm),
                (Kind::Pod, false) => read(&change.value).map(migration::Event::Pod),
                (Kind::Pod, true) => Some(migration::Event::PodUnseen {
                    name,
                    uid: Some(uid),
                }),
                _ => None,
            };
            if let Some(event) = event {
                core.handle(at, event);
            }
        }
    }

    fn mover_told(&mut self, vm: usize, change: &Change, seed: u64) {
        let at = self.moment();
        if change.gone {
            self.controller.moves.remove(&change.name);
            if let Some(core) = self.controller.movers.get_mut(&vm) {
                let (name, uid) = (change.name.clone(), None);
                core.handle(at, migration::Event::MigrationGone { name, uid });
            }
            if !self.controller.moves.values().any(|of| *of == vm) {
                self.controller.movers.remove(&vm);
            }
            return;
        }
        self.controller.moves.insert(change.name.clone(), vm);
        // A new mover knows what the watches have shown, which its hub keeps; here it reads what it
        // lacks.
        let core = self
            .controller
            .movers
            .entry(vm)
            .or_insert_with(|| migration::MigrationCore::new(settings(), seed));
        if let Some(found) = read(&change.value) {
            core.handle(at, migration::Event::Migration(found));
        }
    }

    /// A runner's news, or its silence, reaches one of the cores.
    pub(crate) fn controller_hears(&mut self) -> bool {
        let vms: Vec<usize> = self.controller.vms.keys().copied().collect();
        if vms.is_empty() {
            return false;
        }
        let vm = vms[self.rng.index(vms.len())];
        let at = self.moment();
        let targets: BTreeSet<String> = self
            .controller
            .movers
            .get(&vm)
            .map(migration::MigrationCore::link_targets)
            .unwrap_or_default();
        for pod in targets {
            let state = self.machines.get(&pod).and_then(Machine::state);
            let event = match state {
                Some(state) => migration::Event::Runner {
                    pod,
                    state: Box::new(state),
                },
                None => migration::Event::RunnerSilent {
                    pod,
                    error: "connection refused".into(),
                },
            };
            if let Some(core) = self.controller.movers.get_mut(&vm) {
                core.handle(at, event);
            }
        }
        let Some(core) = self.controller.vms.get_mut(&vm) else {
            return false;
        };
        if let Some(pod) = core.link_target().map(str::to_owned) {
            let state = self.machines.get(&pod).and_then(Machine::state);
            let event = match state {
                Some(state) => Event::Runner {
                    pod,
                    state: Box::new(state),
                },
                None => Event::RunnerSilent {
                    pod,
                    error: "connection refused".into(),
                },
            };
            core.handle(at, event);
        }
        // News is always to be had; that alone is nothing that happens.
        false
    }
}
