//! The object `FleetChannel`: a name in a repository of releases, and what it said last.

use semver::Version;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::texts::check_version;
use crate::time::WallTime;

/// Condition: whether the newest reading was whole and signed.
pub const CONDITION_VERIFIED: &str = "Verified";
/// Condition: whether the environments of the channel could take its version.
pub const CONDITION_ADOPTED: &str = "Adopted";
/// Most versions that the status lists.
const MAX_SERVED: usize = 50;

/// `spec` of a `FleetChannel`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ChannelSpec {
    /// Base of the repository, by `https:`, or by `file:` on one machine.
    pub url: String,
    /// Name of the channel in the repository.
    pub name: String,
    /// Reason to believe the repository.
    #[serde(default)]
    pub trust: ChannelTrust,
    /// Text of a root of the repository, from which trust begins.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub root: String,
    /// Time between two readings.
    #[serde(default = "default_poll")]
    pub poll_seconds: u32,
    /// Age of a served version that the control plane still has to understand.
    #[serde(default = "default_grace")]
    pub grace_seconds: u32,
}

const fn default_poll() -> u32 {
    60
}

const fn default_grace() -> u32 {
    604_800
}

/// Reason to believe a repository.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum ChannelTrust {
    /// Signatures that lead to the root.
    #[default]
    Tuf,
    /// It is a folder of the same user on the same machine.
    Local,
}

impl ChannelSpec {
    /// The spec of an object.
    ///
    /// # Errors
    /// A text for people, if the object has no such spec.
    pub fn of_object(object: &Value) -> Result<Self, String> {
        Self::deserialize(&object["spec"]).map_err(|error| error.to_string())
    }
}

/// `status` of a `FleetChannel`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ChannelStatus {
    /// Version of the newest reading that was whole.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub version: String,
    /// Whether that version is urgent.
    pub critical: bool,
    /// Time of that reading.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fetched_at: Option<WallTime>,
    /// End of the time in which that reading may be acted upon.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fresh_until: Option<WallTime>,
    /// Versions that the channel served, the newest last.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub served: Vec<ServedVersion>,
    /// `Verified` and `Adopted`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<ChannelCondition>,
}

/// A version that a channel served, and when.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServedVersion {
    /// Semantic version, without a leading v.
    pub version: String,
    /// First reading that had it.
    pub from: WallTime,
    /// First reading that had another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<WallTime>,
}

/// A condition, as other kinds of Kubernetes have them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ChannelCondition {
    /// Name of the condition.
    pub r#type: String,
    /// `True` or `False`.
    pub status: String,
    /// One word about the cause.
    pub reason: String,
    /// Text for people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Time since which the status is so.
    pub last_transition_time: WallTime,
}

/// A reading of a channel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChannelReading {
    /// The version that guests should run.
    pub version: Version,
    /// Whether it is urgent.
    pub is_critical: bool,
    /// End of the time in which this may be acted upon. A folder has none.
    pub fresh_until: Option<WallTime>,
}

/// Why something failed: one word for programs, and a text for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChannelProblem {
    /// One word about the cause.
    pub reason: String,
    /// Text for people.
    pub message: String,
}

/// The version that a channel names now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedVersion {
    /// The version that guests should run.
    pub version: Version,
    /// Whether it waits for no window.
    pub is_critical: bool,
    /// Time at which the channel began to name it.
    pub since: WallTime,
}

impl ChannelStatus {
    /// Takes a reading, or its failure. After a failure the last version stays for people.
    pub fn take(&mut self, now: WallTime, reading: &Result<ChannelReading, ChannelProblem>) {
        let reading = match reading {
            Ok(reading) => reading,
            Err(problem) => return self.set(now, CONDITION_VERIFIED, Err(problem)),
        };
        let now = stored(now);
        let version = reading.version.to_string();
        let is_same = self
            .served
            .last()
            .is_some_and(|last| last.version == version);
        if !is_same {
            if let Some(last) = self.served.last_mut() {
                last.to = Some(now);
            }
            self.served.push(ServedVersion {
                version: version.clone(),
                from: now,
                to: None,
            });
            let excess = self.served.len().saturating_sub(MAX_SERVED);
            self.served.drain(..excess);
        }
        self.version = version;
        self.critical = reading.is_critical;
        self.fetched_at = Some(now);
        self.fresh_until = reading.fresh_until;
        self.set(now, CONDITION_VERIFIED, Ok(()));
    }

    /// Sets a condition. Its time changes only with its status.
    pub fn set(&mut self, now: WallTime, name: &str, result: Result<(), &ChannelProblem>) {
        let now = stored(now);
        let (status, reason, message) = match result {
            Ok(()) => ("True", name, ""),
            Err(problem) => ("False", problem.reason.as_str(), problem.message.as_str()),
        };
        let known = self.conditions.iter().position(|one| one.r#type == name);
        let before = known.map(|index| self.conditions.remove(index));
        let since = before.filter(|one| one.status == status);
        let condition = ChannelCondition {
            r#type: name.to_owned(),
            status: status.to_owned(),
            reason: reason.to_owned(),
            message: message.to_owned(),
            last_transition_time: since.map_or(now, |one| one.last_transition_time),
        };
        let index = known.unwrap_or(self.conditions.len());
        self.conditions.insert(index, condition);
    }

    /// A condition by its name.
    #[must_use]
    pub fn condition(&self, name: &str) -> Option<&ChannelCondition> {
        self.conditions.iter().find(|one| one.r#type == name)
    }

    /// Whether the newest reading was whole, and called this version urgent.
    #[must_use]
    pub fn calls_urgent(&self, version: &str) -> bool {
        let verified = self.condition(CONDITION_VERIFIED);
        let is_verified = verified.is_some_and(|one| one.status == "True");
        is_verified && self.critical && self.version == version
    }

    /// The version that the channel names now. `None` if the newest reading failed, or may no
    /// longer be acted upon: then nothing is attempted.
    #[must_use]
    pub fn named(&self, now: WallTime) -> Option<NamedVersion> {
        let is_verified = self
            .condition(CONDITION_VERIFIED)
            .is_some_and(|one| one.status == "True");
        let is_fresh = self.fresh_until.is_none_or(|end| now < end);
        let served = self.served.last().filter(|_| is_verified && is_fresh)?;
        Some(NamedVersion {
            version: check_version(&served.version).ok()?,
            is_critical: self.critical,
            since: served.from,
        })
    }
}

/// A time as it is read again: objects hold whole seconds. What is derived from it stays the same.
const fn stored(now: WallTime) -> WallTime {
    WallTime(now.0 - now.0.rem_euclid(1_000_000))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> WallTime {
        WallTime(second * 1_000_000)
    }

    fn reading(version: &str, end: Option<i64>) -> Result<ChannelReading, ChannelProblem> {
        Ok(ChannelReading {
            version: Version::parse(version).expect("a version"),
            is_critical: false,
            fresh_until: end.map(at),
        })
    }

    fn problem() -> Result<ChannelReading, ChannelProblem> {
        Err(ChannelProblem {
            reason: "Unavailable".to_owned(),
            message: "the server answered 500".to_owned(),
        })
    }

    fn version(status: &ChannelStatus, now: i64) -> Option<String> {
        status.named(at(now)).map(|named| named.version.to_string())
    }

    /// Requirement: R03
    #[test]
    fn failed_reading_names_no_version_until_the_next_whole_one() {
        let mut status = ChannelStatus::default();
        assert_eq!(version(&status, 0), None, "nothing was read");
        status.take(at(1), &reading("1.0.0", None));
        assert_eq!(version(&status, 2).as_deref(), Some("1.0.0"));
        status.take(at(3), &problem());
        assert_eq!(version(&status, 3), None);
        assert_eq!(status.version, "1.0.0", "people see what it was");
        status.take(at(4), &problem());
        let verified = status.condition(CONDITION_VERIFIED).expect("a condition");
        assert_eq!(
            (verified.reason.as_str(), verified.last_transition_time),
            ("Unavailable", at(3))
        );
        status.take(at(5), &reading("1.0.0", None));
        assert_eq!(version(&status, 5).as_deref(), Some("1.0.0"));
        assert_eq!(status.served.len(), 1, "the same version served on");
    }

    /// Requirement: R03
    #[test]
    fn expired_reading_names_no_version() {
        let mut status = ChannelStatus::default();
        status.take(at(1), &reading("1.0.0", Some(100)));
        assert_eq!(version(&status, 99).as_deref(), Some("1.0.0"));
        assert_eq!(version(&status, 100), None);
    }

    /// Requirement: R04
    #[test]
    fn failed_reading_calls_nothing_urgent() {
        let mut status = ChannelStatus::default();
        let mut urgent = reading("1.0.0", None);
        if let Ok(urgent) = &mut urgent {
            urgent.is_critical = true;
        }
        status.take(at(1), &urgent);
        assert!(status.calls_urgent("1.0.0"));
        assert!(!status.calls_urgent("1.1.0"), "another version runs");
        status.take(at(2), &problem());
        assert!(!status.calls_urgent("1.0.0"));
        status.take(at(3), &reading("1.0.0", None));
        assert!(!status.calls_urgent("1.0.0"), "no longer");
    }

    #[test]
    fn status_is_the_same_once_it_was_stored() {
        let mut status = ChannelStatus::default();
        let now = WallTime(1_700_000_000_123_456);
        status.take(now, &reading("1.0.0", None));
        let text = serde_json::to_string(&status).expect("JSON");
        let again: ChannelStatus = serde_json::from_str(&text).expect("a status");
        assert_eq!(again, status);
    }

    #[test]
    fn served_versions_have_their_times() {
        let mut status = ChannelStatus::default();
        for (second, version) in [(1, "1.0.0"), (2, "1.1.0"), (3, "1.0.0")] {
            status.take(at(second), &reading(version, None));
        }
        let served: Vec<_> = status
            .served
            .iter()
            .map(|one| (one.version.as_str(), one.from, one.to))
            .collect();
        let expected = [
            ("1.0.0", at(1), Some(at(2))),
            ("1.1.0", at(2), Some(at(3))),
            ("1.0.0", at(3), None),
        ];
        assert_eq!(served, expected);
        assert_eq!(status.named(at(4)).map(|named| named.since), Some(at(3)));
        for number in 0..60 {
            status.take(at(10 + number), &reading(&format!("2.{number}.0"), None));
        }
        assert_eq!(status.served.len(), MAX_SERVED);
        assert_eq!(version(&status, 99).as_deref(), Some("2.59.0"));
    }
}
