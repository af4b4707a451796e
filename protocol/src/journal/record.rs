//! The records. Members are declared in the order of the words; the file holds them sorted by key,
//! absent ones left out.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::checkpoint::{Checkpoint, Stamped};
use super::pack::Sampled;
use crate::mode::Mode;
use crate::monitor_v2::AskReason;
use crate::units::Resources;

pub(super) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// A checksum as it is written: eight lower-case hex digits.
#[must_use]
pub fn hash_text(hash: u32) -> String {
    format!("{hash:08x}")
}

/// A checksum in a record.
pub(super) mod hash {
    use super::{Deserialize, Deserializer, Serializer, hash_text};

    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
    pub(in crate::journal) fn serialize<S: Serializer>(
        hash: &u32,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&hash_text(*hash))
    }

    pub(in crate::journal) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<u32, D::Error> {
        let text = String::deserialize(deserializer)?;
        u32::from_str_radix(&text, 16).map_err(serde::de::Error::custom)
    }
}

/// A size: `[milli-CPU, bytes]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Size(pub u32, pub u64);

impl From<Resources> for Size {
    fn from(size: Resources) -> Self {
        Self(size.cpu.0, size.mem.0)
    }
}

impl From<Size> for Resources {
    fn from(size: Size) -> Self {
        Self::new(size.0, size.1)
    }
}

/// A size in a decision: a number of compute units where it is exactly that, else as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Amount {
    /// So many compute units.
    Units(u32),
    /// A size that is no number of compute units.
    Exact(Size),
}

impl Amount {
    /// A size in the shorter of its two spellings.
    #[must_use]
    pub fn of(size: Resources, unit: Resources) -> Self {
        size.exact_multiple_of(unit)
            .map_or_else(|| Self::Exact(size.into()), Self::Units)
    }

    /// The size.
    #[must_use]
    pub fn size(self, unit: Resources) -> Resources {
        match self {
            Self::Units(count) => unit.saturating_mul(count),
            Self::Exact(size) => size.into(),
        }
    }
}

/// Compute units in thousandths, rounded half to even; NaN is 0, and what does not fit is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Milli(pub i64);

impl Milli {
    /// Of a float.
    #[must_use]
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the cast saturates, and NaN becomes 0"
    )]
    pub fn of(units: f64) -> Self {
        let bound = super::MAX_INTEGER;
        Self(((units * 1000.0).round_ties_even() as i64).clamp(-bound, bound))
    }

    /// As a float, for people.
    #[must_use]
    pub fn units(self) -> f64 {
        self.0 as f64 / 1000.0
    }
}

/// A setting: a float as the shortest decimal text that reads as the same float.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Decimal(pub f64);

impl Serialize for Decimal {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Decimal {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map(Self).map_err(serde::de::Error::custom)
    }
}

/// One line of a journal.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "k")]
pub enum Record {
    /// First line of a segment.
    #[serde(rename = "H")]
    Head(Head),
    /// What holds for the whole node.
    #[serde(rename = "N")]
    Node(NodeState),
    /// A checkpoint of one VM.
    #[serde(rename = "K")]
    Checkpoint(Box<Checkpoint>),
    /// Routine steps of one VM.
    #[serde(rename = "S")]
    Sampled(Sampled),
    /// What a VM is, changed.
    #[serde(rename = "V")]
    Vm(Box<Stated>),
    /// The outputs of a run of steps.
    #[serde(rename = "T")]
    Tick(Tick),
    /// A decision.
    #[serde(rename = "D")]
    Decision(Box<Decision>),
    /// What came of it.
    #[serde(rename = "O")]
    Outcome(Box<Outcome>),
    /// A person did something.
    #[serde(rename = "A")]
    Action(Action),
    /// Something is missing.
    #[serde(rename = "X")]
    Gap(Gap),
}

impl Record {
    /// The VM it is about, by number.
    #[must_use]
    pub fn vm(&self) -> Option<u32> {
        match self {
            Self::Head(_) | Self::Node(_) => None,
            Self::Checkpoint(k) => Some(k.vm),
            Self::Sampled(s) => Some(s.vm),
            Self::Vm(v) => Some(v.vm),
            Self::Tick(t) => Some(t.vm),
            Self::Decision(d) => Some(d.vm),
            Self::Outcome(o) => Some(o.vm),
            Self::Action(a) => a.vm,
            Self::Gap(x) => x.vm,
        }
    }

    /// Its time on the writer's clock, microseconds. Of a block the first step's.
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
        }
    }
}

/// `H`: first line of a segment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Head {
    /// Version of the program that writes.
    pub build: String,
    /// The compute unit.
    pub cu: Size,
    /// The node.
    pub node: String,
    /// Which part writes: `agent`.
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
    /// [`super::FORMAT`] of the writer.
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
    /// Its number.
    pub seq: u64,
}

/// `N`: what holds for every VM of the node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeState {
    /// What cores are made with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub core: Option<CoreSettings>,
    /// The scheduler asked, as `pod address`; empty for none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheduler: Option<String>,
    /// When.
    pub t: u64,
}

/// What every core of a node is made with.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CoreSettings {
    /// Age from which file cache metrics are old, microseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lfc_age: Option<u64>,
    /// Default scaling settings.
    pub scaling: Scaling,
    /// Age from which system metrics are old, microseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system_age: Option<u64>,
    /// The compute unit.
    pub unit: Size,
    /// The waits.
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

/// Scaling settings, by the names of the annotation `autoscaling.neon.tech/config`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[expect(missing_docs, reason = "the keys of the annotation, one to one")]
pub struct Scaling {
    pub load_average_fraction_target: Decimal,
    pub memory_usage_fraction_target: Decimal,
    pub memory_total_fraction_target: Decimal,
    #[serde(rename = "enableLFCMetrics")]
    pub enable_lfc_metrics: bool,
    pub lfc_use_largest_window: bool,
    pub lfc_to_memory_ratio: Decimal,
    pub lfc_window_size_minutes: u32,
    pub lfc_min_wait_before_downscale_minutes: u32,
    pub cpu_stable_zone_ratio: Decimal,
    pub cpu_mixed_zone_ratio: Decimal,
    #[serde(default, skip_serializing_if = "is_default")]
    pub shrink_step: ShrinkStep,
    #[serde(default, skip_serializing_if = "is_default")]
    pub downscale_margin_units: Decimal,
    #[serde(default, skip_serializing_if = "is_default")]
    pub downscale_hold_seconds: u32,
    #[serde(default, skip_serializing_if = "is_default")]
    pub downscale_cooldown_seconds: u32,
    #[serde(default, skip_serializing_if = "is_default")]
    pub upscale_cooldown_seconds: u32,
    #[serde(default, skip_serializing_if = "is_default")]
    pub enable_monitor_estimate: bool,
    #[serde(default, skip_serializing_if = "is_default")]
    pub memory_pressure_hold_percent: Decimal,
    #[serde(default, skip_serializing_if = "is_default")]
    pub mode: Mode,
}

/// How much less a monitor is asked to agree to at once. Journals older than the setting say
/// nothing, and mean one unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ShrinkStep {
    /// One compute unit.
    #[default]
    Unit,
    /// The whole way.
    Whole,
}

/// `V`: something about a VM changed that the core reads. Exactly one of `obj` and `monitor` is
/// there.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stated {
    /// The monitor's link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub monitor: Option<LinkEvent>,
    /// The VM object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub obj: Option<VmObject>,
    /// When.
    pub t: u64,
    /// The VM's number.
    pub vm: u32,
    /// What the monitor said with its wish.
    #[serde(default, skip_serializing_if = "is_default")]
    pub wish: Wished,
}

/// What a monitor said with its wish to grow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Wished {
    /// Why.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<AskReason>,
    /// The memory that would do, bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wanted: Option<u64>,
}

/// What the monitor's link did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LinkEvent {
    /// Connected.
    Up,
    /// Gone, or could not be made.
    Down,
    /// The monitor asks to grow.
    Wish,
}

/// What the core reads from a VM object.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VmObject {
    /// What the guest is reported to have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub actual: Option<Size>,
    /// Smallest, largest, in use: milli-CPU.
    pub cpu: [u32; 3],
    /// Newest revision on the object.
    #[serde(default, skip_serializing_if = "is_default")]
    pub last: i64,
    /// Smallest, largest, in use: slots.
    pub mem: [u32; 3],
    /// It is about to migrate.
    #[serde(default, skip_serializing_if = "is_default")]
    pub migrating: bool,
    /// Its scaling settings, where they are not the node's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub own: Option<Scaling>,
    /// The revision it reached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reached: Option<Stamped>,
    /// Bytes of a slot.
    pub slot: u64,
    /// Version of the object, where it is a number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<u64>,
}

/// `T`: the outputs of the steps since the VM's last `T` or `K`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tick {
    /// CRC-32C over their outputs, one after the other.
    #[serde(with = "hash")]
    pub h: u32,
    /// How many steps.
    pub n: u32,
    /// Time of the last of them.
    pub t: u64,
    /// The VM's number.
    pub vm: u32,
}

/// `D`: a decision: a changed one, or the one in force once a minute.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Decision {
    /// What stands between the goal and the size.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub by: Vec<String>,
    /// What the VM has.
    pub cu: Amount,
    /// What is started now.
    #[serde(default, rename = "do", skip_serializing_if = "is_default")]
    pub started: Started,
    /// Broken invariants counted so far.
    #[serde(default, skip_serializing_if = "is_default")]
    pub fault: u64,
    /// What decided.
    pub r: String,
    /// The revision of the wish; with the VM it is the trace id.
    #[serde(default, skip_serializing_if = "is_default")]
    pub rev: i64,
    /// When.
    pub t: u64,
    /// What it should have, where that is not what it has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<Amount>,
    /// The VM's number.
    pub vm: u32,
    /// Who asked for how much: `cpu`, `memory`, `working_set`, `monitor_estimate`,
    /// `memory_pressure`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub votes: BTreeMap<String, Milli>,
    /// What the metrics alone ask for, compute units.
    pub want: u32,
    /// Conditions it was made under.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warn: Vec<String>,
}

/// Requests started by a step, with what each asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Started {
    /// The monitor is asked to agree to less.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub down: Option<Amount>,
    /// The object is patched.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub patch: Option<Amount>,
    /// The scheduler is asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub permit: Option<Amount>,
    /// The monitor is told of more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub up: Option<Amount>,
}

/// What kind of request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RequestKind {
    /// Of the scheduler.
    Permit,
    /// Of the VM object.
    Patch,
    /// Telling the monitor of more.
    Up,
    /// Asking the monitor for less.
    Down,
    /// Nothing was asked: the guest was seen to have the size.
    Verified,
}

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    /// As asked.
    Done,
    /// The monitor refused.
    Refused,
    /// It certainly did not happen.
    NotApplied,
    /// Nobody knows whether it happened.
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
    /// How it ended.
    pub end: Reply,
    /// The permit given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub got: Option<Size>,
    /// The core's number of the request; 0 for none.
    #[serde(default, skip_serializing_if = "is_default")]
    pub id: u64,
    /// The smallest size a monitor that refused would have had, where it said so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub least: Option<Size>,
    /// The scheduler announced a migration.
    #[serde(default, skip_serializing_if = "is_default")]
    pub migrate: bool,
    /// Milliseconds by stage, as far as the writer knows them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub ms: BTreeMap<String, u64>,
    /// The revision served; with the VM it is the trace id.
    #[serde(default, skip_serializing_if = "is_default")]
    pub rev: i64,
    /// When.
    pub t: u64,
    /// The version the object got by a patch, where it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<u64>,
    /// The VM's number.
    pub vm: u32,
    /// Which request.
    pub what: RequestKind,
}

/// `A`: a person did something. It is on disk before the person is answered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Action {
    /// Who.
    pub by: String,
    /// What.
    #[serde(rename = "do")]
    pub what: String,
    /// When.
    pub t: u64,
    /// To which VM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vm: Option<u32>,
}

/// `X`: something is missing before this line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gap {
    /// Lines missing; of a torn tail, bytes.
    pub n: u64,
    /// Time they span, microseconds; 0 where nobody knows.
    #[serde(default, skip_serializing_if = "is_default")]
    pub span: u64,
    /// When it was noticed.
    pub t: u64,
    /// Whose, if only one VM's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vm: Option<u32>,
    /// Why.
    pub why: Why,
}

/// Why something is missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Why {
    /// The writer ended in the middle of a line.
    TornTail,
    /// The disk was full or failed for too long.
    Disk,
    /// The VM wrote more than its share.
    Noisy,
}

/// How often each invariant was broken, as the core counts it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[expect(missing_docs, reason = "the core's counters, same names")]
pub struct FaultCounts {
    #[serde(skip_serializing_if = "is_default")]
    pub approved_above_use: u64,
    #[serde(skip_serializing_if = "is_default")]
    pub use_above_permit: u64,
    #[serde(skip_serializing_if = "is_default")]
    pub downscale_below_denied: u64,
    #[serde(skip_serializing_if = "is_default")]
    pub desired_out_of_bounds: u64,
    #[serde(skip_serializing_if = "is_default")]
    pub invalid_permit: u64,
    #[serde(skip_serializing_if = "is_default")]
    pub unknown_reply: u64,
    #[serde(skip_serializing_if = "is_default")]
    pub observation_lost: u64,
}
