//! Figures of a state that the properties compare.

use protocol::units::Resources;
use scheduler::core::event::VmWrite;
use scheduler::core::lease::Standing;

use super::state::State;
use super::views::{node_name, vm_of};
use super::{System, UNIT, time};

impl System {
    /// What is given on a node and what the node has, in units.
    pub(crate) fn given_on(&self, state: &State, node: usize) -> (u32, u32) {
        let vms = (0..self.bounds.vms).filter(|vm| vm % self.bounds.nodes == node);
        let given = vms.map(|vm| state.vms[vm].given()).sum();
        (given, self.views.units[node])
    }

    /// What a leading replica counts on a node, in units, if it answers permits.
    pub(crate) fn counted_by(&self, state: &State, replica: usize, node: usize) -> Option<u32> {
        let core = &state.replicas[replica].brain.as_ref()?.core;
        let load = core
            .may_permit(time(state.now))
            .then(|| core.ledger().load(&node_name(node)));
        u32::try_from(load?.reserved.cpu / u128::from(UNIT.cpu.0)).ok()
    }

    /// Whether a replica waits for the write of a grant.
    pub(crate) fn grants(&self, state: &State, replica: usize) -> bool {
        let brain = state.replicas[replica].brain.as_ref();
        let up = |vm: usize, hold: Resources| {
            hold.has_field_above(UNIT.saturating_mul(state.vms[vm].given()))
        };
        brain.is_some_and(|brain| {
            let mut vms = brain.core.ledger().vms();
            vms.any(|vm| {
                vm.holds
                    .iter()
                    .any(|hold| up(vm_of(&vm.view.key.name), hold.target))
            })
        })
    }

    /// Whether a call may take effect that nobody waits for.
    pub(crate) fn has_stray(&self, state: &State) -> bool {
        let lands = |write: &VmWrite| state.vms[vm_of(&write.vm.name)].now().version == write.base;
        state
            .calls
            .iter()
            .any(|call| !call.heard && call.write.as_ref().is_ok_and(lands))
    }

    /// Whether a replica leads by what it knows.
    pub(crate) fn leads(&self, state: &State, replica: usize) -> bool {
        let brain = state.replicas[replica].brain.as_ref();
        brain.is_some_and(|brain| {
            matches!(
                brain.core.standing(time(state.now)),
                Some(Standing::Leading { .. })
            )
        })
    }
}
