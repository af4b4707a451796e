//! What the core of sets is told, and what it wants done.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use policy_contract::sets::SetAnswer;
use policy_contract::{Digest, Fault, History, Role, Seconds, SetInput, Spec};
use protocol::journal::SetsAnswered;
use serde_json::Value;

use super::answered::SetReport;
use super::wishes::WishChange;
use super::world::World;

/// Pages of members that feeds are read from: names of metrics by address and port.
pub type Pages = BTreeMap<(String, u16), BTreeSet<String>>;
/// Values by address and port, and by name of the metric.
pub type Values = BTreeMap<(String, u16), BTreeMap<String, f64>>;

/// Something that happened.
#[derive(Debug)]
pub enum Event {
    /// The objects were read.
    Read(Box<World>),
    /// The objects could not be read.
    NotRead,
    /// The pages were read. One that failed is not there.
    Fed(Values),
    /// A question has ended.
    Ended {
        /// Number of the question.
        n: u64,
        /// How it ended.
        end: End,
    },
}

/// How a question ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// The answer, checked.
    Answer(SetAnswer),
    /// No valid answer, with a text for people.
    Fault(Fault, String),
    /// It was not asked, with the cause for people: there is no worker.
    NotAsked(String),
}

/// Something to do.
#[derive(Debug)]
pub enum Action {
    /// Read the objects.
    Read,
    /// Read pages of members.
    ReadPages(Pages),
    /// Ask a version.
    Ask(Box<Question>),
    /// Write a line into the journal.
    Record(Box<SetsAnswered>),
    /// Change a set.
    ChangeSet(SetPatch),
    /// Change the wishes for nodes.
    ChangeWishes(Vec<WishChange>),
    /// Write what versions answered into the policy's status.
    Report {
        /// Name of the policy.
        policy: String,
        /// Reports by role.
        reports: BTreeMap<&'static str, SetReport>,
    },
}

/// A question to a version.
#[derive(Debug, Clone)]
pub struct Question {
    /// Number of the question.
    pub n: u64,
    /// Whether the answer decides.
    pub role: Role,
    /// Name of the policy.
    pub policy: String,
    /// Digest of the version.
    pub digest: Digest,
    /// What is loaded for it.
    pub spec: Arc<Spec>,
    /// Whether the version is loaded again first.
    pub is_fresh: bool,
    /// Number of the past.
    pub past: u32,
    /// The past, with the newest samples.
    pub history: History,
    /// Time of the question on the clock of the past.
    pub at: Seconds,
    /// The sets of one namespace, with the capacity.
    pub input: SetInput,
}

/// Change of a set by one compare-and-set.
#[derive(Debug, Clone, PartialEq)]
pub struct SetPatch {
    /// Namespace of the set.
    pub namespace: String,
    /// Name of the set.
    pub name: String,
    /// Name of the policy.
    pub policy: String,
    /// Operations of a JSON patch.
    pub operations: Value,
}
