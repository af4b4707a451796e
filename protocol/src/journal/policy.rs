//! `B` and `P`: which policies a VM has, and their answers.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::hash;
use super::values::{Milli, is_default};
use crate::policy::{Fault, FeedSource, Role};
use crate::time::Span;

/// `B`: the policies of a VM, or something that their questions rest on, changed.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bound {
    /// Time between two reads of the feeds, microseconds.
    #[serde(default, skip_serializing_if = "is_default")]
    pub every: u64,
    /// Feeds of all versions, in the order of the step `Feeds`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub feeds: Vec<FeedSource>,
    /// Labels of the VM, as questions have them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Limits in force.
    #[serde(default, skip_serializing_if = "is_default")]
    pub limits: BoundLimits,
    /// Name of the policy. `None`: the VM has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Version of the policy in each role.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub roles: BTreeMap<Role, BoundVersion>,
    /// Time on the writer's clock, microseconds.
    pub t: u64,
    /// Number of the VM within the run of the writer.
    pub vm: u32,
    /// Calendar time of the clock's zero that questions use, microseconds since 1970.
    #[serde(default, skip_serializing_if = "is_default")]
    pub wall: u64,
}

/// A version of a policy that a VM is asked about.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BoundVersion {
    /// Digest, 64 hex digits.
    #[serde(rename = "dg")]
    pub digest: String,
    /// Time from which this version has a past and a memory of the VM, microseconds on the writer's
    /// clock. Its questions hold nothing older. A version that gets another role keeps both.
    #[serde(default, skip_serializing_if = "is_default")]
    pub since: u64,
}

/// Limits on a policy's answers. An absent one is not in force.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
#[expect(missing_docs, reason = "the names of the policy's own limits")]
pub struct BoundLimits {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fallback_after_seconds: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_units: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shrink_units_per_minute: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vms_shrunk_at_once_percent: Option<u32>,
}

/// Limits on the policy that decides about a VM, as far as the agent's core applies them. In `S`
/// and in `K`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Terms {
    /// First 32 bits of the policy's digest.
    #[serde(rename = "dg", with = "hash")]
    pub digest: u32,
    /// Time without an answer after which the built-in goal decides. `None` = never.
    #[serde(default, rename = "fallback", skip_serializing_if = "Option::is_none")]
    pub fallback_after: Option<Span>,
    /// Largest size that the policy may ask for, compute units. `None` = no limit.
    #[serde(default, rename = "max", skip_serializing_if = "Option::is_none")]
    pub max_units: Option<u32>,
    /// Compute units by which the policy may shrink the VM in a minute. `None` = no limit.
    #[serde(default, rename = "shrink", skip_serializing_if = "Option::is_none")]
    pub shrink_units_per_minute: Option<u32>,
}

/// Answer of the policy that decides, as the agent's core gets it. In `S`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Advice {
    /// First 32 bits of the policy's digest.
    pub digest: u32,
    /// Content of the answer.
    pub said: Said,
}

/// Content of [`Advice`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Said {
    /// The VM should have this many compute units.
    Want(u32),
    /// The VM should keep the size in use.
    Hold,
    /// There is no answer.
    Fault(Fault),
}

/// What the shell changed in an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cut {
    /// Too many VMs of the node would shrink at once.
    Quota,
}

/// `P`: an answer other than the last of its role. One of `cu`, `hold` and `fault` is there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Answered {
    /// Role of the policy.
    #[serde(rename = "as")]
    pub role: Role,
    /// Size in compute units.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cu: Option<u32>,
    /// What the shell changed in the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cut: Option<Cut>,
    /// First eight hex digits of the policy's digest.
    pub dg: String,
    /// Fault in the place of an answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<Fault>,
    /// Whether the answer is to hold the size in use.
    #[serde(default, skip_serializing_if = "is_default")]
    pub hold: bool,
    /// CRC-32C of the canonical question.
    #[serde(with = "hash")]
    pub r#in: u32,
    /// Remark of the policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// Reason of the policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub r: Option<String>,
    /// Units that other VMs of the node requested and were not permitted, in the question.
    pub s: Milli,
    /// Time of the answer on the writer's clock, microseconds.
    pub t: u64,
    /// Time from the question to the answer, microseconds. The question is about the state after
    /// the step at `t - took`.
    pub took: u64,
    /// Number of the VM within the run of the writer.
    pub vm: u32,
    /// Number of VMs on the node, in the question.
    pub vms: u32,
    /// Votes of the policy.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub votes: BTreeMap<String, Milli>,
}

impl Answered {
    /// Time of the question on the writer's clock, microseconds.
    #[must_use]
    pub fn asked_at(&self) -> u64 {
        self.t.saturating_sub(self.took)
    }

    /// What the answer says, without its question and its times.
    #[must_use]
    pub fn said(&self) -> Self {
        Self {
            r#in: 0,
            s: Milli(0),
            t: 0,
            took: 0,
            vm: 0,
            vms: 0,
            ..self.clone()
        }
    }
}
