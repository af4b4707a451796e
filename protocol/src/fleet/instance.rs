//! The object `FleetInstance`: the turns of one guest.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::runner::{RunnerMove, RunnerMoveEnd};
use crate::parts::{PartName, PartPhase, PartSource};
use crate::time::WallTime;

/// Name of the instance of a VM.
#[must_use]
pub fn instance_name(vm: &str) -> String {
    format!("vm-{vm}")
}

/// Name of the instance of a node.
#[must_use]
pub fn node_instance_name(node: &str) -> String {
    format!("node-{node}")
}

/// Name of the instance of a `Deployment`.
#[must_use]
pub fn service_instance_name(deployment: &str) -> String {
    format!("deployment-{deployment}")
}

/// `spec` of a `FleetInstance`: decisions, written before they are carried out.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct InstanceSpec {
    /// Newest turn of each part.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub parts: BTreeMap<PartName, TurnSpec>,
    /// Newest move of the guest to another runner.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runner: Option<RunnerMove>,
}

/// A turn: permission to change one part of one guest once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TurnSpec {
    /// Environment that the part of this guest belongs to.
    pub environment: String,
    /// Deployment that gave the turn.
    pub deployment: String,
    /// Revision that the guest is brought to.
    pub revision: String,
    /// Version of the program.
    pub version: String,
    /// SHA-256 of the program, lower-case hex.
    pub sha256: String,
    /// Makes repeated orders act once.
    pub token: String,
    /// Grows with each turn of the part. The guest refuses lower ones.
    pub epoch: u64,
    /// Number of the attempt of the deployment in this guest, from 1.
    pub attempt: u32,
    /// Order that the turn allows.
    #[serde(default, skip_serializing_if = "TurnVerb::is_try")]
    pub verb: TurnVerb,
}

/// What a turn does to its guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum TurnVerb {
    /// Brings a program and tries it.
    #[default]
    Try,
    /// Returns to the program of the image. The turn names the program that goes.
    Back,
}

impl TurnVerb {
    #[expect(
        clippy::trivially_copy_pass_by_ref,
        reason = "the form that serde asks for"
    )]
    const fn is_try(&self) -> bool {
        matches!(self, Self::Try)
    }
}

/// `status` of a `FleetInstance`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct InstanceStatus {
    /// State of each part at the end of its newest turn.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub parts: BTreeMap<PartName, InstancePart>,
    /// Identifier of the guest's boot at that time.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub boot: String,
    /// Set if the fleet cannot reach the guest's parts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unmanaged: Option<Unmanaged>,
    /// End of the newest move to another runner, or why there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runner: Option<RunnerMoveEnd>,
}

/// Why the fleet cannot reach a guest's parts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unmanaged {
    /// A sentence for people.
    pub reason: String,
}

/// State of a part at the end of its newest turn.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InstancePart {
    /// Version that the running program names.
    pub version: String,
    /// SHA-256 of the running program.
    pub sha256: String,
    /// Origin of the running program.
    pub from: PartSource,
    /// Progress in the guest.
    pub phase: PartPhase,
    /// Whether the guest was healthy.
    pub healthy: bool,
    /// How the newest turn ended.
    pub last: TurnEnd,
}

impl InstancePart {
    /// State after a turn whose program was kept.
    #[must_use]
    pub fn kept(turn: &TurnSpec, at: WallTime) -> Self {
        Self {
            version: turn.version.clone(),
            sha256: turn.sha256.clone(),
            from: PartSource::A,
            phase: PartPhase::Settled,
            healthy: true,
            last: TurnEnd {
                token: turn.token.clone(),
                result: TurnResult::Good,
                reason: String::new(),
                at,
            },
        }
    }
}

/// How a turn ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TurnEnd {
    /// Token of the turn.
    pub token: String,
    /// How it ended.
    pub result: TurnResult,
    /// Cause, for people. Empty for a good turn.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Time of the end.
    pub at: WallTime,
}

/// Result of a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum TurnResult {
    /// The program is kept.
    Good,
    /// The release failed in this guest.
    Bad,
    /// The guest was left as it is, because its deployment ended.
    Skip,
    /// The turn was given back: nothing was learnt about the release.
    Wait,
}

impl InstanceSpec {
    /// The spec of an object.
    ///
    /// # Errors
    /// A text for people, if the object has no such spec.
    pub fn of_object(object: &Value) -> Result<Self, String> {
        match object.get("spec") {
            None | Some(Value::Null) => Ok(Self::default()),
            Some(spec) => Self::deserialize(spec).map_err(|error| error.to_string()),
        }
    }
}
