//! Bounds of over-commit factors.
//!
//! A VM's author sets `spec.overcommit`, and the cluster's operator bounds it. Per resource, the
//! factor that counts is
//!
//! ```text
//! min( the pod's factor
//!    , the bound of its namespace, or `max` if the namespace has none
//!    , the bound of its node, by the labels LABEL_MAX_OVERCOMMIT_* )
//! ```
//!
//! A node can only lower the bound, because a compromised kubelet may change its node's labels.

use std::collections::BTreeMap;

use protocol::annotations::{LABEL_MAX_OVERCOMMIT_CPU, LABEL_MAX_OVERCOMMIT_MEMORY};
use protocol::quantity::Quantity;
use serde::{Deserialize, Serialize};

use super::amount::{Both, NO_OVERCOMMIT_MILLI};

/// Bounds without a configuration, in thousandths: 16 for CPU, 4 for memory.
const DEFAULT_MAX: Both<u32> = Both::new(16_000, 4_000);

/// The configured bounds, in thousandths. None is below a factor of 1.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Members", into = "Members")]
pub struct OvercommitPolicy {
    /// Bound of namespaces that are not in `namespaces`.
    pub max: Both<u32>,
    /// Bounds by namespace, larger or smaller than `max`.
    pub namespaces: BTreeMap<String, Both<u32>>,
}

impl Default for OvercommitPolicy {
    fn default() -> Self {
        Self {
            max: DEFAULT_MAX,
            namespaces: BTreeMap::new(),
        }
    }
}

impl OvercommitPolicy {
    /// Whether these are the default bounds.
    #[must_use]
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// The bound of a namespace.
    #[must_use]
    pub fn of(&self, namespace: &str) -> Both<u32> {
        // Most configurations have no namespace, and every decision calls this.
        if self.namespaces.is_empty() {
            return self.max;
        }
        self.namespaces.get(namespace).copied().unwrap_or(self.max)
    }
}

/// [`OvercommitPolicy`] in the configuration file.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Members {
    max: Factors,
    namespaces: BTreeMap<String, Factors>,
}

/// Factors in the configuration file. A missing one is inherited from `max`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Factors {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cpu: Option<Quantity>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    memory: Option<Quantity>,
}

impl Factors {
    fn or(&self, missing: Both<u32>) -> Result<Both<u32>, BadFactor> {
        let milli = |factor: Option<Quantity>, missing: u32| {
            factor.map_or(Ok(missing), |factor| bound(&factor).ok_or(BadFactor))
        };
        Ok(Both {
            cpu: milli(self.cpu, missing.cpu)?,
            mem: milli(self.memory, missing.mem)?,
        })
    }
}

impl From<Both<u32>> for Factors {
    fn from(milli: Both<u32>) -> Self {
        let quantity = |milli: u32| Some(Quantity::from_milli(milli.into()));
        Self {
            cpu: quantity(milli.cpu),
            memory: quantity(milli.mem),
        }
    }
}

/// A bound below 1 or beyond what can be counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a bound of over-commit factors must be at least 1 and below 4294968")]
struct BadFactor;

impl TryFrom<Members> for OvercommitPolicy {
    type Error = BadFactor;

    fn try_from(members: Members) -> Result<Self, BadFactor> {
        let max = members.max.or(DEFAULT_MAX)?;
        let namespaces = members.namespaces.into_iter();
        let namespaces = namespaces.map(|(name, factors)| Ok((name, factors.or(max)?)));
        Ok(Self {
            max,
            namespaces: namespaces.collect::<Result<_, BadFactor>>()?,
        })
    }
}

impl From<OvercommitPolicy> for Members {
    fn from(policy: OvercommitPolicy) -> Self {
        let namespaces = policy.namespaces.into_iter();
        Self {
            max: policy.max.into(),
            namespaces: namespaces
                .map(|(name, milli)| (name, milli.into()))
                .collect(),
        }
    }
}

fn bound(factor: &Quantity) -> Option<u32> {
    let milli = u32::try_from(factor.milli_value()).ok()?;
    (milli >= NO_OVERCOMMIT_MILLI).then_some(milli)
}

/// The bound that a node's labels set, in thousandths; a label that is no factor of at least 1
/// allows no over-commit.
pub(super) fn of_node(labels: &BTreeMap<String, String>) -> Both<u32> {
    let milli = |label: &str| {
        labels.get(label).map_or(u32::MAX, |text| {
            let factor = text.parse().ok();
            factor
                .as_ref()
                .and_then(bound)
                .unwrap_or(NO_OVERCOMMIT_MILLI)
        })
    };
    Both::new(
        milli(LABEL_MAX_OVERCOMMIT_CPU),
        milli(LABEL_MAX_OVERCOMMIT_MEMORY),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn namespace_bound_replaces_the_general_one_and_missing_members_are_inherited() {
        let file = json!({"max": {"memory": 2}, "namespaces": {"a": {"cpu": "2500m"}, "b": {"memory": 8}}});
        let policy: OvercommitPolicy = serde_json::from_value(file).expect("is valid");
        assert_eq!(policy.of("other"), Both::new(16_000, 2_000));
        assert_eq!(policy.of("a"), Both::new(2_500, 2_000));
        assert_eq!(policy.of("b"), Both::new(16_000, 8_000));
        let written = serde_json::to_value(&policy).expect("encodes");
        assert_eq!(serde_json::from_value(written).ok(), Some(policy));
    }

    #[test]
    fn bounds_below_one_and_unknown_members_are_refused() {
        for bad in [
            json!({"max": {"cpu": 0.5}}),
            json!({"max": {"cpu": -1}}),
            json!({"max": {"mem": 2}}),
            json!({"namespaces": {"a": {"memory": "many"}}}),
            json!({"nodes": {}}),
            json!(4),
        ] {
            let read = serde_json::from_value::<OvercommitPolicy>(bad.clone());
            assert!(read.is_err(), "{bad}");
        }
    }

    #[test]
    fn node_label_that_is_no_factor_allows_no_overcommit() {
        let labels = |cpu: &str| BTreeMap::from([(LABEL_MAX_OVERCOMMIT_CPU.into(), cpu.into())]);
        assert_eq!(of_node(&BTreeMap::new()), Both::same(u32::MAX));
        assert_eq!(of_node(&labels("1.5")), Both::new(1_500, u32::MAX));
        for bad in ["", "0", "0.5", "-3", "x"] {
            assert_eq!(of_node(&labels(bad)), Both::new(1_000, u32::MAX), "{bad:?}");
        }
    }
}
