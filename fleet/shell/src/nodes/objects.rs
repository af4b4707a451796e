//! Pods of agents, their images and their schedules, as the API has them.

use std::net::IpAddr;

use protocol::fleet::{AgentSchedule, SCHEDULE_MEMBER};
use protocol::time::WallTime;
use serde_json::Value;

use crate::image::digest;
use crate::node::{ready_since, time, waits_for};

/// Container of the agent in its pod, and its label `name`.
pub(crate) const AGENT: &str = "autoscaler-agent";

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

/// The schedule of an agent in a `ConfigMap`, with the map's name.
pub(crate) fn schedule(object: &Value) -> Option<(String, Result<AgentSchedule, String>)> {
    let name = object["metadata"]["name"].as_str()?.to_owned();
    let text = object["data"][SCHEDULE_MEMBER].as_str().unwrap_or_default();
    Some((name, AgentSchedule::parse(text)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const HEX: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

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
}
