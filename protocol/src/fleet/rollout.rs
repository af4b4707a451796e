//! Limits of a deployment: budget, groups and judge.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::kind::KEY_HOOK;

/// Limits of a deployment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct Rollout {
    /// Share of the guests that stays settled and healthy, percent.
    pub min_healthy_percent: u32,
    /// Guests that change at the same time.
    pub max_in_flight: u32,
    /// Guests of one node that change at the same time.
    pub max_per_node: u32,
    /// Length of a trial.
    pub trial_seconds: u64,
    /// Longest duration of a deployment. Time behind a closed window or a bake does not count.
    pub deadline_seconds: u64,
    /// Further attempts in a guest whose trial ended badly.
    pub retries: u32,
    /// Share of the guests whose trials may end badly, percent.
    pub max_failed_percent: u32,
    /// Whether a failed deployment is followed by one of the revision before.
    pub auto_rollback: bool,
    /// Order of the guests. Without any there is one group of all, without canaries and bake.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<Group>,
    /// What follows if a bake brings too few figures.
    pub on_inconclusive: OnInconclusive,
    /// Questions to the operator's programs, in the order in which they are asked.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hooks: Vec<Hook>,
    /// Limits of the judge, who compares baking guests with guests of the release before.
    pub judge: Judge,
}

impl Default for Rollout {
    fn default() -> Self {
        Self {
            min_healthy_percent: 90,
            max_in_flight: 10,
            max_per_node: 1,
            trial_seconds: 60,
            deadline_seconds: 86_400,
            retries: 2,
            max_failed_percent: 5,
            auto_rollback: true,
            groups: Vec::new(),
            on_inconclusive: OnInconclusive::Hold,
            hooks: Vec::new(),
            judge: Judge::default(),
        }
    }
}

/// A group of guests. The first group whose labels a guest has is the guest's group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Group {
    /// Name within the environment.
    pub name: String,
    /// Labels that a guest of the group has. An empty map takes every guest.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub match_labels: BTreeMap<String, String>,
    /// Guests that go before the rest of the group. A smaller group has fewer.
    #[serde(default)]
    pub canaries: u32,
    /// Time for which changed guests are watched before others follow.
    #[serde(default = "Group::default_bake_seconds")]
    pub bake_seconds: u64,
}

impl Group {
    /// Length of a bake that is not named, seconds.
    #[must_use]
    pub const fn default_bake_seconds() -> u64 {
        600
    }

    /// Whether a guest with these labels may be of the group.
    #[must_use]
    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        let mut wanted = self.match_labels.iter();
        wanted.all(|(key, value)| labels.get(key) == Some(value))
    }
}

/// A question to a program of the operator's. No guest gets a turn until it has allowed that. A
/// denial, and silence for too long, halt the deployment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Hook {
    /// Name within the environment. It ends the key of the annotation with the answer.
    pub name: String,
    /// Moment at which it is asked.
    pub at: HookMoment,
    /// Group that the moment is about. Empty: the deployment.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub group: String,
    /// Longest time for the answer.
    #[serde(default = "Hook::default_timeout_seconds")]
    pub timeout_seconds: u64,
}

impl Hook {
    /// Longest time for an answer that is not named, seconds.
    #[must_use]
    pub const fn default_timeout_seconds() -> u64 {
        3600
    }

    /// Key of the annotation of a deployment with the answer: `allow`, `deny` or `deny: REASON`.
    #[must_use]
    pub fn key(&self) -> String {
        format!("{KEY_HOOK}{}", self.name)
    }
}

/// Moment at which a hook is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum HookMoment {
    /// No guest has had a turn.
    Before,
    /// All guests have had their turns, and no bake follows.
    After,
}

/// What follows if a bake brings too few figures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum OnInconclusive {
    /// The deployment waits for a person.
    #[default]
    Hold,
    /// The next guests follow.
    Proceed,
}

/// Limits of the judge.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub struct Judge {
    /// OOM kills in changed guests whose node had room, without one in the control group.
    pub oom_kills: u32,
    /// Share of the changed guests that may lose the agent's link for long, percent.
    pub lost_links_percent: u32,
    /// Chance of a halt of an equal release, over all looks, in a million.
    pub significance_ppm: u32,
    /// Longest median time of a resize, percent of that of the control group.
    pub resize_percent: u32,
    /// Least time of all changed guests together, minutes.
    pub guest_minutes: u32,
}

impl Default for Judge {
    fn default() -> Self {
        Self {
            oom_kills: 1,
            lost_links_percent: 5,
            significance_ppm: 10_000,
            resize_percent: 200,
            guest_minutes: 30,
        }
    }
}
