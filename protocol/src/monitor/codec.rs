//! Frames of v1 from text and to text, by the rules of the module above.

use serde::de::Error as _;
use serde::ser::SerializeMap as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value, json};

use super::{AgentBody, AgentFrame, FrameError, FrameErrorKind, MAX_ID, MonitorBody, MonitorFrame};

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
