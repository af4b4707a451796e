//! Whether a VM's scaling is stuck. Gauges and the dump show the result; no decision uses it.
//! Source: docs/compatibility/agent.md §6.2.

use protocol::time::{Span, Timestamp};
use serde::Serialize;

use super::recent::RecentCounter;

/// Number of failures from which a VM counts as stuck.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FailureRate {
    /// Length of the sliding interval.
    pub interval: Span,
    /// Largest number of failures in the interval that is not stuck.
    pub threshold: usize,
}

/// Limits from which a VM counts as stuck.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HealthConfig {
    /// Longest time since the monitor's last response.
    pub unhealthy_after_silence: Span,
    /// Longest time without a first response, from the start of the task or the assignment of the
    /// endpoint.
    pub unhealthy_startup_grace: Span,
    /// Limit of failed monitor requests.
    pub monitor: FailureRate,
    /// Limit of permit requests that failed or were denied.
    pub scheduler: FailureRate,
    /// Limit of failed patches.
    pub vm_patch: FailureRate,
}

/// Why a VM is stuck.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum StuckReason {
    /// The monitor has not responded for too long.
    MonitorSilent,
    /// More monitor requests failed in the interval than the threshold allows.
    MonitorFailures,
    /// More permit requests failed or were denied in the interval than the threshold allows.
    SchedulerFailures,
    /// More patches of the VM object failed in the interval than the threshold allows.
    #[serde(rename = "neon_vm_failures")]
    VmPatchFailures,
}

/// Recent successes and failures of a VM's peers.
#[derive(Debug, Clone)]
pub struct Health {
    config: HealthConfig,
    /// Start of the VM's task, or assignment of its endpoint.
    grace_from: Timestamp,
    last_monitor_success: Option<Timestamp>,
    monitor: RecentCounter,
    scheduler: RecentCounter,
    vm_patch: RecentCounter,
}

impl Health {
    /// Starts the grace period at `now`.
    #[must_use]
    pub fn new(config: HealthConfig, now: Timestamp) -> Self {
        Self {
            config,
            grace_from: now,
            last_monitor_success: None,
            monitor: RecentCounter::new(config.monitor.interval),
            scheduler: RecentCounter::new(config.scheduler.interval),
            vm_patch: RecentCounter::new(config.vm_patch.interval),
        }
    }

    /// Starts the grace period again, because the VM got its endpoint.
    pub fn endpoint_assigned(&mut self, now: Timestamp) {
        self.grace_from = now;
    }

    /// Counts a response of the monitor.
    pub fn monitor_succeeded(&mut self, now: Timestamp) {
        self.last_monitor_success = Some(now);
    }

    /// Counts a failed monitor request. A refusal is not a failure.
    pub fn monitor_failed(&mut self, now: Timestamp) {
        self.monitor.add(now);
    }

    /// Counts a permit request that failed or was denied whole.
    pub fn scheduler_failed(&mut self, now: Timestamp) {
        self.scheduler.add(now);
    }

    /// Counts a failed patch.
    pub fn vm_patch_failed(&mut self, now: Timestamp) {
        self.vm_patch.add(now);
    }

    /// Time of the monitor's last response; `None` before the first.
    #[must_use]
    pub fn last_monitor_success(&self) -> Option<Timestamp> {
        self.last_monitor_success
    }

    /// Failures within their intervals: monitor, scheduler, patches.
    pub fn counts(&mut self, now: Timestamp) -> [usize; 3] {
        [
            self.monitor.count(now),
            self.scheduler.count(now),
            self.vm_patch.count(now),
        ]
    }

    /// The first reason why the VM is stuck, in the order of [`StuckReason`].
    pub fn stuck(&mut self, now: Timestamp) -> Option<StuckReason> {
        let silent_from = match self.last_monitor_success {
            None => self.grace_from + self.config.unhealthy_startup_grace,
            Some(last) => last + self.config.unhealthy_after_silence,
        };
        let [monitor, scheduler, vm_patch] = self.counts(now);
        if now > silent_from {
            Some(StuckReason::MonitorSilent)
        } else if monitor > self.config.monitor.threshold {
            Some(StuckReason::MonitorFailures)
        } else if scheduler > self.config.scheduler.threshold {
            Some(StuckReason::SchedulerFailures)
        } else if vm_patch > self.config.vm_patch.threshold {
            Some(StuckReason::VmPatchFailures)
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
            vm_patch: rate,
        };
        Health::new(config, at(0))
    }

    fn at(secs: u64) -> Timestamp {
        Timestamp(secs * 1_000_000)
    }

    #[test]
    fn vm_with_silent_monitor_is_stuck_after_the_grace_period() {
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
    fn failures_above_the_threshold_count_until_the_interval_ends() {
        type Fail = fn(&mut Health, Timestamp);
        let cases: [(Fail, StuckReason); 3] = [
            (Health::monitor_failed, StuckReason::MonitorFailures),
            (Health::scheduler_failed, StuckReason::SchedulerFailures),
            (Health::vm_patch_failed, StuckReason::VmPatchFailures),
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
