//! Printer cells that need more than a path: what `kubectl get` shows of core kinds.

use serde_json::Value;

use super::object::meta;
use super::time::{WallTime, human_age, seconds_since};

/// The cell of a computed column. Unknown rules give an empty cell, so that a wrong document shows
/// a gap, not an error.
#[must_use]
pub fn compute(rule: &str, object: &Value, now: WallTime) -> Value {
    match rule {
        "name" => meta(object, "name").unwrap_or_default().into(),
        "age" => age(object["metadata"].get("creationTimestamp"), now),
        "creationTime" => meta(object, "creationTimestamp").unwrap_or_default().into(),
        "dataCount" => data_count(object),
        "podReady" => pod_ready(object),
        "podStatus" => pod_status(object),
        "podRestarts" => pod_restarts(object, now),
        "podNominated" => or_none(object["status"]["nominatedNodeName"].as_str()),
        "podReadinessGates" => readiness_gates(object),
        "podIP" => or_none(object["status"]["podIP"].as_str()),
        "podNode" => or_none(object["spec"]["nodeName"].as_str()),
        "nodeStatus" => node_status(object),
        "nodeRoles" => node_roles(object),
        "nodeInternalIP" => node_address(object, "InternalIP"),
        "nodeExternalIP" => node_address(object, "ExternalIP"),
        "nodeOsImage" => or_unknown(&object["status"]["nodeInfo"]["osImage"]),
        "nodeKernel" => or_unknown(&object["status"]["nodeInfo"]["kernelVersion"]),
        "nodeRuntime" => or_unknown(&object["status"]["nodeInfo"]["containerRuntimeVersion"]),
        "eventLastSeen" => event_seen(object, "lastTimestamp", now),
        "eventFirstSeen" => event_seen(object, "firstTimestamp", now),
        "eventObject" => event_object(object),
        "eventSource" => event_source(object),
        "eventCount" => event_count(object).into(),
        "eventMessage" => object["message"].as_str().unwrap_or_default().trim().into(),
        _ => Value::Null,
    }
}

/// Age of an RFC 3339 text as `kubectl` prints it; `<unknown>` when absent.
#[must_use]
pub fn age(time: Option<&Value>, now: WallTime) -> Value {
    let time = time
        .and_then(Value::as_str)
        .and_then(|text| WallTime::parse(text).ok());
    time.map_or_else(
        || "<unknown>".into(),
        |time| human_age(seconds_since(now, time)).into(),
    )
}

fn or_none(text: Option<&str>) -> Value {
    text.filter(|text| !text.is_empty())
        .unwrap_or("<none>")
        .into()
}

fn or_unknown(value: &Value) -> Value {
    value
        .as_str()
        .filter(|text| !text.is_empty())
        .unwrap_or("<unknown>")
        .into()
}

fn data_count(object: &Value) -> Value {
    let count = |name: &str| object[name].as_object().map_or(0, serde_json::Map::len);
    (count("data") + count("binaryData")).into()
}

fn statuses<'a>(pod: &'a Value, list: &str) -> impl Iterator<Item = &'a Value> {
    pod["status"][list].as_array().into_iter().flatten()
}

fn pod_ready(pod: &Value) -> Value {
    let total = pod["spec"]["containers"].as_array().map_or(0, Vec::len);
    let is_ready =
        |status: &&Value| status["ready"] == true && !status["state"]["running"].is_null();
    let ready = statuses(pod, "containerStatuses").filter(is_ready).count();
    format!("{ready}/{total}").into()
}

/// The most telling word: why a container waits or ended, else the phase; deletion covers all.
fn pod_status(pod: &Value) -> Value {
    let status = &pod["status"];
    let phase = status["phase"].as_str().unwrap_or_default();
    let mut word = status["reason"].as_str().unwrap_or(phase).to_owned();
    if let Some(init) = init_word(pod) {
        word = init;
    } else {
        let mut any_running = false;
        for container in statuses(pod, "containerStatuses")
            .collect::<Vec<_>>()
            .into_iter()
            .rev()
        {
            let state = &container["state"];
            if let Some(reason) = state["waiting"]["reason"]
                .as_str()
                .filter(|reason| !reason.is_empty())
            {
                reason.clone_into(&mut word);
            } else if state["terminated"].is_object() {
                word = terminated_word(&state["terminated"]);
            } else if container["ready"] == true && state["running"].is_object() {
                any_running = true;
            }
        }
        if word == "Completed" && any_running {
            "Running".clone_into(&mut word);
        }
    }
    if super::object::is_deleting(pod) {
        let lost = status["reason"] == "NodeLost";
        let ended = matches!(phase, "Failed" | "Succeeded");
        if lost {
            "Unknown".clone_into(&mut word);
        } else if !ended {
            "Terminating".clone_into(&mut word);
        }
    }
    word.into()
}

fn terminated_word(terminated: &Value) -> String {
    match terminated["reason"]
        .as_str()
        .filter(|reason| !reason.is_empty())
    {
        Some(reason) => reason.to_owned(),
        None => match terminated["signal"].as_i64().filter(|signal| *signal != 0) {
            Some(signal) => format!("Signal:{signal}"),
            None => format!("ExitCode:{}", terminated["exitCode"].as_i64().unwrap_or(0)),
        },
    }
}

/// `Init:1/2`, `Init:Error`, … while an init container is not done.
fn init_word(pod: &Value) -> Option<String> {
    let total = pod["spec"]["initContainers"].as_array().map_or(0, Vec::len);
    for (index, container) in statuses(pod, "initContainerStatuses").enumerate() {
        let state = &container["state"];
        let terminated = &state["terminated"];
        if terminated.is_object() && terminated["exitCode"] == 0 {
            continue;
        }
        if terminated.is_object() {
            return Some(format!("Init:{}", terminated_word(terminated)));
        }
        let waiting = state["waiting"]["reason"].as_str().unwrap_or_default();
        if !waiting.is_empty() && waiting != "PodInitializing" {
            return Some(format!("Init:{waiting}"));
        }
        return Some(format!("Init:{index}/{total}"));
    }
    None
}

fn pod_restarts(pod: &Value, now: WallTime) -> Value {
    let restarts: i64 = statuses(pod, "containerStatuses")
        .filter_map(|status| status["restartCount"].as_i64())
        .sum();
    let last = statuses(pod, "containerStatuses")
        .filter_map(|status| status["lastState"]["terminated"]["finishedAt"].as_str())
        .filter_map(|text| WallTime::parse(text).ok())
        .max();
    match last {
        Some(last) if restarts > 0 => {
            format!("{restarts} ({} ago)", human_age(seconds_since(now, last))).into()
        }
        _ => restarts.to_string().into(),
    }
}

fn readiness_gates(pod: &Value) -> Value {
    let gates = pod["spec"]["readinessGates"]
        .as_array()
        .filter(|gates| !gates.is_empty());
    let Some(gates) = gates else {
        return "<none>".into();
    };
    let holds = |gate: &&Value| {
        statuses(pod, "conditions").any(|condition| {
            condition["type"] == gate["conditionType"] && condition["status"] == "True"
        })
    };
    format!("{}/{}", gates.iter().filter(holds).count(), gates.len()).into()
}

fn node_status(node: &Value) -> Value {
    let ready = statuses(node, "conditions").find(|condition| condition["type"] == "Ready");
    let mut word = match ready.map(|condition| condition["status"] == "True") {
        Some(true) => "Ready",
        Some(false) => "NotReady",
        None => "Unknown",
    }
    .to_owned();
    if node["spec"]["unschedulable"] == true {
        word.push_str(",SchedulingDisabled");
    }
    word.into()
}

fn node_roles(node: &Value) -> Value {
    const PREFIX: &str = "node-role.kubernetes.io/";
    let labels = node["metadata"]["labels"].as_object().into_iter().flatten();
    let roles: Vec<&str> = labels
        .filter_map(|(key, value)| match key.strip_prefix(PREFIX) {
            Some(role) => Some(role),
            None if key == "kubernetes.io/role" => value.as_str(),
            None => None,
        })
        .filter(|role| !role.is_empty())
        .collect();
    or_none(Some(&roles.join(",")))
}

fn node_address(node: &Value, kind: &str) -> Value {
    let found = statuses(node, "addresses").find(|address| address["type"] == kind);
    or_none(found.and_then(|address| address["address"].as_str()))
}

/// When an event was seen: its series, the old timestamps, or the event time.
fn event_seen(event: &Value, member: &str, now: WallTime) -> Value {
    let series = &event["series"]["lastObservedTime"];
    let candidates = match member {
        "lastTimestamp" => [series, &event["lastTimestamp"], &event["eventTime"]],
        _ => [&event["firstTimestamp"], &event["eventTime"], &Value::Null],
    };
    age(candidates.into_iter().find(|value| value.is_string()), now)
}

fn event_object(event: &Value) -> Value {
    let object = &event["involvedObject"];
    let kind = object["kind"].as_str().unwrap_or_default().to_lowercase();
    format!("{kind}/{}", object["name"].as_str().unwrap_or_default()).into()
}

fn event_source(event: &Value) -> Value {
    let part = |name: &str| {
        event["source"][name]
            .as_str()
            .filter(|text| !text.is_empty())
    };
    let component = part("component")
        .or(event["reportingComponent"].as_str())
        .unwrap_or_default();
    match part("host").or(event["reportingInstance"]
        .as_str()
        .filter(|text| !text.is_empty()))
    {
        Some(host) => format!("{component}, {host}").into(),
        None => component.into(),
    }
}

fn event_count(event: &Value) -> i64 {
    let series = event["series"]["count"].as_i64();
    series
        .or(event["count"].as_i64())
        .filter(|count| *count > 0)
        .unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const NOW: WallTime = WallTime(1_700_000_000_000_000);

    #[test]
    fn pods_show_the_most_telling_word() {
        for (pod, word) in [
            (json!({"status": {"phase": "Pending"}}), "Pending"),
            (
                json!({"status": {"phase": "Running", "containerStatuses": [{"ready": true, "state": {"running": {}}}]}}),
                "Running",
            ),
            (
                json!({"status": {"phase": "Pending", "containerStatuses": [{"state": {"waiting": {"reason": "ErrImagePull"}}}]}}),
                "ErrImagePull",
            ),
            (
                json!({"status": {"phase": "Failed", "containerStatuses": [{"state": {"terminated": {"exitCode": 3}}}]}}),
                "ExitCode:3",
            ),
            (
                json!({"status": {"phase": "Failed", "reason": "Evicted"}}),
                "Evicted",
            ),
            (
                json!({"metadata": {"deletionTimestamp": "x"}, "status": {"phase": "Running"}}),
                "Terminating",
            ),
            (
                json!({"spec": {"initContainers": [{}, {}]}, "status": {"phase": "Pending",
                "initContainerStatuses": [{"state": {"terminated": {"exitCode": 0}}}, {"state": {"running": {}}}]}}),
                "Init:1/2",
            ),
        ] {
            assert_eq!(compute("podStatus", &pod, NOW), word, "{pod}");
        }
        let pod = json!({"spec": {"containers": [{}, {}]}, "status": {"containerStatuses": [
            {"ready": true, "state": {"running": {}}, "restartCount": 2,
             "lastState": {"terminated": {"finishedAt": "2023-11-14T22:12:20Z"}}}]}});
        assert_eq!(compute("podReady", &pod, NOW), "1/2");
        assert_eq!(compute("podRestarts", &pod, NOW), "2 (60s ago)");
    }

    #[test]
    fn nodes_show_readiness_roles_and_addresses() {
        let node = json!({"metadata": {"labels": {"node-role.kubernetes.io/worker": ""}}, "spec": {"unschedulable": true},
            "status": {"conditions": [{"type": "Ready", "status": "True"}], "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}]}});
        assert_eq!(
            compute("nodeStatus", &node, NOW),
            "Ready,SchedulingDisabled"
        );
        assert_eq!(compute("nodeRoles", &node, NOW), "worker");
        assert_eq!(compute("nodeInternalIP", &node, NOW), "127.0.0.1");
        assert_eq!(compute("nodeExternalIP", &node, NOW), "<none>");
        assert_eq!(compute("nodeStatus", &json!({}), NOW), "Unknown");
    }

    #[test]
    fn events_show_when_and_of_what() {
        let event = json!({"involvedObject": {"kind": "VirtualMachine", "name": "pg"}, "lastTimestamp": "2023-11-14T22:13:15Z",
            "source": {"component": "agent", "host": "n"}, "message": " m\n"});
        assert_eq!(compute("eventLastSeen", &event, NOW), "5s");
        assert_eq!(compute("eventObject", &event, NOW), "virtualmachine/pg");
        assert_eq!(compute("eventSource", &event, NOW), "agent, n");
        assert_eq!(compute("eventMessage", &event, NOW), "m");
        assert_eq!(compute("eventCount", &event, NOW), 1);
        let newer = json!({"eventTime": "2023-11-14T22:13:10.000000Z", "lastTimestamp": null});
        assert_eq!(compute("eventLastSeen", &newer, NOW), "10s");
    }
}
