//! What a policy decides about and what it may read.

use std::borrow::Borrow;
use std::fmt;

use serde::{Deserialize, Serialize};

/// API group of policies.
pub const GROUP: &str = "policy.bellows.dev";
/// Version of the group.
pub const VERSION: &str = "v1alpha1";
/// Kind of a policy.
pub const KIND: &str = "ScalingPolicy";
/// Name of the kind in URLs.
pub const PLURAL: &str = "scalingpolicies";
/// Short name for kubectl.
pub const SHORT: &str = "spol";

/// Annotation of a VM and label of a Namespace for all its VMs. The annotation wins. The value is
/// the name of a `ScalingPolicy`, or [`BUILTIN`].
pub const KEY_POLICY: &str = "autoscaling.neon.tech/policy";
/// Value of [`KEY_POLICY`] for the goal that the agent computes by itself.
pub const BUILTIN: &str = "builtin";

/// What a policy decides about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// Size of one VM.
    #[default]
    Vm,
    /// Number of the members of sets of VMs.
    Set,
}

/// Whether an answer decides.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// The answer decides.
    Live,
    /// The answer is recorded and has no effect.
    #[default]
    Shadow,
}

impl Role {
    /// Name of the role in records and metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Live => "live",
            Self::Shadow => "shadow",
        }
    }
}

/// Figure that the agent reads from a page of the guest.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FeedSource {
    /// Name of the metric on the page.
    pub metric: String,
    /// Name of the feed in questions.
    pub name: String,
    /// Port of the page at the VM's pod address.
    pub port: u16,
}

/// Name of a series of the past, as `load1` or `feed:jobs`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Series(String);

impl Series {
    /// Series that every policy has.
    pub const ALWAYS: [&'static str; 4] = ["load1", "load5", "used", "cached"];
    /// Series that a policy must name, where the guest reports them.
    pub const NAMED: [&'static str; 4] = ["pressure", "estimate", "lfc_hits", "lfc_misses"];
    /// Before the name of a feed.
    pub const FEED: &'static str = "feed:";

    /// The series that `name` names. `None` for any other text.
    #[must_use]
    pub fn of(name: &str) -> Option<Self> {
        let is_known = Self::ALWAYS.contains(&name)
            || Self::NAMED.contains(&name)
            || name.strip_prefix(Self::FEED).is_some_and(super::is_word);
        is_known.then(|| Self(name.to_owned()))
    }

    /// Name of the series.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Series {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Borrow<str> for Series {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl From<Series> for String {
    fn from(series: Series) -> Self {
        series.0
    }
}

impl TryFrom<String> for Series {
    type Error = String;

    fn try_from(name: String) -> Result<Self, Self::Error> {
        Self::of(&name).ok_or_else(|| format!("no series is named {name:?}"))
    }
}
