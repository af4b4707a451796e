//! From the three objects to the core's facts. No private key goes further than here.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use super::x509;
use crate::core::certificate::{OwnRequest, Request, RequestStatus, Stored, TemporaryKey};
use crate::core::problem::peer_text;
use crate::shell::secret::is_owned;

/// Member of a secret that holds its private key.
pub(super) const KEY: &str = "tls.key";
/// Member of a secret that holds its certificate.
pub(super) const CERTIFICATE: &str = "tls.crt";

/// The uid of an object.
pub(super) fn uid(object: &Value) -> String {
    text(&object["metadata"]["uid"])
}

/// A member of a secret.
pub(super) fn data(secret: &Value, member: &str) -> Option<Vec<u8>> {
    bytes(&secret["data"][member])
}

/// The certificates that a request got.
pub(super) fn chain(request: &Value) -> Option<Vec<u8>> {
    bytes(&request["status"]["certificate"])
}

fn bytes(value: &Value) -> Option<Vec<u8>> {
    let bytes = STANDARD.decode(value.as_str()?).ok()?;
    (!bytes.is_empty()).then_some(bytes)
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// The secret that guests get.
pub(super) fn stored(secret: Option<&Value>, owner: &Value) -> Stored {
    let Some(secret) = secret else {
        return Stored::Absent;
    };
    if !is_owned(secret, owner) {
        return Stored::Foreign;
    }
    let pair = || {
        let certificate = x509::certificate(&data(secret, CERTIFICATE)?).ok()?;
        let key = x509::public_key(&data(secret, KEY)?)?;
        (certificate.key == key).then_some(certificate)
    };
    pair().map_or(Stored::Unusable, Stored::Pair)
}

/// The secret that holds a key without a certificate.
pub(super) fn temporary(secret: Option<&Value>, owner: &Value) -> TemporaryKey {
    let Some(secret) = secret else {
        return TemporaryKey::Absent;
    };
    if !is_owned(secret, owner) {
        return TemporaryKey::Foreign;
    }
    let key = data(secret, KEY).and_then(|pem| x509::public_key(&pem));
    key.map_or(TemporaryKey::Unusable, TemporaryKey::Key)
}

pub(super) fn request(object: Option<&Value>, owner: &Value) -> Request {
    let Some(object) = object else {
        return Request::Absent;
    };
    if !is_owned(object, owner) {
        return Request::Foreign;
    }
    let pem = bytes(&object["spec"]["request"]);
    Request::Ours(Box::new(OwnRequest {
        uid: uid(object),
        version: text(&object["metadata"]["resourceVersion"]),
        issuer: text(&object["spec"]["issuerRef"]["name"]),
        subject: pem.and_then(|pem| x509::subject(&pem)),
        status: request_status(object),
    }))
}

/// Status of the request. A refusal counts before a certificate, as the issuer's last message.
fn request_status(object: &Value) -> RequestStatus {
    let conditions = object["status"]["conditions"].as_array();
    let condition = |kind: &str| {
        let mut all = conditions.into_iter().flatten();
        all.find(|condition| condition["type"] == kind)
    };
    let message = |condition: &Value| peer_text(condition["message"].as_str().unwrap_or(""));
    for kind in ["Denied", "InvalidRequest"] {
        if let Some(found) = condition(kind)
            && found["status"] == "True"
        {
            return RequestStatus::Refused {
                reason: kind,
                message: message(found),
            };
        }
    }
    let ready = condition("Ready");
    if let Some(ready) = ready
        && ready["status"] == "False"
    {
        for reason in ["Failed", "Denied"] {
            if ready["reason"] == reason {
                return RequestStatus::Refused {
                    reason,
                    message: message(ready),
                };
            }
        }
    }
    match chain(object) {
        Some(pem) => RequestStatus::Issued(x509::certificate(&pem)),
        None if ready.is_some_and(|ready| ready["status"] == "True") => {
            RequestStatus::Issued(Err("it is said to be issued and is not there".into()))
        }
        None => RequestStatus::Waiting {
            message: ready.map(message).unwrap_or_default(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn status_of(status: &Value) -> RequestStatus {
        request_status(&json!({"status": status}))
    }

    #[test]
    fn status_of_request_follows_conditions() {
        let condition = |kind: &str, status: &str, reason: &str| {
            json!({"conditions": [
                {"type": "Approved", "status": "True", "reason": "cert-manager.io", "message": "fine"},
                {"type": kind, "status": status, "reason": reason, "message": "words"},
            ]})
        };
        let refused = |reason| RequestStatus::Refused {
            reason,
            message: "words".into(),
        };
        let waiting = |message: &str| RequestStatus::Waiting {
            message: message.into(),
        };
        for (status, expected) in [
            (Value::Null, waiting("")),
            (condition("Ready", "False", "Pending"), waiting("words")),
            (condition("Ready", "False", "Failed"), refused("Failed")),
            (condition("Ready", "False", "Denied"), refused("Denied")),
            (condition("Denied", "True", "by hand"), refused("Denied")),
            (condition("Denied", "False", "by hand"), waiting("")),
            (
                condition("InvalidRequest", "True", "x"),
                refused("InvalidRequest"),
            ),
        ] {
            assert_eq!(status_of(&status), expected, "{status}");
        }
        let mut ready = condition("Ready", "True", "Issued");
        assert!(matches!(status_of(&ready), RequestStatus::Issued(Err(_))));
        ready["certificate"] = json!(STANDARD.encode("rubbish"));
        assert!(matches!(status_of(&ready), RequestStatus::Issued(Err(_))));
    }

    #[test]
    fn objects_of_other_owners_are_not_read() {
        let owner = json!({"uid": "u"});
        let other = json!({"metadata": {"ownerReferences": [{"uid": "v"}]}});
        let ours = json!({"metadata": {"ownerReferences": [{"uid": "u"}]}});
        assert_eq!(stored(Some(&other), &owner), Stored::Foreign);
        assert_eq!(stored(Some(&ours), &owner), Stored::Unusable);
        assert_eq!(stored(None, &owner), Stored::Absent);
        assert_eq!(temporary(Some(&other), &owner), TemporaryKey::Foreign);
        assert_eq!(temporary(Some(&ours), &owner), TemporaryKey::Unusable);
        assert_eq!(request(Some(&other), &owner), Request::Foreign);
        let Request::Ours(found) = request(Some(&ours), &owner) else {
            panic!("it is ours");
        };
        assert_eq!(found.subject, None);
    }
}
