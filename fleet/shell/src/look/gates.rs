//! Which environment has a guest, and what the other environments and parts hold back.

use fleet_core::permit::Gate;
use fleet_core::{claim, is_open};
use fleet_store::LoadedEnvironment;
use protocol::fleet::{TurnSpec, instance_name, node_instance_name};
use protocol::parts::PartName;
use protocol::vm::VirtualMachine;

/// Whether the environment selects a VM that stays.
pub(crate) fn selects(loaded: &LoadedEnvironment, vm: &VirtualMachine) -> bool {
    loaded.namespace == vm.metadata.namespace
        && vm.metadata.deletion_timestamp.is_none()
        && loaded.selects(&vm.metadata.labels)
}

pub(super) fn turn_of<'a>(loaded: &'a LoadedEnvironment, instance: &str) -> Option<&'a TurnSpec> {
    loaded.turns.get(instance)?.0.as_ref()
}

/// Whether the environment of a turn is gone.
pub(crate) fn is_orphan(
    turn: Option<&TurnSpec>,
    namespace: &str,
    all: &[LoadedEnvironment],
) -> bool {
    let is_there = |name: &str| {
        all.iter()
            .any(|one| one.namespace == namespace && one.environment.name == name)
    };
    turn.is_some_and(|turn| !is_there(&turn.environment))
}

/// Whether the environment has the part of a guest that it no longer selects.
pub(super) fn has_left(loaded: &LoadedEnvironment, vm: &VirtualMachine) -> bool {
    let turns = loaded.turns.get(&instance_name(&vm.metadata.name));
    let claim = turns.and_then(|(turn, last)| claim(turn.as_ref(), last.as_ref()));
    loaded.namespace == vm.metadata.namespace
        && vm.metadata.deletion_timestamp.is_none()
        && !selects(loaded, vm)
        && claim == Some(&loaded.environment.name)
}

/// Gate by the other environments. Of two that select the part of a guest, the first by name has
/// it.
pub(super) fn gate_of_others(
    loaded: &LoadedEnvironment,
    all: &[LoadedEnvironment],
    vm: &VirtualMachine,
    instance: &str,
) -> Option<Gate> {
    let own = &loaded.environment;
    let mut gate = None;
    for other in all {
        let name = &other.environment.name;
        if other.namespace != loaded.namespace || *name == own.name {
            continue;
        }
        let turns = other.turns.get(instance);
        let open = turns.and_then(|(turn, last)| {
            turn.as_ref()
                .filter(|turn| is_open(Some(turn), last.as_ref()))
        });
        if other.environment.spec.part != own.spec.part {
            if open.is_some() {
                gate = gate.or(Some(Gate::PeerInFlight));
            }
            continue;
        }
        let has_turn = open.is_some_and(|turn| turn.environment != own.name);
        // One that verifies changes nothing.
        let claims = !other.environment.spec.is_cron();
        // A guest that left its environment goes back first, also where another one selects it.
        let is_of_other = claims && *name < own.name && selects(other, vm) && selects(loaded, vm);
        if has_turn || is_of_other {
            return Some(Gate::Claim);
        }
    }
    gate
}

/// Gate of a guest on a node whose agent is in a turn: both ends of a link never change at once.
pub(super) fn agent_gate(all: &[LoadedEnvironment], node: &str) -> Option<Gate> {
    let instance = node_instance_name(node);
    let agents = all
        .iter()
        .filter(|one| one.environment.spec.part == PartName::Agent);
    let mut turns = agents.filter_map(|one| one.turns.get(&instance));
    let is_changing = turns.any(|(turn, last)| is_open(turn.as_ref(), last.as_ref()));
    is_changing.then_some(Gate::PeerInFlight)
}
