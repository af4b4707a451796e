//! Prometheus metrics under the deployed agent's names. Source: docs/compatibility/agent.md §4.8.
//!
//! The encoder adds `_total` to the names of counters. Two counters of the deployed agent have
//! names without it (`…_runner_starts`, `…_runner_restarts`); a test holds the rendered text.

use std::collections::BTreeSet;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};

use api_client::watch::{EventTypes, WatchMetrics};
use daemon_kit::exposition::PlainCounter;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Metric, Registry};
use protocol::revision::{FLAG_DOWNSCALE, FLAG_UPSCALE};
use protocol::time::Span;
use protocol::units::Resources;

use crate::core::{Decision, Path};

/// Prefix of every metric name.
const PREFIX: &str = "autoscaling_agent";
/// Types of watch events as in the deployed agent.
const WATCH_EVENTS: EventTypes = EventTypes {
    listed: "BOOKMARK",
    applied: "MODIFIED",
    deleted: "DELETED",
};
/// Upper bound of distinct error texts as labels. Further texts share one label.
const MAX_ERROR_LABELS: usize = 64;
/// Label of further error texts.
const OTHER_ERROR: &str = "[error: other]";
/// Size of a MiB, bytes.
const MIB: f64 = 1_048_576.0;
/// Buckets of the latency histograms, seconds.
const LATENCY_BUCKETS: [f64; 39] = [
    0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.6, 0.7, 0.8, 0.9,
    1.0, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 15.0, 20.0,
    25.0, 30.0, 40.0, 50.0,
];
/// The last bucket. It is apart because arrays of 40 lack some traits.
const LAST_BUCKET: f64 = 60.0;

type FloatCounter = Counter<f64, AtomicU64>;
type LatencyFamily = Family<Direction, Histogram, fn() -> Histogram>;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct Direction {
    direction: &'static str,
}

const INC: Direction = Direction { direction: "inc" };
const DEC: Direction = Direction { direction: "dec" };

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Code {
    code: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct EndpointCode {
    endpoint: &'static str,
    code: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabel {
    result: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RunnerLabels {
    is_endpoint: &'static str,
    state: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabel {
    reason: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct BoundLabel {
    bound: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ScrapeLabels {
    source: &'static str,
    cause: &'static str,
}

/// Counter of failed scrapes.
#[derive(Debug, Clone, Default)]
pub(super) struct ScrapeFailures(Family<ScrapeLabels, Counter>);

impl ScrapeFailures {
    pub(super) fn count(&self, source: &'static str, cause: &'static str) {
        self.0.get_or_create(&ScrapeLabels { source, cause }).inc();
    }
}

/// Counters of changed CPUs and MiB, by direction.
#[derive(Debug, Clone, Default)]
pub(super) struct Change {
    cpu: Family<Direction, FloatCounter>,
    mem: Family<Direction, FloatCounter>,
}

impl Change {
    fn register(&self, registry: &mut Registry, cpu: &str, mem: &str, what: &str) {
        for family in [&self.cpu, &self.mem] {
            drop(family.get_or_create(&INC));
            drop(family.get_or_create(&DEC));
        }
        registry.register(cpu, format!("CPUs {what}"), self.cpu.clone());
        registry.register(mem, format!("MiB {what}"), self.mem.clone());
    }

    /// Counts the difference of two sizes.
    pub(super) fn count(&self, from: Resources, to: Resources) {
        let add = |family: &Family<Direction, FloatCounter>, from: f64, to: f64| {
            let label = if to >= from { &INC } else { &DEC };
            if (to - from).abs() > 0.0 {
                family.get_or_create(label).inc_by((to - from).abs());
            }
        };
        add(&self.cpu, from.cpu.as_cores(), to.cpu.as_cores());
        add(&self.mem, from.mem.0 as f64 / MIB, to.mem.0 as f64 / MIB);
    }
}

/// State of a VM's driver, a label of the gauge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DriverState {
    Ok,
    Stuck,
    Panicked,
}

impl DriverState {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Stuck => "stuck",
            Self::Panicked => "panicked",
        }
    }
}

/// Global metrics (port 9100).
#[derive(Debug, Clone)]
pub(super) struct AgentMetrics {
    permit_requests: Family<Code, Counter>,
    pub permit_requested: Change,
    pub permit_accepted: Change,
    full_denials: Family<Direction, Counter>,
    partial_approvals: Family<Direction, Counter>,
    monitor_outbound: Family<EndpointCode, Counter>,
    monitor_inbound: Family<EndpointCode, Counter>,
    monitor_pauses: Counter,
    pub monitor_requested: Change,
    pub monitor_approved: Change,
    vm_patch_requests: Family<ResultLabel, Counter>,
    pub vm_patch_requested: Change,
    runners: Family<RunnerLabels, Gauge>,
    pub panics: Counter,
    pub starts: PlainCounter,
    pub restarts: PlainCounter,
    pub next_actions: Counter,
    pub deciding_s: FloatCounter,
    latencies: [LatencyFamily; 4],
    pub watches: WatchMetrics,
    decisions: Family<ReasonLabel, Counter>,
    bounded: Family<BoundLabel, Counter>,
    pub scrape_failures: ScrapeFailures,
    pub faults: Counter,
    pub unparsable: Gauge,
    monitors: Gauge,
    errors: Arc<Mutex<BTreeSet<String>>>,
}

fn latency_histogram() -> Histogram {
    Histogram::new(LATENCY_BUCKETS.into_iter().chain([LAST_BUCKET]))
}

/// Registers a metric with the agent's prefix.
fn register<M: Metric + Clone>(registry: &mut Registry, name: &str, help: &str, metric: &M) {
    registry.register(format!("{PREFIX}_{name}"), help, metric.clone());
}

impl AgentMetrics {
    pub(super) fn new(registry: &mut Registry) -> Self {
        let histogram = || Family::new_with_constructor(latency_histogram as fn() -> Histogram);
        let metrics = Self {
            permit_requests: Family::default(),
            permit_requested: Change::default(),
            permit_accepted: Change::default(),
            full_denials: Family::default(),
            partial_approvals: Family::default(),
            monitor_outbound: Family::default(),
            monitor_inbound: Family::default(),
            monitor_pauses: Counter::default(),
            monitor_requested: Change::default(),
            monitor_approved: Change::default(),
            vm_patch_requests: Family::default(),
            vm_patch_requested: Change::default(),
            runners: Family::default(),
            panics: Counter::default(),
            starts: PlainCounter::default(),
            restarts: PlainCounter::default(),
            next_actions: Counter::default(),
            deciding_s: Counter::default(),
            latencies: [histogram(), histogram(), histogram(), histogram()],
            watches: WatchMetrics::new(WATCH_EVENTS, registry.sub_registry_with_prefix(PREFIX)),
            decisions: Family::default(),
            bounded: Family::default(),
            scrape_failures: ScrapeFailures::default(),
            faults: Counter::default(),
            unparsable: Gauge::default(),
            monitors: Gauge::default(),
            errors: Arc::default(),
        };
        metrics.register_requests(registry);
        metrics.register_runners(registry);
        metrics
    }

    fn register_requests(&self, r: &mut Registry) {
        let agent = |name: &str| format!("{PREFIX}_{name}");
        register(
            r,
            "scheduler_plugin_requests",
            "Permit requests",
            &self.permit_requests,
        );
        for (change, peer, verb, mem) in [
            (
                &self.permit_requested,
                "scheduler_plugin",
                "requested",
                "mem_change",
            ),
            (
                &self.permit_accepted,
                "scheduler_plugin",
                "accepted",
                "mem_change",
            ),
            (
                &self.monitor_requested,
                "monitor",
                "requested",
                "mem_change",
            ),
            (&self.monitor_approved, "monitor", "approved", "mem_change"),
            (
                &self.vm_patch_requested,
                "neonvm",
                "requested",
                "mem_changed",
            ),
        ] {
            let cpu = agent(&format!("{peer}_{verb}_cpu_change"));
            change.register(r, &cpu, &agent(&format!("{peer}_{verb}_{mem}")), verb);
        }
        for family in [&self.full_denials, &self.partial_approvals] {
            drop(family.get_or_create(&INC));
        }
        drop(self.full_denials.get_or_create(&DEC));
        register(
            r,
            "scaling_full_denials",
            "Changes refused whole",
            &self.full_denials,
        );
        register(
            r,
            "scaling_partial_approvals",
            "Changes granted in part",
            &self.partial_approvals,
        );
        register(
            r,
            "monitor_outbound_requests",
            "Calls to monitors",
            &self.monitor_outbound,
        );
        register(
            r,
            "monitor_inbound_requests",
            "Messages from monitors",
            &self.monitor_inbound,
        );
        register(
            r,
            "monitor_pauses",
            "Pauses in reading monitors that send more than they may",
            &self.monitor_pauses,
        );
        register(
            r,
            "neonvm_outbound_requests",
            "Patches of VM objects",
            &self.vm_patch_requests,
        );
    }

    fn register_runners(&self, r: &mut Registry) {
        for is_endpoint in [true, false] {
            for state in [DriverState::Ok, DriverState::Stuck, DriverState::Panicked] {
                drop(
                    self.runners
                        .get_or_create(&runner_labels(is_endpoint, state)),
                );
            }
        }
        register(r, "runners_current", "Managed VMs", &self.runners);
        register(
            r,
            "monitors_connected_current",
            "Managed VMs whose monitor is connected",
            &self.monitors,
        );
        register(
            r,
            "runner_thread_panics",
            "VM tasks that crashed",
            &self.panics,
        );
        register(r, "runner_starts", "VM tasks started", &self.starts);
        register(
            r,
            "runner_restarts",
            "VM tasks started again",
            &self.restarts,
        );
        register(
            r,
            "runner_next_actions",
            "Computations of what to do",
            &self.next_actions,
        );
        register(
            r,
            "decision_seconds",
            "Time spent in computations of what to do",
            &self.deciding_s,
        );
        for (path, name) in [
            (Path::EndToEnd, "scaling_latency_seconds"),
            (Path::Permit, "plugin_latency_seconds"),
            (Path::Monitor, "monitor_latency_seconds"),
            (Path::VmPatch, "neonvm_latency_seconds"),
        ] {
            register(r, name, "From decision to effect", self.latency(path));
        }
        register(
            r,
            "decisions",
            "Changed decisions by what decided",
            &self.decisions,
        );
        register(
            r,
            "scrape_failures",
            "Metrics pages that could not be had or used, by cause",
            &self.scrape_failures.0,
        );
        register(
            r,
            "decisions_bounded",
            "Changed decisions by what keeps the VM from the goal",
            &self.bounded,
        );
        register(r, "core_faults", "Broken invariants", &self.faults);
        register(
            r,
            "vms_unparsable_current",
            "VMs of this node that cannot be read",
            &self.unparsable,
        );
    }

    fn latency(&self, path: Path) -> &LatencyFamily {
        &self.latencies[match path {
            Path::EndToEnd => 0,
            Path::Permit => 1,
            Path::Monitor => 2,
            Path::VmPatch => 3,
        }]
    }

    pub(super) fn observe_latency(&self, path: Path, after: Span, flags: u64) {
        let direction = match (flags & FLAG_UPSCALE != 0, flags & FLAG_DOWNSCALE != 0) {
            (true, true) => "both",
            (true, false) => "inc",
            (false, true) => "dec",
            (false, false) => "none",
        };
        self.latency(path)
            .get_or_create(&Direction { direction })
            .observe(after.as_secs_f64());
    }

    /// The label for an error text, within the bound of distinct ones.
    fn bounded(&self, text: String) -> String {
        if !text.starts_with("[error") {
            return text;
        }
        let mut known = self.errors.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() < MAX_ERROR_LABELS {
            known.insert(text.clone());
        }
        if known.contains(&text) {
            text
        } else {
            OTHER_ERROR.into()
        }
    }

    pub(super) fn permit_request(&self, code: String) {
        self.permit_requests
            .get_or_create(&Code {
                code: self.bounded(code),
            })
            .inc();
    }

    pub(super) fn upscale_denied(&self) {
        self.full_denials.get_or_create(&INC).inc();
    }

    pub(super) fn downscale_denied(&self) {
        self.full_denials.get_or_create(&DEC).inc();
    }

    pub(super) fn partially_approved(&self) {
        self.partial_approvals.get_or_create(&INC).inc();
    }

    pub(super) fn monitor_call(&self, endpoint: &'static str, code: &str) {
        let code = self.bounded(code.to_owned());
        self.monitor_outbound
            .get_or_create(&EndpointCode { endpoint, code })
            .inc();
    }

    pub(super) fn monitor_message(&self, endpoint: &'static str, code: &str) {
        let code = code.to_owned();
        self.monitor_inbound
            .get_or_create(&EndpointCode { endpoint, code })
            .inc();
    }

    pub(super) fn monitor_paused(&self) {
        self.monitor_pauses.inc();
    }

    pub(super) fn vm_patch_request(&self, result: String) {
        self.vm_patch_requests
            .get_or_create(&ResultLabel {
                result: self.bounded(result),
            })
            .inc();
    }

    pub(super) fn decided(&self, decision: &Decision) {
        let reason = decision.reason.as_str();
        self.decisions.get_or_create(&ReasonLabel { reason }).inc();
        for bound in decision.bounded_by.iter() {
            let bound = bound.as_str();
            self.bounded.get_or_create(&BoundLabel { bound }).inc();
        }
    }

    /// Counts one VM in the gauge of managed VMs, until the result is dropped.
    pub(super) fn driver(&self, is_endpoint: bool) -> DriverGauge {
        let state = DriverState::Ok;
        self.runners
            .get_or_create(&runner_labels(is_endpoint, state))
            .inc();
        DriverGauge {
            runners: self.runners.clone(),
            is_endpoint,
            state,
            monitors: self.monitors.clone(),
            is_connected: false,
        }
    }
}

fn runner_labels(is_endpoint: bool, state: DriverState) -> RunnerLabels {
    let is_endpoint = if is_endpoint { "true" } else { "false" };
    RunnerLabels {
        is_endpoint,
        state: state.as_str(),
    }
}

/// One VM in `runners_current` and `monitors_connected_current`.
#[derive(Debug)]
pub(super) struct DriverGauge {
    runners: Family<RunnerLabels, Gauge>,
    is_endpoint: bool,
    state: DriverState,
    monitors: Gauge,
    is_connected: bool,
}

impl DriverGauge {
    pub(super) fn set_connected(&mut self, is_connected: bool) {
        match (self.is_connected, is_connected) {
            (false, true) => drop(self.monitors.inc()),
            (true, false) => drop(self.monitors.dec()),
            _ => {}
        }
        self.is_connected = is_connected;
    }

    pub(super) fn set(&mut self, is_endpoint: bool, state: DriverState) {
        if (is_endpoint, state) != (self.is_endpoint, self.state) {
            self.runners
                .get_or_create(&runner_labels(self.is_endpoint, self.state))
                .dec();
            self.runners
                .get_or_create(&runner_labels(is_endpoint, state))
                .inc();
            (self.is_endpoint, self.state) = (is_endpoint, state);
        }
    }
}

impl Drop for DriverGauge {
    fn drop(&mut self) {
        self.set_connected(false);
        self.runners
            .get_or_create(&runner_labels(self.is_endpoint, self.state))
            .dec();
    }
}
