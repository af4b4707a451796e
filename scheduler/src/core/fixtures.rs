//! What tests of several parts begin with.

use serde_json::json;

use super::event::Event;
use super::view::{NodeView, PodView};
use super::{Core, Settings};
use protocol::core::Core as _;
use protocol::time::Timestamp;

/// Milliseconds since a test began.
pub(super) const MS: fn(u64) -> Timestamp = |ms| Timestamp(10_000_000 + ms * 1000);

/// A core with these nodes, of so many CPUs and 40 GiB each, and nothing on them.
pub(super) fn core(settings: Settings, nodes: &[(&str, u64)]) -> Core {
    let mut core = Core::new(settings);
    let nodes = nodes.iter().map(|(name, cpu)| node(name, *cpu));
    core.handle(MS(0), Event::NodesListed(nodes.collect()));
    core.handle(MS(0), Event::PodsListed(vec![]));
    core.handle(MS(0), Event::VmsListed(vec![]));
    core
}

/// A node of so many CPUs and 40 GiB.
pub(super) fn node(name: &str, cpu: u64) -> NodeView {
    NodeView::read(&json!({"metadata": {"name": name, "uid": name},
        "status": {"allocatable": {"cpu": cpu, "memory": "40Gi"}}}))
    .expect("reads")
}

/// A pod `d/NAME` that is no VM's and asks for so many CPUs and 1 GiB.
pub(super) fn pod(name: &str, cpu: u64, node: &str) -> PodView {
    important("d", name, cpu, node, 0)
}

/// The same in any namespace, with a priority.
pub(super) fn important(
    namespace: &str,
    name: &str,
    cpu: u64,
    node: &str,
    priority: i32,
) -> PodView {
    PodView::read(
        &json!({"metadata": {"name": name, "namespace": namespace, "uid": format!("uid-{name}"),
            "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"schedulerName": "autoscale-scheduler", "nodeName": node, "priority": priority,
            "containers": [{"resources": {"requests": {"cpu": cpu, "memory": "1Gi"}}}]}}),
    )
    .expect("reads")
}
