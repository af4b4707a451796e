//! Checks against the truth: what the objects, the machines and the messages on their way say
//! together.

use protocol::units::{Bytes, MilliCpu, Resources};
use scheduler::core::amount::Both;

use crate::build::node_name;
use crate::store::{Change, Kind};
use crate::world::World;

impl World {
    /// Takes in what an object says now.
    pub(crate) fn truth_of(&mut self, change: &Change) {
        if change.gone || change.kind == Kind::Node {
            return;
        }
        let Some(vm) = self.vm_named(change.object.meta("name")) else {
            return;
        };
        if change.kind == Kind::Pod {
            if self.options.requests {
                self.checks.touch(vm);
            }
            return;
        }
        let view = change.object.vm_view();
        let truth = &mut self.checks.truth[vm];
        let before = truth.using;
        (truth.using, truth.reached) = (view.in_use, view.reached);
        // As it stands in the object, not cut to the VM's largest size as the scheduler reads it.
        let approved = view.approved_text.as_deref();
        truth.approved = approved.and_then(|text| serde_json::from_str(text).ok());
        if before != view.in_use {
            self.note(crate::journal::Note::Patched {
                vm,
                size: view.in_use,
            });
        }
        self.checks.touch(vm);
    }

    /// A patch takes effect. One whose task is gone is nobody's decision any more; what is held
    /// must cover it all the same.
    pub(crate) fn patch_lands(&mut self, vm: usize, agent_task: u64, size: Resources) {
        let is_ours = self.vms[vm]
            .agent_task
            .as_ref()
            .is_some_and(|now| now.id == agent_task);
        if !is_ours {
            self.tally.count("patch of a dead agent");
        }
        let truth = &mut self.checks.truth[vm];
        truth.patched(is_ours, size);
    }

    /// A patch takes effect only where no other has since it was sent, however late it is.
    pub(crate) fn late_patches_are_refused(&mut self, vm: usize, landed: u64) {
        self.checked();
        let truth = &mut self.checks.truth[vm];
        truth.landed += 1;
        let others = truth.landed - 1 - landed;
        if others > 0 {
            let text = format!("{others} patches took effect since this one was sent");
            self.checks.fail("late_patches_are_refused", Some(vm), text);
        }
    }

    /// Takes in what the monitor of a VM counts on now.
    pub(crate) fn monitor_counts(&mut self, vm: usize) {
        let now = self.now;
        let monitor = self.vms[vm]
            .machine
            .as_ref()
            .and_then(|machine| machine.monitor.as_ref());
        self.checks.truth[vm].monitor = monitor
            .and_then(|monitor| monitor.core.counts_on(now))
            .map(|bytes| bytes.0);
        self.checks.touch(vm);
    }

    /// The most a VM may use by now or soon without another decision: its object, patches on their
    /// way, and what its machine has.
    fn actual(&self, vm: usize) -> Resources {
        let using = self.checks.truth[vm].using;
        let flying = self
            .patches
            .values()
            .filter(|(of, _)| *of == vm)
            .map(|(_, target)| *target);
        let mut actual = flying.fold(using, Resources::field_max);
        if let Some(machine) = &self.vms[vm].machine {
            actual.cpu = actual.cpu.max(machine.cpu_time());
            actual.mem = actual.mem.max(Bytes(machine.memory()));
        }
        actual
    }

    /// What is granted to a VM or in use by it, whichever is more.
    pub(crate) fn granted(&self, vm: usize) -> Resources {
        let approved = self.checks.truth[vm].approved.unwrap_or_default();
        self.actual(vm).field_max(approved)
    }

    /// The part of an amount of a VM that stalled calls added.
    fn overrun(&self, vm: usize, amount: Resources) -> Resources {
        let overrun = self.checks.truth[vm].overrun;
        overrun.map_or_else(Resources::default, |overrun| overrun.part_of(amount))
    }

    /// The object may say less while an order of more is still with the runner. So an overrun lasts
    /// until the guest has reached the smaller size.
    pub(crate) fn overrun_ends(&mut self, vm: usize) {
        let granted = self.granted(vm);
        let truth = &mut self.checks.truth[vm];
        let may_grow = !truth.reached;
        truth.overrun = truth
            .overrun
            .filter(|overrun| may_grow || overrun.stands(granted));
    }

    /// What each VM of a node uses, and what the scheduler counts for its pods there, for messages.
    fn each_on(&self, node: usize) -> String {
        let Some(core) = self.leading_core() else {
            return String::new();
        };
        let using = self
            .vms_on(node)
            .into_iter()
            .map(|vm| format!("vm-{vm:04} {}", self.actual(vm)));
        let name = node_name(node);
        let pods = core
            .ledger()
            .pods()
            .filter(|pod| pod.view.node.as_deref().or(pod.bind_hold.as_deref()) == Some(&name));
        let counted = pods.map(|pod| {
            format!(
                "{} counted {}",
                pod.view.key.name,
                core.ledger().counted(&pod.view)
            )
        });
        using.chain(counted).collect::<Vec<_>>().join(", ")
    }

    fn sum_on(&self, node: usize, of: impl Fn(usize) -> Resources) -> Both<u128> {
        self.vms_on(node)
            .into_iter()
            .map(of)
            .fold(Both::default(), |sum, size| Both {
                cpu: sum.cpu + u128::from(size.cpu.0),
                mem: sum.mem + u128::from(size.mem.0),
            })
    }

    /// Invariant 1, N08: what is granted on a node, or in use there, is never more than the node
    /// has.
    pub(crate) fn never_overcommit(&mut self, node: usize) {
        self.checked();
        let granted = self.sum_on(node, |vm| self.granted(vm));
        let overrun = self.sum_on(node, |vm| self.overrun(vm, self.granted(vm)));
        let total = self.nodes[node];
        let most = Both::<u64>::from(total)
            .zip(overrun)
            .map(|_, (a, b)| u128::from(a) + b);
        if granted.cpu > most.cpu || granted.mem > most.mem {
            let text = format!(
                "{} has {total}, granted or in use {}",
                node_name(node),
                shown(granted)
            );
            self.checks.fail("never_overcommit", None, text);
        }
    }

    /// N06, and N16 after a restart: what the scheduler holds for a node covers what is in use
    /// there.
    pub(crate) fn n06_held_covers_actual(&mut self, node: usize) {
        let Some(core) = self.leading_core() else {
            return;
        };
        let held = core.ledger().load(&node_name(node)).reserved;
        let actual = self.sum_on(node, |vm| self.actual(vm));
        let overrun = self.sum_on(node, |vm| self.overrun(vm, self.actual(vm)));
        self.checked();
        if held.cpu + overrun.cpu < actual.cpu || held.mem + overrun.mem < actual.mem {
            let each = self.each_on(node);
            let text = format!(
                "{}: held {}, in use {}; {each}",
                node_name(node),
                shown(held),
                shown(actual)
            );
            self.checks.fail("n06_held_covers_actual", None, text);
        }
    }

    /// Invariant 2: monitor-approved ≤ in use ≤ permitted, by what is written and what the monitor
    /// counts on.
    pub(crate) fn order_holds(&mut self, vm: usize) {
        self.checked();
        let truth = self.checks.truth[vm];
        if let Some(approved) = truth.approved
            && truth.using.has_field_above(approved)
            && truth.stray != Some(truth.using)
        {
            let text = format!("in use {}, permitted {approved}", truth.using);
            self.checks.fail("order_use_within_permit", Some(vm), text);
        }
        let Some(monitor) = truth.monitor else { return };
        if monitor != truth.excused {
            self.checks.truth[vm].excused = 0;
            if monitor <= truth.using.mem.0 || truth.orphaned {
                return;
            }
            let text = format!(
                "the monitor counts on {}, in use {}",
                Bytes(monitor),
                truth.using
            );
            self.checks.fail("order_monitor_within_use", Some(vm), text);
        }
    }
}

fn shown(sum: Both<u128>) -> Resources {
    Resources {
        cpu: MilliCpu(u32::try_from(sum.cpu).unwrap_or(u32::MAX)),
        mem: Bytes(u64::try_from(sum.mem).unwrap_or(u64::MAX)),
    }
}
