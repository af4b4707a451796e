//! Counters of policies. The label `policy` has at most 64 values.

use std::collections::BTreeSet;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};

use policy_contract::{Fault, Role};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use protocol::time::Span;

/// Upper bound of distinct names as labels. Further names share one label.
const MAX_NAMES: usize = 64;
const OTHER: &str = "[other]";

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Evaluation {
    policy: String,
    role: &'static str,
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct FaultLabels {
    policy: String,
    role: &'static str,
    kind: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RoleLabels {
    policy: String,
    role: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Difference {
    policy: String,
    direction: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PolicyLabel {
    policy: String,
}

#[derive(Debug, Clone, Default)]
pub(super) struct PolicyMetrics {
    evaluations: Family<Evaluation, Counter>,
    seconds: Family<RoleLabels, Counter<f64, AtomicU64>>,
    faults: Family<FaultLabels, Counter>,
    disagreements: Family<Difference, Counter>,
    fallback: Family<PolicyLabel, Gauge>,
    pub worker_restarts: Counter,
    /// VMs whose policy is not there, or not for their namespace.
    pub unknown: Gauge,
    names: Arc<Mutex<BTreeSet<String>>>,
}

impl PolicyMetrics {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        let name = |name: &str| format!("autoscaling_agent_policy_{name}");
        registry.register(
            name("evaluations"),
            "Questions to policies, by their end",
            metrics.evaluations.clone(),
        );
        registry.register(
            name("seconds"),
            "Time from questions to answers",
            metrics.seconds.clone(),
        );
        registry.register(name("faults"), "Faults of policies", metrics.faults.clone());
        registry.register(
            name("disagreements"),
            "Answers other than the built-in goal",
            metrics.disagreements.clone(),
        );
        registry.register(
            name("worker_restarts"),
            "Restarts of the program that answers for policies",
            metrics.worker_restarts.clone(),
        );
        registry.register(
            name("fallback"),
            "VMs that go by the built-in goal, because their policy gave no answer for too long",
            metrics.fallback.clone(),
        );
        registry.register(
            name("unknown"),
            "VMs whose policy is not there, or not for their namespace",
            metrics.unknown.clone(),
        );
        metrics
    }

    /// Counts an answer or a fault.
    pub(super) fn ended(&self, policy: &str, role: Role, fault: Option<Fault>, took: Span) {
        let (policy, role) = (self.name(policy), role.as_str());
        let outcome = if fault.is_some() { "fault" } else { "answer" };
        self.seconds
            .get_or_create(&RoleLabels {
                policy: policy.clone(),
                role,
            })
            .inc_by(took.as_secs_f64());
        self.evaluations
            .get_or_create(&Evaluation {
                policy: policy.clone(),
                role,
                outcome,
            })
            .inc();
        if let Some(fault) = fault {
            let kind = fault.word();
            self.faults
                .get_or_create(&FaultLabels { policy, role, kind })
                .inc();
        }
    }

    /// Counts an answer of `units` that differs from the built-in goal.
    pub(super) fn compared(&self, policy: &str, units: u32, builtin: u32) {
        let direction = match units.cmp(&builtin) {
            std::cmp::Ordering::Equal => return,
            std::cmp::Ordering::Less => "lower",
            std::cmp::Ordering::Greater => "higher",
        };
        let policy = self.name(policy);
        self.disagreements
            .get_or_create(&Difference { policy, direction })
            .inc();
    }

    /// Counts one VM more (1) or less (-1) that goes by the built-in goal.
    pub(super) fn fell_back(&self, policy: &str, change: i64) {
        let policy = self.name(policy);
        let gauge = self.fallback.get_or_create(&PolicyLabel { policy });
        gauge.inc_by(change);
    }

    fn name(&self, policy: &str) -> String {
        let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        if names.contains(policy) {
            return policy.to_owned();
        }
        if names.len() >= MAX_NAMES {
            return OTHER.to_owned();
        }
        names.insert(policy.to_owned());
        policy.to_owned()
    }
}
