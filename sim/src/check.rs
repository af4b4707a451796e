//! What must hold, checked after every step, each in a method of the world named for it.
//!
//! | invariant (`ARCHITECTURE.md`, `docs/requirements.md`) | method |
//! |---|---|
//! | 1 never overcommit, N08 | `never_overcommit` |
//! | N06 held ≥ actual, N16 across restarts | `n06_held_covers_actual` |
//! | 2 order, N14 | `order_holds`, `patches_stay_between_approval_and_permit` |
//! | a late patch changes nothing that was decided since | `late_patches_are_refused` |
//! | N05 decreases are told after they happened | `requests_never_report_less_than_is_used` |
//! | N03 whole units within bounds | `desired_is_whole_units_in_bounds` |
//! | N13 permit bounds, N09 first contact | `permits_stay_between_old_and_asked` |
//! | 3 durable before said | `permits_are_durable_before_said` |
//! | 4 never shrink blind | `shrinks_are_never_blind` |
//! | 5 level-triggered, N12 | `heartbeats_are_never_missed`, `all_is_where_it_should_be` |
//! | 7 guests outlive us | `guests_never_restart_because_of_us`, `never_two_pods` |
//! | no pod has the name of an earlier one | `pod_names_are_never_reused` |
//! | N45 one scheduler of two | `n45_one_leads` |
//! | N41 pods request what their guests have | `n41_a_guest_has_no_more_than_its_pod_requests` |
//! | N20 a guest has no more time than ordered | `cpus_plugged_ahead_take_no_time` |
//! | 5 nothing stays plugged ahead | `nothing_stays_plugged_ahead` |
//! | V33 limits of a policy, V13 its rate | `advice_stays_within_its_limits` |
//! | the core's own faults | `core_counts_no_fault` |

mod advice;
mod asked;
mod convergence;
mod names;
mod requests;
mod touched;
mod truth;

use std::collections::BTreeSet;

use names::PodNames;
use protocol::time::Timestamp;
use protocol::units::Resources;

use crate::event::Operation;

/// Something that must hold and did not.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Violation {
    /// The function that found it.
    pub invariant: &'static str,
    /// The VM it is about.
    pub vm: Option<usize>,
    /// What was found.
    pub text: String,
}

/// What is true of a VM.
#[derive(Debug, Clone, Copy, Default)]
pub struct Truth {
    /// The size its object says.
    pub using: Resources,
    /// The guest has that size, by its status.
    pub reached: bool,
    /// What is approved, by its object.
    pub approved: Option<Resources>,
    /// What its monitor counts on, bytes.
    pub monitor: Option<u64>,
    /// What the monitor read of its machine when it connected; until it is told a size it counts on
    /// that.
    pub excused: u64,
    /// The largest size this agent's task may use: what it found, or the newest permit that reached
    /// it.
    pub permitted: Resources,
    /// A patch of a task that is gone landed; until the next patch of the present one the size is
    /// nobody's.
    pub orphaned: bool,
    /// That happened to the present task.
    pub foreign: bool,
    /// The size such a patch set. While it stands nobody living decided it, until a permit for it
    /// reaches a task.
    pub stray: Option<Resources>,
    /// What its pod requests could not be resized; until it covers the guest again that may have
    /// more.
    pub unrequested: bool,
    /// Patches of agents that have taken effect.
    pub landed: u64,
    /// What calls added that a stalled API server carried out when nothing was counted for them any
    /// more.
    pub overrun: Option<Overrun>,
}

impl Truth {
    /// A patch to `size` takes effect; `is_ours` if its task is there. A task that lowers a size
    /// that nobody living decided, and that is more than is approved, has decided on no growth:
    /// what is left of it above that stays nobody's.
    pub(crate) fn patched(&mut self, is_ours: bool, size: Resources) {
        self.orphaned = !is_ours;
        self.foreign |= !is_ours;
        let approved = self.approved.unwrap_or_default();
        let is_left =
            |stray: Resources| !size.has_field_above(stray) && size.has_field_above(approved);
        let is_strays = !is_ours || self.stray.is_some_and(is_left);
        self.stray = is_strays.then_some(size);
    }
}

/// What calls added to a VM that were carried out when nothing was counted for them any more.
#[derive(Debug, Clone, Copy)]
pub struct Overrun {
    pub(crate) base: Resources,
    pub(crate) size: Resources,
}

impl Overrun {
    /// The part of `amount` that such calls added.
    pub(crate) fn part_of(&self, amount: Resources) -> Resources {
        amount.field_min(self.size).saturating_sub(self.base)
    }

    /// Whether the VM still has any of it.
    pub(crate) fn stands(&self, amount: Resources) -> bool {
        amount.has_field_above(self.base)
    }
}

/// The truth about all VMs, and who has to be looked at.
#[derive(Debug, Default)]
pub struct Checks {
    /// What is true of each VM, by its number.
    pub truth: Vec<Truth>,
    touched: BTreeSet<usize>,
    nodes: BTreeSet<usize>,
    node_count: usize,
    pub(crate) names: PodNames,
    violation: Option<Violation>,
    /// Single checks so far. A run that reports 0 has proved nothing.
    pub made: u64,
}

impl Checks {
    pub(crate) fn resize(&mut self, vms: usize, nodes: usize) {
        self.truth = vec![Truth::default(); vms];
        self.node_count = nodes;
    }

    /// Something about a VM changed.
    pub(crate) fn touch(&mut self, vm: usize) {
        self.touched.insert(vm);
    }

    /// The scheduler's figures of a node changed.
    pub(crate) fn touch_node(&mut self, node: usize) {
        self.nodes.insert(node);
    }

    pub(crate) fn touch_all_nodes(&mut self) {
        self.nodes = (0..self.node_count).collect();
    }

    /// A task begins with a state of the object that says this size. While it is not the newest
    /// one, the change since is nobody's to the task, as one that lands later would be.
    pub(crate) fn agent_task_opened(&mut self, vm: usize, size: Resources) {
        let truth = &mut self.truth[vm];
        truth.permitted = size;
        let is_behind = size != truth.using;
        truth.orphaned &= is_behind;
        truth.foreign = is_behind;
    }

    /// A permit reached its task.
    pub(crate) fn permitted(&mut self, vm: usize, permit: Resources) {
        let truth = &mut self.truth[vm];
        truth.permitted = permit;
        truth.stray = truth.stray.filter(|size| size.has_field_above(permit));
    }

    /// A call may arrive once more.
    pub(crate) fn is_repeated(&mut self, operation: &Operation) {
        if let Operation::CreatePod(pod) = operation {
            self.names.repeated(pod);
        }
    }

    /// A monitor read its machine's memory.
    pub(crate) fn reconnected(&mut self, vm: usize, memory: u64) {
        self.truth[vm].excused = memory;
    }

    /// Something does not hold. The first finding of a step is reported.
    pub(crate) fn fail(&mut self, invariant: &'static str, vm: Option<usize>, text: String) {
        self.violation.get_or_insert(Violation {
            invariant,
            vm,
            text,
        });
    }
}

/// Whether `at` is further back than `span` microseconds.
fn is_older(now: Timestamp, at: Timestamp, span: protocol::time::Span) -> bool {
    now.since(at) > span
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::{Level, Options};
    use crate::world::{UNIT, World};

    fn units(n: u32) -> Resources {
        UNIT.saturating_mul(n)
    }

    /// A VM that uses and is permitted two units, and has a task.
    fn world() -> World {
        let mut world = World::new(Options::short(1, Level::None, 1));
        let truth = &mut world.checks.truth[0];
        (truth.using, truth.approved) = (units(2), Some(units(2)));
        world.checks.agent_task_opened(0, units(2));
        world
    }

    fn found(world: &mut World) -> Option<&'static str> {
        world.checks.violation.take().map(|found| found.invariant)
    }

    /// A patch to three units of a task that is gone.
    fn stray_patch(world: &mut World) {
        world.patch_lands(0, u64::MAX, units(3));
        world.checks.truth[0].using = units(3);
    }

    #[test]
    fn a_stray_size_stays_nobodys_until_it_is_permitted() {
        let mut world = world();
        stray_patch(&mut world);
        world.order_holds(0);
        world.checks.agent_task_opened(0, units(3));
        world.order_holds(0);
        world.checks.permitted(0, units(2));
        world.order_holds(0);
        assert_eq!(found(&mut world), None, "somebody who is gone decided it");
        world.checks.permitted(0, units(3));
        world.order_holds(0);
        let order = Some("order_use_within_permit");
        assert_eq!(found(&mut world), order, "it is a living task's now");
    }

    #[test]
    fn a_stray_size_may_be_lowered_in_steps_and_not_raised_again() {
        let mut world = world();
        let order = Some("order_use_within_permit");
        world.patch_lands(0, u64::MAX, units(5));
        for (to, expected) in [(4, None), (3, None), (4, order), (3, order)] {
            world.checks.truth[0].patched(true, units(to));
            world.checks.truth[0].using = units(to);
            world.order_holds(0);
            assert_eq!(found(&mut world), expected, "{to} units");
        }
    }

    #[test]
    fn a_stray_size_that_was_lowered_to_what_is_approved_is_somebodys() {
        let mut world = world();
        world.patch_lands(0, u64::MAX, units(3));
        world.checks.truth[0].patched(true, units(2));
        world.checks.truth[0].using = units(2);
        world.checks.truth[0].approved = Some(units(1));
        world.order_holds(0);
        assert_eq!(found(&mut world), Some("order_use_within_permit"));
    }

    #[test]
    fn another_size_than_the_stray_one_is_somebodys() {
        let mut world = world();
        stray_patch(&mut world);
        world.checks.truth[0].using = units(4);
        world.order_holds(0);
        assert_eq!(found(&mut world), Some("order_use_within_permit"));
    }

    #[test]
    fn a_task_that_begins_behind_the_object_is_not_blamed_for_what_it_cannot_know() {
        let mut world = world();
        stray_patch(&mut world);
        world.checks.agent_task_opened(0, units(2));
        world.requests_never_report_less_than_is_used(0, units(2));
        assert_eq!(found(&mut world), None);
        // One that begins with what the object says is.
        world.checks.agent_task_opened(0, units(3));
        world.requests_never_report_less_than_is_used(0, units(2));
        let report = Some("n05_requests_never_report_less_than_is_used");
        assert_eq!(found(&mut world), report);
    }
}
