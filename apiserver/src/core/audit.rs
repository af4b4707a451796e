//! Lines of the audit log: `Event` of `audit.k8s.io/v1`, level `Metadata`. They have neither bodies
//! nor headers, apart from the name that a client gives itself.

use std::net::IpAddr;

use serde_json::{Map, Value, json};

use super::request::{self, Query, Target};
use super::time::WallTime;

/// Name of the one user, as in the kubeconfig.
const USER: &str = "bellows";
/// Annotation of an event: how many lines before it are missing.
pub const LINES_LOST: &str = "bellows.dev/lines-lost-before";
/// Most characters of a text that a client chooses.
const MOST_AGENT: usize = 1024;
const MOST_URI: usize = 4096;
/// Longest name in Kubernetes.
const MOST_NAME: usize = 253;

/// What is known of a call before it is answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditedCall {
    /// UUID of the call.
    pub id: String,
    /// Time at which its head was read.
    pub received: WallTime,
    /// Method of HTTP, as the client wrote it.
    pub method: String,
    /// Path and query, before anything is decoded.
    pub uri: String,
    /// `User-Agent`. Empty if the client gives none.
    pub agent: String,
    /// Address of the client, if it is known.
    pub peer: Option<IpAddr>,
    /// Whether the client has the token.
    pub is_authenticated: bool,
}

impl AuditedCall {
    /// The event of the call's end. `code` is missing if the client went away before it was
    /// answered.
    #[must_use]
    pub fn event(&self, code: Option<u16>, now: WallTime) -> Value {
        let (path, query) = self.uri.split_once('?').unwrap_or((&self.uri, ""));
        let target = request::segments(path)
            .ok()
            .and_then(|segments| request::target(&segments).flatten());
        let user = if self.is_authenticated {
            json!({"username": USER, "groups": ["system:masters", "system:authenticated"]})
        } else {
            json!({})
        };
        let mut event = json!({
            "kind": "Event",
            "apiVersion": "audit.k8s.io/v1",
            "level": "Metadata",
            "auditID": self.id,
            "stage": "ResponseComplete",
            "requestURI": short(&self.uri, MOST_URI),
            "verb": self.verb(target.as_ref(), query),
            "user": user,
            "userAgent": short(&self.agent, MOST_AGENT),
            "requestReceivedTimestamp": self.received.to_micro_string(),
            "stageTimestamp": now.to_micro_string(),
        });
        if let Some(peer) = self.peer {
            event["sourceIPs"] = json!([peer.to_string()]);
        }
        if let Some(target) = target {
            event["objectRef"] = reference(&target);
        }
        if let Some(code) = code {
            event["responseStatus"] = json!({"metadata": {}, "code": code});
        }
        event
    }

    /// The verb of Kubernetes. A path without objects has the method's name.
    fn verb(&self, target: Option<&Target>, query: &str) -> String {
        let has_name = target.map(|target| target.name.is_some());
        let is_watch = || Query::parse(query).flag("watch").unwrap_or(false);
        let verb = match (self.method.as_str(), has_name) {
            ("GET", Some(true)) => "get",
            ("GET", Some(false)) if is_watch() => "watch",
            ("GET", Some(false)) => "list",
            ("POST", Some(_)) => "create",
            ("PUT", Some(_)) => "update",
            ("PATCH", Some(_)) => "patch",
            ("DELETE", Some(true)) => "delete",
            ("DELETE", Some(false)) => "deletecollection",
            _ => return short(&self.method, MOST_NAME).to_ascii_lowercase(),
        };
        verb.to_owned()
    }
}

fn reference(target: &Target) -> Value {
    let members = [
        ("resource", Some(&target.resource)),
        ("namespace", target.namespace.as_ref()),
        ("name", target.name.as_ref()),
        ("apiGroup", Some(&target.group)),
        ("apiVersion", Some(&target.version)),
        ("subresource", target.subresource.as_ref()),
    ];
    let members = members.into_iter().filter_map(|(name, value)| {
        let value = value.filter(|value| !value.is_empty())?;
        Some((name.to_owned(), Value::from(short(value, MOST_NAME))))
    });
    Value::Object(members.collect::<Map<_, _>>())
}

fn short(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}...TRUNCATED", &text[..end]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(method: &str, uri: &str) -> AuditedCall {
        AuditedCall {
            id: "i".to_owned(),
            received: WallTime(1_700_000_000_000_001),
            method: method.to_owned(),
            uri: uri.to_owned(),
            agent: "kubectl/v1.32".to_owned(),
            peer: Some([127, 0, 0, 1].into()),
            is_authenticated: true,
        }
    }

    /// Requirement: B49
    #[test]
    fn call_is_told_by_the_verbs_and_names_of_kubernetes() {
        let vms = "/apis/vm.neon.tech/v1/namespaces/a/virtualmachines";
        for (method, uri, verb) in [
            ("GET", format!("{vms}/pg"), "get"),
            ("GET", vms.to_owned(), "list"),
            ("GET", format!("{vms}?watch=1"), "watch"),
            ("POST", vms.to_owned(), "create"),
            ("PUT", format!("{vms}/pg/status"), "update"),
            ("PATCH", format!("{vms}/pg"), "patch"),
            ("DELETE", format!("{vms}/pg"), "delete"),
            ("DELETE", vms.to_owned(), "deletecollection"),
            ("GET", "/version".to_owned(), "get"),
            ("POST", "/openapi/v3".to_owned(), "post"),
            ("BREW", format!("{vms}/pg"), "brew"),
        ] {
            let event = call(method, &uri).event(Some(200), WallTime(1_700_000_000_000_002));
            assert_eq!(event["verb"], verb, "{method} {uri}");
            assert_eq!(event["requestURI"], *uri);
        }
        let event = call("PUT", &format!("{vms}/pg/status?dryRun=All"));
        let event = event.event(Some(409), WallTime(1_700_000_000_000_002));
        let expected = json!({
            "kind": "Event", "apiVersion": "audit.k8s.io/v1", "level": "Metadata",
            "auditID": "i", "stage": "ResponseComplete",
            "requestURI": format!("{vms}/pg/status?dryRun=All"), "verb": "update",
            "user": {"username": "bellows", "groups": ["system:masters", "system:authenticated"]},
            "sourceIPs": ["127.0.0.1"], "userAgent": "kubectl/v1.32",
            "objectRef": {
                "resource": "virtualmachines", "namespace": "a", "name": "pg",
                "apiGroup": "vm.neon.tech", "apiVersion": "v1", "subresource": "status",
            },
            "responseStatus": {"metadata": {}, "code": 409},
            "requestReceivedTimestamp": "2023-11-14T22:13:20.000001Z",
            "stageTimestamp": "2023-11-14T22:13:20.000002Z",
        });
        assert_eq!(event, expected);
    }

    /// A client chooses neither the length of a line nor its ends.
    ///
    /// Requirement: B49
    #[test]
    fn texts_of_clients_are_bounded_and_stay_in_their_line() {
        let long = "ä".repeat(100_000);
        let mut odd = call(
            "POST",
            &format!("/api/v1/namespaces/{long}/pods/%0A{long}?{long}"),
        );
        odd.agent = format!("\n{long}");
        odd.is_authenticated = false;
        odd.peer = None;
        let event = odd.event(None, WallTime(1));
        let line = event.to_string();
        assert!(
            !line.contains('\n') && line.len() < 16_384,
            "{}",
            line.len()
        );
        assert_eq!(event["user"], json!({}));
        assert!(event.get("responseStatus").is_none());
        let broken = call("GET", "/api/v1/%ff").event(Some(400), WallTime(1));
        assert!(broken.get("objectRef").is_none());
    }
}
