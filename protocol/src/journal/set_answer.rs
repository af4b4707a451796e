//! `C`: an answer of a policy about the sets of a namespace.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::hash;
use super::values::is_default;
use crate::policy::{Fault, Role};

/// `C`: an answer about sets, other than the last one of its role. One of `fault` and `sets` is
/// there, unless the answer names no set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetsAnswered {
    /// Role of the version.
    #[serde(rename = "as")]
    pub role: Role,
    /// First eight hex digits of the policy's digest.
    pub dg: String,
    /// Fault in the place of an answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<Fault>,
    /// CRC-32C of the canonical question.
    #[serde(with = "hash")]
    pub r#in: u32,
    /// Name of the policy.
    pub name: String,
    /// Nodes that the policy wants.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes: Option<u32>,
    /// Text of the fault.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// Namespace of the sets.
    pub ns: String,
    /// Sets that the answer names.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub sets: BTreeMap<String, SetCount>,
    /// Time of the answer on the writer's clock, microseconds.
    pub t: u64,
    /// Time from the question to the answer, microseconds.
    pub took: u64,
    /// Reason of the wish for nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// An answer about one set.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetCount {
    /// Command that the answer chooses.
    #[serde(default, rename = "do", skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// Count that the set had.
    pub has: u32,
    /// CRC-32C of the canonical values for the members. 0 without values.
    #[serde(default, with = "hash", skip_serializing_if = "is_default")]
    pub kv: u32,
    /// Count that the set got, within its rates. `None` for an answer that does not decide.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<u32>,
    /// Version of the template that the answer chooses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub v: Option<u32>,
    /// Count that the answer comes to, within the capacity.
    pub want: u32,
}

impl SetsAnswered {
    /// Whether the other answer says the same, whatever the sets had.
    #[must_use]
    pub fn says_as(&self, other: &Self) -> bool {
        let said = |one: &Self| {
            let sets = one.sets.iter();
            let sets = sets.map(|(name, set)| {
                let chosen = (set.command.clone(), set.kv, set.v);
                (name.clone(), set.want, chosen)
            });
            let sets: Vec<_> = sets.collect();
            (one.fault, one.nodes, one.why.clone(), sets)
        };
        let of = |one: &Self| (one.role, one.dg.clone(), one.name.clone(), one.ns.clone());
        of(self) == of(other) && said(self) == said(other)
    }
}
