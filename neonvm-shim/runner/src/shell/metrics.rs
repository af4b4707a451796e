//! What a runner counts, for `/metrics` at its pod's address. NeonVM's runner has metrics of its guest's network there, named
//! `runner_vm_…`; these are named like them.

use std::sync::Arc;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::core::disks::sync::SyncProblem;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Failed {
    reason: &'static str,
}

/// How the guest and its watched files fare. No names of files or directories: whoever reaches the
/// pod's address may read this.
#[derive(Debug, Clone)]
pub struct Metrics {
    failures: Family<Failed, Counter>,
    stale: Gauge,
    unheld: Gauge,
    silent: Gauge,
    ahead: Counter,
}

impl Metrics {
    /// Nothing yet, and the registry that shows it.
    #[must_use]
    pub fn new() -> (Self, Arc<Registry>) {
        let metrics = Self {
            failures: Family::default(),
            stale: Gauge::default(),
            unheld: Gauge::default(),
            silent: Gauge::default(),
            ahead: Counter::default(),
        };
        // Shown before the first: a rate needs the zero.
        for reason in SyncProblem::KINDS {
            metrics.failures.get_or_create_owned(&Failed { reason });
        }
        let mut registry = Registry::default();
        registry.register(
            "runner_vm_file_sync_failures",
            "Looks at a watched directory after which the guest did not have it as it is in the pod",
            metrics.failures.clone(),
        );
        registry.register(
            "runner_vm_file_sync_stale_directories",
            "Watched directories that the guest does not have as they are in the pod",
            metrics.stale.clone(),
        );
        registry.register(
            "runner_vm_cpu_quota_missing",
            "1 while a quota of CPU time is asked for and cannot be held",
            metrics.unheld.clone(),
        );
        registry.register(
            "runner_vm_guest_silent",
            "1 while the guest has not answered for a minute, or for five of its boot",
            metrics.silent.clone(),
        );
        registry.register(
            "runner_vm_cpus_ahead",
            "Times that CPUs were plugged ahead of an order",
            metrics.ahead.clone(),
        );
        (metrics, Arc::new(registry))
    }

    /// A look at a directory failed.
    pub fn failed(&self, problem: &SyncProblem) {
        let reason = problem.kind();
        self.failures.get_or_create_owned(&Failed { reason }).inc();
    }

    /// Whether the quota that is asked for is missing.
    pub fn quota_missing(&self, is_missing: bool) {
        self.unheld.set(i64::from(is_missing));
    }

    /// CPUs are plugged ahead of an order.
    pub fn ahead(&self) {
        self.ahead.inc();
    }

    /// Whether the guest has not answered for long.
    pub fn guest_silent(&self, is_silent: bool) {
        self.silent.set(i64::from(is_silent));
    }

    /// So many directories are not in the guest as they are here.
    pub fn stale(&self, directories: usize) {
        self.stale
            .set(i64::try_from(directories).unwrap_or(i64::MAX));
    }
}
