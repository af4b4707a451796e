//! Counters and gauges of watches, with the same names and labels in every program.

use std::sync::atomic::AtomicU64;

use futures::StreamExt as _;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::{Error, Event, Events, source};

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Instance {
    watcher_instance: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Call {
    watcher_instance: &'static str,
    method: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct EventType {
    watcher_instance: &'static str,
    r#type: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ErrorSource {
    watcher_instance: &'static str,
    source: &'static str,
}

type Switch = Family<Instance, Gauge<f64, AtomicU64>>;

/// Values of the label `type`.
#[derive(Debug, Clone, Copy)]
pub struct EventTypes {
    /// A list is complete.
    pub listed: &'static str,
    /// An object was created or changed.
    pub applied: &'static str,
    /// An object was deleted.
    pub deleted: &'static str,
}

/// Metrics of all watches of a program. Clones share their values.
#[derive(Debug, Clone)]
pub struct WatchMetrics {
    types: EventTypes,
    calls: Family<Call, Counter>,
    relists: Family<Instance, Counter>,
    events: Family<EventType, Counter>,
    errors: Family<ErrorSource, Counter>,
    alive: Switch,
    failing: Switch,
}

impl WatchMetrics {
    /// Registers the metrics. `registry` adds the program's prefix.
    pub fn new(types: EventTypes, registry: &mut Registry) -> Self {
        let metrics = Self {
            types,
            calls: Family::default(),
            relists: Family::default(),
            events: Family::default(),
            errors: Family::default(),
            alive: Switch::default(),
            failing: Switch::default(),
        };
        let calls = metrics.calls.clone();
        registry.register("watchers_client_calls", "Lists and watches", calls);
        let relists = metrics.relists.clone();
        registry.register("watchers_relist_requests", "Lists made again", relists);
        registry.register("watchers_events", "Watch events", metrics.events.clone());
        registry.register("watchers_errors", "Watch errors", metrics.errors.clone());
        let alive = metrics.alive.clone();
        registry.register("watchers_alive_current", "Watches running", alive);
        let failing = metrics.failing.clone();
        registry.register("watchers_failing_current", "Watches failing now", failing);
        metrics
    }

    /// Sets whether a watch fails now.
    pub fn failing(&self, watcher_instance: &'static str, is_failing: bool) {
        set(&self.failing, watcher_instance, is_failing);
    }

    /// Counts what a watch yields. The watch is alive until the result is dropped.
    pub fn count<K: 'static>(
        &self,
        watcher_instance: &'static str,
        events: Events<K>,
    ) -> Events<K> {
        set(&self.alive, watcher_instance, true);
        let mut counted = Counted {
            metrics: self.clone(),
            watcher_instance,
            was_listed: false,
        };
        events.inspect(move |event| counted.count(event)).boxed()
    }
}

fn set(switch: &Switch, watcher_instance: &'static str, is_on: bool) {
    let gauge = switch.get_or_create(&Instance { watcher_instance });
    gauge.set(if is_on { 1.0 } else { 0.0 });
}

struct Counted {
    metrics: WatchMetrics,
    watcher_instance: &'static str,
    was_listed: bool,
}

impl Counted {
    fn count<K>(&mut self, event: &Result<Event<K>, Error>) {
        let (metrics, watcher_instance) = (&self.metrics, self.watcher_instance);
        let types = metrics.types;
        let r#type = match event {
            Ok(Event::Init) => {
                self.called("List");
                if self.was_listed {
                    let relists = &metrics.relists;
                    relists.get_or_create(&Instance { watcher_instance }).inc();
                }
                return;
            }
            Ok(Event::InitApply(_)) => return,
            Ok(Event::InitDone) => {
                self.called("Watch");
                self.was_listed = true;
                types.listed
            }
            Ok(Event::Apply(_)) => types.applied,
            Ok(Event::Delete(_)) => types.deleted,
            Err(error) => {
                let label = ErrorSource {
                    watcher_instance,
                    source: source(error),
                };
                metrics.errors.get_or_create(&label).inc();
                return metrics.failing(watcher_instance, true);
            }
        };
        let label = EventType {
            watcher_instance,
            r#type,
        };
        metrics.events.get_or_create(&label).inc();
        metrics.failing(watcher_instance, false);
    }

    fn called(&self, method: &'static str) {
        let label = Call {
            watcher_instance: self.watcher_instance,
            method,
        };
        self.metrics.calls.get_or_create(&label).inc();
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        set(&self.metrics.alive, self.watcher_instance, false);
    }
}

#[cfg(test)]
mod tests {
    use futures::stream;
    use prometheus_client::encoding::text::encode;

    use super::*;

    const TYPES: EventTypes = EventTypes {
        listed: "Listed",
        applied: "Applied",
        deleted: "Deleted",
    };

    #[tokio::test]
    async fn watch_is_counted_and_alive_until_it_is_dropped() {
        let mut registry = Registry::with_prefix("ours");
        let metrics = WatchMetrics::new(TYPES, &mut registry);
        let page = || {
            let mut page = String::new();
            encode(&mut page, &registry).expect("encodes");
            page
        };
        let events = [
            Ok(Event::Init),
            Ok(Event::InitApply(1)),
            Ok(Event::InitDone),
            Err(Error::NoResourceVersion),
            Ok(Event::Init),
        ];
        let more = [
            Ok(Event::InitDone),
            Ok(Event::Apply(1)),
            Ok(Event::Delete(1)),
        ];
        let events = stream::iter(events).chain(stream::iter(more)).boxed();
        let mut events = metrics.count("Things", events);
        for _ in 0..5 {
            drop(events.next().await.expect("an event"));
        }
        let during = page();
        while events.next().await.is_some() {}
        drop(events);
        let after = page();
        let label = r#"watcher_instance="Things""#;
        for (page, name, more, value) in [
            (&during, "alive_current", "", "1.0"),
            (&during, "failing_current", "", "1.0"),
            (&during, "relist_requests_total", "", "1"),
            (&after, "alive_current", "", "0.0"),
            (&after, "failing_current", "", "0.0"),
            (&after, "client_calls_total", r#",method="List""#, "2"),
            (&after, "client_calls_total", r#",method="Watch""#, "2"),
            (&after, "events_total", r#",type="Listed""#, "2"),
            (&after, "events_total", r#",type="Deleted""#, "1"),
            (&after, "errors_total", r#",source="List""#, "1"),
        ] {
            let line = format!("ours_watchers_{name}{{{label}{more}}} {value}\n");
            assert!(page.contains(&line), "{line} is not in:\n{page}");
        }
    }
}
