//! The config file `autoscale-enforcer-config.json`: same keys and rules as the deployed
//! scheduler's.
//!
//! Unknown keys are refused, keys match whatever their case, and every problem is reported at once.
//! Source: docs/compatibility/scheduler.md §5.1.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use protocol::time::Span;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::core::migrate::MigrationRule;
use crate::core::overcommit::OvercommitPolicy;
use crate::core::rules::{Fairness, Rules};
use crate::core::score::Curve;
use crate::core::{Settings, Timing};

/// How long a call's outcome may be late before it is taken as lost, beyond the call's own
/// time-out.
const CALL_SLACK: Span = Span::from_secs(2);

/// What `fairness` holds.
const FAIRNESS_KEYS: &str = "an object of sharing (true or false), vmGrowthPerSecond and nodeGrowthPerSecond \
    ({vCPUs, mem}), burstSeconds (a whole number)";

/// What `migration` holds.
const MIGRATION_KEYS: &str = "an object of mode (off, deployed or pressure), maxPerNode, backoffSeconds, \
    backoffMaxSeconds and stuckSeconds (whole numbers)";

/// What `overcommit` holds.
const OVERCOMMIT_KEYS: &str =
    "an object of max ({cpu, memory}) and namespaces (by name, the same), factors of at least 1";

/// The checked configuration. [`Config::default`] holds the values that ship.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Config {
    /// The part of a node that should stay in use at most: above 0, at most 1.
    pub watermark: f64,
    /// Shape of the score.
    pub scoring: Scoring,
    /// The `spec.schedulerName` that is ours.
    pub scheduler_name: String,
    /// Kept for compatibility; one task owns the ledger.
    pub reconcile_workers: u64,
    /// Failures in a row after which an object's failures are warned about.
    pub log_successive_failures_threshold: u64,
    /// Seconds after which lists that are not there yet are warned about.
    pub startup_event_handling_timeout_seconds: u64,
    /// Time-out of one API call, and of one permit request, seconds.
    #[serde(rename = "k8sCRUDTimeoutSeconds")]
    pub crud_timeout_seconds: u64,
    /// Kept for compatibility; permits are written when they are asked for, not by retries.
    pub patch_retry_wait_seconds: u64,
    /// Metric label to node label.
    pub node_metric_labels: BTreeMap<String, String>,
    /// Namespaces whose pods count for placement only.
    pub ignored_namespaces: BTreeSet<String>,
    /// Ours: who grows next when several want more, and how fast. Off by default.
    #[serde(skip_serializing_if = "Fairness::is_off")]
    pub fairness: Fairness,
    /// Ours: when VMs are migrated.
    #[serde(skip_serializing_if = "MigrationRule::is_default")]
    pub migration: MigrationRule,
    /// Ours: the largest over-commit factors that count.
    #[serde(skip_serializing_if = "OvercommitPolicy::is_default")]
    pub overcommit: OvercommitPolicy,
    /// Ours: whether a binding that kube-scheduler asks for is refused where there is no room any
    /// more. On by default; the deployed plugin never refuses one.
    #[serde(skip_serializing_if = "is_true")]
    pub strict_bind: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
const fn is_true(value: &bool) -> bool {
    *value
}

/// Shape of the score; all between 0 and 1.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Scoring {
    /// Score of an empty node.
    pub min_usage_score: f64,
    /// Score of a full node.
    pub max_usage_score: f64,
    /// Fraction in use that scores best.
    pub score_peak: f64,
    /// Whether an extender's answer is a random number up to the score. The built-in placement
    /// never randomises.
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

/// Everything that is wrong with a config file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the configuration has {} problem(s): {}", .0.len(), .0.join("; "))]
pub struct ConfigError(pub Vec<String>);

/// Why there is no configuration.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The file cannot be read.
    #[error("could not read {path}")]
    Read {
        /// Its path.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// It is not valid.
    #[error("{path} is not valid")]
    Invalid {
        /// Its path.
        path: PathBuf,
        /// All that is wrong with it.
        #[source]
        source: ConfigError,
    },
}

impl Config {
    /// Reads and checks a file; without one, the values that ship.
    ///
    /// # Errors
    /// [`LoadError`] with every problem found.
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

    /// The effective values, as a file would hold them.
    #[must_use]
    pub fn to_pretty_json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_else(|error| error.to_string())
    }

    /// Reads and checks the whole file.
    ///
    /// # Errors
    /// [`ConfigError`] with every problem found.
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

    /// What the core needs of it.
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

/// Takes members out of an object one by one and collects what is wrong.
struct Reader {
    prefix: &'static str,
    members: Map<String, Value>,
    problems: Vec<String>,
}

impl Reader {
    fn new(prefix: &'static str, members: Map<String, Value>) -> Self {
        Self {
            prefix,
            members,
            problems: Vec::new(),
        }
    }

    fn take(&mut self, key: &str) -> Option<Value> {
        let names = self
            .members
            .keys()
            .filter(|name| name.eq_ignore_ascii_case(key));
        let names: Vec<String> = names.cloned().collect();
        if names.len() > 1 {
            self.problems
                .push(format!("{}{key} is given more than once", self.prefix));
        }
        let mut last = None;
        for name in names {
            last = self.members.remove(&name);
        }
        last.filter(|value| !value.is_null())
    }

    fn need<T>(
        &mut self,
        key: &str,
        what: &str,
        read: impl FnOnce(&Value) -> Option<T>,
    ) -> Option<T> {
        let Some(value) = self.take(key) else {
            self.problems
                .push(format!("{}{key} is missing", self.prefix));
            return None;
        };
        let found = read(&value);
        if found.is_none() {
            self.problems
                .push(format!("{}{key} must be {what}, not {value}", self.prefix));
        }
        found
    }

    fn number(&mut self, key: &str, valid: impl Fn(f64) -> bool, range: &str) -> f64 {
        let what = format!("a number {range}");
        self.need(key, &what, |value| value.as_f64().filter(|n| valid(*n)))
            .unwrap_or_default()
    }

    fn positive(&mut self, key: &str) -> u64 {
        let read = |value: &Value| value.as_u64().filter(|n| *n > 0);
        self.need(key, "a whole number above 0", read)
            .unwrap_or_default()
    }

    fn text(&mut self, key: &str) -> String {
        let read = |value: &Value| {
            value
                .as_str()
                .filter(|text| !text.is_empty())
                .map(str::to_owned)
        };
        self.need(key, "a text that is not empty", read)
            .unwrap_or_default()
    }

    fn optional<T: Default + for<'de> serde::Deserialize<'de>>(
        &mut self,
        key: &str,
        what: &str,
    ) -> T {
        let Some(value) = self.take(key) else {
            return T::default();
        };
        T::deserialize(&value).unwrap_or_else(|_| {
            self.problems
                .push(format!("{}{key} must be {what}, not {value}", self.prefix));
            T::default()
        })
    }

    fn finish(mut self) -> Vec<String> {
        let unknown = self
            .members
            .keys()
            .map(|key| format!("{}{key} is not known", self.prefix));
        let unknown: Vec<String> = unknown.collect();
        self.problems.extend(unknown);
        self.problems
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::migrate::MigrationMode;
    use serde_json::json;

    fn shipped() -> Value {
        serde_json::to_value(Config::default()).expect("encodes")
    }

    #[test]
    fn what_ships_reads_back_and_absent_optionals_are_empty() {
        assert_eq!(Config::parse(&shipped().to_string()), Ok(Config::default()));
        let mut short = shipped();
        for key in ["nodeMetricLabels", "ignoredNamespaces"] {
            short.as_object_mut().expect("object").remove(key);
        }
        short["scoring"]
            .as_object_mut()
            .expect("object")
            .remove("randomize");
        let config = Config::parse(&short.to_string()).expect("is valid");
        assert!(!config.scoring.randomize && config.ignored_namespaces.is_empty());
    }

    #[test]
    fn fairness_is_ours_off_by_default_and_checked() {
        assert!(!shipped().to_string().contains("fairness"));
        let mut file = shipped();
        file["fairness"] = json!({"sharing": true, "vmGrowthPerSecond": {"vCPUs": "500m", "mem": "1Gi"},
            "burstSeconds": 4});
        let config = Config::parse(&file.to_string()).expect("is valid");
        let fairness = config.settings(false, true).rules.fairness;
        assert!(fairness.sharing && !fairness.is_off());
        assert_eq!(fairness.vm_growth_per_second.cpu.0, 500);
        assert_eq!(Config::parse(&config.to_pretty_json()), Ok(config));
        file["fairness"] = json!({"share": true});
        let error = Config::parse(&file.to_string()).expect_err("is bad");
        assert!(error.0[0].starts_with("fairness must be an object of sharing"));
    }

    #[test]
    fn migration_is_ours_and_the_deployed_rule_can_be_had() {
        assert!(!shipped().to_string().contains("migration"));
        let mut file = shipped();
        file["migration"] = json!({"mode": "deployed", "backoffSeconds": 5});
        let config = Config::parse(&file.to_string()).expect("is valid");
        let rule = config.settings(false, true).migration;
        assert_eq!(
            (rule.mode, rule.backoff_seconds),
            (MigrationMode::Deployed, 5)
        );
        assert_eq!(rule.max_per_node, MigrationRule::default().max_per_node);
        assert_eq!(Config::parse(&config.to_pretty_json()), Ok(config));
        for bad in [
            json!({"mode": "some"}),
            json!({"maxPerNode": -1}),
            json!({"cap": 1}),
            json!(7),
        ] {
            file["migration"] = bad;
            let error = Config::parse(&file.to_string()).expect_err("is bad");
            assert!(
                error.0[0].starts_with("migration must be an object of mode"),
                "{error}"
            );
        }
    }

    #[test]
    fn overcommit_bounds_are_ours_and_a_deployed_file_has_the_defaults() {
        assert!(!shipped().to_string().contains("overcommit"));
        let mut file = shipped();
        let bounds = |file: &Value| -> Result<_, ConfigError> {
            Ok(Config::parse(&file.to_string())?
                .settings(false, true)
                .rules
                .overcommit)
        };
        assert_eq!(bounds(&file), Ok(OvercommitPolicy::default()));
        file["overcommit"] =
            json!({"max": {"memory": 1}, "namespaces": {"a": {"memory": "1500m"}}});
        let policy = bounds(&file).expect("is valid");
        assert_eq!(policy.of("a").mem, 1500);
        assert_eq!(policy.of("b").mem, 1000);
        let config = Config::parse(&file.to_string()).expect("is valid");
        assert_eq!(Config::parse(&config.to_pretty_json()), Ok(config));
        file["overcommit"] = json!({"max": {"cpu": 0.9}});
        let error = Config::parse(&file.to_string()).expect_err("is bad");
        assert!(error.0[0].starts_with("overcommit must be an object of max"));
    }

    #[test]
    fn keys_match_whatever_their_case() {
        let text = shipped()
            .to_string()
            .replace("watermark", "WaterMark")
            .replace("scorePeak", "scorepeak");
        assert_eq!(Config::parse(&text), Ok(Config::default()));
        let twice = shipped()
            .to_string()
            .replacen('{', r#"{"WATERMARK":0.5,"#, 1);
        let error = Config::parse(&twice).expect_err("is ambiguous");
        assert_eq!(error.0, ["watermark is given more than once"]);
    }

    #[test]
    fn all_problems_are_reported_at_once() {
        let bad = json!({"watermark": 1.5, "scoring": {"minUsageScore": -0.1, "maxUsageScore": "x", "randomise": true},
            "schedulerName": "", "reconcileWorkers": 0, "logSuccessiveFailuresThreshold": 1.5,
            "startupEventHandlingTimeoutSeconds": -1, "k8sCRUDTimeoutSeconds": null, "patchRetryWaitSeconds": 1,
            "nodeMetricLabels": ["a"], "ignoredNamespaces": "kube-system", "extra": 1});
        let error = Config::parse(&bad.to_string()).expect_err("is bad");
        let expected = [
            "watermark must be a number above 0 and at most 1, not 1.5",
            "schedulerName must be a text that is not empty, not \"\"",
            "reconcileWorkers must be a whole number above 0, not 0",
            "logSuccessiveFailuresThreshold must be a whole number above 0, not 1.5",
            "startupEventHandlingTimeoutSeconds must be a whole number above 0, not -1",
            "k8sCRUDTimeoutSeconds is missing",
            "nodeMetricLabels must be a map of texts, not [\"a\"]",
            "ignoredNamespaces must be a list of texts, not \"kube-system\"",
            "extra is not known",
            "scoring.minUsageScore must be a number between 0 and 1, not -0.1",
            "scoring.maxUsageScore must be a number between 0 and 1, not \"x\"",
            "scoring.scorePeak is missing",
            "scoring.randomise is not known",
        ];
        assert_eq!(error.0, expected);
        for text in ["", "[]", "{", "null", "7"] {
            assert!(Config::parse(text).is_err(), "{text:?}");
        }
        assert!(Config::parse("{}").expect_err("is empty").0.len() >= 8);
    }
}
