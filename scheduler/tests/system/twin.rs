//! The same run with the VMs' names exchanged: what shows that one of both is enough to look at.

use std::hash::{DefaultHasher, Hash, Hasher};

use super::brain::Brain;
use super::state::Call;
use super::{State, Step};

/// What a checker tells states apart by.
pub(crate) fn fingerprint(state: &State) -> u64 {
    let mut hasher = DefaultHasher::new();
    state.hash(&mut hasher);
    hasher.finish()
}

impl State {
    /// A step from `self`, taken from the state in which VM `n` is called `names[n]`.
    pub(crate) fn renamed(&self, step: Step, twin: &Self, names: &[usize]) -> Step {
        let call = |index: usize| {
            let vm = self.calls[index].vm();
            let of = |calls: &[Call], vm| -> Vec<usize> {
                let of_it = calls.iter().enumerate().filter(|(_, call)| call.vm() == vm);
                of_it.map(|(index, _)| index).collect()
            };
            let place = of(&self.calls, vm).iter().position(|at| *at == index);
            of(&twin.calls, names[vm])[place.expect("it is one of them")]
        };
        match step {
            Step::Observe(replica, vm) => Step::Observe(replica, names[vm]),
            Step::Ask(vm, replica) => Step::Ask(names[vm], replica),
            Step::Patch(vm) => Step::Patch(names[vm]),
            Step::GiveUp(vm) => Step::GiveUp(names[vm]),
            Step::Land(index) => Step::Land(call(index)),
            Step::LandUnheard(index) => Step::LandUnheard(call(index)),
            Step::Abandon(index) => Step::Abandon(call(index)),
            Step::Tick
            | Step::Crash(_)
            | Step::Cut(_)
            | Step::Start(_)
            | Step::Take(_)
            | Step::HandOver
            | Step::List(_) => step,
        }
    }

    /// The digests of its cores in parts, and of each the whole.
    pub(crate) fn digests(&self) -> Vec<((u64, Vec<u64>), u64)> {
        let brains = self.replicas.iter().filter_map(|one| one.brain.as_ref());
        let both = |brain: &Brain| {
            let vms = (0..self.vms.len()).map(|vm| brain.of(vm));
            ((brain.shared(), vms.collect()), brain.whole())
        };
        brains.map(both).collect()
    }
}
