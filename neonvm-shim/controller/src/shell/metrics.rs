//! Metrics, by the names of docs/compatibility/neonvm.md §2.12.

use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use protocol::time::Span;

use super::set_metrics::SetMetrics;
use super::state::Standing;
use crate::core::VmEvent;
use crate::core::failing::Outcome;

/// Bounds of `reconcile_duration_seconds` and `vm_creation_to_runner_creation_duration_seconds`.
const SHORT_BUCKETS: [f64; 13] = [
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
];
/// Bounds of `ipam_request_duration_seconds`.
const IPAM_BUCKETS: [f64; 11] = [0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0];
/// Bounds of the two boot times.
const BOOT_BUCKETS: [f64; 20] = [
    1.0, 5.0, 10.0, 12.0, 14.0, 16.0, 18.0, 20.0, 25.0, 30.0, 40.0, 50.0, 60.0, 80.0, 100.0, 120.0,
    140.0, 160.0, 200.0, 300.0,
];

/// How an attempt ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelValue)]
#[expect(
    non_camel_case_types,
    reason = "label values as the peers' dashboards spell them"
)]
pub(super) enum OutcomeLabel {
    success,
    failure,
    conflict,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutcomeLabels {
    outcome: OutcomeLabel,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct FailingLabels {
    controller: &'static str,
    outcome: OutcomeLabel,
    actively_retried: &'static str,
}

/// Request to a pool of addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelValue)]
#[expect(
    non_camel_case_types,
    reason = "label values as the peers' dashboards spell them"
)]
pub(super) enum IpamAction {
    acquire,
    release,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct IpamOngoing {
    action: IpamAction,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct IpamDone {
    action: IpamAction,
    outcome: OutcomeLabel,
}

/// Metrics of the pools of overlay addresses (docs/compatibility/neonvm.md §2.11).
#[derive(Debug, Clone)]
pub(super) struct IpamMetrics {
    ongoing: Family<IpamOngoing, Gauge>,
    durations: Family<IpamDone, Histogram>,
}

/// A request under way, for as long as it lives.
pub(super) struct Ongoing(Gauge);

impl Drop for Ongoing {
    fn drop(&mut self) {
        self.0.dec();
    }
}

impl IpamMetrics {
    fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            ongoing: Family::default(),
            durations: Family::new_with_constructor(ipam as fn() -> Histogram),
        };
        registry.register(
            "ipam_ongoing_requests",
            "Requests for overlay addresses under way",
            metrics.ongoing.clone(),
        );
        registry.register(
            "ipam_request_duration_seconds",
            "Time a request for an overlay address took",
            metrics.durations.clone(),
        );
        metrics
    }

    /// A request begins.
    pub(super) fn begins(&self, action: IpamAction) -> Ongoing {
        let gauge = self.ongoing.get_or_create_owned(&IpamOngoing { action });
        gauge.inc();
        Ongoing(gauge)
    }

    /// A request ended.
    pub(super) fn ended(&self, action: IpamAction, well: bool, took: Span) {
        let outcome = if well {
            OutcomeLabel::success
        } else {
            OutcomeLabel::failure
        };
        let labels = IpamDone { action, outcome };
        let durations = self.durations.get_or_create(&labels);
        durations.observe(took.as_secs_f64());
    }
}

/// Metrics of the controller; clones share them.
#[derive(Debug, Clone)]
pub struct Metrics {
    failing: Family<FailingLabels, Gauge>,
    durations: Family<OutcomeLabels, Histogram>,
    vm_to_runner: Histogram,
    runner_to_running: Histogram,
    vm_to_running: Histogram,
    restarts: Gauge,
    pub(super) ipam: IpamMetrics,
    pub(super) sets: SetMetrics,
}

impl Metrics {
    /// Registers all metrics of the controller in `registry`.
    #[must_use]
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            failing: Family::default(),
            durations: Family::new_with_constructor(short as fn() -> Histogram),
            vm_to_runner: short(),
            runner_to_running: Histogram::new(BOOT_BUCKETS),
            vm_to_running: Histogram::new(BOOT_BUCKETS),
            restarts: Gauge::default(),
            ipam: IpamMetrics::register(registry),
            sets: SetMetrics::register(registry),
        };
        registry.register(
            "reconcile_failing_objects",
            "Objects that have had only failures for a while",
            metrics.failing.clone(),
        );
        registry.register(
            "reconcile_duration_seconds",
            "Time one action took",
            metrics.durations.clone(),
        );
        registry.register(
            "vm_creation_to_runner_creation_duration_seconds",
            "From the creation of a VM to that of its first pod",
            metrics.vm_to_runner.clone(),
        );
        registry.register(
            "vm_runner_creation_to_vm_running_duration_seconds",
            "From the creation of a VM's first pod to phase Running",
            metrics.runner_to_running.clone(),
        );
        registry.register(
            "vm_creation_to_vm_running_duration_seconds",
            "From the creation of a VM to phase Running",
            metrics.vm_to_running.clone(),
        );
        // A gauge, because the library would append `_total` to a counter's name, and the peers'
        // dashboards use the name without it.
        registry.register(
            "vm_restarts_count",
            "Restarts of VMs since this process started; only ever grows",
            metrics.restarts.clone(),
        );
        metrics
    }

    /// One action ended.
    pub(super) fn ended(&self, outcome: Outcome, took: Span) {
        let labels = OutcomeLabels {
            outcome: label(outcome),
        };
        self.durations
            .get_or_create(&labels)
            .observe(took.as_secs_f64());
    }

    /// Something happened to a VM.
    pub(super) fn happened(&self, event: &VmEvent) {
        match event {
            VmEvent::PodCreated {
                since_vm: Some(span),
                ..
            } => {
                self.vm_to_runner.observe(span.as_secs_f64());
            }
            VmEvent::Running {
                since_pod,
                since_vm,
                ..
            } => {
                if let Some(span) = since_pod {
                    self.runner_to_running.observe(span.as_secs_f64());
                }
                if let Some(span) = since_vm {
                    self.vm_to_running.observe(span.as_secs_f64());
                }
            }
            VmEvent::Restarted { .. } => {
                self.restarts.inc();
            }
            _ => {}
        }
    }

    /// A controller's lists of degraded objects as they are now.
    pub(super) fn degraded(&self, standing: &Standing) {
        for (outcome, lists) in [
            (OutcomeLabel::failure, &standing.failing),
            (OutcomeLabel::conflict, &standing.conflicting),
        ] {
            for (actively_retried, list) in [("true", &lists.active), ("false", &lists.idle)] {
                let labels = FailingLabels {
                    controller: standing.controller,
                    outcome,
                    actively_retried,
                };
                let count = i64::try_from(list.len()).unwrap_or(i64::MAX);
                self.failing.get_or_create(&labels).set(count);
            }
        }
    }
}

fn ipam() -> Histogram {
    Histogram::new(IPAM_BUCKETS)
}

fn short() -> Histogram {
    Histogram::new(SHORT_BUCKETS)
}

fn label(outcome: Outcome) -> OutcomeLabel {
    match outcome {
        Outcome::Success => OutcomeLabel::success,
        Outcome::Conflict => OutcomeLabel::conflict,
        Outcome::Failure => OutcomeLabel::failure,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::failing::Degraded;

    #[test]
    fn names_are_those_dashboards_ask_for() {
        let mut registry = Registry::default();
        let metrics = Metrics::register(&mut registry);
        metrics.ended(Outcome::Success, Span::from_millis(3));
        metrics.happened(&VmEvent::Restarted {
            after: protocol::vm::VmPhase::Failed,
            count: 1,
        });
        metrics.happened(&VmEvent::Running {
            pod: "p".into(),
            since_pod: Some(Span::from_secs(9)),
            since_vm: Some(Span::from_secs(10)),
        });
        metrics.happened(&VmEvent::PodCreated {
            pod: "p".into(),
            since_vm: Some(Span::from_secs(1)),
        });
        metrics.degraded(&Standing {
            controller: crate::shell::controllers::CONTROLLER,
            failing: Degraded {
                active: vec!["default/a".into()],
                idle: vec![],
            },
            conflicting: Degraded::default(),
        });
        let ongoing = metrics.ipam.begins(IpamAction::acquire);
        drop(metrics.ipam.begins(IpamAction::release));
        metrics
            .ipam
            .ended(IpamAction::acquire, true, Span::from_millis(20));
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).expect("encodes");
        drop(ongoing);
        for line in [
            "vm_restarts_count 1",
            r#"ipam_ongoing_requests{action="acquire"} 1"#,
            r#"ipam_ongoing_requests{action="release"} 0"#,
            r#"ipam_request_duration_seconds_bucket{le="0.025",action="acquire",outcome="success"} 1"#,
            r#"reconcile_duration_seconds_bucket{le="0.005",outcome="success"} 1"#,
            r#"reconcile_failing_objects{controller="virtualmachine",outcome="failure",actively_retried="true"} 1"#,
            r#"vm_creation_to_vm_running_duration_seconds_bucket{le="10.0"} 1"#,
            r#"vm_runner_creation_to_vm_running_duration_seconds_bucket{le="10.0"} 1"#,
            "vm_creation_to_runner_creation_duration_seconds_count 1",
        ] {
            assert!(
                text.lines().any(|found| found == line),
                "{line} is not in:\n{text}"
            );
        }
    }
}
