//! Metrics: those of the deployed plugin under its names, and a few more. Source:
//! docs/compatibility/scheduler.md §5.2.

mod labels;
mod nodes;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use api_client::watch::{EventTypes, WatchMetrics};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

use labels::{Amounts, Counters, float, labels, of_node};
use nodes::NodeMetrics;

use crate::core::amount::Resource;
use crate::core::event::RemovalCause;
use crate::core::ledger::Anomalies;
use crate::core::pod_warnings::PodWarning;
use crate::core::view::NodeView;
use crate::core::{Core, PermitAnomalies};

/// Prefix of every metric name.
const PREFIX: &str = "autoscaling_plugin";
const WATCH_EVENTS: EventTypes = EventTypes {
    listed: "Listed",
    applied: "Applied",
    deleted: "Deleted",
};

/// Handles of all metrics. Clones share their values.
#[derive(Clone)]
pub(super) struct Metrics {
    nodes: NodeMetrics,
    requests: Counters,
    results: Counters,
    k8s_ops: Counters,
    pub(super) watches: WatchMetrics,
    decisions: Counters,
    denials: Counters,
    anomalies: Amounts,
    unreadable: Counters,
    callers_refused: Counters,
    reserve_should_deny: Counters,
    leads: Gauge,
    warned_pods: Amounts,
    migrations_begun: Counters,
    migrations_removed: Counters,
    extension_calls: Counters,
    extension_fails: Counters,
    pub(super) answer_seconds: Histogram,
    known: Arc<Mutex<Known>>,
}

/// Series that every permit request updates, kept so that their labels are not allocated again.
#[derive(Default)]
struct Known {
    requests: BTreeMap<u16, Counter>,
    /// By node, then by status.
    results: BTreeMap<String, BTreeMap<u16, Counter>>,
    decisions: BTreeMap<(Resource, &'static str), Counter>,
    succeeded: BTreeMap<(&'static str, &'static str), Counter>,
}

impl Metrics {
    /// Registers all metrics in a new registry.
    pub(super) fn new() -> (Self, Registry) {
        let mut registry = Registry::with_prefix(PREFIX);
        let metrics = Self {
            nodes: NodeMetrics::default(),
            requests: Family::default(),
            results: Family::default(),
            k8s_ops: Family::default(),
            watches: WatchMetrics::new(WATCH_EVENTS, &mut registry),
            decisions: Family::default(),
            denials: Family::default(),
            anomalies: Family::default(),
            unreadable: Family::default(),
            callers_refused: Family::default(),
            reserve_should_deny: Family::default(),
            leads: Gauge::default(),
            warned_pods: Family::default(),
            migrations_begun: Family::default(),
            migrations_removed: Family::default(),
            extension_calls: Family::default(),
            extension_fails: Family::default(),
            answer_seconds: Histogram::new(exponential_buckets(0.000_01, 4.0, 10)),
            known: Arc::default(),
        };
        metrics.register(&mut registry);
        (metrics, registry)
    }

    fn register(&self, registry: &mut Registry) {
        let cpu = "CPU of a node in cores, by field";
        registry.register("node_cpu_resources_current", cpu, self.nodes.cpu.clone());
        let mem = "Memory of a node in bytes, by field";
        registry.register("node_mem_resources_current", mem, self.nodes.mem.clone());
        self.register_counters(registry);
        let odd = "What should be rare, since start, by kind";
        registry.register("oddities_current", odd, self.anomalies.clone());
        let warned_pods = "Pods that people should know about, by what is to be said";
        registry.register(
            "remarked_pods_current",
            warned_pods,
            self.warned_pods.clone(),
        );
        let pressure = "Pressure on a node, cores and bytes, by resource and kind (logical, capacity, accounted)";
        registry.register(
            "node_pressure_current",
            pressure,
            self.nodes.pressure.clone(),
        );
        let leads = "Whether this replica leads; alone it always does";
        registry.register("leads_current", leads, self.leads.clone());
        let took = "From a permit request's arrival to its answer";
        registry.register("answer_duration_seconds", took, self.answer_seconds.clone());
    }

    fn register_counters(&self, registry: &mut Registry) {
        let counters = [
            (
                "resource_requests",
                "Permit requests by HTTP status",
                &self.requests,
            ),
            (
                "resource_requests_results",
                "Decoded permit requests by HTTP status and node",
                &self.results,
            ),
            (
                "k8s_ops",
                "Calls to the API that change something",
                &self.k8s_ops,
            ),
            (
                "permit_decisions",
                "Increases decided, by resource and outcome",
                &self.decisions,
            ),
            (
                "permit_limits",
                "What kept increases from being granted whole",
                &self.denials,
            ),
            (
                "extension_calls",
                "Questions of kube-scheduler, by method",
                &self.extension_calls,
            ),
            (
                "extension_call_fails",
                "Those that failed, by method and status",
                &self.extension_fails,
            ),
            (
                "unreadable_objects",
                "Objects read with a problem, by kind",
                &self.unreadable,
            ),
            (
                "callers_refused",
                "Requests and handshakes refused for who made them, by reason",
                &self.callers_refused,
            ),
            (
                "reserve_should_deny",
                "Bindings made although the node had no room, as strictBind: false wants it",
                &self.reserve_should_deny,
            ),
            (
                "migrations_begun",
                "VMs sent away, by the node they leave",
                &self.migrations_begun,
            ),
            (
                "migrations_removed",
                "Migrations of ours deleted, by cause",
                &self.migrations_removed,
            ),
        ];
        for (name, help, counter) in counters {
            registry.register(name, help, counter.clone());
        }
    }

    /// Counts an HTTP response. `node`: the node of a decoded request, or `<none>`.
    pub(super) fn answered(&self, status: u16, node: Option<&str>) {
        let code = || status.to_string();
        let mut known = self.known();
        let requests = known.requests.entry(status).or_insert_with(|| {
            let key = labels(&[("code", &code())]);
            self.requests.get_or_create(&key).clone()
        });
        requests.inc();
        let Some(node) = node else { return };
        if let Some(results) = known.results.get(node).and_then(|by| by.get(&status)) {
            results.inc();
            return;
        }
        let key = labels(&[("code", &code()), ("node", node)]);
        let results = self.results.get_or_create(&key).clone();
        results.inc();
        let of_node = known.results.entry(node.to_owned()).or_default();
        of_node.insert(status, results);
    }

    pub(super) fn decided(
        &self,
        resource: Resource,
        outcome: &'static str,
        limit: Option<&'static str>,
    ) {
        let mut known = self.known();
        let decisions = known
            .decisions
            .entry((resource, outcome))
            .or_insert_with(|| {
                let key = labels(&[("resource", resource.as_str()), ("outcome", outcome)]);
                self.decisions.get_or_create(&key).clone()
            });
        decisions.inc();
        drop(known);
        if let Some(limit) = limit {
            self.denials
                .get_or_create(&labels(&[
                    ("resource", resource.as_str()),
                    ("limit", limit),
                ]))
                .inc();
        }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        // Each update adds one counter, so a panic elsewhere leaves the maps consistent.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the number of pods with a warning.
    pub(super) fn warned_pods(&self, warning: PodWarning, count: usize) {
        let key = labels(&[("remark", warning.as_str())]);
        let count = u128::try_from(count).unwrap_or(u128::MAX);
        self.warned_pods.get_or_create(&key).set(float(count));
    }

    pub(super) fn migration_begun(&self, node: &str) {
        let key = labels(&[("node", node)]);
        self.migrations_begun.get_or_create(&key).inc();
    }

    pub(super) fn migration_removed(&self, cause: RemovalCause) {
        let key = labels(&[("cause", cause.as_str())]);
        self.migrations_removed.get_or_create(&key).inc();
    }

    pub(super) fn leads(&self, leads: bool) {
        self.leads.set(i64::from(leads));
    }

    pub(super) fn k8s_op_failed(&self, (op, kind): (&'static str, &'static str), outcome: &str) {
        let key = labels(&[("op", op), ("kind", kind), ("outcome", outcome)]);
        self.k8s_ops.get_or_create(&key).inc();
    }

    pub(super) fn k8s_op_done(&self, (op, kind): (&'static str, &'static str)) {
        let mut known = self.known();
        let succeeded = known.succeeded.entry((op, kind)).or_insert_with(|| {
            let key = labels(&[("op", op), ("kind", kind), ("outcome", "success")]);
            self.k8s_ops.get_or_create(&key).clone()
        });
        succeeded.inc();
    }

    /// Counts a request of kube-scheduler: its method, the zone that the pod wants, and whether the
    /// pod's namespace is ignored. `failure`: the status of a failed request.
    pub(super) fn extension_called(&self, call: (&str, &str, bool), failure: Option<&str>) {
        let (method, zone, is_ignored) = call;
        let is_ignored = if is_ignored { "true" } else { "false" };
        let mut key = labels(&[
            ("method", method),
            ("desired_availability_zone", zone),
            ("ignored_namespace", is_ignored),
        ]);
        self.extension_calls.get_or_create(&key).inc();
        if let Some(failure) = failure {
            key.extend(labels(&[("status", failure)]));
            self.extension_fails.get_or_create(&key).inc();
        }
    }

    pub(super) fn unreadable(&self, kind: &str) {
        self.unreadable
            .get_or_create(&labels(&[("kind", kind)]))
            .inc();
    }

    /// Counts a binding to a node without headroom for the pod.
    pub(super) fn reserve_should_deny(
        &self,
        node: &NodeView,
        extra: &BTreeMap<String, String>,
        is_ignored: bool,
    ) {
        let mut key = of_node(&node.name, &node.labels, extra);
        let is_ignored = if is_ignored { "true" } else { "false" };
        key.extend(labels(&[("ignored_namespace", is_ignored)]));
        self.reserve_should_deny.get_or_create(&key).inc();
    }

    /// Counts a request or a handshake of a caller that is not authorised.
    pub(super) fn caller_refused(&self, reason: &str) {
        let key = labels(&[("reason", reason)]);
        self.callers_refused.get_or_create(&key).inc();
    }

    pub(super) fn anomalies(&self, permits: PermitAnomalies, ledger: Anomalies) {
        let values = [
            ("overclaims", permits.overclaims),
            ("late_outcomes", permits.late_outcomes),
            ("unclear_writes", permits.unclear_writes),
            ("conflicts", permits.conflicts),
            ("approved_above_max", ledger.approved_above_max),
        ];
        for (kind, value) in values {
            let gauge = self
                .anomalies
                .get_or_create(&labels(&[("kind", kind)]))
                .clone();
            gauge.set(float(u128::from(value)));
        }
    }

    /// Updates the gauges of a node. Removes them if the node is gone or its labels changed.
    pub(super) fn node(&self, core: &Core, name: &str, extra: &BTreeMap<String, String>) {
        self.nodes.update(core, name, extra);
    }
}
