//! The policy of a VM beside a decision, as data and as a sentence.

use std::collections::BTreeMap;

use protocol::policy::Role;
use serde::{Deserialize, Serialize};

use super::clock_time;
use crate::view::units::counted;

/// Policy of a VM with its last answer, as the agent's dump spells it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PolicyView {
    /// Name of the policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<String>,
    /// First digits of its digest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) digest: Option<String>,
    /// Whether its answers decide.
    #[serde(default)]
    pub(crate) role: Role,
    /// Name of a policy that is not there, or not for the VM's namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) unknown: Option<String>,
    /// Whether it is not asked any more, after faults.
    #[serde(default)]
    pub(crate) set_aside: bool,
    /// Whether it is a candidate that decides about some VMs only.
    #[serde(default)]
    pub(crate) canary: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) answer: Option<PolicyAnswer>,
    /// The version that is asked too, and decides nothing here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) shadow: Option<Box<PolicyView>>,
}

/// Answer of a policy.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PolicyAnswer {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) cu: Option<u32>,
    #[serde(default)]
    pub(crate) hold: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) fault: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<String>,
    #[serde(default)]
    pub(crate) votes: BTreeMap<String, f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) note: Option<String>,
    /// Time since when it asks for the same size, RFC 3339.
    #[serde(default)]
    pub(crate) since: String,
}

impl PolicyView {
    /// Whether the version that decides has no valid answer.
    pub(super) fn is_silent(&self) -> bool {
        let has_answer = |answer: &PolicyAnswer| answer.fault.is_none();
        self.role == Role::Live && !self.answer.as_ref().is_some_and(has_answer)
    }

    /// The fault that stands in the place of the last answer.
    pub(super) fn fault(&self) -> Option<&str> {
        self.answer.as_ref()?.fault.as_deref()
    }

    /// `Policy db (5be1a7c0) asks for 5 units since … Its candidate 77ab90c4 would ask for 4
    /// (cpu).` Where no version decides: `Policy db decides nothing: its candidate 77ab90c4 would
    /// ask …`.
    pub(crate) fn sentences(&self) -> String {
        let first = self.sentence();
        let Some(shadow) = &self.shadow else {
            return first;
        };
        let whose = if self.canary {
            "Outside the canary decides"
        } else {
            "Its candidate"
        };
        let digest = shadow.digest.as_deref().unwrap_or("?");
        let link = if self.canary { ", which" } else { "" };
        format!("{first} {whose} {digest}{link} {}.", shadow.in_short())
    }

    /// `would ask for 4 (cpu)`.
    fn in_short(&self) -> String {
        let Some(answer) = &self.answer else {
            return "has not answered yet".to_owned();
        };
        let reason = answer.reason.as_deref().unwrap_or("?");
        match (&answer.fault, answer.cu) {
            (Some(fault), _) => format!("has no valid answer ({fault})"),
            (None, Some(units)) => format!("would ask for {units} ({reason})"),
            (None, None) => format!("would hold the size ({reason})"),
        }
    }

    /// The sentence about the version that decides, or about the only one.
    fn sentence(&self) -> String {
        if let Some(name) = &self.unknown {
            return format!(
                "Policy {name} is not there, or not for its namespace: the built-in goal decides."
            );
        }
        let name = self.name.as_deref().unwrap_or("?");
        let digest = self.digest.as_deref().unwrap_or("?");
        let is_live = self.role == Role::Live;
        let policy = if is_live && self.canary {
            format!("Policy {name} ({digest}, in canary)")
        } else if is_live {
            format!("Policy {name} ({digest})")
        } else {
            format!("Policy {name} decides nothing: its candidate {digest}")
        };
        let Some(answer) = &self.answer else {
            return format!("{policy} has not answered yet.");
        };
        let since = clock_time(&answer.since);
        let since = since.map_or_else(String::new, |time| format!(" since {time}Z"));
        if let Some(fault) = &answer.fault {
            let aside = if self.set_aside {
                ", and is not asked any more"
            } else {
                ""
            };
            return format!("{policy} has no valid answer{since} ({fault}){aside}.");
        }
        let want = match answer.cu {
            Some(units) => format!("for {}", counted(units)),
            None => "to hold the size".to_owned(),
        };
        let verb = if is_live { "asks" } else { "would ask" };
        let reason = answer.reason.as_deref().unwrap_or("?");
        let votes: Vec<String> = answer
            .votes
            .iter()
            .map(|(name, vote)| format!("{name} {vote:.2}"))
            .collect();
        let votes = if votes.is_empty() {
            String::new()
        } else {
            format!(" ({})", votes.join(", "))
        };
        let note = answer.note.as_ref();
        let note = note.map_or_else(String::new, |note| format!(" It notes: \"{note}\"."));
        format!("{policy} {verb} {want}{since} because of {reason}{votes}.{note}")
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn policy_is_named_with_its_answer() {
        let view = |value: Value| -> PolicyView { serde_json::from_value(value).unwrap() };
        let base = serde_json::json!({"name": "db", "digest": "77ab90c4", "role": "shadow", "setAside": false});
        insta::assert_snapshot!(view(base.clone()).sentence(), @"Policy db decides nothing: its candidate 77ab90c4 has not answered yet.");
        let mut answered = base.clone();
        answered["answer"] = serde_json::json!({"cu": 4, "hold": false, "fault": null, "reason": "cpu",
            "votes": {"cpu": 3.7}, "note": null, "since": "2026-01-02T10:02:05.1Z"});
        insta::assert_snapshot!(view(answered).sentence(), @"Policy db decides nothing: its candidate 77ab90c4 would ask for 4 units since 10:02:05Z because of cpu (cpu 3.70).");
        let mut noted = base.clone();
        noted["answer"] =
            serde_json::json!({"hold": true, "reason": "quiet", "note": "memory needs 1"});
        noted["shadow"] =
            serde_json::json!({"digest": "5be1a7c0", "answer": {"cu": 4, "reason": "cpu"}});
        insta::assert_snapshot!(view(noted).sentences(), @r#"Policy db decides nothing: its candidate 77ab90c4 would ask to hold the size because of quiet. It notes: "memory needs 1". Its candidate 5be1a7c0 would ask for 4 (cpu)."#);
        let mut live = base.clone();
        live["role"] = "live".into();
        live["answer"] =
            serde_json::json!({"cu": 5, "reason": "memory", "since": "2026-01-02T10:02:05.1Z"});
        insta::assert_snapshot!(view(live.clone()).sentence(), @"Policy db (77ab90c4) asks for 5 units since 10:02:05Z because of memory.");
        let mut both = live.clone();
        both["shadow"] = serde_json::json!({"name": "db", "digest": "5be1a7c0", "role": "shadow",
            "answer": {"cu": 4, "reason": "cpu"}});
        insta::assert_snapshot!(view(both.clone()).sentences(), @"Policy db (77ab90c4) asks for 5 units since 10:02:05Z because of memory. Its candidate 5be1a7c0 would ask for 4 (cpu).");
        both["canary"] = true.into();
        insta::assert_snapshot!(view(both.clone()).sentences(), @"Policy db (77ab90c4, in canary) asks for 5 units since 10:02:05Z because of memory. Outside the canary decides 5be1a7c0, which would ask for 4 (cpu).");
        both["canary"] = false.into();
        both["shadow"]["answer"] = serde_json::json!({"fault": "steps"});
        insta::assert_snapshot!(view(both).sentences(), @"Policy db (77ab90c4) asks for 5 units since 10:02:05Z because of memory. Its candidate 5be1a7c0 has no valid answer (steps).");
        let mut failed = base;
        failed["setAside"] = true.into();
        failed["answer"] = serde_json::json!({"fault": "steps", "since": "2026-01-02T10:02:05.1Z"});
        insta::assert_snapshot!(view(failed).sentence(), @"Policy db decides nothing: its candidate 77ab90c4 has no valid answer since 10:02:05Z (steps), and is not asked any more.");
    }
}
