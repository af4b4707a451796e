//! The certificate in `spec.tls`.

use std::fmt;

pub use protocol::time::Span;
use serde::Serialize;
use serde_json::Value;

/// Units of a duration as objects spell it, in microseconds; the longer name of two that begin
/// alike comes first.
const UNITS: [(&str, f64); 7] = [
    ("ms", 1e3),
    ("us", 1.0),
    ("µs", 1.0),
    ("ns", 1e-3),
    ("h", 3.6e9),
    ("m", 6e7),
    ("s", 1e6),
];

/// Content of `spec.tls`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Wanted {
    /// Name of the ClusterIssuer that signs; never empty.
    pub issuer: String,
    /// Common name and only DNS name.
    pub name: String,
    /// How long the certificate is to last, as it is spelled; `None` leaves that to the issuer.
    pub expire_after: Option<String>,
    /// How long before its end it is renewed; `None`: a third of its life.
    pub renew_before: Option<Span>,
}

/// A member of `spec.tls` that cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TlsFault {
    /// It has to be set.
    Missing(&'static str),
    /// It is no duration like `24h` or `1h30m`.
    NoDuration(&'static str),
}

impl fmt::Display for TlsFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing(member) => write!(f, ".spec.tls.{member}: must be set"),
            Self::NoDuration(member) => {
                write!(
                    f,
                    ".spec.tls.{member}: must be a duration above zero, such as 24h"
                )
            }
        }
    }
}

impl Wanted {
    /// Reads the member `spec.tls`.
    ///
    /// # Errors
    /// The first member that cannot be used.
    pub fn read(tls: &Value) -> Result<Self, TlsFault> {
        let text = |member: &'static str| tls.get(member).and_then(Value::as_str).unwrap_or("");
        let set = |member| match text(member) {
            "" => Err(TlsFault::Missing(member)),
            text => Ok(text.to_owned()),
        };
        let span = |member| match text(member) {
            "" => Ok(None),
            text => duration(text)
                .filter(|span| span.0 > 0)
                .map(Some)
                .ok_or(TlsFault::NoDuration(member)),
        };
        let expire_after = span("expireAfter")?.map(|_| text("expireAfter").to_owned());
        Ok(Self {
            issuer: set("certificateIssuer")?,
            name: set("serverName")?,
            expire_after,
            renew_before: span("renewBefore")?,
        })
    }
}

/// Reads a duration as Kubernetes' objects spell them: numbers, each with a unit, such as `1h30m`.
fn duration(text: &str) -> Option<Span> {
    let mut rest = text.strip_prefix('+').unwrap_or(text);
    let mut micros = 0.0;
    while !rest.is_empty() {
        let digits = rest
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(rest.len());
        let (number, after) = rest.split_at(digits);
        let (unit, factor) = UNITS.iter().find(|(unit, _)| after.starts_with(unit))?;
        micros += number.parse::<f64>().ok()? * factor;
        rest = &after[unit.len()..];
    }
    let seconds = micros / 1e6;
    let time = std::time::Duration::try_from_secs_f64(seconds).ok()?;
    Some(Span::from_duration(time))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn durations_of_kubernetes_are_parsed() {
        let secs = |text| duration(text).map(|span| span.as_secs_f64());
        assert_eq!(secs("24h"), Some(86_400.0));
        assert_eq!(secs("1h30m0s"), Some(5_400.0));
        assert_eq!(secs("1.5m"), Some(90.0));
        assert_eq!(secs("250ms"), Some(0.25));
        assert_eq!(secs("+5m3s"), Some(303.0));
        for wrong in ["24", "h", "24 h", "-5m", "1d", "five"] {
            assert_eq!(secs(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn missing_or_wrong_member_is_named() {
        let tls = json!({"certificateIssuer": "ca", "serverName": "vm.local"});
        let wanted = Wanted::read(&tls).expect("enough");
        assert_eq!((wanted.expire_after, wanted.renew_before), (None, None));
        let with = |member: &str, value: &str| {
            let mut tls = tls.clone();
            tls[member] = json!(value);
            Wanted::read(&tls).map_err(|fault| fault.to_string())
        };
        assert_eq!(
            with("certificateIssuer", "").unwrap_err(),
            ".spec.tls.certificateIssuer: must be set"
        );
        assert_eq!(
            with("serverName", "").unwrap_err(),
            ".spec.tls.serverName: must be set"
        );
        for member in ["expireAfter", "renewBefore"] {
            for wrong in ["soon", "0s"] {
                let text = with(member, wrong).unwrap_err();
                assert!(
                    text.starts_with(&format!(".spec.tls.{member}: must be a duration")),
                    "{text}"
                );
            }
        }
        let wanted = with("expireAfter", "24h").expect("a duration");
        assert_eq!(wanted.expire_after.as_deref(), Some("24h"));
    }
}
