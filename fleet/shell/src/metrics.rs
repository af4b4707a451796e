//! Metrics of rollouts, by the names of docs/reference/metrics.md.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use fleet_core::Deployment;
use fleet_store::{LoadedChannel, LoadedEnvironment};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use protocol::fleet::{DeploymentKind, DeploymentState};

use crate::changes::{Change, ChangeKind, Key, cause_label};

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StateLabels {
    state: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct EndLabels {
    result: String,
    reason: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ChangeLabels {
    change: &'static str,
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct EnvironmentLabels {
    namespace: String,
    environment: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct GateLabels {
    namespace: String,
    environment: String,
    gate: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ChannelLabels {
    namespace: String,
    channel: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ConditionLabels {
    namespace: String,
    channel: String,
    condition: String,
}

/// Metrics of rollouts; clones share them.
#[derive(Debug, Clone, Default)]
pub struct Metrics {
    deployments: Family<StateLabels, Gauge>,
    turns: Family<EndLabels, Counter>,
    changes: Family<ChangeLabels, Counter>,
    in_flight: Family<EnvironmentLabels, Gauge>,
    blocked_since: Family<GateLabels, Gauge>,
    pass_seconds: Family<EnvironmentLabels, Gauge<f64, AtomicU64>>,
    halted: Family<EnvironmentLabels, Gauge>,
    fresh_until: Family<ChannelLabels, Gauge>,
    failing: Family<ConditionLabels, Gauge>,
}

impl Metrics {
    /// Adds the metrics to a page. Those of changes are there from the start.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        registry.register(
            "bellows_fleet_deployments",
            "Deployments by state",
            metrics.deployments.clone(),
        );
        registry.register(
            "bellows_fleet_turns",
            "Turns that ended, by result and reason",
            metrics.turns.clone(),
        );
        registry.register(
            "bellows_fleet_changes",
            "Changes of objects and orders to guests",
            metrics.changes.clone(),
        );
        registry.register(
            "bellows_fleet_in_flight",
            "Guests in a turn",
            metrics.in_flight.clone(),
        );
        registry.register(
            "bellows_fleet_blocked_since_seconds",
            "Time at which the gate closed that holds every remaining guest, since the epoch",
            metrics.blocked_since.clone(),
        );
        registry.register(
            "bellows_fleet_pass_seconds",
            "Time of the last pass, from the first list of objects to the last write",
            metrics.pass_seconds.clone(),
        );
        registry.register(
            "bellows_fleet_halted",
            "Whether the newest deployment of a person ended unhealthy or in time-out",
            metrics.halted.clone(),
        );
        registry.register(
            "bellows_fleet_channel_fresh_until_seconds",
            "End of the time in which the channel's reading may be acted upon, since the epoch",
            metrics.fresh_until.clone(),
        );
        registry.register(
            "bellows_fleet_channel_failing",
            "Whether a condition of the channel is false",
            metrics.failing.clone(),
        );
        for kind in ChangeKind::ALL {
            drop(metrics.changes.get_or_create(&change_labels(kind, true)));
        }
        metrics
    }

    pub(crate) fn count(&self, change: &Change) {
        let is_done = change.failure.is_none();
        self.changes
            .get_or_create(&change_labels(change.kind, is_done))
            .inc();
        if let Some((result, cause)) = change.end.filter(|_| is_done) {
            let labels = EndLabels {
                result: format!("{result:?}").to_ascii_lowercase(),
                reason: cause_label(cause),
            };
            self.turns.get_or_create(&labels).inc();
        }
    }

    /// Records the length of a pass.
    pub(crate) fn passed(&self, key: &Key, took: Duration) {
        self.pass_seconds
            .get_or_create(&labels(key))
            .set(took.as_secs_f64());
    }

    /// Updates the gauges. Those of an environment that is gone are removed.
    pub(crate) fn show(&self, environments: &[LoadedEnvironment]) {
        let mut states: BTreeMap<DeploymentState, i64> =
            DeploymentState::ALL.map(|state| (state, 0)).into();
        self.in_flight.clear();
        self.blocked_since.clear();
        self.halted.clear();
        for one in environments {
            let key = (one.namespace.clone(), one.environment.name.clone());
            let mut in_flight = 0;
            for deployment in &one.deployments {
                let status = &deployment.status;
                *states.entry(status.state).or_default() += 1;
                if status.state.is_terminal() {
                    continue;
                }
                in_flight += i64::from(status.progress.in_flight);
                if let Some(by) = &status.blocked_by {
                    let gate = GateLabels {
                        namespace: key.0.clone(),
                        environment: key.1.clone(),
                        gate: by.gate.clone(),
                    };
                    let since = by.since.0.div_euclid(1_000_000);
                    self.blocked_since.get_or_create(&gate).set(since);
                }
            }
            self.in_flight.get_or_create(&labels(&key)).set(in_flight);
            let is_halted = i64::from(is_halted(&one.deployments));
            self.halted.get_or_create(&labels(&key)).set(is_halted);
        }
        for (state, count) in states {
            let state = format!("{state:?}");
            self.deployments
                .get_or_create(&StateLabels { state })
                .set(count);
        }
    }

    /// Updates the gauges of channels. Those of a channel that is gone are removed.
    pub(crate) fn show_channels(&self, channels: &[LoadedChannel]) {
        self.fresh_until.clear();
        self.failing.clear();
        for one in channels {
            let labels = ChannelLabels {
                namespace: one.namespace.clone(),
                channel: one.name.clone(),
            };
            for condition in &one.status.conditions {
                let labels = ConditionLabels {
                    namespace: one.namespace.clone(),
                    channel: one.name.clone(),
                    condition: condition.r#type.clone(),
                };
                let is_failing = i64::from(condition.status == "False");
                self.failing.get_or_create(&labels).set(is_failing);
            }
            // A folder without signatures has no end.
            if let Some(until) = one.status.fresh_until {
                let fresh_until = self.fresh_until.get_or_create(&labels);
                fresh_until.set(until.0.div_euclid(1_000_000));
            }
        }
    }
}

/// Whether the newest deployment of a person that began has failed, or the newest verification.
fn is_halted(deployments: &[Deployment]) -> bool {
    let kinds = [DeploymentKind::User, DeploymentKind::Cron];
    let of_people = deployments.iter().filter(|one| {
        kinds.contains(&one.spec.kind) && one.status.state != DeploymentState::Pending
    });
    let newest = of_people.max_by_key(|one| (one.created, &one.name));
    newest.is_some_and(|one| {
        let ends = [DeploymentState::Unhealthy, DeploymentState::TimedOut];
        ends.contains(&one.status.state)
    })
}

fn labels(key: &Key) -> EnvironmentLabels {
    EnvironmentLabels {
        namespace: key.0.clone(),
        environment: key.1.clone(),
    }
}

const fn change_labels(kind: ChangeKind, is_done: bool) -> ChangeLabels {
    ChangeLabels {
        change: kind.as_str(),
        outcome: if is_done { "success" } else { "failure" },
    }
}
