//! `A`: an action of a person.

use serde::{Deserialize, Serialize};

/// `A`: an action of a person. One record is on the disk before the action is carried out. A second
/// one of the same run, with `ok`, tells its outcome.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Action {
    /// Name of the person, as the caller gave it.
    pub by: String,
    /// Name of the action.
    #[serde(rename = "do")]
    pub what: String,
    /// Text of the failure. Present only where `ok` is false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// Whether the action was carried out. `None`: it is about to be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ok: Option<bool>,
    /// Name of the object that the action changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on: Option<String>,
    /// Hash of the action before it in the run, and zeros for the first. Only in parts whose
    /// actions are a chain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prev: Option<String>,
    /// Time on the writer's clock, microseconds.
    pub t: u64,
    /// State that the action gives to the object, such as the first digits of a digest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// Number of the VM. `None`: the action is on no VM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vm: Option<u32>,
    /// Reason that the person gave.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}
