//! An environment of agents among all environments, with what a look has listed.

use fleet_core::permit::Gate;
use fleet_core::{Guest, claim, is_open, owner_windows};
use fleet_store::LoadedEnvironment;
use protocol::fleet::{instance_name, node_instance_name};
use protocol::parts::PartName;
use protocol::time::WallTime;

use crate::look::{Surroundings, is_orphan};
use crate::node::{Node, seconds_since};
use crate::services::order_gate;

/// An environment, and all that it is looked at beside.
pub(super) struct Scene<'a> {
    pub(super) loaded: &'a LoadedEnvironment,
    pub(super) all: &'a [LoadedEnvironment],
    pub(super) surroundings: &'a Surroundings,
}

impl Scene<'_> {
    /// A node of which nothing was seen so far.
    pub(super) fn guest(&self, node: &Node, instance: &str, now: WallTime) -> Guest {
        let loaded = self.loaded;
        let (turn, last) = loaded.turns.get(instance).cloned().unwrap_or_default();
        let trial_seconds = loaded.environment.spec.rollout.trial_seconds;
        let (windows, gate) = owner_windows(node.windows.as_deref(), trial_seconds);
        Guest {
            node: node.name.clone(),
            is_enrolled: node.is_enrolled,
            boot: node.boot.clone(),
            gate: gate
                .or_else(|| self.gate(node, instance))
                .or_else(|| order_gate(loaded, self.all)),
            is_orphan: is_orphan(turn.as_ref(), &loaded.namespace, self.all),
            has_left: !loaded.selects(&node.labels),
            labels: node.labels.clone(),
            windows,
            uptime_seconds: node.created.map(|created| seconds_since(created, now)),
            turn,
            last,
            ..Guest::default()
        }
    }

    /// Whether the environment has the agent of a node that it no longer selects.
    pub(super) fn has_left(&self, node: &Node) -> bool {
        let turns = self.loaded.turns.get(&node_instance_name(&node.name));
        let claim = turns.and_then(|(turn, last)| claim(turn.as_ref(), last.as_ref()));
        !self.loaded.selects(&node.labels) && claim == Some(&self.loaded.environment.name)
    }

    /// Length of the proof of a node's open turn.
    pub(super) fn trial_seconds(&self, guest: &Guest) -> u64 {
        let revision = guest.turn.as_ref().map(|turn| &turn.revision);
        let revision = revision.and_then(|name| self.loaded.revisions.get(name));
        let spec = &self.loaded.environment.spec;
        revision.map_or(spec.rollout.trial_seconds, |one| one.rollout.trial_seconds)
    }

    /// Gate by other environments: another one of agents, or one of guests of the node in a turn.
    fn gate(&self, node: &Node, instance: &str) -> Option<Gate> {
        let own = &self.loaded.environment;
        for other in self.all {
            let name = &other.environment.name;
            if other.environment.spec.part != PartName::Agent {
                if self.changes_guest_of(other, node) {
                    return Some(Gate::PeerInFlight);
                }
                continue;
            }
            if other.namespace != self.loaded.namespace || name == &own.name {
                continue;
            }
            let turn = other.turns.get(instance);
            let has_turn = turn.is_some_and(|(turn, last)| {
                let is_own = turn
                    .as_ref()
                    .is_some_and(|turn| turn.environment == own.name);
                is_open(turn.as_ref(), last.as_ref()) && !is_own
            });
            let both = other.selects(&node.labels) && self.loaded.selects(&node.labels);
            if has_turn || (*name < own.name && both) {
                return Some(Gate::Claim);
            }
        }
        None
    }

    fn changes_guest_of(&self, environment: &LoadedEnvironment, node: &Node) -> bool {
        let vms = self.surroundings.vms.iter();
        let mut of_node = vms.filter(|vm| {
            let status = vm.status.as_ref();
            let is_there = status.is_some_and(|status| status.node == node.name);
            is_there && vm.metadata.namespace == environment.namespace
        });
        of_node.any(|vm| {
            let turns = environment.turns.get(&instance_name(&vm.metadata.name));
            turns.is_some_and(|(turn, last)| is_open(turn.as_ref(), last.as_ref()))
        })
    }
}
