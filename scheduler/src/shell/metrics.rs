//! Metrics: those of the deployed plugin under its names, and a few more. Source:
//! docs/compatibility/scheduler.md §5.2.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

use crate::core::amount::{Both, Resource};
use crate::core::event::RemovalCause;
use crate::core::ledger::Anomalies;
use crate::core::pod_warnings::PodWarning;
use crate::core::pressure::Pressure;
use crate::core::view::NodeView;
use crate::core::{Core, PermitAnomalies};

/// Prefix of every metric name.
const PREFIX: &str = "autoscaling_plugin";

/// Values of the label `field` of the metrics of a node.
const AMOUNT_FIELDS: [&str; 5] = ["Total", "Reserved", "Committed", "Migrating", "Watermark"];

/// The labels of a series. Their values come from closed sets, node names and zones.
pub(super) type Labels = Vec<(String, String)>;
type Counters = Family<Labels, Counter>;
type Amount = Gauge<f64, AtomicU64>;
type Amounts = Family<Labels, Amount>;

/// Handles of all metrics. Clones share their values.
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
    anomalies: Amounts,
    unreadable: Counters,
    callers_refused: Counters,
    reserve_should_deny: Counters,
    leads: Gauge,
    warned_pods: Amounts,
    node_pressure: Amounts,
    migrations_begun: Counters,
    migrations_removed: Counters,
    extension_calls: Counters,
    extension_fails: Counters,
    pub(super) answer_seconds: Histogram,
    node_series_by_name: Arc<Mutex<BTreeMap<String, NodeSeries>>>,
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

/// The series of a node.
#[derive(Default)]
struct NodeSeries {
    base: Labels,
    amounts: Vec<(Labels, Both<Amount>)>,
    pressure: Option<Pressure>,
    pressures: Vec<Labels>,
}

/// The name of a node and the labels that the configuration adds.
fn of_node(
    name: &str,
    node_labels: &BTreeMap<String, String>,
    extra: &BTreeMap<String, String>,
) -> Labels {
    let mut base = labels(&[("node", name)]);
    for (metric_label, node_label) in extra {
        let value = node_labels.get(node_label).cloned().unwrap_or_default();
        base.push((metric_label.clone(), value));
    }
    base
}

pub(super) fn labels(pairs: &[(&str, &str)]) -> Labels {
    pairs
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect()
}

impl Metrics {
    /// Registers all metrics in a new registry.
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
            anomalies: Family::default(),
            unreadable: Family::default(),
            callers_refused: Family::default(),
            reserve_should_deny: Family::default(),
            leads: Gauge::default(),
            warned_pods: Family::default(),
            node_pressure: Family::default(),
            migrations_begun: Family::default(),
            migrations_removed: Family::default(),
            extension_calls: Family::default(),
            extension_fails: Family::default(),
            answer_seconds: Histogram::new(exponential_buckets(0.000_01, 4.0, 10)),
            node_series_by_name: Arc::default(),
            known: Arc::default(),
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
        let alive = "Watches that run";
        registry.register("watchers_alive_current", alive, self.watch_alive.clone());
        let failing = "Watches that fail now";
        registry.register(
            "watchers_failing_current",
            failing,
            self.watch_failing.clone(),
        );
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
            self.node_pressure.clone(),
        );
        let leads = "Whether this replica leads; alone it always does";
        registry.register("leads_current", leads, self.leads.clone());
        let took = "From a permit request's arrival to its answer";
        registry.register("answer_duration_seconds", took, self.answer_seconds.clone());
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

    fn node_series_by_name(&self) -> MutexGuard<'_, BTreeMap<String, NodeSeries>> {
        let shown = self.node_series_by_name.lock();
        shown.unwrap_or_else(PoisonError::into_inner)
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
        let ledger = core.ledger();
        let mut all = self.node_series_by_name();
        let Some(node) = ledger.node(name) else {
            let gone = all.remove(name).unwrap_or_default();
            self.forget(gone);
            return;
        };
        let is_labelled = |shown: &NodeSeries| {
            let of_node = |(_, label): (_, &String)| node.labels.get(label).map_or("", |it| it);
            let due = extra.iter().map(of_node);
            shown.base.iter().skip(1).map(|(_, it)| it.as_str()).eq(due)
        };
        if !all.get(name).is_some_and(is_labelled) {
            if let Some(stale) = all.remove(name) {
                self.forget(stale);
            }
            let fresh = self.node_series(name, &node.labels, extra);
            all.insert(name.to_owned(), fresh);
        }
        let Some(shown) = all.get_mut(name) else {
            return;
        };
        let load = ledger.load(name);
        let wide = |amount: Both<u64>| amount.map(|_, amount| u128::from(amount));
        let amounts = [
            wide(node.total),
            load.reserved,
            load.committed,
            load.migrating,
            wide(ledger.watermark(node)),
        ];
        for ((_, gauges), amount) in shown.amounts.iter().zip(amounts) {
            gauges.cpu.set(float(amount.cpu) / 1000.0);
            gauges.mem.set(float(amount.mem));
        }
        // Every grant changes a node's amounts, but few change its pressure.
        let pressure = core.pressure(name);
        if shown.pressure != Some(pressure) {
            shown.pressures = self.pressure(&shown.base, &pressure);
            shown.pressure = Some(pressure);
        }
    }

    /// The series of a node with these labels.
    fn node_series(
        &self,
        name: &str,
        node_labels: &BTreeMap<String, String>,
        extra: &BTreeMap<String, String>,
    ) -> NodeSeries {
        let base = of_node(name, node_labels, extra);
        let amounts = AMOUNT_FIELDS.map(|field| {
            let mut key = base.clone();
            key.push(("field".into(), field.into()));
            let cpu = self.node_cpu.get_or_create(&key).clone();
            let mem = self.node_mem.get_or_create(&key).clone();
            (key, Both { cpu, mem })
        });
        NodeSeries {
            base,
            amounts: amounts.into(),
            ..NodeSeries::default()
        }
    }

    /// Sets the gauges of a node's pressure. Returns their labels.
    fn pressure(&self, base: &Labels, pressure: &Pressure) -> Vec<Labels> {
        let kinds = [
            ("logical", pressure.logical),
            ("capacity", pressure.capacity),
            ("accounted", pressure.accounted),
        ];
        let mut fresh = Vec::with_capacity(kinds.len() * Resource::ALL.len());
        for (kind, amount) in kinds {
            for resource in Resource::ALL {
                let unit = match resource {
                    Resource::Cpu => 1000.0,
                    Resource::Mem => 1.0,
                };
                let mut key = base.clone();
                key.push(("resource".into(), resource.as_str().into()));
                key.push(("kind".into(), kind.into()));
                let gauge = self.node_pressure.get_or_create(&key).clone();
                gauge.set(float(amount.get(resource)) / unit);
                fresh.push(key);
            }
        }
        fresh
    }

    fn forget(&self, shown: NodeSeries) {
        for (key, _) in shown.amounts {
            self.node_cpu.remove(&key);
            self.node_mem.remove(&key);
        }
        for key in shown.pressures {
            self.node_pressure.remove(&key);
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "a gauge: 53 bits are enough")]
fn float(amount: u128) -> f64 {
    amount as f64
}
