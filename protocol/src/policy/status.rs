//! `status` of a `ScalingPolicy`: which of its versions decides.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::time::WallTime;

/// Condition of a policy that a person has put out of effect.
const PAUSED: &str = "Paused";
/// Condition of a policy whose newest version decides no more.
const DEMOTED: &str = "Demoted";
const TRUE: &str = "True";

/// Namespace of the `ControllerRevision`s that keep the sources of versions.
pub const REVISION_NAMESPACE: &str = "kube-system";

/// Name of the `ControllerRevision` that keeps a version's source. Its data is the version's part
/// of the contract, as the digest covers it.
#[must_use]
pub fn revision_name(policy: &str, digest: &str) -> String {
    let short = digest.get(..8).unwrap_or(digest);
    format!("policy-{policy}-{short}")
}

/// `status` of a `ScalingPolicy`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ScalingPolicyStatus {
    /// Generation of the spec that this status is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Version that decides. Without one the built-in goal does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub live: Option<PolicyVersion>,
    /// Version that is tried.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub candidate: Option<PolicyVersion>,
    /// Version that decided before the live one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub previous: Option<PolicyVersion>,
    /// At most one of each type.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<PolicyCondition>,
}

/// A version of a policy, known by its digest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyVersion {
    /// 64 hex digits.
    pub digest: String,
    /// When it got its place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<WallTime>,
    /// How far a candidate has come.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage: Option<Stage>,
}

/// How far a candidate has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// Its answers are recorded.
    Shadow,
    /// It decides about some of the VMs.
    Canary,
}

/// A condition of a policy, in the form that all Kubernetes objects have.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PolicyCondition {
    /// Name of the condition.
    pub r#type: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// Cause in one word, for programs.
    pub reason: String,
    /// A sentence for people.
    pub message: String,
    /// When `status` changed last.
    pub last_transition_time: WallTime,
}

impl ScalingPolicyStatus {
    /// The status of an object; an empty one if the object has none.
    ///
    /// # Errors
    /// A text for people, if it is no such status. Its writer is at fault.
    pub fn of_object(object: &Value) -> Result<Self, String> {
        match object.get("status") {
            None | Some(Value::Null) => Ok(Self::default()),
            Some(status) => Self::deserialize(status).map_err(|error| error.to_string()),
        }
    }

    /// Digest of the version that decides now. `None` stands for the built-in goal.
    #[must_use]
    pub fn deciding(&self) -> Option<&str> {
        let live = self.live.as_ref().filter(|_| !self.is_paused());
        live.map(|version| version.digest.as_str())
    }

    /// Digest of the candidate that decides about some of the VMs now.
    #[must_use]
    pub fn canary(&self) -> Option<&str> {
        let candidate = self.candidate.as_ref().filter(|_| !self.is_paused())?;
        (candidate.stage == Some(Stage::Canary)).then_some(&candidate.digest)
    }

    /// Whether a person has put the policy out of effect.
    #[must_use]
    pub fn is_paused(&self) -> bool {
        self.condition(PAUSED)
    }

    /// Whether a version was taken back.
    #[must_use]
    pub fn is_demoted(&self) -> bool {
        self.condition(DEMOTED)
    }

    fn condition(&self, name: &str) -> bool {
        let mut all = self.conditions.iter();
        all.any(|one| one.r#type == name && one.status == TRUE)
    }

    /// Lets a version decide. Returns whether that changed the status.
    pub fn promote(&mut self, digest: &str, now: WallTime) -> bool {
        if self.deciding() == Some(digest) {
            return false;
        }
        if self.live.as_ref().is_none_or(|live| live.digest != digest) {
            let live = PolicyVersion {
                digest: digest.to_owned(),
                since: Some(now),
                stage: None,
            };
            self.previous = self.live.replace(live);
        }
        self.candidate = None;
        self.conditions
            .retain(|one| one.r#type != PAUSED && one.r#type != DEMOTED);
        true
    }

    /// Takes the deciding version back: the one before it decides again, else the built-in goal.
    /// Returns whether there was one.
    pub fn demote(&mut self, message: &str, now: WallTime) -> bool {
        let Some(live) = self.live.take() else {
            return false;
        };
        self.live = self.previous.take().map(|version| PolicyVersion {
            since: Some(now),
            ..version
        });
        self.candidate = Some(PolicyVersion {
            since: Some(now),
            stage: Some(Stage::Shadow),
            ..live
        });
        self.set(DEMOTED, "ByPerson", message, now);
        true
    }

    /// Puts the policy out of effect: the built-in goal decides. Returns whether that changed it.
    pub fn pause(&mut self, message: &str, now: WallTime) -> bool {
        if self.is_paused() {
            return false;
        }
        self.set(PAUSED, "ByPerson", message, now);
        true
    }

    /// Ends a pause. Returns whether there was one.
    pub fn resume(&mut self) -> bool {
        let was_paused = self.is_paused();
        self.conditions.retain(|one| one.r#type != PAUSED);
        was_paused
    }

    fn set(&mut self, name: &str, reason: &str, message: &str, now: WallTime) {
        self.conditions.retain(|one| one.r#type != name);
        self.conditions.push(PolicyCondition {
            r#type: name.to_owned(),
            status: TRUE.to_owned(),
            reason: reason.to_owned(),
            message: message.to_owned(),
            last_transition_time: now,
        });
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const SECOND: i64 = 1_000_000;

    fn digests(status: &ScalingPolicyStatus) -> [Option<&str>; 4] {
        let of = |version: &'_ Option<PolicyVersion>| version.as_ref().map(|v| v.digest.clone());
        let all = [
            status.deciding().map(str::to_owned),
            of(&status.live),
            of(&status.candidate),
            of(&status.previous),
        ];
        all.map(|one| one.map(|text| &*text.leak()))
    }

    #[test]
    fn version_that_is_taken_back_gives_way_to_the_one_before() {
        let at = |second: i64| WallTime(second * SECOND);
        let mut status = ScalingPolicyStatus::default();
        assert!(!status.demote("nothing decides", at(0)));
        assert!(status.promote("a", at(1)) && !status.promote("a", at(2)));
        assert_eq!(digests(&status), [Some("a"), Some("a"), None, None]);
        assert!(status.promote("b", at(3)));
        assert_eq!(digests(&status), [Some("b"), Some("b"), None, Some("a")]);
        assert!(status.demote("slow queries", at(4)));
        assert_eq!(digests(&status), [Some("a"), Some("a"), Some("b"), None]);
        assert!(status.is_demoted());
        assert_eq!(
            status.live.as_ref().and_then(|live| live.since),
            Some(at(4))
        );
        assert!(status.demote("also slow", at(5)));
        assert_eq!(digests(&status), [None, None, Some("a"), None]);
    }

    #[test]
    fn paused_policy_decides_nothing_until_it_goes_on() {
        let now = WallTime(SECOND);
        let mut status = ScalingPolicyStatus::default();
        status.promote("a", now);
        assert!(status.pause("holiday", now) && !status.pause("again", now));
        assert_eq!(digests(&status), [None, Some("a"), None, None]);
        assert!(status.resume() && !status.resume());
        assert_eq!(status.deciding(), Some("a"));
        status.pause("holiday", now);
        assert!(status.promote("a", now), "a promotion ends the pause");
        assert_eq!(digests(&status), [Some("a"), Some("a"), None, None]);
    }

    #[test]
    fn candidate_in_canary_decides_nothing_during_a_pause() {
        let stage = |stage| {
            let candidate = PolicyVersion {
                digest: "b".into(),
                since: None,
                stage,
            };
            let mut status = ScalingPolicyStatus::default();
            status.promote("a", WallTime(0));
            ScalingPolicyStatus {
                candidate: Some(candidate),
                ..status
            }
        };
        assert_eq!(stage(None).canary(), None);
        assert_eq!(stage(Some(Stage::Shadow)).canary(), None);
        let mut status = stage(Some(Stage::Canary));
        assert_eq!(status.canary(), Some("b"));
        status.pause("holiday", WallTime(1));
        assert_eq!(status.canary(), None);
    }

    #[test]
    fn status_has_the_members_of_its_schema() {
        let mut status = ScalingPolicyStatus::default();
        assert_eq!(
            ScalingPolicyStatus::of_object(&json!({})),
            Ok(status.clone())
        );
        status.promote("a", WallTime(0));
        status.pause("holiday", WallTime(SECOND));
        let object = json!({"status": {
            "live": {"digest": "a", "since": null},
            "conditions": [{"type": "Paused", "status": "True", "reason": "ByPerson",
                "message": "holiday", "lastTransitionTime": "1970-01-01T00:00:01Z"}],
        }});
        assert_eq!(
            serde_json::to_value(&status).expect("JSON"),
            object["status"]
        );
        let bad = json!({"status": {"live": 3}});
        assert!(ScalingPolicyStatus::of_object(&bad).is_err());
    }
}
