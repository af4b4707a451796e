//! The policy of a batch VM. It takes what its node has left, and gives way to VMs of its node
//! whose permits are cut. The rule is that of `policy/library/batch.lua`. The agent's shell counts
//! what the others lack (`node_load` in `agent/src/shell/policy/runtime.rs`).

#[cfg(test)]
mod tests;

use agent::core::questions::refused_units;
use agent::core::units::units_in;
use agent::core::{Core, Event as CoreEvent, Said};
use protocol::journal::Milli;
use protocol::time::Span;

use super::BATCH_VM;
use crate::event::Operation;
use crate::options::{PolicyKind, Sabotage};
use crate::world::{UNIT, World};

/// Time for which a cut permit counts (`STARVED_FOR` of the agent).
const STARVED_FOR: Span = Span::from_secs(5);

/// Priority of the VM's pod. Other pods have 0.
const BATCH_PRIORITY: i32 = -10;

/// Units that a batch VM of this size asks for while others lack `starved`.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "units of a simulated VM are few, and the cast saturates"
)]
fn answer(core: &Core, starved: Milli) -> u32 {
    let least = units_in(core.vm().min(), UNIT).ceil();
    let wanted = if starved.0 > 0 {
        (units_in(core.using(), UNIT) - starved.units()).floor()
    } else {
        units_in(core.vm().max(), UNIT).floor()
    };
    wanted.max(least) as u32
}

impl World {
    /// Whether the policy of a batch VM decides about this VM.
    pub(crate) fn is_batch(&self, vm: usize) -> bool {
        self.options.policy == PolicyKind::Batch && vm == BATCH_VM
    }

    /// Whether the scheduler divides headroom by priority: in every second world with a batch VM.
    pub(crate) fn shares_headroom(&self) -> bool {
        self.options.policy == PolicyKind::Batch && !self.options.seed.is_multiple_of(2)
    }

    /// Priority that the API server's admission gives a pod. `None` for that of any VM.
    pub(crate) fn priority_of(&self, operation: &Operation) -> Option<i32> {
        let Operation::CreatePod(pod) = operation else {
            return None;
        };
        let vm = self.vm_named(pod["metadata"]["name"].as_str()?)?;
        self.is_batch(vm).then_some(BATCH_PRIORITY)
    }

    /// An event reaches a task. Counts what a permit leaves out.
    pub(crate) fn permit_leaves_out(&mut self, vm: usize, event: &CoreEvent) {
        let now = self.now;
        if let Some(task) = self.vms[vm].agent_task.as_mut()
            && let Some(units) = refused_units(event, &task.core)
        {
            task.policy.shortage = Some((now, units));
        }
    }

    /// Units that other VMs on the batch VM's node lack.
    fn starved(&self) -> Milli {
        if self.cheats(Sabotage::DeafBatch) {
            return Milli(0);
        }
        let node = |vm: usize| self.vms[vm].agent_task.as_ref().map(|task| task.node);
        let lacks = |vm: usize| {
            let (at, units) = self.vms[vm].agent_task.as_ref()?.policy.shortage?;
            (self.now.since(at) < STARVED_FOR).then_some(units.0)
        };
        let others = (0..self.vms.len()).filter(|vm| *vm != BATCH_VM);
        let beside = others.filter(|vm| node(*vm) == node(BATCH_VM));
        Milli(beside.filter_map(lacks).sum())
    }

    pub(super) fn batch_answer(&self) -> Said {
        let task = self.vms[BATCH_VM].agent_task.as_ref();
        task.map_or(Said::Hold, |task| {
            Said::Want(answer(&task.core, self.starved()))
        })
    }
}
