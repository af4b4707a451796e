//! Frames of v2 from text and to text.

use serde::de::Error as _;
use serde::ser::SerializeMap as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value, json};

use super::{
    AGAIN_LIMIT, AgentBodyV2, AgentFrameV2, GuestMetrics, MonitorBodyV2, MonitorFrameV2,
    NAME_LIMIT_BYTES, NAMES_LIMIT, RefusalReason, Refused, SCHEDULE_LIMIT_BYTES, Schedule,
    ScheduleRequest, UpscaleDetails,
};
use crate::monitor::codec::{Envelope, envelope, member, text_of};
use crate::monitor::{
    AgentFrame, Allocation, FrameError, FrameErrorKind, MonitorBody, MonitorFrame,
};
use crate::time::Span;

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
    let names: Vec<&str> = list
        .iter()
        .take(NAMES_LIMIT)
        .map(|name| name.as_str().ok_or_else(|| bad("a name is no string")))
        .collect::<Result<_, _>>()?;
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
        let Envelope {
            kind,
            id,
            mut object,
        } = envelope(text)?;
        let content = match object.remove("content") {
            Some(Value::Object(content)) => content,
            _ => Map::new(),
        };
        let body = match kind.as_str() {
            "Capabilities" => AgentBodyV2::Capabilities {
                names: names_of(id, &content)?,
            },
            "Schedule" => AgentBodyV2::Schedule(schedule_of(id, &kind, content)?),
            _ => return Err(plain),
        };
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
            "ScheduleRequest" => MonitorBodyV2::ScheduleRequest(asked_of(id, &kind, object)?),
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

/// A schedule that is no longer than its limit.
fn schedule_of(id: u64, kind: &str, content: Map<String, Value>) -> Result<Schedule, FrameError> {
    let schedule: Schedule = whole(id, kind, content)?;
    bounded(id, "spec", &schedule.spec, SCHEDULE_LIMIT_BYTES)?;
    Ok(schedule)
}

/// A request for a schedule whose texts are no longer than a name.
fn asked_of(
    id: u64,
    kind: &str,
    object: Map<String, Value>,
) -> Result<ScheduleRequest, FrameError> {
    let asked: ScheduleRequest = whole(id, kind, object)?;
    bounded(id, "version", &asked.version, NAME_LIMIT_BYTES)?;
    bounded(id, "kind", &asked.kind, NAME_LIMIT_BYTES)?;
    Ok(asked)
}

fn bounded(id: u64, name: &str, text: &str, limit: usize) -> Result<(), FrameError> {
    if text.len() <= limit {
        return Ok(());
    }
    let bytes = text.len();
    Err(FrameError {
        id,
        kind: FrameErrorKind::BadContent,
        reason: format!("{name} has {bytes} bytes, the limit is {limit}"),
    })
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

impl Serialize for AgentFrameV2 {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let content = match &self.body {
            AgentBodyV2::Plain(body) => {
                let frame = AgentFrame {
                    body: body.clone(),
                    id: self.id,
                };
                return frame.serialize(serializer);
            }
            AgentBodyV2::Capabilities { names } => json!({ "names": names }),
            AgentBodyV2::Schedule(schedule) => {
                json!({ "spec": schedule.spec, "valid_s": schedule.valid_s })
            }
        };
        let mut map = serializer.serialize_map(Some(3))?;
        map.serialize_entry("content", &content)?;
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
    Asked(&'a UpscaleDetails),
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
    ScheduleRequest(&'a ScheduleRequest),
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
            MonitorBodyV2::ScheduleRequest(asked) => Flat::ScheduleRequest(asked),
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
