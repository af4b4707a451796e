//! Nodes as the API has them, and what is remembered of them between looks.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use protocol::fleet::{KEY_ENROLLED, KEY_WINDOWS};
use protocol::time::WallTime;
use serde_json::Value;

/// Most characters of a text that a node's kubelet wrote.
const TEXT_CHARS: usize = 200;

/// A node with what its owner says about changes, and whether its kubelet answers.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Node {
    pub(crate) name: String,
    pub(crate) uid: String,
    pub(crate) labels: BTreeMap<String, String>,
    /// Annotation with the windows of its owner.
    pub(crate) windows: Option<String>,
    pub(crate) is_enrolled: bool,
    /// Whether its kubelet answers.
    pub(crate) is_ready: bool,
    pub(crate) boot: String,
    pub(crate) created: Option<WallTime>,
}

impl Node {
    /// `None` for one that goes away.
    pub(crate) fn read(object: &Value) -> Option<Self> {
        let metadata = &object["metadata"];
        if metadata["deletionTimestamp"].is_string() {
            return None;
        }
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let windows = text(&metadata["annotations"][KEY_WINDOWS]);
        let boot = text(&object["status"]["nodeInfo"]["bootID"]);
        Some(Self {
            name: text(&metadata["name"])?,
            uid: text(&metadata["uid"])?,
            labels: texts(&metadata["labels"]),
            windows,
            is_enrolled: metadata["labels"][KEY_ENROLLED] != "false",
            is_ready: ready_since(object).is_some(),
            boot: boot.unwrap_or_default(),
            created: time(&metadata["creationTimestamp"]),
        })
    }
}

/// Monitors of each node that had no agent before its turn; clones share them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Unconnected(Arc<Mutex<BTreeMap<String, u32>>>);

impl Unconnected {
    /// Monitors that lost their agent since the turn of a node began. A process that did not see
    /// the node before its turn counts none.
    pub(crate) fn since_turn(&self, node: &str, is_in_flight: bool, unconnected: u32) -> u32 {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if is_in_flight {
            let before = known.get(node).copied();
            return before.map_or(0, |before| unconnected.saturating_sub(before));
        }
        known.insert(node.to_owned(), unconnected);
        0
    }
}

pub(crate) fn ready_since(object: &Value) -> Option<WallTime> {
    let conditions = object["status"]["conditions"].as_array();
    let mut conditions = conditions.into_iter().flatten();
    let ready = conditions.find(|one| one["type"] == "Ready" && one["status"] == "True")?;
    Some(time(&ready["lastTransitionTime"]).unwrap_or_default())
}

/// Why the container does not run. A container of before it counts.
pub(crate) fn waits_for(pod: &Value, status: &Value) -> Option<String> {
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

/// Whole seconds from a time until now.
pub(crate) fn seconds_since(since: WallTime, now: WallTime) -> u64 {
    u64::try_from(now.0.saturating_sub(since.0)).unwrap_or(0) / 1_000_000
}

pub(crate) fn time(value: &Value) -> Option<WallTime> {
    WallTime::parse(value.as_str()?).ok()
}

pub(crate) fn texts(value: &Value) -> BTreeMap<String, String> {
    let all = value.as_object().into_iter().flatten();
    let all = all.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())));
    all.collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Requirement: R23
    #[test]
    fn only_monitors_that_were_connected_before_the_turn_are_lost() {
        let known = Unconnected::default();
        assert_eq!(known.since_turn("n", true, 3), 0, "seen for the first time");
        assert_eq!(known.since_turn("n", false, 1), 0);
        assert_eq!(known.since_turn("n", true, 3), 2);
        assert_eq!(known.since_turn("n", true, 0), 0);
        assert_eq!(known.since_turn("other", true, 3), 0);
    }

    /// Requirement: R10
    #[test]
    fn node_is_read_with_the_word_of_its_owner() {
        let mut object = json!({
            "metadata": {
                "name": "n", "uid": "u", "labels": {"kind": "worker"},
                "creationTimestamp": "2026-01-05T12:00:00Z",
            },
            "status": {
                "nodeInfo": {"bootID": "b"},
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        });
        let node = Node::read(&object).expect("a node");
        assert!(node.is_ready && node.is_enrolled && node.windows.is_none());
        assert_eq!((node.name.as_str(), node.boot.as_str()), ("n", "b"));
        object["metadata"]["labels"][KEY_ENROLLED] = json!("false");
        object["status"]["conditions"][0]["status"] = json!("Unknown");
        let node = Node::read(&object).expect("a node");
        assert!(!node.is_ready && !node.is_enrolled);
        object["metadata"]["deletionTimestamp"] = json!("2026-01-05T13:00:00Z");
        assert_eq!(Node::read(&object), None, "it goes away");
    }
}
