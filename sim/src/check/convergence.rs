//! Bounded convergence: the invariants at the end of a quiescent phase.

use agent::core::goal::goal;
use agent::core::metrics::KERNEL_ALLOWANCE_BYTES;
use agent::core::{ScalingConfig, SystemMetrics};
use protocol::units::Resources;
use protocol::vm::VmPhase;

use crate::build::node_name;
use crate::policy::BATCH_VM;
use crate::store::Kind;
use crate::world::{UNIT, World};

/// What the monitor keeps of memory before it applies its threshold, and what must stay free under
/// that.
const MONITOR_BYTES: f64 = (100_u64 << 20) as f64;
/// The part of usable memory under the monitor's threshold.
const MONITOR_PART: f64 = 0.85;

/// The smallest size that a monitor approves while its guest uses so many bytes.
fn approved_units(used: f64) -> u32 {
    let fits = |units: u32| {
        let usable = f64::from(units) * 1_073_741_824.0 - MONITOR_BYTES;
        usable * MONITOR_PART >= used + MONITOR_BYTES
    };
    (1..=64).find(|units| fits(*units)).unwrap_or(64)
}

impl World {
    /// Invariant 5: with no faults and constant load, every VM has its goal or as much of it as its
    /// node allows, the scheduler holds exactly what is in use, and no part waits for anything.
    pub(crate) fn all_is_where_it_should_be(&mut self) {
        for vm in 0..self.vms.len() {
            if self.options.requests {
                self.nothing_stays_plugged_ahead(vm);
            }
            if let Err(text) = self.vm_is_settled(vm) {
                self.checks.fail("converges_within_bound", Some(vm), text);
            }
            self.checks.touch(vm);
        }
        for node in 0..self.nodes.len() {
            if let Err(text) = self.node_is_settled(node) {
                self.checks.fail("scheduler_holds_what_is_used", None, text);
            }
        }
        self.checks.touch_all_nodes();
    }

    fn vm_is_settled(&self, vm: usize) -> Result<(), String> {
        let truth = self.checks.truth[vm];
        let object = self
            .store
            .get(Kind::Vm, &self.vms[vm].name)
            .ok_or("it is gone")?
            .vm();
        let Some(status) = &object.status else {
            return Err("it has no status".into());
        };
        if status.pod_name.is_empty() || self.vms[vm].node.is_none() {
            // A pod that found no room waits; that is the node's fault.
            return if self.some_node_fits(vm) {
                Err("it is not placed".into())
            } else {
                Ok(())
            };
        }
        if status.phase != VmPhase::Running {
            let runner = self.vms[vm].machine.as_ref().map(|machine| machine.shown());
            return Err(format!(
                "phase {:?}, in use {}, runner {runner:?}",
                status.phase, truth.using
            ));
        }
        self.guest_is_settled(vm)?;
        if object.spec.target_revision.map(|r| r.revision)
            != status.current_revision.map(|r| r.revision)
        {
            return Err(format!(
                "revision {:?} not reached",
                object.spec.target_revision
            ));
        }
        self.agent_is_settled(vm)?;
        self.has_its_goal(vm)
    }

    fn guest_is_settled(&self, vm: usize) -> Result<(), String> {
        let using = self.checks.truth[vm].using;
        let Some(machine) = self.vms[vm]
            .machine
            .as_ref()
            .filter(|machine| machine.is_up)
        else {
            return Err("its guest is not up".into());
        };
        if machine.memory() != using.mem.0 {
            return Err(format!(
                "the guest has {} bytes, wanted {}",
                machine.memory(),
                using.mem
            ));
        }
        Ok(())
    }

    fn agent_is_settled(&self, vm: usize) -> Result<(), String> {
        let truth = self.checks.truth[vm];
        let Some(agent_task) = self.vms[vm].agent_task.as_ref() else {
            return Err("no agent has it".into());
        };
        if agent_task.connection.is_none() {
            return Err("its monitor is not connected".into());
        }
        if truth.monitor != Some(truth.using.mem.0) {
            return Err(format!(
                "the monitor counts on {:?} bytes, in use {}",
                truth.monitor, truth.using
            ));
        }
        if truth.approved != Some(truth.using) {
            return Err(format!(
                "permitted {:?}, in use {}",
                truth.approved, truth.using
            ));
        }
        Ok(())
    }

    fn has_its_goal(&self, vm: usize) -> Result<(), String> {
        let (low, high) = self.goal_of(vm);
        let using = self.checks.truth[vm].using;
        let free = self.vms[vm]
            .node
            .map(|node| self.free_for(vm, node))
            .unwrap_or_default();
        let cpu_fits = using.cpu >= low.cpu || free.cpu < UNIT.cpu;
        let mem_fits = using.mem >= low.mem || free.mem < UNIT.mem;
        // A monitor judges by memory alone: where its node leaves a VM short of that, it refuses a
        // shrink of CPUs too.
        let is_above = using.mem > high.mem || (using.cpu > high.cpu && using.mem == high.mem);
        if cpu_fits && mem_fits && !is_above {
            return Ok(());
        }
        Err(format!(
            "in use {using}, goal {low} to {high}, free {free}, load {:?}",
            self.vms[vm].load
        ))
    }

    /// The smallest and the largest size a VM may settle at: by its metrics, and by what its
    /// monitor lets it shrink to.
    fn goal_of(&self, vm: usize) -> (Resources, Resources) {
        let load = self.vms[vm].load;
        #[expect(clippy::cast_precision_loss, reason = "a gauge")]
        let used = (load.mib << 20) as f64;
        let cpu = f64::from(load.milli) / 1000.0;
        let page = SystemMetrics {
            load1: cpu,
            load5: cpu,
            memory_usage_bytes: used + KERNEL_ALLOWANCE_BYTES,
            ..SystemMetrics::default()
        };
        let scaling = self.vms[vm]
            .agent_task
            .as_ref()
            .map_or_else(ScalingConfig::default, |agent_task| {
                agent_task.core.vm().config.scaling
            });
        let goal = goal(&scaling, UNIT, Some(&page), None);
        let units = goal.units;
        // A margin leaves it as large as what has that much room above the goal.
        let roomy = goal.units_with(scaling.downscale_margin_units);
        let approved = approved_units(used);
        let (min, max) = self.vms[vm].bounds;
        let size = |units: u32| UNIT.saturating_mul(units.clamp(min, max));
        if self.is_batch(vm) {
            return (size(max), size(max));
        }
        (size(units), size(roomy.max(approved)))
    }

    /// What a VM may get on a node: what the scheduler holds for nobody, and what a batch VM has
    /// above the smallest size that its monitor approves. A batch VM with a margin keeps its size
    /// when others lack no more than that.
    fn free_for(&self, vm: usize, node: usize) -> Resources {
        let free = self.free_on(node);
        let batch = &self.vms[BATCH_VM];
        let core = batch.agent_task.as_ref().map(|task| &task.core);
        let has_margin =
            core.is_some_and(|core| core.vm().config.scaling.downscale_margin_units > 0.0);
        let is_beside = batch.node == Some(node) && vm != BATCH_VM;
        if !is_beside || !self.is_batch(BATCH_VM) || has_margin {
            return free;
        }
        #[expect(clippy::cast_precision_loss, reason = "a gauge")]
        let approved = approved_units((batch.load.mib << 20) as f64);
        let kept = UNIT.saturating_mul(approved.clamp(batch.bounds.0, batch.bounds.1));
        let over = self.checks.truth[BATCH_VM].using.saturating_sub(kept);
        Resources::new(free.cpu.0 + over.cpu.0, free.mem.0 + over.mem.0)
    }

    fn held_on(&self, node: usize) -> (u128, u128) {
        let core = self.leading_core();
        let held = core
            .map(|core| core.ledger().load(&node_name(node)).reserved)
            .unwrap_or_default();
        (held.cpu, held.mem)
    }

    fn free_on(&self, node: usize) -> Resources {
        let (cpu, mem) = self.held_on(node);
        let total = self.nodes[node];
        let left =
            |total: u64, held: u128| total.saturating_sub(u64::try_from(held).unwrap_or(u64::MAX));
        Resources::new(
            u32::try_from(left(total.cpu.0.into(), cpu)).unwrap_or(u32::MAX),
            left(total.mem.0, mem),
        )
    }

    fn some_node_fits(&self, vm: usize) -> bool {
        let truth = self.checks.truth[vm];
        let size = truth.using.field_max(truth.approved.unwrap_or_default());
        (0..self.nodes.len()).any(|node| !size.has_field_above(self.free_on(node)))
    }

    /// Nothing is held for nobody.
    fn node_is_settled(&self, node: usize) -> Result<(), String> {
        let (cpu, mem) = self.held_on(node);
        let used = self
            .vms_on(node)
            .into_iter()
            .map(|vm| self.checks.truth[vm].using);
        let (want_cpu, want_mem) = used.fold((0_u128, 0_u128), |(cpu, mem), size| {
            (cpu + u128::from(size.cpu.0), mem + u128::from(size.mem.0))
        });
        if (cpu, mem) == (want_cpu, want_mem) {
            return Ok(());
        }
        Err(format!(
            "{}: holds {cpu} m / {mem} bytes, in use {want_cpu} m / {want_mem} bytes",
            node_name(node)
        ))
    }
}
