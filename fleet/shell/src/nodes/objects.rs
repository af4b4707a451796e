//! Pods of agents, their images and their schedules, as the API has them.

use std::net::IpAddr;

use protocol::fleet::{AgentSchedule, SCHEDULE_MEMBER};
use protocol::time::WallTime;
use serde_json::Value;

use crate::node::{ready_since, time};

/// Container of the agent in its pod, and its label `name`.
pub(crate) const AGENT: &str = "autoscaler-agent";
/// Most characters of a text that a node's kubelet wrote.
const TEXT_CHARS: usize = 200;

/// The pod of a node's agent.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct AgentPod {
    pub(crate) name: String,
    pub(crate) uid: String,
    pub(crate) node: String,
    pub(crate) address: Option<IpAddr>,
    pub(crate) created: Option<WallTime>,
    /// Time at which it is to end, if it is.
    pub(crate) ends_at: Option<WallTime>,
    /// Digest of its image, lower-case hex. Empty if it is unknown so far.
    pub(crate) sha256: String,
    pub(crate) ready_since: Option<WallTime>,
    /// Times at which its container ended.
    pub(crate) ends: u64,
    pub(crate) waits_for: Option<String>,
}

impl AgentPod {
    /// `None` for a pod of no node, or of no agent.
    pub(crate) fn read(object: &Value) -> Option<Self> {
        let metadata = &object["metadata"];
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let of_agent = |list: &Value| {
            let mut all = list.as_array().into_iter().flatten();
            all.find(|one| one["name"] == AGENT).cloned()
        };
        let container = of_agent(&object["spec"]["containers"])?;
        let status = of_agent(&object["status"]["containerStatuses"]).unwrap_or_default();
        let image = container["image"].as_str().and_then(digest);
        let image_id = status["imageID"].as_str().and_then(digest);
        let address = object["status"]["podIP"].as_str();
        Some(Self {
            name: text(&metadata["name"])?,
            uid: text(&metadata["uid"])?,
            node: text(&object["spec"]["nodeName"])?,
            address: address.and_then(|ip| ip.parse().ok()),
            created: time(&metadata["creationTimestamp"]),
            ends_at: time(&metadata["deletionTimestamp"]),
            sha256: image.or(image_id).unwrap_or_default(),
            ready_since: ready_since(object),
            ends: status["restartCount"].as_u64().unwrap_or_default(),
            waits_for: waits_for(&object["status"], &status),
        })
    }
}

/// Why the container does not run. A container of before it counts.
fn waits_for(pod: &Value, status: &Value) -> Option<String> {
    let before = pod["initContainerStatuses"].as_array();
    let all = before.into_iter().flatten().chain([status]);
    let waiting = |one: &Value| {
        let waiting = &one["state"]["waiting"];
        let reason = waiting["reason"].as_str()?;
        let message = waiting["message"].as_str().unwrap_or_default();
        Some(format!("{reason} {message}"))
    };
    let text = all.rev().find_map(waiting)?;
    Some(text.trim().chars().take(TEXT_CHARS).collect())
}

/// The schedule of an agent in a `ConfigMap`, with the map's name.
pub(crate) fn schedule(object: &Value) -> Option<(String, Result<AgentSchedule, String>)> {
    let name = object["metadata"]["name"].as_str()?.to_owned();
    let text = object["data"][SCHEDULE_MEMBER].as_str().unwrap_or_default();
    Some((name, AgentSchedule::parse(text)))
}

/// The digest in a reference of an image, or in the id of one.
pub(crate) fn digest(image: &str) -> Option<String> {
    let (_, hex) = image.rsplit_once("sha256:")?;
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    (hex.len() == 64 && hex.bytes().all(is_digit)).then(|| hex.to_owned())
}

/// An image pinned by digest, in the repository of another reference. It has no tag.
pub(crate) fn pinned(image: &str, sha256: &str) -> String {
    let name = image.split('@').next().unwrap_or_default();
    let start = name.rfind('/').map_or(0, |slash| slash + 1);
    let repository = match name[start..].find(':') {
        Some(colon) => &name[..start + colon],
        None => name,
    };
    format!("{repository}@sha256:{sha256}")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    const HEX: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    /// Requirement: R23
    #[test]
    fn image_is_pinned_in_its_repository_without_a_tag() {
        let rows = [
            ("bellows/agent:0.1.0", "bellows/agent"),
            ("bellows/agent", "bellows/agent"),
            (
                "r.example:5000/bellows/agent",
                "r.example:5000/bellows/agent",
            ),
            (
                "r.example:5000/bellows/agent:1",
                "r.example:5000/bellows/agent",
            ),
            ("agent:1@sha256:00", "agent"),
        ];
        for (image, repository) in rows {
            let expected = format!("{repository}@sha256:{HEX}");
            assert_eq!(pinned(image, HEX), expected, "{image}");
            assert_eq!(digest(&expected).as_deref(), Some(HEX));
        }
        for bad in ["agent:1", "sha256:", "a@sha256:ABC", "a@sha256:00"] {
            assert_eq!(digest(bad), None, "{bad}");
        }
    }

    #[test]
    fn pod_is_read_with_its_digest_and_the_reason_of_its_wait() {
        let pod = |image: &str, id: &str| {
            json!({
                "metadata": {"name": "p", "uid": "u", "creationTimestamp": "2026-01-05T12:00:00Z"},
                "spec": {"nodeName": "n", "containers": [{"name": AGENT, "image": image}]},
                "status": {
                    "podIP": "10.0.0.1",
                    "containerStatuses": [{
                        "name": AGENT, "imageID": id, "restartCount": 2,
                        "state": {"waiting": {"reason": "ErrImagePull", "message": "none"}},
                    }],
                },
            })
        };
        let id = format!("docker.io/agent@sha256:{HEX}");
        let read = AgentPod::read(&pod("agent:1", &id)).expect("a pod");
        assert_eq!((read.sha256.as_str(), read.ends), (HEX, 2));
        assert_eq!(read.waits_for.as_deref(), Some("ErrImagePull none"));
        assert!(read.ready_since.is_none() && read.ends_at.is_none());
        let other = format!("agent@sha256:{}", "1".repeat(64));
        let read = AgentPod::read(&pod(&other, &id)).expect("a pod");
        assert_eq!(read.sha256, "1".repeat(64), "the image that was asked for");
        let mut foreign = pod("agent:1", &id);
        foreign["spec"]["containers"][0]["name"] = json!("other");
        assert_eq!(AgentPod::read(&foreign), None);
    }

    proptest! {
        #[test]
        fn any_reference_is_pinned_with_one_digest(image in "[a-z0-9./:@-]{0,60}") {
            let pinned = pinned(&image, HEX);
            let digest = digest(&pinned);
            prop_assert_eq!(digest.as_deref(), Some(HEX));
            prop_assert_eq!(pinned.matches("@sha256:").count(), 1);
        }
    }
}
