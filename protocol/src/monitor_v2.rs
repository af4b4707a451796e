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

use serde::de::Error as _;
use serde::ser::SerializeMap as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value, json};

use crate::monitor::{
    AgentBody, AgentFrame, Allocation, Envelope, FrameError, FrameErrorKind, MonitorBody,
    MonitorFrame, Version, VersionRange, envelope, member, text_of,
};
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
}

impl Capabilities {
    /// All capabilities, with metrics at the given period.
    #[must_use]
    pub const fn all(metrics: Span) -> Self {
        Self {
            ask_details: true,
            refusal_details: true,
            refusal_again: true,
            observed: true,
            metrics: Some(metrics),
        }
    }

    /// Reads a list of names. Unknown ones, and values that do not read, are ignored; a period is
    /// brought within [`METRICS_PERIODS`].
    #[must_use]
    pub fn of_names(names: &[String]) -> Self {
        let mut found = Self::default();
        for name in names {
            match name.split_once('=') {
                None if name == "ask_details" => found.ask_details = true,
                None if name == "refusal_details" => found.refusal_details = true,
                None if name == "refusal_again" => found.refusal_again = true,
                None if name == "observed" => found.observed = true,
                Some(("metrics", period)) => {
                    let (least, most) = METRICS_PERIODS;
                    let period = period.parse().map(Span::from_millis);
                    found.metrics = period.ok().map(|period| period.clamp(least, most));
                }
                _ => {}
            }
        }
        found
    }

    /// The names, in the order of the table above.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        let flags = [
            (self.ask_details, "ask_details"),
            (self.refusal_details, "refusal_details"),
            (self.refusal_again, "refusal_again"),
            (self.observed, "observed"),
        ];
        let named = flags.into_iter().filter(|(has, _)| *has);
        let mut names: Vec<String> = named.map(|(_, name)| name.to_owned()).collect();
        if let Some(period) = self.metrics {
            names.push(format!("metrics={}", period.as_millis()));
        }
        names
    }
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
pub struct Asked {
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
    /// Human-readable cause.
    pub status: String,
    /// Machine-readable cause.
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
    Asked(Asked),
    /// A refused `DownscaleResult` with details.
    Refused(Refused),
    /// An `UpscaleConfirmation` with what the guest sees.
    Confirmed {
        /// Size that the guest sees: CPUs online and `MemTotal`.
        observed: Allocation,
    },
    /// Pushed metrics. The agent never answers them.
    Metrics(Box<GuestMetrics>),
}

/// A frame from the monitor in v2.
#[derive(Debug, Clone, PartialEq)]
pub struct MonitorFrameV2 {
    /// Body of the frame.
    pub body: MonitorBodyV2,
    /// Id of the frame, by the rules of v1.
    pub id: u64,
}

/// The names in a list, no more and no longer than the limits.
fn names_of(id: u64, object: &Map<String, Value>) -> Result<Vec<String>, FrameError> {
    let bad = |reason: &str| FrameError {
        id,
        kind: FrameErrorKind::BadContent,
        reason: reason.to_owned(),
    };
    let Some(Value::Array(list)) = object.get("names") else {
        return Err(bad("Capabilities has no list \"names\""));
    };
    let names = list.iter().take(NAMES_LIMIT);
    let names = names.map(|name| name.as_str().ok_or_else(|| bad("a name is no string")));
    let names: Vec<&str> = names.collect::<Result<_, _>>()?;
    let sound = |name: &&str| name.len() <= NAME_LIMIT_BYTES;
    Ok(names.into_iter().filter(sound).map(str::to_owned).collect())
}

impl AgentFrameV2 {
    /// Reads a frame sent by an agent that speaks v2.
    ///
    /// # Errors
    /// [`FrameError`]: answer `InvalidMessage` under its id and go on.
    pub fn decode(text: &str) -> Result<Self, FrameError> {
        let plain = match AgentFrame::decode(text) {
            Err(error) if error.kind == FrameErrorKind::UnknownType => error,
            other => {
                return other.map(|AgentFrame { body, id }| Self {
                    body: AgentBodyV2::Plain(body),
                    id,
                });
            }
        };
        let Envelope { kind, id, object } = envelope(text)?;
        if kind != "Capabilities" {
            return Err(plain);
        }
        let content = object.get("content").and_then(Value::as_object);
        let none = Map::new();
        let names = names_of(id, content.unwrap_or(&none))?;
        let body = AgentBodyV2::Capabilities { names };
        Ok(Self { body, id })
    }

    /// The text of the frame.
    #[must_use]
    pub fn encode(&self) -> String {
        text_of(self)
    }
}

impl MonitorFrameV2 {
    /// Reads a frame sent by a monitor that speaks v2.
    ///
    /// # Errors
    /// [`FrameError`] as for v1.
    pub fn decode(text: &str) -> Result<Self, FrameError> {
        let Envelope { kind, id, object } = envelope(text)?;
        let has = |name: &str| object.contains_key(name);
        let body = match kind.as_str() {
            "Capabilities" => MonitorBodyV2::Capabilities {
                names: names_of(id, &object)?,
            },
            "UpscaleRequest" if has("reason") => MonitorBodyV2::Asked(whole(id, &kind, object)?),
            "DownscaleResult" if has("reason") => {
                let ok: bool = member(id, &kind, &object, &["Ok", "ok"])?;
                let status = member(id, &kind, &object, &["Status", "status"])?;
                if ok {
                    let body = MonitorBodyV2::Plain(MonitorBody::DownscaleResult { ok, status });
                    return Ok(Self { body, id });
                }
                MonitorBodyV2::Refused(Refused {
                    status,
                    reason: member(id, &kind, &object, &["reason"])?,
                    smallest: member(id, &kind, &object, &["smallest"])?,
                    again: again(member(id, &kind, &object, &["again_ms"])?),
                })
            }
            "UpscaleConfirmation" if has("observed") => MonitorBodyV2::Confirmed {
                observed: member(id, &kind, &object, &["observed"])?,
            },
            "Metrics" => MonitorBodyV2::Metrics(whole(id, &kind, object)?),
            _ => {
                let MonitorFrame { body, id } = MonitorFrame::decode(text)?;
                let body = MonitorBodyV2::Plain(body);
                return Ok(Self { body, id });
            }
        };
        Ok(Self { body, id })
    }

    /// The text of the frame.
    #[must_use]
    pub fn encode(&self) -> String {
        text_of(self)
    }
}

/// Time to wait before a shrink is asked again, of a number of milliseconds.
fn again(millis: Option<u64>) -> Option<Span> {
    millis.map(|millis| Span::from_millis(millis.min(AGAIN_LIMIT.as_millis())))
}

/// A body whose members stand beside type and id.
fn whole<T: for<'de> Deserialize<'de>>(
    id: u64,
    kind: &str,
    object: Map<String, Value>,
) -> Result<T, FrameError> {
    serde_json::from_value(Value::Object(object)).map_err(|error| FrameError {
        id,
        kind: FrameErrorKind::BadContent,
        reason: format!("{kind} has a bad member: {error}"),
    })
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
        }
    }
}

impl Serialize for AgentFrameV2 {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let names = match &self.body {
            AgentBodyV2::Plain(body) => {
                let frame = AgentFrame {
                    body: body.clone(),
                    id: self.id,
                };
                return frame.serialize(serializer);
            }
            AgentBodyV2::Capabilities { names } => names,
        };
        let mut map = serializer.serialize_map(Some(3))?;
        map.serialize_entry("content", &json!({ "names": names }))?;
        map.serialize_entry("type", self.body.wire_type())?;
        map.serialize_entry("id", &self.id)?;
        map.end()
    }
}

/// The entries of a body beside type and id, in the order they are written.
#[derive(Serialize)]
#[serde(untagged)]
enum Flat<'a> {
    Names {
        names: &'a [String],
    },
    Asked(&'a Asked),
    Refused {
        #[serde(rename = "Ok")]
        ok: bool,
        #[serde(rename = "Status")]
        status: &'a str,
        reason: RefusalReason,
        #[serde(skip_serializing_if = "Option::is_none")]
        smallest: Option<Allocation>,
        #[serde(skip_serializing_if = "Option::is_none")]
        again_ms: Option<u64>,
    },
    Confirmed {
        observed: Allocation,
    },
    Metrics(&'a GuestMetrics),
}

impl Serialize for MonitorFrameV2 {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        /// Type, body, id: the order of v1.
        #[derive(Serialize)]
        struct Frame<'a> {
            r#type: &'static str,
            #[serde(flatten)]
            body: Flat<'a>,
            id: u64,
        }
        let body = match &self.body {
            MonitorBodyV2::Plain(body) => {
                let frame = MonitorFrame {
                    body: body.clone(),
                    id: self.id,
                };
                return frame.serialize(serializer);
            }
            MonitorBodyV2::Capabilities { names } => Flat::Names { names },
            MonitorBodyV2::Asked(asked) => Flat::Asked(asked),
            MonitorBodyV2::Refused(refused) => Flat::Refused {
                ok: false,
                status: &refused.status,
                reason: refused.reason,
                smallest: refused.smallest,
                // Not a moment too early.
                again_ms: refused.again.map(|again| again.0.div_ceil(1000)),
            },
            MonitorBodyV2::Confirmed { observed } => Flat::Confirmed {
                observed: *observed,
            },
            MonitorBodyV2::Metrics(metrics) => Flat::Metrics(metrics),
        };
        let r#type = self.body.wire_type();
        let id = self.id;
        Frame { r#type, body, id }.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for AgentFrameV2 {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::decode(&Value::deserialize(deserializer)?.to_string()).map_err(D::Error::custom)
    }
}

impl<'de> Deserialize<'de> for MonitorFrameV2 {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::decode(&Value::deserialize(deserializer)?.to_string()).map_err(D::Error::custom)
    }
}
