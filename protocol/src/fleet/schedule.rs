//! What the agent of a node says about a restart of itself, in a `ConfigMap` of its namespace.

use serde::{Deserialize, Serialize};

/// Prefix of the map's name. The node's name follows.
const MAP_PREFIX: &str = "autoscaler-agent-schedule-";
/// Most bytes of the text.
const TEXT_BYTES: usize = 4 << 10;
/// Longest reason, characters.
const REASON_CHARS: usize = 256;

/// Member of the map's data with the text.
pub const SCHEDULE_MEMBER: &str = "schedule.json";

/// Whether an agent may be restarted now. Members of later versions are left out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AgentSchedule {
    /// Version of this document, 1.
    pub version: u32,
    /// Whether a restart does no harm now.
    pub restart_ok: bool,
    /// What a restart would disturb, for people. Empty if nothing.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
}

impl AgentSchedule {
    /// A schedule that names what a restart would disturb. `None`: nothing.
    #[must_use]
    pub fn of(reason: Option<&str>) -> Self {
        Self {
            version: 1,
            restart_ok: reason.is_none(),
            reason: reason.unwrap_or_default().to_owned(),
        }
    }

    /// Reads a map's text.
    ///
    /// # Errors
    /// The rule that the text breaks.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.len() > TEXT_BYTES {
            return Err(format!("must be at most {TEXT_BYTES} bytes"));
        }
        let read: Self = serde_json::from_str(text).map_err(|error| error.to_string())?;
        if read.version != 1 {
            return Err(format!("version must be 1, not {}", read.version));
        }
        let reason = read.reason.chars().filter(|c| !c.is_control());
        let reason = reason.take(REASON_CHARS).collect();
        Ok(Self { reason, ..read })
    }
}

/// Name of the `ConfigMap` of a node's agent.
#[must_use]
pub fn schedule_map_name(node: &str) -> String {
    format!("{MAP_PREFIX}{node}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requirement: R24
    #[test]
    fn schedule_of_an_agent_is_read_as_it_was_written() {
        for reason in [None, Some("a shrink of default/pg is under way")] {
            let schedule = AgentSchedule::of(reason);
            let text = serde_json::to_string(&schedule).expect("JSON");
            assert_eq!(AgentSchedule::parse(&text), Ok(schedule));
        }
        let later = r#"{"version": 1, "restartOk": true, "openings": []}"#;
        assert_eq!(AgentSchedule::parse(later), Ok(AgentSchedule::of(None)));
    }

    /// Requirement: R24
    #[test]
    fn schedule_that_breaks_a_rule_is_refused() {
        let long = format!(
            r#"{{"version": 1, "restartOk": true, "reason": "{}"}}"#,
            "x".repeat(4096)
        );
        let rows = [
            ("", "EOF"),
            ("[]", "expected"),
            ("{}", "version"),
            (r#"{"version": 2, "restartOk": true}"#, "must be 1"),
            (r#"{"version": 1, "restartOk": "yes"}"#, "boolean"),
            (&long, "at most 4096 bytes"),
        ];
        for (text, expected) in rows {
            let problem = AgentSchedule::parse(text).expect_err(text);
            assert!(problem.contains(expected), "{text:.40}: {problem}");
        }
        let lines = r#"{"version": 1, "restartOk": false, "reason": "a\nb"}"#;
        let read = AgentSchedule::parse(lines).expect("a schedule");
        assert_eq!(read.reason, "ab");
    }
}
