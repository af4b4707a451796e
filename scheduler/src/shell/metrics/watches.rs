//! Counters and gauges of the watches.

use super::Metrics;
use super::labels::labels;

impl Metrics {
    pub(in crate::shell) fn watch_alive(&self, instance: &str, alive: bool) {
        let value = if alive { 1.0 } else { 0.0 };
        self.watch_alive
            .get_or_create(&labels(&[("watcher_instance", instance)]))
            .set(value);
    }

    pub(in crate::shell) fn watch_failing(&self, instance: &str, failing: bool) {
        let value = if failing { 1.0 } else { 0.0 };
        self.watch_failing
            .get_or_create(&labels(&[("watcher_instance", instance)]))
            .set(value);
    }

    pub(in crate::shell) fn watch_listed(&self, instance: &str, again: bool) {
        let key = labels(&[("watcher_instance", instance), ("method", "List")]);
        self.watch_calls.get_or_create(&key).inc();
        if again {
            self.relists
                .get_or_create(&labels(&[("watcher_instance", instance)]))
                .inc();
        }
    }

    pub(in crate::shell) fn watch_event(&self, instance: &str, kind: &str) {
        let key = labels(&[("watcher_instance", instance), ("type", kind)]);
        self.watch_events.get_or_create(&key).inc();
    }

    pub(in crate::shell) fn watch_error(&self, instance: &str, source: &str) {
        let key = labels(&[("watcher_instance", instance), ("source", source)]);
        self.watch_errors.get_or_create(&key).inc();
    }
}
