//! Metrics under the names of the deployed plugin, and a few of ours beside them. Source: spec/scheduler.md §5.2.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

use crate::core::amount::{Both, Resource};
use crate::core::remarks::Remark;
use crate::core::{Core, Oddities};

/// Prefix of every name.
const PREFIX: &str = "autoscaling_plugin";

/// A set of labels; label sets are small and their values come from closed sets or node names.
pub(super) type Labels = Vec<(String, String)>;
type Counters = Family<Labels, Counter>;
type Amounts = Family<Labels, Gauge<f64, AtomicU64>>;

/// Handles of all metrics. Cheap to clone; clones count together.
#[derive(Clone)]
pub(super) struct Metrics {
    node_cpu: Amounts,
    node_mem: Amounts,
    requests: Counters,
    results: Counters,
    k8s_ops: Counters,
    watch_events: Counters,
    watch_errors: Counters,
    watch_calls: Counters,
    relists: Counters,
    watch_alive: Amounts,
    watch_failing: Amounts,
    decisions: Counters,
    denials: Counters,
    oddities: Amounts,
    unreadable: Counters,
    connections_refused: Counter,
    leads: Gauge,
    remarked: Amounts,
    pub(super) answer_seconds: Histogram,
    nodes_shown: std::sync::Arc<std::sync::Mutex<BTreeMap<String, Vec<Labels>>>>,
}

pub(super) fn labels(pairs: &[(&str, &str)]) -> Labels {
    pairs
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect()
}

impl Metrics {
    /// Registers everything in a new registry.
    pub(super) fn new() -> (Self, Registry) {
        let metrics = Self {
            node_cpu: Family::default(),
            node_mem: Family::default(),
            requests: Family::default(),
            results: Family::default(),
            k8s_ops: Family::default(),
            watch_events: Family::default(),
            watch_errors: Family::default(),
            watch_calls: Family::default(),
            relists: Family::default(),
            watch_alive: Family::default(),
            watch_failing: Family::default(),
            decisions: Family::default(),
            denials: Family::default(),
            oddities: Family::default(),
            unreadable: Family::default(),
            connections_refused: Counter::default(),
            leads: Gauge::default(),
            remarked: Family::default(),
            answer_seconds: Histogram::new(exponential_buckets(0.000_01, 4.0, 10)),
            nodes_shown: std::sync::Arc::default(),
        };
        let mut registry = Registry::with_prefix(PREFIX);
        metrics.register(&mut registry);
        (metrics, registry)
    }

    fn register(&self, registry: &mut Registry) {
        let cpu = "CPU of a node in cores, by field";
        registry.register("node_cpu_resources_current", cpu, self.node_cpu.clone());
        let mem = "Memory of a node in bytes, by field";
        registry.register("node_mem_resources_current", mem, self.node_mem.clone());
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
            ("watchers_events", "Events of watches", &self.watch_events),
            ("watchers_errors", "Errors of watches", &self.watch_errors),
            (
                "watchers_client_calls",
                "Calls made by watches",
                &self.watch_calls,
            ),
            (
                "watchers_relist_requests",
                "Lists taken anew after the first",
                &self.relists,
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
                "unreadable_objects",
                "Objects read with a problem, by kind",
                &self.unreadable,
            ),
        ];
        for (name, help, counter) in counters {
            registry.register(name, help, counter.clone());
        }
        let alive = "Watches that run";
        registry.register("watchers_alive_current", alive, self.watch_alive.clone());
        let failing = "Watches that fail now";
        registry.register(
            "watchers_failing_current",
            failing,
            self.watch_failing.clone(),
        );
        let odd = "What should be rare, since start, by kind";
        registry.register("oddities_current", odd, self.oddities.clone());
        let refused = "Connections to the permit server closed because too many were open";
        registry.register(
            "connections_refused",
            refused,
            self.connections_refused.clone(),
        );
        let remarked = "Pods that people should know about, by what is to be said";
        registry.register("remarked_pods_current", remarked, self.remarked.clone());
        let leads = "Whether this replica leads; alone it always does";
        registry.register("leads_current", leads, self.leads.clone());
        let took = "From a permit request's arrival to its answer";
        registry.register("answer_duration_seconds", took, self.answer_seconds.clone());
    }

    /// An HTTP request was answered; `node` is given for decoded ones.
    pub(super) fn answered(&self, status: u16, node: Option<&str>) {
        let code = status.to_string();
        self.requests
            .get_or_create(&labels(&[("code", &code)]))
            .inc();
        if let Some(node) = node {
            self.results
                .get_or_create(&labels(&[("code", &code), ("node", node)]))
                .inc();
        }
    }

    pub(super) fn decided(&self, resource: Resource, outcome: &str, limit: Option<&str>) {
        let resource = resource.as_str();
        let key = labels(&[("resource", resource), ("outcome", outcome)]);
        self.decisions.get_or_create(&key).inc();
        if let Some(limit) = limit {
            self.denials
                .get_or_create(&labels(&[("resource", resource), ("limit", limit)]))
                .inc();
        }
    }

    /// How many pods there are of which this is to be said.
    pub(super) fn remarked(&self, remark: Remark, count: usize) {
        let key = labels(&[("remark", remark.as_str())]);
        let count = u128::try_from(count).unwrap_or(u128::MAX);
        self.remarked.get_or_create(&key).set(float(count));
    }

    /// Whether this replica leads.
    pub(super) fn leads(&self, leads: bool) {
        self.leads.set(i64::from(leads));
    }

    pub(super) fn k8s_op(&self, op: &str, kind: &str, outcome: &str) {
        let key = labels(&[("op", op), ("kind", kind), ("outcome", outcome)]);
        self.k8s_ops.get_or_create(&key).inc();
    }

    pub(super) fn watch_alive(&self, instance: &str, alive: bool) {
        let value = if alive { 1.0 } else { 0.0 };
        self.watch_alive
            .get_or_create(&labels(&[("watcher_instance", instance)]))
            .set(value);
    }

    pub(super) fn watch_failing(&self, instance: &str, failing: bool) {
        let value = if failing { 1.0 } else { 0.0 };
        self.watch_failing
            .get_or_create(&labels(&[("watcher_instance", instance)]))
            .set(value);
    }

    pub(super) fn watch_listed(&self, instance: &str, again: bool) {
        let key = labels(&[("watcher_instance", instance), ("method", "List")]);
        self.watch_calls.get_or_create(&key).inc();
        if again {
            self.relists
                .get_or_create(&labels(&[("watcher_instance", instance)]))
                .inc();
        }
    }

    pub(super) fn watch_event(&self, instance: &str, kind: &str) {
        let key = labels(&[("watcher_instance", instance), ("type", kind)]);
        self.watch_events.get_or_create(&key).inc();
    }

    pub(super) fn watch_error(&self, instance: &str, source: &str) {
        let key = labels(&[("watcher_instance", instance), ("source", source)]);
        self.watch_errors.get_or_create(&key).inc();
    }

    pub(super) fn unreadable(&self, kind: &str) {
        self.unreadable
            .get_or_create(&labels(&[("kind", kind)]))
            .inc();
    }

    pub(super) fn connection_refused(&self) {
        self.connections_refused.inc();
    }

    pub(super) fn oddities(&self, oddities: Oddities) {
        let values = [
            ("overclaims", oddities.overclaims),
            ("late_outcomes", oddities.late_outcomes),
            ("unclear_writes", oddities.unclear_writes),
            ("conflicts", oddities.conflicts),
        ];
        for (kind, value) in values {
            let gauge = self
                .oddities
                .get_or_create(&labels(&[("kind", kind)]))
                .clone();
            gauge.set(float(u128::from(value)));
        }
    }

    /// Shows the figures of a node anew, or removes them when it is gone or its labels changed.
    pub(super) fn node(&self, core: &Core, name: &str, extra: &BTreeMap<String, String>) {
        let ledger = core.ledger();
        let mut shown = self
            .nodes_shown
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        let Some(node) = ledger.node(name) else {
            self.forget(shown.remove(name).unwrap_or_default());
            return;
        };
        let mut base = labels(&[("node", name)]);
        for (metric_label, node_label) in extra {
            let value = node.labels.get(node_label).cloned().unwrap_or_default();
            base.push((metric_label.clone(), value));
        }
        let load = ledger.load(name);
        let wide = |amount: Both<u64>| amount.map(|_, amount| u128::from(amount));
        let fields = [
            ("Total", wide(node.total)),
            ("Reserved", load.reserved),
            ("Committed", load.committed),
            ("Migrating", load.migrating),
            ("Watermark", wide(ledger.watermark(node))),
        ];
        let mut fresh = Vec::with_capacity(fields.len());
        for (field, amount) in fields {
            let mut key = base.clone();
            key.push(("field".into(), field.into()));
            self.node_cpu
                .get_or_create(&key)
                .set(float(amount.cpu) / 1000.0);
            self.node_mem.get_or_create(&key).set(float(amount.mem));
            fresh.push(key);
        }
        let old = shown
            .insert(name.to_owned(), fresh.clone())
            .unwrap_or_default();
        self.forget(old.into_iter().filter(|key| !fresh.contains(key)).collect());
    }

    fn forget(&self, keys: Vec<Labels>) {
        for key in keys {
            self.node_cpu.remove(&key);
            self.node_mem.remove(&key);
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "a gauge: 53 bits are enough")]
fn float(amount: u128) -> f64 {
    amount as f64
}
