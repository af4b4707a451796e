//! The agent's last decision about a VM, as data and as text.

mod policy;

use std::collections::BTreeMap;

use protocol::units::Resources;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::view::units::{cores, memory};
pub(crate) use policy::{PolicyAnswer, PolicyView};

/// A decision, as the agent's dump spells it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Decision {
    /// Time of the decision, RFC 3339. A decision stays the same while target, reason and bounds
    /// do.
    #[serde(default)]
    pub(crate) at: Option<String>,
    /// Size of the VM at the time.
    pub(crate) current: Resources,
    /// Size that the agent wants.
    pub(crate) target: Resources,
    /// Compute units that the metrics ask for, without bounds.
    pub(crate) goal_units: u32,
    pub(crate) reason: String,
    /// Compute units that each signal asks for.
    #[serde(default)]
    pub(crate) votes: Votes,
    /// Bounds that keep the target from the goal.
    #[serde(default)]
    pub(crate) bounded_by: Vec<String>,
    /// Whether all metrics were present and fresh.
    #[serde(default)]
    pub(crate) has_all_metrics: bool,
    /// Size that the scheduler permits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) permit: Option<Resources>,
    /// One-minute load of the guest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) load1: Option<f64>,
    /// The monitor's refusal of the last shrink, if it refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) refusal: Option<Refusal>,
    /// Memory in use in the guest in bytes, including the agent's allowance for the kernel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) memory_usage_bytes: Option<f64>,
    /// Abnormal conditions of the decision.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) warnings: Vec<String>,
    /// Candidate of a policy beside the decision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) policy: Option<PolicyView>,
}

/// A monitor's refusal of a shrink, as the monitor words it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Refusal {
    /// Time of the refusal, RFC 3339.
    pub(crate) at: String,
    pub(crate) target: Resources,
    /// Smallest size that the monitor would accept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) smallest: Option<Resources>,
    /// Machine-readable name of the reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<String>,
    pub(crate) status: String,
}

impl Refusal {
    fn sentence(&self) -> String {
        let at = clock_time(&self.at).map_or_else(String::new, |time| format!(" at {time}Z"));
        let smallest = self.smallest.map_or_else(String::new, |smallest| {
            format!(" It would have agreed to {}.", size(smallest))
        });
        let words = self.status.trim_end_matches('.');
        format!(
            "The guest's monitor refused {}{at}: {words}.{smallest}",
            size(self.target)
        )
    }
}

/// Time of day in an RFC 3339 time, in whole seconds.
fn clock_time(at: &str) -> Option<&str> {
    let (_, time) = at.split_once('T')?;
    let time = time.split('.').next().unwrap_or(time).trim_end_matches('Z');
    (!time.is_empty()).then_some(time)
}

/// Compute units that each signal asks for.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub(crate) struct Votes {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) cpu: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) memory: Option<f64>,
    /// Of the working set of the file cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) working_set: Option<f64>,
    /// Of the monitor's own estimate, if enabled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) monitor_estimate: Option<f64>,
    /// Of memory pressure, while it is too high.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) memory_pressure: Option<f64>,
    /// Of the policy that decides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) policy: Option<f64>,
}

impl Decision {
    /// The deciding signal and the bound, in a few words.
    pub(crate) fn in_short(&self) -> String {
        let vote = self
            .winning_vote()
            .map(|vote| format!(" {vote:.1} CU"))
            .unwrap_or_default();
        let held: Vec<&str> = self
            .bounded_by
            .iter()
            .map(|bound| short_bound(bound))
            .collect();
        let held = if held.is_empty() {
            String::new()
        } else {
            format!(" ({})", held.join(", "))
        };
        format!("{}{vote}{held}", short_reason(&self.reason))
    }

    /// ` since 10:02:05Z`, or empty if the time is unknown.
    fn since(&self) -> String {
        let time = self.at.as_deref().and_then(clock_time);
        time.map_or_else(String::new, |time| format!(" since {time}Z"))
    }

    /// Why the target is what it is. A policy that is silent holds the size, one that answers
    /// does not.
    fn cause(&self) -> String {
        if self.reason != "policy" {
            return long_reason(&self.reason).to_owned();
        }
        let policy = self.policy.as_ref();
        let is_silent = |warning: &String| matches!(&**warning, "policy_late" | "policy_fault");
        if self.warnings.iter().any(is_silent) || policy.is_some_and(PolicyView::is_silent) {
            let fault = policy.and_then(PolicyView::fault);
            let fault = fault.map_or_else(String::new, |fault| format!(" ({fault})"));
            return format!("its policy has no valid answer{fault}, so nothing shrinks");
        }
        "its policy asks for it".to_owned()
    }

    fn winning_vote(&self) -> Option<f64> {
        match self.reason.as_str() {
            "cpu" => self.votes.cpu,
            "memory" => self.votes.memory,
            "working_set" => self.votes.working_set,
            "monitor_estimate" => self.votes.monitor_estimate,
            "memory_pressure" => self.votes.memory_pressure,
            "policy" => self.votes.policy,
            _ => None,
        }
    }

    /// Explains the decision in sentences, the most important first.
    pub(crate) fn sentences(&self) -> Vec<String> {
        let mut lines = vec![format!(
            "The agent wants {}{}: {}.",
            size(self.target),
            self.since(),
            self.cause()
        )];
        let votes = [
            ("load", self.votes.cpu),
            ("memory", self.votes.memory),
            ("working set", self.votes.working_set),
        ];
        let mut votes: Vec<String> = votes
            .iter()
            .map(|(name, vote)| {
                vote.map_or_else(
                    || format!("{name} unknown"),
                    |vote| format!("{name} {vote:.2}"),
                )
            })
            .collect();
        // Signals without a vote are not mentioned.
        let others = [
            ("monitor's estimate", self.votes.monitor_estimate),
            ("memory pressure", self.votes.memory_pressure),
        ];
        let said = |(name, vote): (&str, Option<f64>)| Some(format!("{name} {:.2}", vote?));
        votes.extend(others.into_iter().filter_map(said));
        lines.push(format!(
            "Votes now, in compute units: {}; together {}.",
            votes.join(", "),
            self.goal_units
        ));
        if let Some(vote) = self.votes.policy {
            let place = if self.reason == "policy" {
                "decides"
            } else {
                "stands"
            };
            lines.push(format!("Its policy {place} in their place: {vote:.2}."));
        }
        let mut seen = Vec::new();
        seen.extend(self.load1.map(|load| format!("load {load:.2}")));
        seen.extend(
            self.memory_usage_bytes
                .map(|bytes| format!("{} of memory in use", memory(whole(bytes)))),
        );
        if !seen.is_empty() {
            lines.push(format!("The guest reports {}.", seen.join(" and ")));
        }
        if !self.has_all_metrics {
            lines.push("Some metrics are missing or old: nothing shrinks until they come.".into());
        }
        lines.extend(
            self.bounded_by
                .iter()
                .map(|bound| long_bound(bound, self.permit)),
        );
        lines.extend(self.refusal.as_ref().map(Refusal::sentence));
        match self.permit {
            Some(permit) => lines.push(format!("It holds a permit for {}.", size(permit))),
            None => lines.push("It holds no permit yet: nothing grows without one.".into()),
        }
        lines.extend(self.policy.as_ref().map(PolicyView::sentences));
        lines
    }
}

fn size(resources: Resources) -> String {
    format!(
        "{} CPU / {}",
        cores(resources.cpu.0),
        memory(resources.mem.0)
    )
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the cast saturates; for display only"
)]
fn whole(bytes: f64) -> u64 {
    bytes as u64
}

fn short_reason(reason: &str) -> &str {
    match reason {
        "cpu" => "load",
        "working_set" => "working set",
        "monitor_estimate" => "monitor's estimate",
        "memory_pressure" => "memory pressure",
        "requested_upscale" => "guest asked to grow",
        "denied_downscale" => "guest refused to shrink",
        "missing_metrics" => "no metrics yet",
        "stale_metrics" => "metrics are old",
        other => other,
    }
}

fn long_reason(reason: &str) -> &str {
    match reason {
        "idle" => "no signal asks for more than the least",
        "cpu" => "the load average asks for it",
        "memory" => "memory usage asks for it",
        "working_set" => "the file cache's working set asks for it",
        "monitor_estimate" => "the monitor's estimate of what the guest needs asks for it",
        "memory_pressure" => "tasks in the guest wait for memory, so nothing shrinks",
        "requested_upscale" => "the guest's monitor asked to grow",
        "denied_downscale" => "the guest's monitor refused to shrink further",
        "missing_metrics" => "metrics have never come, so nothing shrinks",
        "stale_metrics" => "metrics stopped coming, so nothing shrinks",
        "migrating" => "it is about to migrate, so nothing changes",
        other => other,
    }
}

fn short_bound(bound: &str) -> &str {
    match bound {
        "min" => "at its min",
        "max" => "at its max",
        "permit" => "permit holds it",
        "monitor_approval" => "monitor has not agreed",
        "monitor_absent" => "no monitor",
        "migration" => "migrating",
        "downscale_margin" => "little room below",
        "downscale_hold" => "waits before shrinking",
        "downscale_cooldown" => "grew just now",
        "upscale_cooldown" => "shrank just now",
        "observe_mode" => "only observed",
        "grow_mode" => "may only grow",
        "policy_limit" => "policy's maxUnits",
        "decline_rate" => "shrinks slowly",
        other => other,
    }
}

fn long_bound(bound: &str, permit: Option<Resources>) -> String {
    match bound {
        "min" => "Its lower bound raised that.".into(),
        "max" => "Its upper bound cut that.".into(),
        "permit" => match permit {
            Some(permit) => format!(
                "The node has room for {} only, by the scheduler.",
                size(permit)
            ),
            None => "The scheduler has not permitted more.".into(),
        },
        "monitor_approval" => "The guest's monitor has not agreed to less yet.".into(),
        "monitor_absent" => "No monitor is connected, so nothing shrinks.".into(),
        "migration" => "It is about to migrate.".into(),
        "downscale_margin" => {
            "It keeps its size: a smaller one would leave less than downscaleMarginUnits above the votes.".into()
        }
        "downscale_hold" => {
            "It keeps its size until it has wanted less for downscaleHoldSeconds.".into()
        }
        "downscale_cooldown" => {
            "It keeps its size: it grew less than downscaleCooldownSeconds ago.".into()
        }
        "upscale_cooldown" => {
            "Load makes it grow no sooner than upscaleCooldownSeconds after it shrank.".into()
        }
        "observe_mode" => {
            "It is only observed: nothing is done about that until its mode is grow or full.".into()
        }
        "grow_mode" => "It may only grow: it keeps what it has until its mode is full.".into(),
        "policy_limit" => "Its policy asked for more than maxUnits allows.".into(),
        "decline_rate" => {
            "Its policy may shrink it by shrinkUnitsPerMinute at most: the rest comes later.".into()
        }
        other => format!("Bound by {other}."),
    }
}

/// Last decisions by VM, with keys `namespace/name`.
pub(crate) type Decisions = BTreeMap<String, Decision>;

/// The last decision about every VM in the agent's dump. Entries that cannot be read are left out.
pub(crate) fn by_vm(agent: &Value) -> Decisions {
    let pods = agent["pods"]
        .as_array()
        .map(Vec::as_slice)
        .unwrap_or_default();
    pods.iter().filter_map(of_pod).collect()
}

fn of_pod(pod: &Value) -> Option<(String, Decision)> {
    let info = &pod["status"]["vmInfo"];
    let key = format!("{}/{}", info["namespace"].as_str()?, info["name"].as_str()?);
    let mut decision: Decision = serde_json::from_value(pod["lastDecision"].clone()).ok()?;
    let executor = &pod["runner"]["executorState"];
    decision.permit = serde_json::from_value(executor["Plugin"]["Permit"].clone())
        .ok()
        .flatten();
    decision.load1 = executor["Metrics"]["LoadAverage1Min"].as_f64();
    decision.memory_usage_bytes = executor["Metrics"]["MemoryUsageBytes"].as_f64();
    decision.policy = serde_json::from_value(pod["policy"].clone()).ok();
    Some((key, decision))
}

/// A decision on which every member of the explanation stands, for tests of its readers.
#[cfg(test)]
pub(crate) fn sample() -> Decision {
    serde_json::from_value(serde_json::json!({
        "at": "2026-01-02T03:02:05.123456Z",
        "current": {"vCPUs": "250m", "mem": "1Gi"},
        "target": {"vCPUs": 1, "mem": "4Gi"},
        "goalUnits": 5,
        "reason": "memory",
        "votes": {"cpu": 1.1, "memory": 4.7},
        "boundedBy": ["permit"],
        "hasAllMetrics": true,
        "permit": {"vCPUs": "500m", "mem": "2Gi"},
        "load1": 0.93,
        "memoryUsageBytes": 3_779_571_220_u64,
    }))
    .unwrap()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decision_is_explained_in_sentences() {
        insta::assert_snapshot!(sample().in_short(), @"memory 4.7 CU (permit holds it)");
        insta::assert_snapshot!(sample().sentences().join("\n"), @r"
        The agent wants 1 CPU / 4Gi since 03:02:05Z: memory usage asks for it.
        Votes now, in compute units: load 1.10, memory 4.70, working set unknown; together 5.
        The guest reports load 0.93 and 3.5Gi of memory in use.
        The node has room for 0.5 CPU / 2Gi only, by the scheduler.
        It holds a permit for 0.5 CPU / 2Gi.
        ");
    }

    #[test]
    fn refusal_of_monitor_is_quoted() {
        let mut decision = sample();
        decision.reason = "denied_downscale".into();
        decision.refusal = serde_json::from_value(serde_json::json!({
            "at": "2026-01-02T03:02:04Z",
            "target": {"vCPUs": "500m", "mem": "2Gi"},
            "smallest": {"vCPUs": "750m", "mem": "3Gi"},
            "reason": "in_use",
            "status": "2410 MiB are in use, 1700 MiB would be left.",
        }))
        .unwrap();
        let words = decision.sentences();
        insta::assert_snapshot!(words[words.len() - 2], @"The guest's monitor refused 0.5 CPU / 2Gi at 03:02:04Z: 2410 MiB are in use, 1700 MiB would be left. It would have agreed to 0.75 CPU / 3Gi.");
    }

    #[test]
    fn decisions_are_found_in_the_agents_dump() {
        let entry = |name: &str, last: Value| {
            serde_json::json!({
                "podName": {"namespace": "default", "name": format!("{name}-abcde")},
                "status": {"vmInfo": {"namespace": "default", "name": name}},
                "runner": {"executorState": {
                    "Plugin": {"Permit": {"vCPUs": "500m", "mem": "2Gi"}},
                    "Metrics": {"LoadAverage1Min": 0.93, "MemoryUsageBytes": 3_779_571_220_u64},
                }},
                "lastDecision": last,
            })
        };
        let mut made = serde_json::to_value(sample()).unwrap();
        for key in ["permit", "load1", "memoryUsageBytes"] {
            made.as_object_mut().unwrap().remove(key);
        }
        let dump = serde_json::json!({"pods": [
            entry("pg", made),
            entry("new", Value::Null),
            entry("odd", serde_json::json!({"reason": "idle"})),
            {"podName": 3},
        ]});
        let found = by_vm(&dump);
        assert_eq!(found.keys().collect::<Vec<_>>(), ["default/pg"]);
        assert_eq!(found["default/pg"], sample());
        assert!(by_vm(&Value::Null).is_empty());
    }

    #[test]
    fn unknown_reasons_are_shown_unchanged() {
        let decision = Decision {
            reason: "moonlight".into(),
            bounded_by: vec!["tide".into()],
            ..sample()
        };
        assert_eq!(decision.in_short(), "moonlight (tide)");
        assert!(decision.sentences().join(" ").contains("Bound by tide."));
    }

    #[test]
    fn bound_of_a_mode_is_explained() {
        for (bound, short, long) in [
            ("observe_mode", "only observed", "grow or full"),
            ("grow_mode", "may only grow", "mode is full"),
        ] {
            let decision = Decision {
                bounded_by: vec![bound.into()],
                ..sample()
            };
            assert!(decision.in_short().contains(short), "{bound}");
            assert!(decision.sentences().join(" ").contains(long), "{bound}");
        }
    }

    /// Requirement: V33
    #[test]
    fn decision_of_a_policy_is_explained() {
        let mut decision = sample();
        decision.reason = "policy".into();
        decision.votes.policy = Some(3.0);
        decision.bounded_by = vec!["policy_limit".into(), "decline_rate".into()];
        insta::assert_snapshot!(decision.in_short(), @"policy 3.0 CU (policy's maxUnits, shrinks slowly)");
        insta::assert_snapshot!(decision.sentences().join("\n"), @r"
        The agent wants 1 CPU / 4Gi since 03:02:05Z: its policy asks for it.
        Votes now, in compute units: load 1.10, memory 4.70, working set unknown; together 5.
        Its policy decides in their place: 3.00.
        The guest reports load 0.93 and 3.5Gi of memory in use.
        Its policy asked for more than maxUnits allows.
        Its policy may shrink it by shrinkUnitsPerMinute at most: the rest comes later.
        It holds a permit for 0.5 CPU / 2Gi.
        ");
    }

    /// Requirement: V33
    #[test]
    fn decision_for_want_of_an_answer_says_so() {
        let first = |warnings: &[&str], policy: serde_json::Value| {
            let decision = Decision {
                reason: "policy".into(),
                warnings: warnings.iter().map(|&one| one.to_owned()).collect(),
                policy: serde_json::from_value(policy).unwrap(),
                ..sample()
            };
            decision.sentences().remove(0)
        };
        let mut policy = serde_json::json!({"name": "db", "digest": "77ab90c4", "role": "live"});
        assert!(first(&[], policy.clone()).ends_with("no valid answer, so nothing shrinks."));
        policy["answer"] = serde_json::json!({"cu": 2, "reason": "cpu", "since": ""});
        assert!(first(&[], policy.clone()).ends_with("its policy asks for it."));
        assert!(first(&["policy_late"], policy.clone()).contains("has no valid answer, so"));
        policy["answer"] = serde_json::json!({"fault": "late", "since": ""});
        let late = first(&["policy_late"], policy);
        assert!(
            late.contains("no valid answer (late), so nothing shrinks"),
            "{late}"
        );
    }

    #[test]
    fn stabilization_of_a_vm_is_explained() {
        for (bound, setting) in [
            ("downscale_margin", "downscaleMarginUnits"),
            ("downscale_hold", "downscaleHoldSeconds"),
            ("downscale_cooldown", "downscaleCooldownSeconds"),
            ("upscale_cooldown", "upscaleCooldownSeconds"),
        ] {
            let decision = Decision {
                bounded_by: vec![bound.into()],
                ..sample()
            };
            assert!(decision.sentences().join(" ").contains(setting), "{bound}");
            assert!(!decision.in_short().contains('_'), "{bound}");
        }
    }
}
