//! The monitor link, protocol v1: JSON text frames over a WebSocket at `/monitor`.
//!
//! The agent dials, sends `{"min":1,"max":1}`, and reads `{"version":1}` or `{"error":"…"}`. After
//! that each frame is one object. Agent→monitor frames wrap the body in `content`; monitor→agent
//! frames are flat. The agent's own ids are even, the monitor's odd; an answer carries the id of
//! its request. Source: docs/compatibility/monitor.md §1-2, docs/compatibility/agent.md §4.1.

pub(crate) mod codec;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value};

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
    /// Memory in whole bytes.
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
        /// Cause of the answer as a sentence for the log. Its text is not fixed.
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
