//! Metrics of the overlay on this node.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// Labels of the counter of steps.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct StepLabel {
    pub(super) step: &'static str,
}

/// Counters and gauges of this node's overlay, served on the admin port.
#[derive(Debug, Clone)]
pub struct Metrics {
    pub(super) steps: Family<StepLabel, Counter>,
    pub(super) failures: Counter,
    pub(super) watch_failures: Counter,
    pub(super) nodes: Gauge,
    pub(super) targets: Gauge,
}

impl Metrics {
    /// Registers all metrics at zero.
    #[must_use]
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            steps: Family::default(),
            failures: Counter::default(),
            watch_failures: Counter::default(),
            nodes: Gauge::default(),
            targets: Gauge::default(),
        };
        registry.register("vxlan_steps", "Steps done, by kind", metrics.steps.clone());
        let failures = "Looks at the kernel, or steps, that failed";
        registry.register("vxlan_failures", failures, metrics.failures.clone());
        let watch = "Breaks of the watch of nodes";
        registry.register(
            "vxlan_watch_failures",
            watch,
            metrics.watch_failures.clone(),
        );
        registry.register("vxlan_nodes", "Nodes known", metrics.nodes.clone());
        let targets = "Nodes that frames for everybody are sent to";
        registry.register("vxlan_targets", targets, metrics.targets.clone());
        metrics
    }
}
