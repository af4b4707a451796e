//! The records. Members are declared in the order of the words; the file holds them sorted by key,
//! absent ones left out.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::action::Action;
use super::checkpoint::Checkpoint;
use super::hash;
use super::policy::{Answered, Bound};
use super::sampled::Sampled;
use super::set_answer::SetsAnswered;
use super::values::{Amount, Milli, Size, is_default};
use super::vm_state::{Scaling, VmObject, Wished};

/// One line of a journal.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "k")]
pub enum Record {
    /// First line of a segment.
    #[serde(rename = "H")]
    Head(Head),
    /// State that all VMs of the node share.
    #[serde(rename = "N")]
    Node(NodeState),
    /// Full state of one VM's core, from which a replay can start.
    #[serde(rename = "K")]
    Checkpoint(Box<Checkpoint>),
    /// Routine steps of one VM.
    #[serde(rename = "S")]
    Sampled(Sampled),
    /// Change of a VM's object or of its monitor link.
    #[serde(rename = "V")]
    Vm(Box<Stated>),
    /// The outputs of a run of steps.
    #[serde(rename = "T")]
    Tick(Tick),
    /// Decision of a VM's core, with its votes.
    #[serde(rename = "D")]
    Decision(Box<Decision>),
    /// End of a request that a decision started.
    #[serde(rename = "O")]
    Outcome(Box<Outcome>),
    /// Action of a person.
    #[serde(rename = "A")]
    Action(Action),
    /// Missing lines before this one.
    #[serde(rename = "X")]
    Gap(Gap),
    /// Policies of a VM.
    #[serde(rename = "B")]
    Bound(Box<Bound>),
    /// Answer of a policy.
    #[serde(rename = "P")]
    Answered(Box<Answered>),
    /// Answer of a policy about sets.
    #[serde(rename = "C")]
    SetsAnswered(Box<SetsAnswered>),
}

impl Record {
    /// Number of the VM that the record is about. `None`: it is about the whole node.
    #[must_use]
    pub fn vm(&self) -> Option<u32> {
        match self {
            Self::Head(_) | Self::Node(_) | Self::SetsAnswered(_) => None,
            Self::Checkpoint(k) => Some(k.vm),
            Self::Sampled(s) => Some(s.vm),
            Self::Vm(v) => Some(v.vm),
            Self::Tick(t) => Some(t.vm),
            Self::Decision(d) => Some(d.vm),
            Self::Outcome(o) => Some(o.vm),
            Self::Action(a) => a.vm,
            Self::Gap(x) => x.vm,
            Self::Bound(b) => Some(b.vm),
            Self::Answered(p) => Some(p.vm),
        }
    }

    /// Time of the record on the writer's clock, microseconds. For a block, the time of its first
    /// step.
    #[must_use]
    pub fn at(&self) -> u64 {
        match self {
            Self::Head(r) => r.t,
            Self::Node(r) => r.t,
            Self::Checkpoint(r) => r.t,
            Self::Sampled(r) => r.block.0.first().map_or(0, |(at, _)| *at),
            Self::Vm(r) => r.t,
            Self::Tick(r) => r.t,
            Self::Decision(r) => r.t,
            Self::Outcome(r) => r.t,
            Self::Action(r) => r.t,
            Self::Gap(r) => r.t,
            Self::Bound(r) => r.t,
            Self::Answered(r) => r.t,
            Self::SetsAnswered(r) => r.t,
        }
    }
}

/// `H`: first line of a segment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Head {
    /// Version of the program that writes.
    pub build: String,
    /// Compute unit of the agent. Zero for actions of people.
    pub cu: Size,
    /// Name of the node that the writer runs on.
    pub node: String,
    /// Component that writes the segment: `agent`, or `people` for actions of people.
    pub part: String,
    /// The segment before; absent where a chain begins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prev: Option<Previous>,
    /// Which run of the writer: when it began, microseconds since 1970. Numbers of VMs and times
    /// hold within one run.
    pub run: u64,
    /// Number of the segment, from 1.
    pub seq: u64,
    /// When it was begun, on the writer's clock.
    pub t: u64,
    /// [`super::FORMAT`] of the program that wrote the segment.
    pub v: u32,
    /// Calendar time of the clock's zero, microseconds since 1970.
    pub wall: u64,
}

/// The end of the segment before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Previous {
    /// CRC-32C of its last line, line feed included.
    #[serde(with = "hash")]
    pub h: u32,
    /// Number of the segment, from 1.
    pub seq: u64,
}

/// `N`: what holds for every VM of the node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeState {
    /// Settings that the writer gives to every core.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub core: Option<CoreSettings>,
    /// Name and version of the program that answers for policies. Absent until one has started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub engine: Option<String>,
    /// Scheduler in use, as `pod address`. Empty if the agent has found none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheduler: Option<String>,
    /// Time on the writer's clock, microseconds.
    pub t: u64,
}

/// What every core of a node is made with.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CoreSettings {
    /// Age from which file cache metrics are old, microseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lfc_age: Option<u64>,
    /// Scaling settings of VMs without settings of their own.
    pub scaling: Scaling,
    /// Age from which system metrics are old, microseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system_age: Option<u64>,
    /// Compute unit of the agent.
    pub unit: Size,
    /// Waits between requests.
    pub waits: Waits,
}

/// Waits of the state machine, microseconds. The heartbeat's is each VM's own, in its checkpoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "the names of the core's timers")]
pub struct Waits {
    pub plugin_retry: u64,
    pub plugin_denied: u64,
    pub neonvm_retry: u64,
    pub monitor_retry: u64,
    pub monitor_denied: u64,
    pub monitor_wish: u64,
    pub migration_hold: u64,
}

/// `V`: something about a VM changed that the core reads. Exactly one of `obj` and `monitor` is
/// there.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stated {
    /// Event of the monitor link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub monitor: Option<LinkEvent>,
    /// New state of the VM object, as far as the core reads it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub obj: Option<VmObject>,
    /// Time on the writer's clock, microseconds.
    pub t: u64,
    /// Number of the VM within the run of the writer.
    pub vm: u32,
    /// Details of the monitor's upscale request. Present only beside `monitor`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub wish: Wished,
}

/// Events of the link between agent and monitor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LinkEvent {
    /// The agent has connected to the monitor.
    Up,
    /// The connection has ended, or the agent failed to connect.
    Down,
    /// The monitor has sent an upscale request.
    Wish,
}

/// `T`: the outputs of the steps since the VM's last `T` or `K`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tick {
    /// CRC-32C over their outputs, one after the other.
    #[serde(with = "hash")]
    pub h: u32,
    /// Number of steps in the run, from 1.
    pub n: u32,
    /// Time of the run's last step, microseconds.
    pub t: u64,
    /// Number of the VM within the run of the writer.
    pub vm: u32,
}

/// `D`: a decision: a changed one, or the one in force once a minute.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Decision {
    /// Reasons that keep the size away from the goal.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub by: Vec<String>,
    /// Size of the VM at the decision.
    pub cu: Amount,
    /// Requests that the decision starts.
    #[serde(default, rename = "do", skip_serializing_if = "is_default")]
    pub started: Started,
    /// Number of broken invariants since the core started.
    #[serde(default, skip_serializing_if = "is_default")]
    pub fault: u64,
    /// Vote or rule that fixed the goal.
    pub r: String,
    /// Revision of the desired size. With the VM it forms the trace id.
    #[serde(default, skip_serializing_if = "is_default")]
    pub rev: i64,
    /// Time on the writer's clock, microseconds.
    pub t: u64,
    /// Desired size. `None`: it is the present size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<Amount>,
    /// Number of the VM within the run of the writer.
    pub vm: u32,
    /// Who asked for how much: `cpu`, `memory`, `working_set`, `monitor_estimate`,
    /// `memory_pressure`, `policy`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub votes: BTreeMap<String, Milli>,
    /// Goal of the metrics alone, compute units.
    pub want: u32,
    /// Conditions in force at the decision.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warn: Vec<String>,
}

/// Requests started by a step, with what each asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Started {
    /// The monitor is asked to approve a shrink to this size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub down: Option<Amount>,
    /// The VM object is patched to this size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub patch: Option<Amount>,
    /// The scheduler is asked for a permit of this size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub permit: Option<Amount>,
    /// The monitor is notified of growth to this size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub up: Option<Amount>,
}

/// Kind of the request that ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RequestKind {
    /// Permit request to the scheduler.
    Permit,
    /// Patch of the VM object.
    Patch,
    /// Upscale notification to the monitor.
    Up,
    /// Downscale request to the monitor.
    Down,
    /// No request: the controller reported that the guest has the size.
    Verified,
}

/// End of a request, as far as the agent can tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RequestEnd {
    /// The peer carried out the request.
    Done,
    /// The monitor refused the shrink.
    Refused,
    /// The request failed and had no effect.
    NotApplied,
    /// The request failed and may have had an effect.
    Unknown,
}

/// `O`: the end of a request, or the guest seen to have a size.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Outcome {
    /// Microseconds after which a monitor that refused would have the size asked again, where it
    /// said so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub again: Option<u64>,
    /// End of the request.
    pub end: RequestEnd,
    /// Size that the scheduler permits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub got: Option<Size>,
    /// Number of the request within its core. 0 for an outcome without a request.
    #[serde(default, skip_serializing_if = "is_default")]
    pub id: u64,
    /// The smallest size a monitor that refused would have had, where it said so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub least: Option<Size>,
    /// Whether the scheduler announced a migration.
    #[serde(default, skip_serializing_if = "is_default")]
    pub migrate: bool,
    /// Milliseconds by stage, as far as the writer knows them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub ms: BTreeMap<String, u64>,
    /// The revision served; with the VM it is the trace id.
    #[serde(default, skip_serializing_if = "is_default")]
    pub rev: i64,
    /// Time on the writer's clock, microseconds.
    pub t: u64,
    /// Resource version after a patch, where the agent received it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<u64>,
    /// Number of the VM within the run of the writer.
    pub vm: u32,
    /// Kind of the request.
    pub what: RequestKind,
}

/// `X`: something is missing before this line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gap {
    /// Number of missing lines. For a torn tail, number of bytes.
    pub n: u64,
    /// Length of the gap, microseconds. 0 if it is unknown.
    #[serde(default, skip_serializing_if = "is_default")]
    pub span: u64,
    /// Time at which the writer noticed the gap, microseconds.
    pub t: u64,
    /// Number of the VM that lost lines. `None`: any VM may have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vm: Option<u32>,
    /// Cause of the gap.
    pub why: Why,
}

/// Cause of a gap in the journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Why {
    /// The writer ended in the middle of a line.
    TornTail,
    /// Writes to the disk failed for too long.
    Disk,
    /// The VM exceeded its share of the journal.
    Noisy,
}
