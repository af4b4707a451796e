//! Makes a world: nodes that are a little too small for all that their VMs want, and the VM
//! objects.

use std::collections::BTreeMap;

use protocol::annotations::ANNOTATION_CONFIG;
use protocol::time::Span;
use protocol::units::{Bytes, MilliCpu, Resources};
use serde_json::{Value, json};

use crate::event::Event;
use crate::journal::Part;
use crate::rng::{MILLION, Rng, Stream};
use crate::store::{Kind, NAMESPACE};
use crate::world::{GuestFaults, Load, Vm, World};

/// The scheduler's name.
pub(crate) const SCHEDULER: &str = "autoscale-scheduler";
/// Largest VM, in units.
const LARGEST: u64 = 12;
/// Longest hold or cooldown, seconds: short of the time to converge in.
const LONGEST_CALM_S: u64 = 20;

/// The name of a node.
#[must_use]
pub(crate) fn node_name(node: usize) -> String {
    format!("node-{node:03}")
}

impl World {
    /// Everything there is before the first step.
    pub(crate) fn build(&mut self, rng: &mut Rng) {
        let (vms, nodes) = (self.options.vms, self.options.node_count());
        let mut bounds = Vec::new();
        for _ in 0..vms {
            let min = rng.between(1, 3);
            let max = rng.between(min + 1, LARGEST);
            bounds.push((
                u32::try_from(min).unwrap_or(1),
                u32::try_from(max).unwrap_or(1),
            ));
        }
        self.build_nodes(rng, &bounds, nodes);
        let mut settings = Settings::of(self.options.seed);
        for (vm, bounds) in bounds.iter().enumerate() {
            self.build_vm(rng, vm, *bounds, settings.next());
        }
        self.checks.resize(vms, nodes);
        while self.store.next_change().is_some() {}
        self.agents = vec![false; nodes];
        self.build_schedulers();
        let replicas = (0..self.schedulers.len()).map(Part::Scheduler);
        let parts = replicas.chain([Part::Controller]);
        for part in (0..nodes).map(Part::Agent).chain(parts) {
            let delay = rng.span(Span(0), Span::from_millis(500));
            self.after(delay, Event::Start(part));
        }
        self.first_fault_phase(rng);
    }

    fn build_vm(&mut self, rng: &mut Rng, vm: usize, bounds: (u32, u32), settings: Option<String>) {
        let first = bounds.0 + u32::try_from(rng.below(2)).unwrap_or(0);
        let mut object = vm_object(vm, bounds, first);
        if let Some(text) = settings {
            object["metadata"]["annotations"] = json!({ ANNOTATION_CONFIG: text });
        }
        self.store
            .create(Kind::Vm, object, self.wall())
            .expect("names differ");
        self.vms.push(Vm {
            name: vm_name(vm),
            load: Load {
                milli: 100,
                mib: 200,
            },
            guest_faults: GuestFaults::default(),
            agent_task: None,
            task: None,
            machine: None,
            connections: BTreeMap::new(),
            node: None,
            bound: String::new(),
            bounds,
        });
        let first_load = rng.millis(1_000, 20_000);
        self.after(first_load, Event::Load(vm));
    }

    /// Each node has room for the smallest size of all its share of VMs and for a part of what they
    /// may want beyond it; some have an odd rest that is no whole unit.
    fn build_nodes(&mut self, rng: &mut Rng, bounds: &[(u32, u32)], nodes: usize) {
        let sum = |of: fn(&(u32, u32)) -> u32| bounds.iter().map(of).map(u64::from).sum::<u64>();
        let share = |units: u64| units.div_ceil(nodes as u64);
        let (least, most) = (share(sum(|b| b.0 + 1)), share(sum(|b| b.1)));
        for node in 0..nodes {
            let units = least + 2 * LARGEST.min(6) + rng.below(most.saturating_sub(least).max(1));
            let odd = rng.chance(MILLION / 3);
            let cpu = 250 * u32::try_from(units).unwrap_or(u32::MAX) + if odd { 130 } else { 0 };
            let mem = (units << 30) + if odd { 300 << 20 } else { 0 };
            let total = Resources {
                cpu: MilliCpu(cpu),
                mem: Bytes(mem),
            };
            self.nodes.push(total);
            let object = json!({
                "apiVersion": "v1", "kind": "Node",
                "metadata": {"name": node_name(node)},
                "status": {"allocatable": {"cpu": total.cpu, "memory": total.mem.0.to_string()}},
            });
            self.store
                .create(Kind::Node, object, self.wall())
                .expect("names differ");
        }
    }
}

/// How the VMs of a seed are to be scaled: by default, one unit at a time, or each with a calm of
/// its own.
struct Settings {
    rng: Rng,
    kind: u64,
}

impl Settings {
    fn of(seed: u64) -> Self {
        let mut rng = Rng::new(seed, Stream::Settings);
        let kind = rng.below(4);
        Self { rng, kind }
    }

    /// The annotation of the next VM.
    fn next(&mut self) -> Option<String> {
        let rng = &mut self.rng;
        let mut seconds = || {
            if rng.chance(MILLION / 2) {
                rng.below(LONGEST_CALM_S)
            } else {
                0
            }
        };
        match self.kind {
            0 => Some(json!({"shrinkStep": "unit"}).to_string()),
            1 => {
                let settings = json!({
                    "downscaleHoldSeconds": seconds(),
                    "downscaleCooldownSeconds": seconds(),
                    "upscaleCooldownSeconds": seconds(),
                    "downscaleMarginUnits": rng.below(5) as f64 / 4.0,
                    "shrinkStep": if rng.chance(MILLION / 2) { "unit" } else { "whole" },
                });
                Some(settings.to_string())
            }
            _ => None,
        }
    }
}

/// The name of a VM.
#[must_use]
pub(crate) fn vm_name(vm: usize) -> String {
    format!("vm-{vm:04}")
}

fn vm_object(vm: usize, (min, max): (u32, u32), first: u32) -> Value {
    json!({
        "apiVersion": protocol::vm::API_VERSION,
        "kind": "VirtualMachine",
        "metadata": {
            "name": vm_name(vm),
            "namespace": NAMESPACE,
            "labels": {protocol::annotations::LABEL_ENABLED: "true"},
        },
        "spec": {
            "schedulerName": SCHEDULER,
            "restartPolicy": "Always",
            "enableSSH": false,
            "guest": {
                "cpus": {
                    "min": MilliCpu(250 * min),
                    "max": MilliCpu(250 * max),
                    "use": MilliCpu(250 * first),
                },
                "memorySlotSize": "1Gi",
                "memorySlots": {"min": min, "max": max, "use": first},
                "rootDisk": {"image": "vm-postgres:16"},
            },
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The seeds of every test run: among them are all kinds of settings.
    #[test]
    fn the_seeds_of_a_test_run_scale_in_every_way() {
        let kinds: std::collections::BTreeSet<&str> = (1..=8)
            .map(|seed| match Settings::of(seed).next() {
                Some(text) if text.contains("downscaleHoldSeconds") => "calm",
                Some(_) => "unit",
                None => "default",
            })
            .collect();
        assert_eq!(kinds.len(), 3, "{kinds:?}");
    }
}
