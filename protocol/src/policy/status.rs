//! `status` of a `ScalingPolicy`: which of its versions decides.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::time::WallTime;

/// Condition of a policy that a person has put out of effect.
const PAUSED: &str = "Paused";
/// Condition of a policy whose newest version decides no more.
const DEMOTED: &str = "Demoted";
const TRUE: &str = "True";
/// Most entries of the history.
const HISTORY_MAX: usize = 16;

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
    /// Versions that decided before, the newest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub history: Vec<PastVersion>,
    /// What was seen of the candidate since it has its stage. The gate's own form.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub evidence: Option<Value>,
    /// What versions of a policy of sets answered last. The policy controller's own form.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sets: Option<Value>,
    /// At most one of each type.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<PolicyCondition>,
}

/// A version that decided before.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PastVersion {
    /// 64 hex digits.
    pub digest: String,
    /// When another version took its place.
    pub until: WallTime,
    /// Whether it was taken back.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub demoted: bool,
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
        let condition = self.condition_of(name);
        condition.is_some_and(|one| one.status == TRUE)
    }

    /// The condition of a type.
    #[must_use]
    pub fn condition_of(&self, name: &str) -> Option<&PolicyCondition> {
        self.conditions.iter().find(|one| one.r#type == name)
    }

    /// Entry of a version in the history.
    #[must_use]
    pub fn past(&self, digest: &str) -> Option<&PastVersion> {
        self.history.iter().find(|past| past.digest == digest)
    }

    fn retire(&mut self, digest: &str, demoted: bool, now: WallTime) {
        self.history.retain(|past| past.digest != digest);
        let past = PastVersion {
            digest: digest.to_owned(),
            until: now,
            demoted,
        };
        self.history.insert(0, past);
        self.history.truncate(HISTORY_MAX);
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
            if let Some(before) = self.previous.clone() {
                self.retire(&before.digest, false, now);
            }
        }
        self.history.retain(|past| past.digest != digest);
        self.candidate = None;
        self.evidence = None;
        self.conditions
            .retain(|one| one.r#type != PAUSED && one.r#type != DEMOTED);
        true
    }

    /// Takes the deciding version back: the one before it decides again, else the built-in goal.
    /// Returns whether there was one.
    pub fn demote(&mut self, message: &str, now: WallTime) -> bool {
        self.demote_because("ByPerson", message, now)
    }

    /// As [`Self::demote`], with a cause in one word.
    pub fn demote_because(&mut self, reason: &str, message: &str, now: WallTime) -> bool {
        let Some(live) = self.live.take() else {
            return false;
        };
        self.retire(&live.digest, true, now);
        self.live = self.previous.take().map(|version| PolicyVersion {
            since: Some(now),
            ..version
        });
        if let Some(again) = &self.live {
            self.history.retain(|past| past.digest != again.digest);
        }
        self.candidate = Some(PolicyVersion {
            since: Some(now),
            stage: Some(Stage::Shadow),
            ..live
        });
        self.evidence = None;
        self.set(DEMOTED, reason, message, now);
        true
    }

    /// Lets a candidate decide about some of the VMs.
    pub fn begin_canary(&mut self, digest: &str, now: WallTime) {
        self.candidate = Some(PolicyVersion {
            digest: digest.to_owned(),
            since: Some(now),
            stage: Some(Stage::Canary),
        });
        self.evidence = None;
        self.conditions.retain(|one| one.r#type != DEMOTED);
    }

    /// Lets a version be tried in shadow only.
    pub fn try_in_shadow(&mut self, digest: &str, now: WallTime) {
        self.candidate = Some(PolicyVersion {
            digest: digest.to_owned(),
            since: Some(now),
            stage: Some(Stage::Shadow),
        });
        self.evidence = None;
    }

    /// Ends the canary: its version is tried in shadow only. Returns whether there was one.
    pub fn end_canary(&mut self, reason: &str, message: &str, now: WallTime) -> bool {
        let canary = self
            .candidate
            .take_if(|version| version.stage == Some(Stage::Canary));
        let Some(canary) = canary else { return false };
        self.retire(&canary.digest, true, now);
        self.try_in_shadow(&canary.digest, now);
        self.set(DEMOTED, reason, message, now);
        true
    }

    /// Sets a condition. Its time is that of the newest change of its status.
    pub fn set_condition(&mut self, name: &str, is_true: bool, cause: (&str, &str), now: WallTime) {
        let status = if is_true { TRUE } else { "False" };
        let before = self.condition_of(name).filter(|one| one.status == status);
        let since = before.map_or(now, |one| one.last_transition_time);
        let condition = PolicyCondition {
            r#type: name.to_owned(),
            status: status.to_owned(),
            reason: cause.0.to_owned(),
            message: cause.1.to_owned(),
            last_transition_time: since,
        };
        match self.conditions.iter_mut().find(|one| one.r#type == name) {
            Some(known) => *known = condition,
            None => self.conditions.push(condition),
        }
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
mod tests;
