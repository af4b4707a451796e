//! The permit link: HTTP POST from agent to scheduler, port 10299, JSON both ways, protocol v5.0 (=
//! 7). Source: docs/compatibility/scheduler.md §2.4, docs/compatibility/agent.md §4.2.

mod quick;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::units::Resources;

/// TCP port of the permit server.
pub const PORT: u16 = 10299;
/// The only accepted protocol number: 7, printed as v5.0.
pub const PROTO_VERSION: u32 = 7;

/// Name of an object in its namespace: `{"namespace":…,"name":…}`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct NamespacedName {
    /// Namespace of the object.
    pub namespace: String,
    /// Name of the object in its namespace.
    pub name: String,
}

impl std::fmt::Display for NamespacedName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// Load numbers the agent adds; unused by the scheduler.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct RequestMetrics {
    /// One-minute load average, 32-bit float.
    #[serde(rename = "loadAvg1M", default)]
    pub load_avg_1m: f32,
}

/// A permit request. The members have this order on the wire.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AgentRequest {
    /// Protocol number: [`PROTO_VERSION`].
    #[serde(default)]
    pub proto_version: u32,
    /// Runner pod of the VM.
    pub pod: NamespacedName,
    /// The agent's compute unit; grants are multiples of it. Absent reads as zero, which is refused
    /// by name.
    #[serde(default)]
    pub compute_unit: Resources,
    /// Desired size for an increase, else the size of the VM.
    pub resources: Resources,
    /// Newest permit of the agent. A restarted scheduler rebuilds its ledger from it.
    #[serde(default)]
    pub last_permit: Option<Resources>,
    /// Load of the VM. `None` before the first metrics.
    #[serde(default)]
    pub metrics: Option<RequestMetrics>,
}

/// Response to a permit request, with status 200.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PluginResponse {
    /// Size that the scheduler permits from now on.
    pub permit: Resources,
    /// Present when the VM is about to migrate: the agent stops changing it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub migrate: Option<MigrateResponse>,
}

/// `{}`: its presence is the message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct MigrateResponse {}

/// The printed name of a protocol number, as it stands in the scheduler's error texts.
#[must_use]
pub fn proto_name(version: u32) -> String {
    match version {
        0 => "<invalid: zero>".into(),
        1 => "v1.0".into(),
        2 => "v1.1".into(),
        3 => "v2.0".into(),
        4 => "v2.1".into(),
        5 => "v3.0".into(),
        6 => "v4.0".into(),
        7 => "v5.0".into(),
        other => format!("<unknown = {other}>"),
    }
}

/// Every refusal of the permit server that is not a permit: an HTTP status and a plain-text body.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PermitRefusal {
    /// 400: another method than POST.
    #[error("must be POST")]
    MustBePost,
    /// 400: the body does not decode.
    #[error("bad JSON")]
    BadJson,
    /// 400: protocol number 0 or absent.
    #[error("invalid protocol version <invalid: zero>")]
    InvalidVersion,
    /// 400: a number that is not ours.
    #[error("protocol version mismatch: need {} but got {}", proto_name(PROTO_VERSION), proto_name(*.0))]
    VersionMismatch(u32),
    /// 400: a zero in the compute unit; the field's wire name.
    #[error("computeUnit fields must be non-zero: {0} must be non-zero")]
    ZeroComputeUnit(&'static str),
    /// 404: no such pod known.
    #[error("pod not found")]
    PodNotFound,
    /// 404: the pod is not bound.
    #[error("pod's node is unknown")]
    NodeUnknown,
    /// 400: no VirtualMachine owns it.
    #[error("pod is not associated with a VM")]
    NotAVm,
    /// 500: the VM object could not be written.
    #[error("failed to patch VM object")]
    PatchFailed,
    /// 500: the pod's annotations do not parse.
    #[error("failed to extract state from pod")]
    BadPod,
    /// 500: the answer could not be made in time.
    #[error("timed out waiting for updates to be processed")]
    TimedOut,
    /// 500: a crash was caught.
    #[error("request handler panicked")]
    Panicked,
    /// 401: the server wants to know who asks, and was not shown what would tell it.
    #[error("not authorized: {0}")]
    Unauthorized(Unproved),
    /// 403: who asks is known, and may not ask.
    #[error("caller may not ask for permits")]
    Forbidden,
    /// 403: what was shown is for pods of another node.
    #[error("pod is not on the caller's node")]
    ForeignNode,
    /// 503: it cannot be told now who asks.
    #[error("the caller's token cannot be reviewed now")]
    Unreviewed,
    /// 503: start-up is not finished, or another replica leads.
    #[error("not ready")]
    NotReady,
}

impl PermitRefusal {
    /// HTTP status of the refusal.
    #[must_use]
    pub fn status(&self) -> u16 {
        match self {
            Self::MustBePost
            | Self::BadJson
            | Self::InvalidVersion
            | Self::VersionMismatch(_)
            | Self::ZeroComputeUnit(_)
            | Self::NotAVm => 400,
            Self::Unauthorized(_) => 401,
            Self::Forbidden | Self::ForeignNode => 403,
            Self::PodNotFound | Self::NodeUnknown => 404,
            Self::PatchFailed | Self::BadPod | Self::TimedOut | Self::Panicked => 500,
            Self::NotReady | Self::Unreviewed => 503,
        }
    }

    /// For refusals that the deployed server does not know, and that are not about the request but
    /// about who sends it: the word for it in metrics and in the answer.
    #[must_use]
    pub const fn of_caller(&self) -> Option<&'static str> {
        match self {
            Self::Unauthorized(why) => Some(why.as_str()),
            Self::Forbidden => Some("forbidden"),
            Self::ForeignNode => Some("foreign_node"),
            Self::Unreviewed => Some("not_reviewed"),
            _ => None,
        }
    }

    /// Content type and body of the answer: plain text as in the deployed server, and for what is
    /// ours alone `{"error":TEXT,"reason":WORD}`.
    #[must_use]
    pub fn body(&self) -> (&'static str, String) {
        match self.of_caller() {
            Some(reason) => {
                let body = serde_json::json!({"error": self.to_string(), "reason": reason});
                ("application/json", body.to_string())
            }
            None => ("text/plain; charset=utf-8", self.to_string()),
        }
    }
}

/// Why it is not known who asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Unproved {
    /// No client certificate where one is asked for.
    #[error("a client certificate must be shown")]
    NoCertificate,
    /// No `Authorization: Bearer` header where one is asked for.
    #[error("a token must be shown")]
    NoToken,
    /// A token that is none of those that are valid.
    #[error("the token is not valid")]
    BadToken,
    /// A token that is valid, but for somebody else than this server.
    #[error("the token is for another audience")]
    WrongAudience,
}

impl Unproved {
    /// Machine-readable cause, for metrics and responses.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NoCertificate => "no_certificate",
            Self::NoToken => "no_token",
            Self::BadToken => "bad_token",
            Self::WrongAudience => "wrong_audience",
        }
    }
}

impl AgentRequest {
    /// Reads a request body. A body of another protocol number is refused by that number even when
    /// its other members are not ours, so that an old agent is told what is wrong with it.
    ///
    /// # Errors
    /// [`PermitRefusal::BadJson`], or the refusal of the protocol number.
    pub fn decode(body: &[u8]) -> Result<Self, PermitRefusal> {
        match quick::read(body) {
            Some(request) if request.proto_version == PROTO_VERSION && request.has_a_load() => {
                Ok(request)
            }
            _ => Self::decode_any(body),
        }
    }

    /// Reads a body of whatever form.
    pub(crate) fn decode_any(body: &[u8]) -> Result<Self, PermitRefusal> {
        let value: Value = serde_json::from_slice(body).map_err(|_| PermitRefusal::BadJson)?;
        let members = value.as_object().ok_or(PermitRefusal::BadJson)?;
        let version = match members.get("protoVersion") {
            None | Some(Value::Null) => Some(0),
            Some(number) => number
                .as_u64()
                .and_then(|number| u32::try_from(number).ok()),
        };
        check_version(version.ok_or(PermitRefusal::BadJson)?)?;
        // Derived decoders take lists for structs; the wire knows only objects.
        let object = |key: &str| {
            members
                .get(key)
                .is_none_or(|member| member.is_object() || member.is_null())
        };
        if !["pod", "computeUnit", "resources", "lastPermit", "metrics"]
            .into_iter()
            .all(object)
        {
            return Err(PermitRefusal::BadJson);
        }
        let request: Self = serde_json::from_value(value).map_err(|_| PermitRefusal::BadJson)?;
        match request.has_a_load() {
            true => Ok(request),
            false => Err(PermitRefusal::BadJson),
        }
    }

    /// A load of more than 32 bits hold reads as infinity, which is no JSON; the deployed server
    /// refuses it too.
    fn has_a_load(&self) -> bool {
        self.metrics
            .is_none_or(|metrics| metrics.load_avg_1m.is_finite())
    }

    /// Checks that need nothing but the request.
    ///
    /// # Errors
    /// The refusal to answer with.
    pub fn validate(&self) -> Result<(), PermitRefusal> {
        check_version(self.proto_version)?;
        self.compute_unit
            .zero_field()
            .map_or(Ok(()), |field| Err(PermitRefusal::ZeroComputeUnit(field)))
    }
}

fn check_version(version: u32) -> Result<(), PermitRefusal> {
    match version {
        0 => Err(PermitRefusal::InvalidVersion),
        PROTO_VERSION => Ok(()),
        other => Err(PermitRefusal::VersionMismatch(other)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn object_is_shown_with_its_namespace() {
        let name = NamespacedName {
            namespace: "default".into(),
            name: "pg".into(),
        };
        assert_eq!(name.to_string(), "default/pg");
    }
}
