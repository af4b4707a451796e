//! Metrics that a monitor pushes (version 2 of the link). They have the numbers of the guest's
//! page, so the agent does not scrape while they arrive.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use protocol::exposition::SystemGauges;
use protocol::monitor_v2::GuestMetrics;
use protocol::time::{Span, Timestamp};

use crate::core::metrics::Signals;
use crate::core::{ScalingConfig, SystemMetrics};

/// Periods without a push after which scrapes resume.
const FRESH_PERIODS: u64 = 2;

/// Time of a monitor's last push. The VM's driver writes it, and its scraper reads it.
#[derive(Debug, Clone, Default)]
pub(super) struct Pushed(Arc<AtomicU64>);

impl Pushed {
    /// Takes the arrival of complete metrics.
    pub(super) fn came(&self, now: Timestamp) {
        self.0.store(now.0, Ordering::Relaxed);
    }

    /// Takes the end of the link.
    pub(super) fn ended(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// Whether the last push is newer than two periods.
    pub(super) fn is_fresh(&self, now: Timestamp, period: Span) -> bool {
        let last = self.0.load(Ordering::Relaxed);
        let limit = Span(period.0.saturating_mul(FRESH_PERIODS));
        last != 0 && now.since(Timestamp(last)) < limit
    }
}

/// System metrics in a push, equal to those of a page with the same gauges. `None` when one is
/// absent or no number, as for a page.
#[expect(
    clippy::cast_precision_loss,
    reason = "a page's samples are floats too"
)]
pub(super) fn system_of(pushed: &GuestMetrics) -> Option<SystemMetrics> {
    let memory = pushed.memory?;
    let (load1, load5) = match (pushed.runnable_load1, pushed.runnable_load5) {
        (None, None) => (pushed.load1?, pushed.load5?),
        (load1, load5) => (load1?, load5?),
    };
    let is_load = |load: f64| load.is_finite() && load >= 0.0;
    (is_load(load1) && is_load(load5)).then(|| {
        SystemMetrics::from(SystemGauges {
            load1,
            load5,
            memory_total_bytes: memory.total as f64,
            memory_available_bytes: memory.available as f64,
            memory_cached_bytes: memory.cached as f64,
        })
    })
}

/// Further signals in a push that have a vote by the VM's settings. A share of time outside 0 to
/// 100 percent is left out, because a guest may send any number.
#[expect(clippy::cast_precision_loss, reason = "an estimate")]
pub(super) fn signals_of(pushed: &GuestMetrics, scaling: &ScalingConfig) -> Signals {
    let estimate = pushed.cgroup.working_set.map(|bytes| bytes as f64);
    let stalls = [pushed.machine_stalls, pushed.cgroup_stalls];
    let pressure = stalls
        .into_iter()
        .flatten()
        .map(|stall| stall.some_percent)
        .filter(|share| (0.0..=100.0).contains(share))
        .reduce(f64::max);
    Signals {
        estimate_bytes: estimate.filter(|_| scaling.enable_monitor_estimate),
        pressure_percent: pressure.filter(|_| scaling.memory_pressure_hold_percent > 0.0),
    }
}

#[cfg(test)]
mod tests {
    use protocol::exposition::Page;
    use protocol::monitor_v2::{GroupGauges, MachineGauges, Stalls};

    use super::*;

    fn pushed() -> GuestMetrics {
        GuestMetrics {
            load1: Some(1.25),
            load5: Some(0.75),
            memory: Some(MachineGauges {
                total: 4_294_967_296,
                available: 3_221_225_471,
                cached: 268_435_457,
            }),
            ..GuestMetrics::default()
        }
    }

    fn page_of(pushed: &GuestMetrics) -> SystemMetrics {
        let memory = pushed.memory.expect("there");
        let mut gauges = vec![
            (
                "host_load1",
                pushed.load1.map_or(String::new(), |v| v.to_string()),
            ),
            (
                "host_load5",
                pushed.load5.map_or(String::new(), |v| v.to_string()),
            ),
            ("host_memory_total_bytes", memory.total.to_string()),
            ("host_memory_available_bytes", memory.available.to_string()),
            ("host_memory_cached_bytes", memory.cached.to_string()),
        ];
        for (name, value) in [
            ("host_runnable_load1", pushed.runnable_load1),
            ("host_runnable_load5", pushed.runnable_load5),
        ] {
            gauges.extend(value.map(|value| (name, value.to_string())));
        }
        let mut page = Page::system();
        for (name, value) in gauges {
            page.feed(format!("# TYPE {name} gauge\n{name} {value}\n").as_bytes());
        }
        page.into_system().expect("a good page").into()
    }

    /// Requirement: N02
    #[test]
    fn push_and_page_with_the_same_gauges_give_the_same_metrics() {
        assert_eq!(system_of(&pushed()), Some(page_of(&pushed())));
        let runnable = GuestMetrics {
            runnable_load1: Some(0.5),
            runnable_load5: Some(0.25),
            ..pushed()
        };
        assert_eq!(system_of(&runnable), Some(page_of(&runnable)));
        let less_than_available = GuestMetrics {
            memory: Some(MachineGauges {
                total: 1,
                available: 2,
                cached: 0,
            }),
            ..pushed()
        };
        let odd = system_of(&less_than_available);
        assert_eq!(odd, Some(page_of(&less_than_available)));
    }

    #[test]
    fn incomplete_push_gives_no_metrics() {
        for lacking in [
            GuestMetrics {
                load1: None,
                ..pushed()
            },
            GuestMetrics {
                load5: None,
                ..pushed()
            },
            GuestMetrics {
                memory: None,
                ..pushed()
            },
            GuestMetrics {
                runnable_load1: Some(1.0),
                ..pushed()
            },
            GuestMetrics {
                load1: Some(-1.0),
                ..pushed()
            },
            GuestMetrics {
                load1: Some(f64::NAN),
                ..pushed()
            },
        ] {
            assert_eq!(system_of(&lacking), None, "{lacking:?}");
        }
    }

    #[test]
    fn only_enabled_and_plausible_signals_are_read() {
        let stalls = |some_percent| {
            Some(Stalls {
                some_percent,
                full_percent: 0.0,
                some_us: 0,
                full_us: 0,
            })
        };
        let says = |machine, group| GuestMetrics {
            machine_stalls: stalls(machine),
            cgroup_stalls: stalls(group),
            cgroup: GroupGauges {
                working_set: Some(3 << 30),
                ..GroupGauges::default()
            },
            ..pushed()
        };
        let off = ScalingConfig::default();
        assert_eq!(signals_of(&says(1.0, 2.0), &off), Signals::default());
        let on = ScalingConfig {
            enable_monitor_estimate: true,
            memory_pressure_hold_percent: 5.0,
            ..off
        };
        let estimate_bytes = Some(3_221_225_472.0);
        for (machine, group, pressure_percent) in [
            (1.0, 2.0, Some(2.0)),
            (2.5, 0.0, Some(2.5)),
            (f64::NAN, 0.5, Some(0.5)),
            (-1.0, 101.0, None),
        ] {
            let signals = Signals {
                estimate_bytes,
                pressure_percent,
            };
            assert_eq!(signals_of(&says(machine, group), &on), signals);
        }
        assert_eq!(signals_of(&pushed(), &on), Signals::default());
    }

    #[test]
    fn push_is_fresh_for_two_periods_or_until_the_link_is_down() {
        let (pushed, period) = (Pushed::default(), Span::from_secs(5));
        let at = |secs| Timestamp(0) + Span::from_secs(secs);
        assert!(!pushed.is_fresh(at(1), period), "none came yet");
        pushed.came(at(10));
        assert!(pushed.is_fresh(at(19), period) && !pushed.is_fresh(at(20), period));
        pushed.ended();
        assert!(!pushed.is_fresh(at(11), period));
    }
}
