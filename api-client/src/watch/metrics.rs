//! Counters and gauges of watches, with the same names and labels in every program.

use std::sync::atomic::AtomicU64;

use futures::StreamExt as _;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::{Error, Event, Events, source};

type Label = (&'static str, &'static str);
type Counters = Family<[Label; 2], Counter>;
type Switches = Family<[Label; 1], Gauge<f64, AtomicU64>>;

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
    calls: Counters,
    relists: Family<[Label; 1], Counter>,
    events: Counters,
    errors: Counters,
    alive: Switches,
    failing: Switches,
}

impl WatchMetrics {
    /// Registers the metrics. `registry` adds the program's prefix.
    pub fn new(types: EventTypes, registry: &mut Registry) -> Self {
        let (calls, events, errors) = <(Counters, Counters, Counters)>::default();
        let (alive, failing) = <(Switches, Switches)>::default();
        let relists = Family::<[Label; 1], Counter>::default();
        let counters = [
            ("watchers_client_calls", "Lists and watches", &calls),
            ("watchers_events", "Watch events", &events),
            ("watchers_errors", "Watch errors", &errors),
        ];
        for (name, help, family) in counters {
            registry.register(name, help, family.clone());
        }
        let switches = [
            ("watchers_alive_current", "Watches running", &alive),
            ("watchers_failing_current", "Watches failing now", &failing),
        ];
        for (name, help, family) in switches {
            registry.register(name, help, family.clone());
        }
        let help = "Lists made again";
        registry.register("watchers_relist_requests", help, relists.clone());
        Self {
            types,
            calls,
            relists,
            events,
            errors,
            alive,
            failing,
        }
    }

    /// Sets whether a watch fails now.
    pub fn failing(&self, instance: &'static str, is_failing: bool) {
        set(&self.failing, instance, is_failing);
    }

    /// Counts what a watch yields. The watch is alive until the result is dropped.
    pub fn count<K: 'static>(&self, instance: &'static str, events: Events<K>) -> Events<K> {
        set(&self.alive, instance, true);
        let mut counted = Counted {
            metrics: self.clone(),
            instance,
            was_listed: false,
        };
        events.inspect(move |event| counted.count(event)).boxed()
    }
}

const fn label(instance: &'static str) -> Label {
    ("watcher_instance", instance)
}

fn set(switches: &Switches, instance: &'static str, is_on: bool) {
    let gauge = switches.get_or_create(&[label(instance)]);
    gauge.set(if is_on { 1.0 } else { 0.0 });
}

struct Counted {
    metrics: WatchMetrics,
    instance: &'static str,
    was_listed: bool,
}

impl Counted {
    fn count<K>(&mut self, event: &Result<Event<K>, Error>) {
        let (metrics, label) = (&self.metrics, label(self.instance));
        let kind = match event {
            Ok(Event::Init) => {
                let list = [label, ("method", "List")];
                metrics.calls.get_or_create(&list).inc();
                if self.was_listed {
                    metrics.relists.get_or_create(&[label]).inc();
                }
                return;
            }
            Ok(Event::InitApply(_)) => return,
            Ok(Event::InitDone) => {
                let watch = [label, ("method", "Watch")];
                metrics.calls.get_or_create(&watch).inc();
                self.was_listed = true;
                metrics.types.listed
            }
            Ok(Event::Apply(_)) => metrics.types.applied,
            Ok(Event::Delete(_)) => metrics.types.deleted,
            Err(error) => {
                let source = [label, ("source", source(error))];
                metrics.errors.get_or_create(&source).inc();
                return metrics.failing(self.instance, true);
            }
        };
        metrics.events.get_or_create(&[label, ("type", kind)]).inc();
        metrics.failing(self.instance, false);
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        set(&self.metrics.alive, self.instance, false);
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
