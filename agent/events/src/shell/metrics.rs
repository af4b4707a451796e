//! Prometheus metrics of event receivers and of billed VMs. Source: docs/compatibility/agent.md
//! §4.8.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// Duration shown for a round without a batch, seconds. Zero stands for a failed round.
const NOTHING_TO_SEND_S: f64 = 0.000_001;
/// Longest `cause` label, characters.
const CAUSE_CHARS: usize = 80;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Client {
    client: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ClientCause {
    client: &'static str,
    cause: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Kind {
    kind: &'static str,
}

/// Labels that VMs are counted by for billing.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, EncodeLabelSet)]
pub(crate) struct VmKind {
    pub is_endpoint: &'static str,
    pub autoscaling_enabled: &'static str,
    pub phase: String,
}

/// Events that a receiver refused at the last attempt; clones share them. Events that only wait for
/// their batch do not count.
#[derive(Debug, Clone, Default)]
pub struct Unsent(Arc<Mutex<BTreeMap<(String, &'static str), u64>>>);

impl Unsent {
    /// Number of events, over all receivers.
    #[must_use]
    pub fn total(&self) -> u64 {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.values().sum()
    }

    fn set(&self, stream: &str, client: &'static str, events: u64) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.insert((stream.to_owned(), client), events);
    }
}

/// Metrics of the receivers of one stream.
#[derive(Debug, Clone, Default)]
pub(crate) struct ReceiverMetrics {
    stream: String,
    unsent: Unsent,
    queue: Family<Client, Gauge>,
    last_send: Family<Client, Gauge<f64, AtomicU64>>,
    errors: Family<ClientCause, Counter>,
    given_up: Family<Client, Counter>,
}

impl ReceiverMetrics {
    fn new(registry: &mut Registry, stream: &str, unsent: &Unsent) -> Self {
        let metrics = Self {
            stream: stream.to_owned(),
            unsent: unsent.clone(),
            ..Self::default()
        };
        let name = |rest: &str| format!("autoscaling_agent_{stream}_{rest}");
        registry.register(
            name("queue_size"),
            "Events not yet received",
            metrics.queue.clone(),
        );
        registry.register(
            name("last_send_duration_seconds"),
            "Duration of the last round, 0 when it failed",
            metrics.last_send.clone(),
        );
        registry.register(
            name("send_errors"),
            "Batches that were not received",
            metrics.errors.clone(),
        );
        registry.register(
            name("events_given_up"),
            "Events given up because too many waited",
            metrics.given_up.clone(),
        );
        metrics
    }

    pub(crate) fn waiting(&self, client: &'static str, events: u64) {
        let events = i64::try_from(events).unwrap_or(i64::MAX);
        self.queue.get_or_create(&Client { client }).set(events);
    }

    /// Records the end of a round; `None` = no batch was due.
    pub(crate) fn sent(&self, client: &'static str, seconds: Option<f64>) {
        if seconds.is_some() {
            self.unsent.set(&self.stream, client, 0);
        }
        let seconds = seconds.unwrap_or(NOTHING_TO_SEND_S);
        self.last_send
            .get_or_create(&Client { client })
            .set(seconds);
    }

    pub(crate) fn failed(&self, client: &'static str, cause: &str, waiting: u64) {
        self.unsent.set(&self.stream, client, waiting);
        self.last_send.get_or_create(&Client { client }).set(0.0);
        let cause = cause.chars().take(CAUSE_CHARS).collect();
        self.errors
            .get_or_create(&ClientCause { client, cause })
            .inc();
    }

    pub(crate) fn gave_up(&self, client: &'static str, events: u64) {
        self.given_up
            .get_or_create(&Client { client })
            .inc_by(events);
    }
}

#[derive(Debug, Clone)]
pub(crate) struct EventMetrics {
    pub billing: ReceiverMetrics,
    pub scaling: ReceiverMetrics,
    pub unsent: Unsent,
    vms_processed: Family<VmKind, Counter>,
    vms_current: Family<VmKind, Gauge>,
    scaling_events: Family<Kind, Gauge>,
    scaling_lost: Counter,
}

impl EventMetrics {
    pub(crate) fn new(registry: &mut Registry) -> Self {
        let unsent = Unsent::default();
        let metrics = Self {
            billing: ReceiverMetrics::new(registry, "billing", &unsent),
            scaling: ReceiverMetrics::new(registry, "scalingevents", &unsent),
            unsent,
            vms_processed: Family::default(),
            vms_current: Family::default(),
            scaling_events: Family::default(),
            scaling_lost: Counter::default(),
        };
        for kind in ["actual", "hypothetical", "unknown"] {
            drop(metrics.scaling_events.get_or_create(&Kind { kind }));
        }
        let name = |rest: &str| format!("autoscaling_agent_{rest}");
        registry.register(
            name("billing_vms_processed"),
            "VMs looked at for billing",
            metrics.vms_processed.clone(),
        );
        registry.register(
            name("billing_vms_current"),
            "VMs of this node",
            metrics.vms_current.clone(),
        );
        registry.register(
            // A gauge in the deployed agent, so it keeps its whole name.
            name("scaling_events_total"),
            "Scaling events made",
            metrics.scaling_events.clone(),
        );
        registry.register(
            name("scalingevents_lost"),
            "Scaling events that could not be kept",
            metrics.scaling_lost.clone(),
        );
        metrics
    }

    /// Replaces the gauges by these VMs and counts each as processed.
    pub(crate) fn show_vms(&self, kinds: impl Iterator<Item = VmKind>) {
        self.vms_current.clear();
        for kind in kinds {
            self.vms_processed.get_or_create(&kind).inc();
            self.vms_current.get_or_create(&kind).inc();
        }
    }

    pub(crate) fn scaling_event(&self, kind: &'static str) {
        self.scaling_events.get_or_create(&Kind { kind }).inc();
    }

    pub(crate) fn scaling_lost(&self, events: u64) {
        self.scaling_lost.inc_by(events);
    }
}
