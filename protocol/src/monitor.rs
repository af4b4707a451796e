//! The monitor link, protocol v1: JSON text frames over a WebSocket at `/monitor`.
//!
//! The agent dials, sends `{"min":1,"max":1}`, and reads `{"version":1}` or `{"error":"…"}`. After
//! that each frame is one object. Agent→monitor frames wrap the body in `content`; monitor→agent
//! frames are flat. The agent's own ids are even, the monitor's odd; an answer carries the id of
//! its request. Source: docs/compatibility/monitor.md §1-2, docs/compatibility/agent.md §4.1.

use serde::de::Error as _;
use serde::ser::SerializeMap as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value, json};

/// Path of the monitor's WebSocket.
pub const PATH: &str = "/monitor";
/// Port in the architecture document: our monitor's default.
pub const DEFAULT_PORT: u16 = 10369;
/// Port of today's deployments: the agent's shipped configuration.
pub const DEPLOYED_PORT: u16 = 10301;
/// Largest frame our monitor reads, bytes.
pub const MONITOR_FRAME_LIMIT_BYTES: usize = 64 * 1024;
/// Largest frame the agent reads, bytes: `Status` texts must stay well under it.
pub const AGENT_FRAME_LIMIT_BYTES: usize = 32 * 1024;
/// The monitor's first own id; the next ones follow in steps of two.
pub const MONITOR_FIRST_ID: u64 = 3;
/// The agent's first own id; the next ones follow in steps of two.
pub const AGENT_FIRST_ID: u64 = 2;
/// Ids stay below 2^53, because the deployed agent reads them as floats.
pub const MAX_ID: u64 = 1 << 53;

/// A protocol version. [`Version::V1`] is Neon's, `Version::V2` is ours ([`crate::monitor_v2`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Version(pub u8);

impl Version {
    /// Protocol v1.0 of Neon's monitor.
    pub const V1: Self = Self(1);
}

/// First frame, agent to monitor: the inclusive range it speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct VersionRange {
    /// Lowest version that the agent speaks.
    pub min: Version,
    /// Highest version that the agent speaks, at least `min`.
    pub max: Version,
}

impl<'de> Deserialize<'de> for VersionRange {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Bounds {
            min: u64,
            max: u64,
        }
        // By way of a map, because a derived reader would take `[1,1]` as well.
        let object = Map::deserialize(deserializer)?;
        let Bounds { min, max } =
            Bounds::deserialize(Value::Object(object)).map_err(D::Error::custom)?;
        // A bound above 255 still says "everything up to here", so it reads as the highest version
        // there can be.
        let version = |bound| Version(u8::try_from(bound).unwrap_or(u8::MAX));
        Ok(Self {
            min: version(min),
            max: version(max),
        })
    }
}

/// The answer to the range: `{"version":1}` or `{"error":"…"}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum VersionResponse {
    /// Version that both sides speak from now on.
    Version(Version),
    /// No common version, with the cause as text. The monitor closes the connection.
    Error(String),
}

impl VersionRange {
    /// The range that is only v1.
    pub const V1: Self = Self {
        min: Version::V1,
        max: Version::V1,
    };

    /// The highest version in both ranges.
    ///
    /// # Errors
    /// A sentence for the peer when `self` or `theirs` is empty or they do not meet.
    pub fn highest_common(self, theirs: Self) -> Result<Version, String> {
        if theirs.min > theirs.max {
            return Err(format!(
                "version range is empty: min {} is above max {}",
                theirs.min.0, theirs.max.0
            ));
        }
        let version = self.max.min(theirs.max);
        if version >= self.min.max(theirs.min) {
            Ok(version)
        } else {
            Err(format!(
                "no common version: monitor speaks {} to {}, agent {} to {}",
                self.min.0, self.max.0, theirs.min.0, theirs.max.0
            ))
        }
    }
}

/// A size on the monitor link: `{"cpu":0.5,"mem":1073741824}`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Allocation {
    /// vCPUs as a float, for example 0.25.
    #[serde(serialize_with = "shortest_float")]
    pub cpu: f64,
    /// Memory, bytes.
    pub mem: u64,
}

/// Whole CPU counts go out as `2`, as the deployed agent writes them, not `2.0`.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "only for whole numbers in range"
)]
fn shortest_float<S: Serializer>(value: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    if value.fract() == 0.0 && (0.0..1e15).contains(value) {
        serializer.serialize_u64(*value as u64)
    } else {
        serializer.serialize_f64(*value)
    }
}

/// Body of a frame from the agent.
#[derive(Debug, Clone, PartialEq)]
pub enum AgentBody {
    /// May the VM shrink to `target`? (The architecture document calls it TryDownscale.)
    DownscaleRequest {
        /// Size of the VM after the shrink.
        target: Allocation,
    },
    /// The VM has grown to `granted`. (NotifyUpscale.)
    UpscaleNotification {
        /// Size that the VM has now.
        granted: Allocation,
    },
    /// Checks that the monitor responds.
    HealthCheck,
    /// The message with this id could not be read.
    InvalidMessage {
        /// Error text for the log of the monitor.
        error: String,
    },
    /// The message with this id could not be handled.
    InternalError {
        /// Error text for the log of the monitor.
        error: String,
    },
}

/// A frame from the agent: `{"type":…,"content":{…},"id":N}`.
#[derive(Debug, Clone, PartialEq)]
pub struct AgentFrame {
    /// Body of the frame.
    pub body: AgentBody,
    /// Even for the agent's own transactions, else the id being answered.
    pub id: u64,
}

/// Body of a frame from the monitor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MonitorBody {
    /// The answer to a [`AgentBody::DownscaleRequest`]:
    /// `{"type":"DownscaleResult","Ok":true,"Status":"…","id":2}`.
    DownscaleResult {
        /// Whether the monitor approves the shrink.
        ok: bool,
        /// Human-readable cause.
        status: String,
    },
    /// The answer to a [`AgentBody::UpscaleNotification`].
    UpscaleConfirmation,
    /// The guest needs more memory now. Not answered by id; an UpscaleNotification follows later.
    UpscaleRequest,
    /// The answer to a [`AgentBody::HealthCheck`].
    HealthCheck,
    /// The message with this id could not be read.
    InvalidMessage {
        /// Error text for the log of the agent.
        error: String,
    },
    /// The message with this id could not be handled.
    InternalError {
        /// Error text for the log of the agent.
        error: String,
    },
}

/// A frame from the monitor: flat beside `type` and `id`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MonitorFrame {
    /// Body of the frame.
    pub body: MonitorBody,
    /// Odd for the monitor's own transactions, else the id being answered.
    pub id: u64,
}

/// Error of a frame that could not be read, with the id for the answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct FrameError {
    /// The id found in the frame, 0 if none could be read.
    pub id: u64,
    /// Kind of the error.
    pub kind: FrameErrorKind,
    /// Error text for the peer.
    pub reason: String,
}

/// The kinds of bad frames, for counters and for what is done next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum FrameErrorKind {
    /// The text is not JSON.
    NotJson,
    /// Not an object, or `type` is no string, or `id` no unsigned integer.
    NotAFrame,
    /// This side does not implement the type.
    UnknownType,
    /// The type is implemented, but its members do not decode.
    BadContent,
}

/// Type and id of a frame, and the object itself.
pub(crate) struct Envelope {
    pub(crate) kind: String,
    pub(crate) id: u64,
    pub(crate) object: Map<String, Value>,
}

pub(crate) fn envelope(text: &str) -> Result<Envelope, FrameError> {
    let bad = |id, kind, reason: String| FrameError { id, kind, reason };
    let value: Value = serde_json::from_str(text).map_err(|error| {
        bad(
            0,
            FrameErrorKind::NotJson,
            format!("frame is not JSON: {error}"),
        )
    })?;
    let not_a_frame = |id, reason: &str| bad(id, FrameErrorKind::NotAFrame, reason.to_owned());
    let Value::Object(object) = value else {
        return Err(not_a_frame(0, "frame is not a JSON object"));
    };
    let id = object.get("id").and_then(read_id);
    let Some(kind) = object.get("type").and_then(Value::as_str) else {
        let reason = "frame has no string member \"type\"";
        return Err(not_a_frame(id.unwrap_or(0), reason));
    };
    if id.is_none() && !ends_an_exchange(kind) {
        let reason = "frame has no unsigned integer member \"id\"";
        return Err(not_a_frame(0, reason));
    }
    Ok(Envelope {
        kind: kind.to_owned(),
        id: id.unwrap_or(0),
        object,
    })
}

/// The two types that are never answered. They are read however little of them is there: a
/// complaint about one would be an answer, and two peers could go on complaining about each other's
/// complaints for ever.
fn ends_an_exchange(kind: &str) -> bool {
    matches!(kind, "InvalidMessage" | "InternalError")
}

/// The `error` of a frame that ends an exchange, empty when it has none.
fn error_text(object: &Map<String, Value>) -> String {
    match object.get("error") {
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
        None => String::new(),
    }
}

/// The deployed agent holds ids as floats and may write `4.0` or `4e0`.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "checked to be whole and below 2^53"
)]
fn read_id(value: &Value) -> Option<u64> {
    value.as_u64().or_else(|| {
        value
            .as_f64()
            .filter(|f| f.fract() == 0.0 && *f >= 0.0 && *f < MAX_ID as f64)
            .map(|f| f as u64)
    })
}

pub(crate) fn member<T: for<'de> Deserialize<'de>>(
    id: u64,
    kind: &str,
    object: &Map<String, Value>,
    names: &[&str],
) -> Result<T, FrameError> {
    let found = names
        .iter()
        .find_map(|name| object.get(*name))
        // No member of this link is a list, but a derived reader would take one for an object.
        .filter(|value| !value.is_array())
        .cloned()
        .unwrap_or(Value::Null);
    serde_json::from_value(found).map_err(|error| FrameError {
        id,
        kind: FrameErrorKind::BadContent,
        reason: format!("{kind} has a bad member {:?}: {error}", names[0]),
    })
}

fn unknown(envelope: &Envelope) -> FrameError {
    FrameError {
        id: envelope.id,
        kind: FrameErrorKind::UnknownType,
        reason: format!(
            "unknown message type {:?}",
            envelope.kind.chars().take(64).collect::<String>()
        ),
    }
}

impl AgentFrame {
    /// Reads a frame sent by an agent.
    ///
    /// # Errors
    /// [`FrameError`]: answer `InvalidMessage` under its id and go on.
    pub fn decode(text: &str) -> Result<Self, FrameError> {
        let envelope = envelope(text)?;
        let (id, kind) = (envelope.id, envelope.kind.as_str());
        let content = || match envelope.object.get("content") {
            Some(Value::Object(content)) => Ok(content),
            _ => Err(FrameError {
                id,
                kind: FrameErrorKind::BadContent,
                reason: format!("{kind} has no object member \"content\""),
            }),
        };
        // An error may be flat, as the monitor's own are, or have no text at all.
        let error = || error_text(content().unwrap_or(&envelope.object));
        let body = match kind {
            "DownscaleRequest" => AgentBody::DownscaleRequest {
                target: member(id, kind, content()?, &["target"])?,
            },
            "UpscaleNotification" => AgentBody::UpscaleNotification {
                granted: member(id, kind, content()?, &["granted"])?,
            },
            "HealthCheck" if !envelope.object.contains_key("content") => AgentBody::HealthCheck,
            "HealthCheck" => content().map(|_| AgentBody::HealthCheck)?,
            "InvalidMessage" => AgentBody::InvalidMessage { error: error() },
            "InternalError" => AgentBody::InternalError { error: error() },
            _ => return Err(unknown(&envelope)),
        };
        Ok(Self { body, id })
    }

    /// The text of the frame, members in the deployed agent's order.
    #[must_use]
    pub fn encode(&self) -> String {
        text_of(self)
    }
}

impl MonitorFrame {
    /// Reads a frame sent by a monitor.
    ///
    /// # Errors
    /// [`FrameError`]: see docs/compatibility/agent.md §4.1 for what the agent does with each kind.
    pub fn decode(text: &str) -> Result<Self, FrameError> {
        let envelope = envelope(text)?;
        let (id, kind, object) = (envelope.id, envelope.kind.as_str(), &envelope.object);
        let body = match kind {
            "DownscaleResult" => MonitorBody::DownscaleResult {
                ok: member(id, kind, object, &["Ok", "ok"])?,
                status: member(id, kind, object, &["Status", "status"])?,
            },
            "UpscaleConfirmation" => MonitorBody::UpscaleConfirmation,
            "UpscaleRequest" => MonitorBody::UpscaleRequest,
            "HealthCheck" => MonitorBody::HealthCheck,
            "InvalidMessage" => MonitorBody::InvalidMessage {
                error: error_text(object),
            },
            "InternalError" => MonitorBody::InternalError {
                error: error_text(object),
            },
            _ => return Err(unknown(&envelope)),
        };
        Ok(Self { body, id })
    }

    /// The text of the frame, members in the deployed monitor's order.
    #[must_use]
    pub fn encode(&self) -> String {
        text_of(self)
    }
}

impl AgentBody {
    /// The wire's word for it, also the label of counters.
    #[must_use]
    pub const fn wire_type(&self) -> &'static str {
        match self {
            Self::DownscaleRequest { .. } => "DownscaleRequest",
            Self::UpscaleNotification { .. } => "UpscaleNotification",
            Self::HealthCheck => "HealthCheck",
            Self::InvalidMessage { .. } => "InvalidMessage",
            Self::InternalError { .. } => "InternalError",
        }
    }
}

impl MonitorBody {
    /// The wire's word for it, also the label of counters.
    #[must_use]
    pub const fn wire_type(&self) -> &'static str {
        match self {
            Self::DownscaleResult { .. } => "DownscaleResult",
            Self::UpscaleConfirmation => "UpscaleConfirmation",
            Self::UpscaleRequest => "UpscaleRequest",
            Self::HealthCheck => "HealthCheck",
            Self::InvalidMessage { .. } => "InvalidMessage",
            Self::InternalError { .. } => "InternalError",
        }
    }
}

/// A frame holds only strings, numbers and maps with string keys, so writing it cannot fail.
pub(crate) fn text_of<T: Serialize>(frame: &T) -> String {
    serde_json::to_string(frame).expect("a frame is plain JSON")
}

impl Serialize for AgentFrame {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let content = match &self.body {
            AgentBody::DownscaleRequest { target } => json!({ "target": target }),
            AgentBody::UpscaleNotification { granted } => json!({ "granted": granted }),
            AgentBody::HealthCheck => json!({}),
            AgentBody::InvalidMessage { error } | AgentBody::InternalError { error } => {
                json!({ "error": error })
            }
        };
        let mut map = serializer.serialize_map(Some(3))?;
        map.serialize_entry("content", &content)?;
        map.serialize_entry("type", self.body.wire_type())?;
        map.serialize_entry("id", &self.id)?;
        map.end()
    }
}

impl Serialize for MonitorFrame {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("type", self.body.wire_type())?;
        match &self.body {
            MonitorBody::DownscaleResult { ok, status } => {
                map.serialize_entry("Ok", ok)?;
                map.serialize_entry("Status", status)?;
            }
            MonitorBody::InvalidMessage { error } | MonitorBody::InternalError { error } => {
                map.serialize_entry("error", error)?;
            }
            MonitorBody::UpscaleConfirmation
            | MonitorBody::UpscaleRequest
            | MonitorBody::HealthCheck => {}
        }
        map.serialize_entry("id", &self.id)?;
        map.end()
    }
}

impl<'de> Deserialize<'de> for AgentFrame {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::decode(&Value::deserialize(deserializer)?.to_string()).map_err(D::Error::custom)
    }
}

impl<'de> Deserialize<'de> for MonitorFrame {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::decode(&Value::deserialize(deserializer)?.to_string()).map_err(D::Error::custom)
    }
}
