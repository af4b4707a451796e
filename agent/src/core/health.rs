//! Whether a VM's scaling is stuck: a verdict for gauges and dumps, never a reason to act. Source:
//! docs/compatibility/agent.md §6.2.

use protocol::time::{Span, Timestamp};
use serde::Serialize;

use super::recent::RecentCounter;

/// How many failures within how long are too many.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct FailureRate {
    /// The sliding interval.
    pub interval: Span,
    /// More than this many are too many.
    pub threshold: usize,
}

/// What makes a VM stuck.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct HealthConfig {
    /// Longest silence of the monitor.
    pub unhealthy_after_silence: Span,
    /// The same before its first word.
    pub unhealthy_startup_grace: Span,
    /// Monitor calls that failed.
    pub monitor: FailureRate,
    /// Permit requests that failed or were refused.
    pub scheduler: FailureRate,
    /// Patches that failed.
    pub neonvm: FailureRate,
}

/// Why a VM is stuck.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum StuckReason {
    /// The monitor is silent.
    MonitorSilent,
    /// Calls to the monitor fail.
    MonitorFailures,
    /// Permit requests fail or are refused.
    SchedulerFailures,
    /// More patches of the VM object failed in the interval than the threshold allows.
    NeonVmFailures,
}

/// What was seen of a VM's peers lately.
#[derive(Debug, Clone)]
pub struct Health {
    config: HealthConfig,
    /// The start of the VM's task, or when it got its endpoint.
    grace_from: Timestamp,
    last_monitor_success: Option<Timestamp>,
    monitor: RecentCounter,
    scheduler: RecentCounter,
    neonvm: RecentCounter,
}

impl Health {
    /// Nothing was seen yet.
    #[must_use]
    pub fn new(config: HealthConfig, now: Timestamp) -> Self {
        Self {
            config,
            grace_from: now,
            last_monitor_success: None,
            monitor: RecentCounter::new(config.monitor.interval),
            scheduler: RecentCounter::new(config.scheduler.interval),
            neonvm: RecentCounter::new(config.neonvm.interval),
        }
    }

    /// The VM got its endpoint: the grace period starts again.
    pub fn endpoint_assigned(&mut self, now: Timestamp) {
        self.grace_from = now;
    }

    /// The monitor answered.
    pub fn monitor_succeeded(&mut self, now: Timestamp) {
        self.last_monitor_success = Some(now);
    }

    /// A call to the monitor failed; refusals are not failures.
    pub fn monitor_failed(&mut self, now: Timestamp) {
        self.monitor.add(now);
    }

    /// A permit request failed or was refused whole.
    pub fn scheduler_failed(&mut self, now: Timestamp) {
        self.scheduler.add(now);
    }

    /// A patch failed.
    pub fn neonvm_failed(&mut self, now: Timestamp) {
        self.neonvm.add(now);
    }

    /// When the monitor last answered.
    #[must_use]
    pub fn last_monitor_success(&self) -> Option<Timestamp> {
        self.last_monitor_success
    }

    /// Failures within their intervals: monitor, scheduler, patches.
    pub fn counts(&mut self, now: Timestamp) -> [usize; 3] {
        [
            self.monitor.count(now),
            self.scheduler.count(now),
            self.neonvm.count(now),
        ]
    }

    /// The first reason why it is stuck, if it is.
    pub fn stuck(&mut self, now: Timestamp) -> Option<StuckReason> {
        let silent_from = match self.last_monitor_success {
            None => self.grace_from + self.config.unhealthy_startup_grace,
            Some(last) => last + self.config.unhealthy_after_silence,
        };
        let [monitor, scheduler, neonvm] = self.counts(now);
        if now > silent_from {
            Some(StuckReason::MonitorSilent)
        } else if monitor > self.config.monitor.threshold {
            Some(StuckReason::MonitorFailures)
        } else if scheduler > self.config.scheduler.threshold {
            Some(StuckReason::SchedulerFailures)
        } else if neonvm > self.config.neonvm.threshold {
            Some(StuckReason::NeonVmFailures)
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn health() -> Health {
        let rate = FailureRate {
            interval: Span::from_secs(120),
            threshold: 2,
        };
        let config = HealthConfig {
            unhealthy_after_silence: Span::from_secs(20),
            unhealthy_startup_grace: Span::from_secs(30),
            monitor: rate,
            scheduler: rate,
            neonvm: rate,
        };
        Health::new(config, at(0))
    }

    fn at(secs: u64) -> Timestamp {
        Timestamp(secs * 1_000_000)
    }

    #[test]
    fn a_silent_monitor_is_stuck_after_the_grace() {
        let mut health = health();
        assert_eq!(health.stuck(at(30)), None);
        assert_eq!(health.stuck(at(31)), Some(StuckReason::MonitorSilent));
        health.endpoint_assigned(at(20));
        assert_eq!(health.stuck(at(50)), None);
        health.monitor_succeeded(at(51));
        assert_eq!(health.stuck(at(71)), None);
        assert_eq!(health.stuck(at(72)), Some(StuckReason::MonitorSilent));
    }

    #[test]
    fn failures_count_above_the_threshold_and_are_forgotten() {
        type Fail = fn(&mut Health, Timestamp);
        let cases: [(Fail, StuckReason); 3] = [
            (Health::monitor_failed, StuckReason::MonitorFailures),
            (Health::scheduler_failed, StuckReason::SchedulerFailures),
            (Health::neonvm_failed, StuckReason::NeonVmFailures),
        ];
        for (fail, reason) in cases {
            let mut health = health();
            health.monitor_succeeded(at(10));
            fail(&mut health, at(10));
            fail(&mut health, at(10));
            assert_eq!(health.stuck(at(11)), None);
            fail(&mut health, at(11));
            assert_eq!(health.stuck(at(12)), Some(reason));
            health.monitor_succeeded(at(130));
            assert_eq!(health.stuck(at(130)), None);
        }
    }
}
