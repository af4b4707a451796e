//! Readiness, metrics and the state dump.

use std::time::Duration;

use super::Driver;
use crate::core::pod_warnings::PodWarning;

/// Largest part of the driver's time that the state dump may take: one of this many.
const DUMP_TIME_PART: u32 = 100;
/// Shortest time between two updates of the metrics of nodes. Every grant changes them.
const NODE_METRICS_EVERY: Duration = Duration::from_millis(100);

impl Driver {
    /// Publishes readiness at once, metrics soon, and the state dump as often as its cost allows.
    pub(super) fn publish(&mut self) {
        // Nodes also change as time passes.
        self.changed |= self.core.has_touched();
        self.publish_nodes();
        let anomalies = (self.core.permit_anomalies(), self.core.ledger().anomalies());
        if self.anomalies != Some(anomalies) {
            self.anomalies = Some(anomalies);
            self.metrics.anomalies(anomalies.0, anomalies.1);
        }
        let warned = PodWarning::ALL.map(|warning| self.core.warned_pods(warning));
        if self.warned_pods != Some(warned) {
            self.warned_pods = Some(warned);
            for (warning, count) in PodWarning::ALL.into_iter().zip(warned) {
                self.metrics.warned_pods(warning, count);
            }
        }
        let standby = self.core.standby(self.clock.now());
        let readiness = Some((standby, self.core.waiting_for()));
        if self.readiness != readiness {
            self.metrics.leads(standby.is_none());
            let waiting_for = self.core.waiting_for();
            self.state.set_readiness(standby, waiting_for);
            self.readiness = readiness;
        }
        self.publish_dump();
    }

    /// Whether the state dump must be updated.
    pub(super) fn is_dump_due(&self) -> bool {
        is_due(self.changed, self.is_large(), self.state.is_wanted())
    }

    /// Updates the metrics of the nodes that changed, unless it did so lately.
    fn publish_nodes(&mut self) {
        if !self.core.has_touched() {
            return;
        }
        let now = self.clock.instant_of(self.clock.now());
        if now < self.nodes_after {
            return;
        }
        for node in self.core.take_touched() {
            self.metrics.node(&self.core, &node, &self.node_labels);
        }
        self.nodes_after = now + NODE_METRICS_EVERY;
    }

    /// Updates the state dump, if it is due and within its part of the driver's time.
    fn publish_dump(&mut self) {
        if !self.is_dump_due() {
            return;
        }
        let began = self.clock.instant_of(self.clock.now());
        if began < self.dump_after {
            return;
        }
        self.state.publish(&self.core.snapshot(self.clock.now()));
        self.changed = false;
        let ended = self.clock.instant_of(self.clock.now());
        self.dump_after = ended + (ended - began) * DUMP_TIME_PART;
    }
}

/// Whether the dump must be updated. A dump that is not due must not wake the driver, which would
/// then loop without end.
const fn is_due(changed: bool, is_large: bool, is_wanted: bool) -> bool {
    changed && (!is_large || is_wanted)
}

#[cfg(test)]
mod tests {
    use super::is_due;

    /// Such a dump was due until the next read, so that one change of a large state kept a
    /// processor busy forever.
    #[test]
    fn large_state_that_is_not_read_does_not_wake_the_driver() {
        assert!(!is_due(true, true, false));
        assert!(is_due(true, true, true) && is_due(true, false, false));
        assert!(!is_due(false, true, true) && !is_due(false, false, true));
    }
}
