//! Pods of the control plane, as the API has them.

use fleet_core::service::PodSigns;
use protocol::time::WallTime;
use serde_json::Value;

use super::kind::Kind;
use crate::image::digest;
use crate::node::{ready_since, seconds_since, time, waits_for};

/// A pod of a part that is not to end, with the digest of its image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ServicePod {
    pub(super) signs: PodSigns,
    /// Empty if it is unknown so far.
    pub(super) sha256: String,
}

impl ServicePod {
    /// `None` for a pod that ends or has ended, and for one without the part's container.
    pub(super) fn read(object: &Value, kind: Kind, image: &str, now: WallTime) -> Option<Self> {
        let metadata = &object["metadata"];
        let phase = object["status"]["phase"].as_str().unwrap_or_default();
        let has_ended = matches!(phase, "Succeeded" | "Failed");
        if metadata["deletionTimestamp"].is_string() || has_ended {
            return None;
        }
        let own = |list: &Value| {
            let mut all = list.as_array().into_iter().flatten();
            all.find(|one| one["name"] == kind.name).cloned()
        };
        let container = own(&object["spec"]["containers"])?;
        let status = own(&object["status"]["containerStatuses"]).unwrap_or_default();
        let runs = container["image"].as_str().unwrap_or_default();
        let started = time(&status["state"]["running"]["startedAt"]);
        let since = if kind.is_ready_without_lead {
            let ready = started.and_then(|_| ready_since(object));
            ready.map(|ready| started.map_or(ready, |started| started.max(ready)))
        } else {
            started
        };
        let id = status["imageID"].as_str().and_then(digest);
        Some(Self {
            signs: PodSigns {
                name: metadata["name"].as_str()?.to_owned(),
                has_image: runs == image,
                runs_seconds: since.map(|since| seconds_since(since, now)),
                ends: status["restartCount"].as_u64().unwrap_or_default(),
                waits_for: waits_for(&object["status"], &status),
            },
            sha256: digest(runs).or(id).unwrap_or_default(),
        })
    }
}

#[cfg(test)]
mod tests {
    use protocol::parts::PartName;
    use serde_json::json;

    use super::*;

    const IMAGE: &str = "bellows/controller:1";

    fn pod() -> Value {
        json!({
            "metadata": {"name": "pod-a"},
            "spec": {"containers": [
                {"name": "beside", "image": "other:1"},
                {"name": "neonvm-controller", "image": IMAGE},
            ]},
            "status": {
                "phase": "Running",
                "conditions": [{
                    "type": "Ready", "status": "True", "lastTransitionTime": "2026-01-05T12:00:20Z",
                }],
                "containerStatuses": [{
                    "name": "neonvm-controller", "restartCount": 1,
                    "imageID": format!("docker.io/x@sha256:{}", "a".repeat(64)),
                    "state": {"running": {"startedAt": "2026-01-05T12:00:10Z"}},
                }],
            },
        })
    }

    fn read(object: &Value, part: PartName) -> Option<ServicePod> {
        let mut kind = Kind::of(part).expect("a part of the control plane");
        kind.name = "neonvm-controller";
        let now = WallTime::parse("2026-01-05T12:01:00Z").expect("a time");
        ServicePod::read(object, kind, IMAGE, now)
    }

    /// Requirement: B23
    #[test]
    fn pod_runs_since_it_is_ready_or_since_its_container_where_only_leaders_are_ready() {
        let found = read(&pod(), PartName::Controller).expect("a pod");
        assert_eq!(found.signs.runs_seconds, Some(40));
        assert_eq!((found.signs.ends, found.signs.has_image), (1, true));
        assert_eq!(found.sha256, "a".repeat(64));
        let mut unready = pod();
        unready["status"]["conditions"][0]["status"] = json!("False");
        let runs = |part| read(&unready, part).expect("a pod").signs.runs_seconds;
        assert_eq!(runs(PartName::Controller), None);
        assert_eq!(runs(PartName::Scheduler), Some(50));
    }

    /// Requirement: B23
    #[test]
    fn pod_that_ends_or_is_another_part_is_not_counted() {
        let mut ends = pod();
        ends["metadata"]["deletionTimestamp"] = json!("2026-01-05T12:00:30Z");
        assert_eq!(read(&ends, PartName::Controller), None);
        for phase in ["Failed", "Succeeded"] {
            let mut ended = pod();
            ended["status"]["phase"] = json!(phase);
            assert_eq!(read(&ended, PartName::Controller), None);
        }
        let mut other = pod();
        other["spec"]["containers"][1]["name"] = json!("other");
        assert_eq!(read(&other, PartName::Controller), None);
        let mut waits = pod();
        waits["status"]["containerStatuses"][0]["state"] =
            json!({"waiting": {"reason": "CrashLoopBackOff"}});
        let found = read(&waits, PartName::Scheduler).expect("a pod");
        assert_eq!(found.signs.runs_seconds, None);
        assert_eq!(found.signs.waits_for.as_deref(), Some("CrashLoopBackOff"));
    }
}
