//! Prometheus metrics of single VMs, on a server of their own because of their number. Source:
//! docs/compatibility/agent.md §4.8.

use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

type FloatGauge = Gauge<f64, AtomicU64>;

/// Labels of every per-VM metric.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct VmLabels {
    pub vm_namespace: String,
    pub vm_name: String,
    pub endpoint_id: String,
    pub project_id: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct VmValue {
    #[prometheus(flatten)]
    vm: VmLabels,
    value: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct VmComponent {
    #[prometheus(flatten)]
    vm: VmLabels,
    component: &'static str,
}

/// Figures of a VM object.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct VmFigures {
    pub labels: VmLabels,
    /// Name of the value, cores, bytes; `None` removes the figure.
    pub sizes: Vec<(&'static str, Option<f64>, Option<f64>)>,
    pub restarts: f64,
    pub has_extra_ip: bool,
}

/// Names of the sizes.
pub(super) const SIZE_VALUES: [&str; 6] = [
    "spec_min",
    "spec_max",
    "spec_use",
    "status_use",
    "autoscaling_min",
    "autoscaling_max",
];
const COMPONENTS: [&str; 4] = ["total", "cpu", "mem", "lfc"];

/// Metrics of single VMs (port 9101).
#[derive(Debug, Clone, Default)]
pub(super) struct VmMetrics {
    cpu: Family<VmValue, FloatGauge>,
    mem: Family<VmValue, FloatGauge>,
    restarts: Family<VmLabels, FloatGauge>,
    extra_ip: Family<VmLabels, FloatGauge>,
    desired: Family<VmComponent, FloatGauge>,
}

impl VmMetrics {
    pub(super) fn new(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        let r = registry;
        r.register(
            "autoscaling_vm_cpu_cores",
            "Cores of a VM",
            metrics.cpu.clone(),
        );
        r.register(
            "autoscaling_vm_memory_bytes",
            "Memory of a VM",
            metrics.mem.clone(),
        );
        r.register(
            "autoscaling_vm_restart_count",
            "Restarts of a VM",
            metrics.restarts.clone(),
        );
        r.register(
            "autoscaling_vm_extra_ip",
            "Whether a VM has an extra address",
            metrics.extra_ip.clone(),
        );
        r.register(
            "autoscaling_vm_desired_cu",
            "Desired compute units by component",
            metrics.desired.clone(),
        );
        metrics
    }

    /// Sets the figures of a VM. `old` are those set before.
    pub(super) fn set(&self, old: Option<&VmFigures>, new: &VmFigures) {
        if let Some(old) = old
            && old.labels != new.labels
        {
            self.remove(old);
        }
        let set = |family: &Family<VmValue, FloatGauge>, name, value: Option<f64>| {
            let labels = VmValue {
                vm: new.labels.clone(),
                value: name,
            };
            match value {
                Some(value) => {
                    family.get_or_create(&labels).set(value);
                }
                None => {
                    family.remove(&labels);
                }
            }
        };
        for (name, cores, bytes) in &new.sizes {
            set(&self.cpu, name, *cores);
            set(&self.mem, name, *bytes);
        }
        self.restarts.get_or_create(&new.labels).set(new.restarts);
        self.extra_ip
            .get_or_create(&new.labels)
            .set(if new.has_extra_ip { 1.0 } else { 0.0 });
    }

    /// Removes all figures of a VM.
    pub(super) fn remove(&self, old: &VmFigures) {
        for value in SIZE_VALUES {
            let labels = VmValue {
                vm: old.labels.clone(),
                value,
            };
            self.cpu.remove(&labels);
            self.mem.remove(&labels);
        }
        self.restarts.remove(&old.labels);
        self.extra_ip.remove(&old.labels);
        self.forget_desired(&old.labels);
    }

    /// Sets the desired size, in compute units times the multiplier; `None` removes the component.
    pub(super) fn set_desired(&self, vm: &VmLabels, values: [Option<f64>; 4]) {
        for (component, value) in COMPONENTS.into_iter().zip(values) {
            let labels = VmComponent {
                vm: vm.clone(),
                component,
            };
            match value {
                Some(value) => {
                    self.desired.get_or_create(&labels).set(value);
                }
                None => {
                    self.desired.remove(&labels);
                }
            }
        }
    }

    /// Removes the desired size of a VM.
    pub(super) fn forget_desired(&self, vm: &VmLabels) {
        self.set_desired(vm, [None; 4]);
    }
}
