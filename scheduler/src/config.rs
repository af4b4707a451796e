//! The config file `autoscale-enforcer-config.json`: same keys and rules as the deployed
//! scheduler's.
//!
//! Unknown keys are refused, keys match in any case, and all problems are reported at once.
//! Source: docs/compatibility/scheduler.md §5.1.

mod reader;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use protocol::time::Span;
use serde::Serialize;
use serde_json::Value;

use reader::Reader;

use crate::core::migrate::MigrationRule;
use crate::core::overcommit::OvercommitPolicy;
use crate::core::rules::{Fairness, Rules};
use crate::core::score::Curve;
use crate::core::{Settings, Timing};

/// Time beyond a call's own time-out after which the core counts its outcome as lost.
const CALL_SLACK: Span = Span::from_secs(2);

/// The shape of `fairness`, for the error of a bad one.
const FAIRNESS_KEYS: &str = "an object of sharing (true or false), vmGrowthPerSecond and nodeGrowthPerSecond \
    ({vCPUs, mem}), burstSeconds (a whole number)";

/// The shape of `migration`, for the error of a bad one.
const MIGRATION_KEYS: &str = "an object of mode (off, deployed or pressure), maxPerNode, backoffSeconds, \
    backoffMaxSeconds and stuckSeconds (whole numbers)";

/// The shape of `overcommit`, for the error of a bad one.
const OVERCOMMIT_KEYS: &str =
    "an object of max ({cpu, memory}) and namespaces (by name, the same), factors of at least 1";

/// The checked configuration. [`Config::default`] holds the values that ship.
///
/// A file must have the members whose line says *required*. Members that the deployed scheduler
/// does not have are marked *Bellows only*. They are left out of the output while they have their
/// defaults, so that the output is also a file for the deployed scheduler.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Config {
    /// Largest part of a node's total that should be reserved. More is pressure. Above 0, at most
    /// 1. Required; ships as 0.9.
    pub watermark: f64,
    /// The scoring curve. Required.
    pub scoring: Scoring,
    /// The only `spec.schedulerName` that is ours. A pod with another one fits on no node here. Not
    /// empty. Required; ships as `autoscale-scheduler`.
    pub scheduler_name: String,
    /// No effect, because one task owns the ledger. Above 0. Required; ships as 16.
    pub reconcile_workers: u64,
    /// No effect. Above 0. Required; ships as 10.
    pub log_successive_failures_threshold: u64,
    /// Seconds from the start after which missing lists are logged as a warning. Above 0.
    /// Required; ships as 15.
    pub startup_event_handling_timeout_seconds: u64,
    /// Time-out of one API call, and of one permit request, in seconds. Above 0. Required; ships as
    /// 1.
    #[serde(rename = "k8sCRUDTimeoutSeconds")]
    pub crud_timeout_seconds: u64,
    /// No effect, because each permit request writes at once. Above 0. Required; ships as 1.
    pub patch_retry_wait_seconds: u64,
    /// Additional labels of the metrics of a node: metric label to node label. Default: none.
    pub node_metric_labels: BTreeMap<String, String>,
    /// Namespaces whose pods count for placement only. Default: none.
    pub ignored_namespaces: BTreeSet<String>,
    /// Sharing of headroom and growth rates. Bellows only. Default: off.
    #[serde(skip_serializing_if = "Fairness::is_off")]
    pub fairness: Fairness,
    /// When VMs are migrated. Bellows only. Default: [`MigrationRule::default`].
    #[serde(skip_serializing_if = "MigrationRule::is_default")]
    pub migration: MigrationRule,
    /// Largest over-commit factors that count, each at least 1. Bellows only. Default: 16 for CPU,
    /// 4 for memory.
    #[serde(skip_serializing_if = "OvercommitPolicy::is_default")]
    pub overcommit: OvercommitPolicy,
    /// Whether kube-scheduler's binding to a node without headroom is refused. The deployed plugin
    /// never refuses one. Bellows only. Default: true.
    #[serde(skip_serializing_if = "is_true")]
    pub strict_bind: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
const fn is_true(value: &bool) -> bool {
    *value
}

/// The scoring curve. Scores and fractions are from 0 to 1, and required.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Scoring {
    /// Score of an empty node. Ships as 0.5.
    pub min_usage_score: f64,
    /// Score of a full node. Ships as 0.
    pub max_usage_score: f64,
    /// Fraction of a node in use that scores best, with 1. Ships as 0.8.
    pub score_peak: f64,
    /// Whether the extender replaces each score by a random one of at most the score. The built-in
    /// placement never does. Ships as true; false if a file does not have it.
    pub randomize: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            watermark: 0.9,
            scoring: Scoring {
                min_usage_score: 0.5,
                max_usage_score: 0.0,
                score_peak: 0.8,
                randomize: true,
            },
            scheduler_name: "autoscale-scheduler".into(),
            reconcile_workers: 16,
            log_successive_failures_threshold: 10,
            startup_event_handling_timeout_seconds: 15,
            crud_timeout_seconds: 1,
            patch_retry_wait_seconds: 1,
            node_metric_labels: BTreeMap::new(),
            ignored_namespaces: BTreeSet::new(),
            fairness: Fairness::default(),
            migration: MigrationRule::default(),
            overcommit: OvercommitPolicy::default(),
            strict_bind: true,
        }
    }
}

/// All problems of a config file, one text each. Each text names the member and the valid values.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the configuration has {} problem(s): {}", .0.len(), .0.join("; "))]
pub struct ConfigError(pub Vec<String>);

/// Why there is no configuration. The program reports it and exits; only a changed file helps.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The file is missing or not readable for this process.
    #[error("could not read {path}")]
    Read {
        /// The file, as the command line names it.
        path: PathBuf,
        /// The error of the operating system.
        #[source]
        source: std::io::Error,
    },
    /// The file is no JSON, or has a bad, missing or unknown member.
    #[error("{path} is not valid")]
    Invalid {
        /// The file, as the command line names it.
        path: PathBuf,
        /// The problems of the file, all of them.
        #[source]
        source: ConfigError,
    },
}

impl Config {
    /// Reads and checks a file. `None`: the values that ship.
    ///
    /// # Errors
    /// The file is not readable, or [`LoadError::Invalid`] with all problems.
    pub fn load(path: Option<&Path>) -> Result<Self, LoadError> {
        let Some(path) = path else {
            return Ok(Self::default());
        };
        let text = std::fs::read_to_string(path).map_err(|source| LoadError::Read {
            path: path.to_owned(),
            source,
        })?;
        Self::parse(&text).map_err(|source| LoadError::Invalid {
            path: path.to_owned(),
            source,
        })
    }

    /// The effective values as a config file. [`Config::parse`] reads it back.
    #[must_use]
    pub fn to_pretty_json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_else(|error| error.to_string())
    }

    /// Reads and checks the text of a config file.
    ///
    /// # Errors
    /// [`ConfigError`] with all problems.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        let value: Value = serde_json::from_str(text)
            .map_err(|error| ConfigError(vec![format!("not JSON: {error}")]))?;
        let Value::Object(members) = value else {
            return Err(ConfigError(vec!["not a JSON object".into()]));
        };
        let mut reader = Reader::new("", members);
        let watermark = reader.number(
            "watermark",
            |n| n > 0.0 && n <= 1.0,
            "above 0 and at most 1",
        );
        let scoring = reader.take("scoring");
        let scheduler_name = reader.text("schedulerName");
        let mut positive = |key| reader.positive(key);
        let mut config = Self {
            watermark,
            scheduler_name,
            reconcile_workers: positive("reconcileWorkers"),
            log_successive_failures_threshold: positive("logSuccessiveFailuresThreshold"),
            startup_event_handling_timeout_seconds: positive("startupEventHandlingTimeoutSeconds"),
            crud_timeout_seconds: positive("k8sCRUDTimeoutSeconds"),
            patch_retry_wait_seconds: positive("patchRetryWaitSeconds"),
            node_metric_labels: reader.optional("nodeMetricLabels", "a map of texts"),
            ignored_namespaces: reader.optional("ignoredNamespaces", "a list of texts"),
            fairness: reader.optional("fairness", FAIRNESS_KEYS),
            migration: reader.optional("migration", MIGRATION_KEYS),
            overcommit: reader.optional("overcommit", OVERCOMMIT_KEYS),
            strict_bind: reader
                .optional::<Option<bool>>("strictBind", "true or false")
                .unwrap_or(true),
            ..Self::default()
        };
        let mut problems = reader.finish();
        match scoring {
            Some(Value::Object(members)) => {
                let mut reader = Reader::new("scoring.", members);
                let mut part =
                    |key| reader.number(key, |n| (0.0..=1.0).contains(&n), "between 0 and 1");
                config.scoring = Scoring {
                    min_usage_score: part("minUsageScore"),
                    max_usage_score: part("maxUsageScore"),
                    score_peak: part("scorePeak"),
                    randomize: reader.optional("randomize", "true or false"),
                };
                problems.extend(reader.finish());
            }
            Some(_) => problems.push("scoring must be an object".into()),
            None => problems.push("scoring is missing".into()),
        }
        if problems.is_empty() {
            Ok(config)
        } else {
            Err(ConfigError(problems))
        }
    }

    /// Time-out of one API call.
    #[must_use]
    pub fn crud_timeout(&self) -> Span {
        Span::from_secs(self.crud_timeout_seconds)
    }

    /// Settings of the core. They have no Lease and no standby cache: the caller adds these.
    ///
    /// `places_pods`: there is no kube-scheduler. `count_plugged`: resources that a runner reports
    /// as plugged count.
    #[must_use]
    pub fn settings(&self, places_pods: bool, count_plugged: bool) -> Settings {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "the watermark is above 0 and at most 1"
        )]
        let watermark_ppm = (self.watermark * 1e6).round() as u32;
        let budget = self.crud_timeout();
        Settings {
            rules: Rules {
                scheduler_name: self.scheduler_name.clone(),
                ignored_namespaces: self.ignored_namespaces.clone(),
                watermark_ppm,
                curve: Curve {
                    min_usage_score: self.scoring.min_usage_score,
                    max_usage_score: self.scoring.max_usage_score,
                    score_peak: self.scoring.score_peak,
                },
                count_plugged,
                fairness: self.fairness,
                overcommit: self.overcommit.clone(),
            },
            timing: Timing {
                request_budget: budget,
                call_budget: Span(budget.0 + CALL_SLACK.0),
            },
            migration: self.migration,
            places_pods,
            lease: None,
            caches_on_standby: false,
        }
    }
}

#[cfg(test)]
mod tests;
