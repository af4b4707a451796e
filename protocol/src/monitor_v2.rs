//! The monitor link, protocol v2: what is added to v1 when both sides speak it.
//!
//! It is agreed in v1's own handshake: `{"min":1,"max":2}` → `{"version":2}`. Then the agent's
//! first frame names what it can use, `{"content":{"names":[…]},"type":"Capabilities","id":2}`, and
//! the monitor answers with what it will do, `{"type":"Capabilities","names":[…],"id":2}`. Names
//! that are not known are ignored, so that later additions need no v3. Every frame of v1 stays as
//! it is; members are added only for a capability both sides have named.
//!
//! | capability | adds |
//! |---|---|
//! | `ask_details` | `reason`, `urgency`, `wanted` in an `UpscaleRequest` |
//! | `refusal_details` | `reason`, `smallest` in a refused `DownscaleResult` |
//! | `refusal_again` | `again_ms` in a refused `DownscaleResult` |
//! | `observed` | `observed` in an `UpscaleConfirmation`, which then waits until the guest sees the size, or for [`OBSERVE_LIMIT`] |
//! | `metrics=MS` | a `Metrics` frame every so many milliseconds, and right after a growth |
//! | `schedule` | a `ScheduleRequest`, which the agent answers by a `Schedule` |

mod capabilities;
mod codec;

use serde::{Deserialize, Serialize};

use crate::monitor::{AgentBody, Allocation, MonitorBody, Version, VersionRange};
use crate::time::Span;

/// How long a confirmation may wait for the guest to see the size it was told of. Less than the
/// agent's patience of 5 s.
pub const OBSERVE_LIMIT: Span = Span::from_secs(3);
/// Longest time that a refusal may tell to wait. A longer one is read as this.
pub const AGAIN_LIMIT: Span = Span::from_secs(60);
/// Most names in one list. Further ones are not read.
pub const NAMES_LIMIT: usize = 64;
/// Longest name, bytes. A longer one is not read.
pub const NAME_LIMIT_BYTES: usize = 64;
/// Longest text of a schedule, bytes.
pub const SCHEDULE_LIMIT_BYTES: usize = 512;
/// Shortest and longest time between two requests for a schedule, seconds.
pub const SCHEDULE_PERIODS_S: (u64, u64) = (60, 6 * 60 * 60);
/// Kind of the schedules that systemd reads: lines for `OnCalendar=`.
pub const SYSTEMD_TIMER: &str = "systemd-timer";
/// Shortest and longest period of pushed metrics.
pub const METRICS_PERIODS: (Span, Span) = (Span::from_millis(500), Span::from_secs(60));

impl Version {
    /// Protocol v2 of our monitor: v1 with capabilities.
    pub const V2: Self = Self(2);
}

impl VersionRange {
    /// The range of both versions, v1 and v2.
    pub const V1_TO_V2: Self = Self {
        min: Version::V1,
        max: Version::V2,
    };
}

/// Set of members that both sides have agreed to add to v1.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Capabilities {
    /// Capability `ask_details`: cause, urgency and size in an upscale request.
    pub ask_details: bool,
    /// Capability `refusal_details`: cause and smallest size in a refusal.
    pub refusal_details: bool,
    /// Capability `refusal_again`: retry time in a refusal. It requires `refusal_details`.
    pub refusal_again: bool,
    /// Capability `observed`: size that the guest sees, in a confirmation.
    pub observed: bool,
    /// Capability `metrics=MS`: period of pushed metrics. `None`: none are pushed.
    pub metrics: Option<Span>,
    /// Capability `schedule`: requests of the monitor for the schedule of its upgrades.
    pub schedule: bool,
}

/// Causes of an upscale request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AskReason {
    /// The mean of the newest readings has reached the threshold: the deployed rule.
    Threshold,
    /// At its present climb, use will have reached the threshold before growth asked for now has
    /// come.
    Forecast,
    /// Some tasks were stalled for want of memory (PSI `some`).
    PsiSome,
    /// All tasks were stalled for want of memory (PSI `full`).
    PsiFull,
    /// The kernel killed something in the watched group, or was about to.
    OomEvent,
    /// A shrink was followed by pressure.
    AfterShrink,
    /// A cause that this side does not implement.
    #[serde(other)]
    Other,
}

impl AskReason {
    /// Causes that our monitor sends, for counters.
    pub const ALL: [Self; 6] = [
        Self::Threshold,
        Self::Forecast,
        Self::PsiSome,
        Self::PsiFull,
        Self::OomEvent,
        Self::AfterShrink,
    ];

    /// The wire's word for it, also the label of counters.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Threshold => "threshold",
            Self::Forecast => "forecast",
            Self::PsiSome => "psi_some",
            Self::PsiFull => "psi_full",
            Self::OomEvent => "oom_event",
            Self::AfterShrink => "after_shrink",
            Self::Other => "other",
        }
    }
}

/// Urgency of an upscale request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Urgency {
    /// Before long: there is time for growth to come.
    Soon,
    /// Now: the reserve is being used.
    Now,
    /// Something is about to be killed, or was.
    Critical,
    /// An urgency that this side does not implement.
    #[serde(other)]
    Other,
}

/// Causes of a refused shrink.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RefusalReason {
    /// Memory use cannot be read.
    Unreadable,
    /// Too few readings since the agent connected.
    TooFewSamples,
    /// What is in use does not fit.
    InUse,
    /// What was in use a moment ago does not fit.
    RecentPeak,
    /// Tasks are being stalled for want of memory.
    Pressure,
    /// What is in swap would have to come back.
    Swap,
    /// A hook refused the shrink.
    Hook,
    /// The guest's kernel could not give so much memory back now.
    NotMovable,
    /// The group was squeezed down to the new size first, and that did not do.
    Squeeze,
    /// A cause that this side does not implement.
    #[serde(other)]
    Other,
}

impl RefusalReason {
    /// Causes that our monitor sends, for counters.
    pub const ALL: [Self; 9] = [
        Self::Unreadable,
        Self::TooFewSamples,
        Self::InUse,
        Self::RecentPeak,
        Self::Pressure,
        Self::Swap,
        Self::Hook,
        Self::NotMovable,
        Self::Squeeze,
    ];

    /// The wire's word for it, also the label of counters.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Unreadable => "unreadable",
            Self::TooFewSamples => "too_few_samples",
            Self::InUse => "in_use",
            Self::RecentPeak => "recent_peak",
            Self::Pressure => "pressure",
            Self::Swap => "swap",
            Self::Hook => "hook",
            Self::NotMovable => "not_movable",
            Self::Squeeze => "squeeze",
            Self::Other => "other",
        }
    }
}

/// Details of an `UpscaleRequest`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct UpscaleDetails {
    /// Cause of the request.
    pub reason: AskReason,
    /// Urgency of the request. `None` if the monitor gives none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub urgency: Option<Urgency>,
    /// Size that would be enough. `None` if the monitor gives none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wanted: Option<Allocation>,
}

/// Details of a refused `DownscaleResult`.
#[derive(Debug, Clone, PartialEq)]
pub struct Refused {
    /// Cause of the refusal as a sentence for the log. Its text is not fixed.
    pub status: String,
    /// Cause of the refusal, one of a fixed set of words.
    pub reason: RefusalReason,
    /// Smallest size that the monitor would approve now. `None` if it has no figures.
    pub smallest: Option<Allocation>,
    /// Time until the refused size would be accepted, if use stays as it is; none where nothing
    /// tells.
    pub again: Option<Span>,
}

/// Share of time in which tasks were stalled, and the time itself.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Stalls {
    /// Percent of the last ten seconds in which some were.
    pub some_percent: f64,
    /// Percent of the last ten seconds in which all were.
    pub full_percent: f64,
    /// Time in which some were, microseconds since boot.
    pub some_us: u64,
    /// Time in which all were, microseconds since boot.
    pub full_us: u64,
}

/// Memory of the guest, bytes, as in the gauges that the agent scrapes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachineGauges {
    /// All memory, as in `host_memory_total_bytes`.
    pub total: u64,
    /// Memory available without swapping, as in `host_memory_available_bytes`.
    pub available: u64,
    /// Page cache, as in `host_memory_cached_bytes`.
    pub cached: u64,
}

/// Memory of the watched cgroup, bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupGauges {
    /// All memory charged to the group, page cache included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current: Option<u64>,
    /// Memory that the kernel cannot reclaim.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used: Option<u64>,
    /// Use at which the monitor requests growth.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub threshold: Option<u64>,
    /// Estimated working set. `None` unless the estimator is on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub working_set: Option<u64>,
}

/// A `Metrics` frame: what an agent would otherwise scrape. Figures that cannot be had are absent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct GuestMetrics {
    /// Load average over one minute, as in `host_load1`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load1: Option<f64>,
    /// Load average over five minutes, as in `host_load5`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load5: Option<f64>,
    /// Load average of runnable tasks over one minute, as in `host_runnable_load1`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runnable_load1: Option<f64>,
    /// Load average of runnable tasks over five minutes, as in `host_runnable_load5`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runnable_load5: Option<f64>,
    /// Memory of the guest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<MachineGauges>,
    /// Stalls for lack of memory in the whole guest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine_stalls: Option<Stalls>,
    /// Stalls for lack of memory in the watched cgroup.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cgroup_stalls: Option<Stalls>,
    /// Memory of the watched cgroup.
    #[serde(default)]
    pub cgroup: GroupGauges,
    /// Size that the guest sees: CPUs online and `MemTotal`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guest: Option<Allocation>,
}

/// A `ScheduleRequest`: the monitor asks when it may be upgraded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScheduleRequest {
    /// Version of the monitor.
    pub version: String,
    /// Kind of the schedule, such as [`SYSTEMD_TIMER`].
    pub kind: String,
}

/// A `Schedule`: the answer to a [`ScheduleRequest`], under its id.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Schedule {
    /// The schedule in the form of its kind, at most [`SCHEDULE_LIMIT_BYTES`]. The link does not
    /// read it. Empty: there is none.
    pub spec: String,
    /// Seconds until the monitor asks again. It keeps them within [`SCHEDULE_PERIODS_S`].
    pub valid_s: u64,
}

/// Body of a frame from the agent in v2.
#[derive(Debug, Clone, PartialEq)]
pub enum AgentBodyV2 {
    /// A body of v1.
    Plain(AgentBody),
    /// Capabilities that the agent can use.
    Capabilities {
        /// Names of capabilities. Unknown names may be among them.
        names: Vec<String>,
    },
    /// The answer to a request for a schedule.
    Schedule(Schedule),
}

impl From<AgentBody> for AgentBodyV2 {
    fn from(body: AgentBody) -> Self {
        Self::Plain(body)
    }
}

/// A frame from the agent in v2.
#[derive(Debug, Clone, PartialEq)]
pub struct AgentFrameV2 {
    /// Body of the frame.
    pub body: AgentBodyV2,
    /// Id of the frame, by the rules of v1.
    pub id: u64,
}

/// Body of a frame from the monitor in v2.
#[derive(Debug, Clone, PartialEq)]
pub enum MonitorBodyV2 {
    /// A body of v1 without additions.
    Plain(MonitorBody),
    /// The answer to the agent's capabilities.
    Capabilities {
        /// Names of the capabilities in force.
        names: Vec<String>,
    },
    /// An `UpscaleRequest` with details.
    Asked(UpscaleDetails),
    /// A refused `DownscaleResult` with details.
    Refused(Refused),
    /// An `UpscaleConfirmation` with what the guest sees.
    Confirmed {
        /// Size that the guest sees: CPUs online and `MemTotal`.
        observed: Allocation,
    },
    /// Pushed metrics. The agent never answers them.
    Metrics(Box<GuestMetrics>),
    /// A request for the schedule of upgrades.
    ScheduleRequest(ScheduleRequest),
}

/// A frame from the monitor in v2.
#[derive(Debug, Clone, PartialEq)]
pub struct MonitorFrameV2 {
    /// Body of the frame.
    pub body: MonitorBodyV2,
    /// Id of the frame, by the rules of v1.
    pub id: u64,
}

impl MonitorBodyV2 {
    /// The wire's word for it, also the label of counters.
    #[must_use]
    pub const fn wire_type(&self) -> &'static str {
        match self {
            Self::Plain(body) => body.wire_type(),
            Self::Capabilities { .. } => "Capabilities",
            Self::Asked(_) => "UpscaleRequest",
            Self::Refused(_) => "DownscaleResult",
            Self::Confirmed { .. } => "UpscaleConfirmation",
            Self::Metrics(_) => "Metrics",
            Self::ScheduleRequest(_) => "ScheduleRequest",
        }
    }
}

impl AgentBodyV2 {
    /// The wire's word for it, also the label of counters.
    #[must_use]
    pub const fn wire_type(&self) -> &'static str {
        match self {
            Self::Plain(body) => body.wire_type(),
            Self::Capabilities { .. } => "Capabilities",
            Self::Schedule(_) => "Schedule",
        }
    }
}
