//! Metrics of a runner, for `/metrics` at its pod's address. NeonVM's runner has metrics of its
//! guest's network there, named `runner_vm_…`. Ours has these too, and names the others in the same
//! way.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::core::disks::sync::SyncProblem;
use crate::core::traffic::Traffic;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Failed {
    reason: &'static str,
}

/// Metrics of the guest and its watched files. They name no files or directories: any host that
/// reaches the pod's address may read them.
#[derive(Debug, Clone)]
pub struct Metrics {
    failures: Family<Failed, Counter>,
    stale: Gauge,
    unheld: Gauge,
    silent: Gauge,
    full: Gauge,
    ahead: Counter,
    network_restarts: Counter,
    traffic: Option<TrafficMetrics>,
}

/// Traffic of the guest, with the names of NeonVM's runner.
#[derive(Debug, Clone, Default)]
struct TrafficMetrics {
    ingress: Counter,
    egress: Counter,
    errors: Counter,
}

impl TrafficMetrics {
    fn register(&self, registry: &mut Registry) {
        for (name, help, counter) in [
            (
                "runner_vm_ingress_bytes",
                "Bytes of TCP that came to the guest from addresses that are not private",
                &self.ingress,
            ),
            (
                "runner_vm_egress_bytes",
                "Bytes of TCP that the guest sent to addresses that are not private",
                &self.egress,
            ),
            (
                "runner_vm_network_fetch_errors",
                "Times that the kernel did not tell these",
                &self.errors,
            ),
        ] {
            registry.register(name, help, counter.clone());
        }
    }
}

impl Metrics {
    /// Metrics at zero, and their registry. The guest's traffic is registered only if it is
    /// counted.
    #[must_use]
    pub fn new(counts_traffic: bool) -> (Self, Arc<Registry>) {
        let metrics = Self {
            failures: Family::default(),
            stale: Gauge::default(),
            unheld: Gauge::default(),
            silent: Gauge::default(),
            full: Gauge::default(),
            ahead: Counter::default(),
            network_restarts: Counter::default(),
            traffic: counts_traffic.then(TrafficMetrics::default),
        };
        // Registered before the first event: a rate needs the zero.
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
            "runner_vm_disk_full",
            "1 while the guest stands still because the node's disk, or the claim of its disk, has no room for what it writes",
            metrics.full.clone(),
        );
        registry.register(
            "runner_vm_cpus_ahead",
            "Times that CPUs were plugged ahead of an order",
            metrics.ahead.clone(),
        );
        registry.register(
            "runner_vm_network_restarts",
            "Times that the guest's network process ended and was started again",
            metrics.network_restarts.clone(),
        );
        if let Some(traffic) = &metrics.traffic {
            traffic.register(&mut registry);
        }
        (metrics, Arc::new(registry))
    }

    /// A look at a directory has failed.
    pub fn failed(&self, problem: &SyncProblem) {
        let reason = problem.kind();
        self.failures.get_or_create_owned(&Failed { reason }).inc();
    }

    /// Whether the guest's traffic is registered.
    #[must_use]
    pub fn counts_traffic(&self) -> bool {
        self.traffic.is_some()
    }

    /// Stores the kernel's counters of the guest's traffic.
    pub fn traffic(&self, counted: Traffic) {
        if let Some(traffic) = &self.traffic {
            // The kernel's counters are authoritative and only grow.
            traffic.ingress.inner().store(counted.ingress, Relaxed);
            traffic.egress.inner().store(counted.egress, Relaxed);
        }
    }

    /// Counts a failure to read the kernel's counters.
    pub fn traffic_unread(&self) {
        if let Some(traffic) = &self.traffic {
            traffic.errors.inc();
        }
    }

    /// Sets whether a configured quota is missing.
    pub fn quota_missing(&self, is_missing: bool) {
        self.unheld.set(i64::from(is_missing));
    }

    /// Counts CPUs that are plugged ahead of an order.
    pub fn ahead(&self) {
        self.ahead.inc();
    }

    /// Counts a restart of the guest's network process.
    pub fn network_restarted(&self) {
        self.network_restarts.inc();
    }

    /// Sets whether the guest has not answered for long.
    pub fn guest_silent(&self, is_silent: bool) {
        self.silent.set(i64::from(is_silent));
    }

    /// Sets whether a full disk of the node has stopped the guest.
    pub fn disk_full(&self, is_full: bool) {
        self.full.set(i64::from(is_full));
    }

    /// Sets the number of directories that are out of sync.
    pub fn stale(&self, directories: usize) {
        self.stale
            .set(i64::try_from(directories).unwrap_or(i64::MAX));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(registry: &Registry) -> String {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, registry).expect("encodes");
        text
    }

    #[test]
    fn counted_traffic_has_the_names_of_neonvms_runner() {
        let (metrics, registry) = Metrics::new(true);
        metrics.traffic(Traffic {
            ingress: 60,
            egress: 120,
        });
        metrics.traffic_unread();
        let text = shown(&registry);
        for line in [
            "\nrunner_vm_ingress_bytes_total 60\n",
            "\nrunner_vm_egress_bytes_total 120\n",
            "\nrunner_vm_network_fetch_errors_total 1\n",
        ] {
            assert!(text.contains(line), "{text}");
        }
        let text = shown(&Metrics::new(false).1);
        assert!(!text.contains("gress") && !text.contains("fetch"), "{text}");
    }
}
