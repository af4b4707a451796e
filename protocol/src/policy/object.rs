//! The object `ScalingPolicy` and what its schema cannot say.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::kind::{FeedSource, KIND, Scope, Series};
use super::refusal::Refusal;
use super::rules::{check_feeds, check_params, check_series, check_source};
use super::set::SET_KIND;
use super::set_rules::validate_set;
use crate::admission::{FieldError, FieldErrorKind};

/// `spec` of a `ScalingPolicy`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ScalingPolicySpec {
    /// What the policy decides about.
    #[serde(default)]
    pub scope: Scope,
    /// Program of the policy, in Lua.
    pub source: String,
    /// Numbers of the policy.
    #[serde(default)]
    pub params: BTreeMap<String, f64>,
    /// Series beyond [`Series::ALWAYS`].
    #[serde(default)]
    pub series: Vec<Series>,
    /// Figures from pages of the guest.
    #[serde(default)]
    pub feeds: Vec<FeedSource>,
    /// Namespaces whose VMs may choose the policy; `*` stands for all.
    #[serde(default = "all_namespaces")]
    pub namespaces: Vec<String>,
    /// Limits on its answers.
    #[serde(default)]
    pub limits: Limits,
}

fn all_namespaces() -> Vec<String> {
    vec!["*".to_owned()]
}

/// Limits on the answers of a policy. An absent one is that of the agent's administrator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Limits {
    /// Largest size, compute units.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_units: Option<u32>,
    /// Units by which a VM may shrink in a minute.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shrink_units_per_minute: Option<u32>,
    /// Share of a node's VMs that may begin to shrink within 10 s, percent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vms_shrunk_at_once_percent: Option<u32>,
    /// Time without a valid answer after which the built-in goal decides, seconds; -1 = never.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fallback_after_seconds: Option<i64>,
    /// Most members of all sets together that an answer may add or take.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub members_per_answer: Option<u32>,
}

impl Limits {
    /// The tighter of each limit.
    #[must_use]
    pub fn within(self, ceiling: Self) -> Self {
        fn tighter<T: Ord>(one: Option<T>, other: Option<T>) -> Option<T> {
            match (one, other) {
                (Some(one), Some(other)) => Some(one.min(other)),
                (one, other) => one.or(other),
            }
        }
        // Without end (-1) is the longest wait.
        let wait = |seconds: Option<i64>| seconds.map(|s| u64::try_from(s).unwrap_or(u64::MAX));
        let fallback = tighter(
            wait(self.fallback_after_seconds),
            wait(ceiling.fallback_after_seconds),
        );
        Self {
            max_units: tighter(self.max_units, ceiling.max_units),
            shrink_units_per_minute: tighter(
                self.shrink_units_per_minute,
                ceiling.shrink_units_per_minute,
            ),
            vms_shrunk_at_once_percent: tighter(
                self.vms_shrunk_at_once_percent,
                ceiling.vms_shrunk_at_once_percent,
            ),
            members_per_answer: tighter(self.members_per_answer, ceiling.members_per_answer),
            fallback_after_seconds: fallback.map(|s| i64::try_from(s).unwrap_or(-1)),
        }
    }
}

impl ScalingPolicySpec {
    /// The spec of an object.
    ///
    /// # Errors
    /// A text for people, if the object has no such spec.
    pub fn of_object(object: &Value) -> Result<Self, String> {
        Self::deserialize(&object["spec"]).map_err(|error| error.to_string())
    }

    /// Whether VMs of a namespace may choose the policy.
    #[must_use]
    pub fn serves(&self, namespace: &str) -> bool {
        let is_it = |one: &String| one == "*" || one == namespace;
        self.namespaces.iter().any(is_it)
    }

    /// Checks every rule that needs no engine.
    ///
    /// # Errors
    /// With the first member at fault.
    pub fn check(&self) -> Result<(), Refusal> {
        check_source(&self.source)?;
        check_params(&self.params)?;
        check_series(self.scope, &self.series)?;
        check_feeds(&self.feeds)?;
        let percent = self.limits.vms_shrunk_at_once_percent;
        if let Some(share) = percent.filter(|share| *share > 100) {
            let path = "limits.vmsShrunkAtOncePercent";
            return Err(Refusal::of(path, share, "0 to 100"));
        }
        let wait = self.limits.fallback_after_seconds;
        if let Some(wait) = wait.filter(|wait| *wait < -1) {
            let path = "limits.fallbackAfterSeconds";
            return Err(Refusal::of(path, wait, "-1 or more"));
        }
        Ok(())
    }
}

/// Checks a new state of an object of the group beyond its schema.
///
/// # Errors
/// The first broken rule.
pub fn validate(kind: &str, object: &Value) -> Result<(), Vec<FieldError>> {
    if kind == SET_KIND {
        return validate_set(object);
    }
    if kind != KIND {
        return Ok(());
    }
    let invalid = |field: String, message: String, value: Value| {
        vec![FieldError {
            field,
            kind: FieldErrorKind::Invalid,
            message,
            value,
        }]
    };
    let spec = ScalingPolicySpec::of_object(object)
        .map_err(|error| invalid("spec".into(), format!(".spec: {error}"), Value::Null))?;
    spec.check().map_err(|refusal| {
        let message = format!(".spec.{} must be {}", refusal.path, refusal.rule);
        invalid(
            format!("spec.{}", refusal.path),
            message,
            refusal.value.into(),
        )
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(change: impl FnOnce(&mut Value)) -> Value {
        let mut object = json!({"spec": {
            "source": "return function(i) return std.hold('x') end",
            "params": {"headroom": 1.15},
            "series": ["pressure"],
            "feeds": [{"name": "jobs", "port": 9200, "metric": "ci_jobs_running"}],
            "limits": {"maxUnits": 16, "fallbackAfterSeconds": -1},
        }});
        change(&mut object["spec"]);
        object
    }

    #[test]
    fn policy_is_checked_beyond_its_schema() {
        assert_eq!(validate(KIND, &object(|_| {})), Ok(()));
        assert_eq!(validate("Other", &json!({})), Ok(()));
        type Change = fn(&mut Value);
        let cases: [(&str, Change); 10] = [
            ("spec", |s| s["scope"] = json!("node")),
            ("spec.series[0]", |s| s["scope"] = json!("set")),
            ("spec", |s| s["source"] = json!(null)),
            ("spec.source", |s| s["source"] = json!("\u{1b}Lua")),
            ("spec.source", |s| s["source"] = json!("x".repeat(65_537))),
            ("spec.params", |s| s["params"] = json!({"A b": 1})),
            ("spec.series[0]", |s| s["series"] = json!(["feed:jobs"])),
            ("spec.feeds[0].metric", |s| {
                s["feeds"][0]["metric"] = json!("a b")
            }),
            ("spec.limits.vmsShrunkAtOncePercent", |s| {
                s["limits"]["vmsShrunkAtOncePercent"] = json!(101);
            }),
            ("spec.limits.fallbackAfterSeconds", |s| {
                s["limits"]["fallbackAfterSeconds"] = json!(-2);
            }),
        ];
        for (field, change) in cases {
            let errors = validate(KIND, &object(change)).expect_err(field);
            assert_eq!(errors[0].field, field, "{errors:?}");
        }
    }

    #[test]
    fn policy_serves_its_namespaces() {
        let spec = |namespaces: Value| {
            let object = object(|s| s["namespaces"] = namespaces);
            ScalingPolicySpec::of_object(&object).expect("a spec")
        };
        assert!(spec(json!(["*"])).serves("a"));
        assert!(spec(json!(["b", "a"])).serves("a"));
        assert!(!spec(json!(["b"])).serves("a") && !spec(json!([])).serves("a"));
        let default = ScalingPolicySpec::of_object(&object(|_| {})).expect("a spec");
        assert!(default.serves("a"));
    }

    #[test]
    fn tighter_limit_holds() {
        let own = Limits {
            max_units: Some(16),
            fallback_after_seconds: Some(-1),
            ..Limits::default()
        };
        let ceiling = Limits {
            max_units: Some(8),
            shrink_units_per_minute: Some(4),
            fallback_after_seconds: Some(600),
            ..Limits::default()
        };
        let both = own.within(ceiling);
        assert_eq!(both, ceiling.within(own));
        assert_eq!(
            both,
            Limits {
                max_units: Some(8),
                ..ceiling
            }
        );
        assert_eq!(own.within(Limits::default()), own);
    }
}
