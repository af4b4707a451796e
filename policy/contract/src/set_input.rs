//! The question to a policy of sets: sets, nodes, capacity and sums of feeds.

use std::collections::{BTreeMap, BTreeSet};

use protocol::policy::Scope;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::canonical;
use crate::input::{Time, Unit};
use crate::sets::{SetAnswer, SetFacts};
use crate::spec::CONTRACT;

/// Most nodes in a question. [`ClusterSeen`] counts all of them.
pub const MAX_NODES_SHOWN: usize = 1_000;

/// Question about the sets of one namespace, without the past `h`, which the worker keeps.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetInput {
    /// Version of the contract, [`CONTRACT`].
    pub v: u32,
    /// What the policy decides about: [`Scope::Set`].
    pub scope: Scope,
    /// The policy's own numbers.
    pub params: BTreeMap<String, f64>,
    /// Calendar time, UTC.
    pub time: Time,
    /// The compute unit.
    pub unit: Unit,
    /// Namespace of the sets.
    pub namespace: String,
    /// Sets that have the policy, by name.
    pub sets: BTreeMap<String, SetSeen>,
    /// Nodes that take VMs, by name: the first [`MAX_NODES_SHOWN`].
    #[serde(default)]
    pub nodes: BTreeMap<String, NodeSeen>,
    /// All nodes that take VMs.
    pub cluster: ClusterSeen,
    /// Figures of the members' programs over all sets, by name of the feed.
    #[serde(default)]
    pub feeds: BTreeMap<String, FeedSum>,
    /// Last accepted answer of this policy in the same role.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub old: Option<SetOld>,
}

impl SetInput {
    /// Canonical text: sorted keys, no blanks, numbers as ECMAScript prints them.
    #[must_use]
    pub fn canonical(&self) -> String {
        canonical::text(self)
    }

    /// CRC-32C of [`Self::canonical`].
    #[must_use]
    pub fn checksum(&self) -> u32 {
        crc32c::crc32c(self.canonical().as_bytes())
    }

    /// What answers about these sets are judged by.
    #[must_use]
    pub fn facts(&self) -> BTreeMap<String, SetFacts> {
        let facts = self.sets.iter().map(|(name, set)| {
            let facts = SetFacts {
                count: set.count,
                member_units: set.member_cu,
                priority: set.priority,
                versions: set.versions.clone(),
                commands: set.commands.clone(),
            };
            (name.clone(), facts)
        });
        facts.collect()
    }

    /// Question with an answer as `old`, as of the same time.
    #[must_use]
    pub fn after(&self, answer: &SetAnswer) -> Self {
        Self {
            old: Some(SetOld::of(answer, 0.0)),
            ..self.clone()
        }
    }

    /// Question about a set `web` of two members on one node of eight units. For tests and
    /// fixtures.
    #[must_use]
    pub fn sample() -> Self {
        let web = SetSeen {
            count: 2,
            members: 2,
            up: 2,
            member_cu: 1,
            version: Some(1),
            ..SetSeen::default()
        };
        let node = NodeSeen {
            cu: 8,
            free_cu: 6,
            vms: 2,
        };
        Self {
            v: CONTRACT,
            scope: Scope::Set,
            params: BTreeMap::new(),
            time: Time {
                minute: 0,
                weekday: 1,
            },
            unit: Unit {
                cpu_m: 1000.0,
                mem_bytes: 4_294_967_296.0,
            },
            namespace: "default".into(),
            sets: [("web".into(), web)].into(),
            nodes: [("node".into(), node)].into(),
            cluster: ClusterSeen {
                nodes: 1,
                cu: 8,
                free_cu: 6,
                sets_cu: 8,
            },
            feeds: BTreeMap::new(),
            old: None,
        }
    }
}

/// State of a set.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SetSeen {
    /// Members that the set should have.
    pub count: u32,
    /// Members that exist and are not being deleted.
    pub members: u32,
    /// Members whose guest is up.
    pub up: u32,
    /// Compute units of a member.
    pub member_cu: u32,
    /// Priority where the capacity is short. A larger one is served first.
    pub priority: i32,
    /// Version of the template that new members get.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<u32>,
    /// Versions that the policy may choose.
    pub versions: BTreeSet<u32>,
    /// Command that members read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// Commands that the policy may choose.
    pub commands: BTreeSet<String>,
    /// Whether an upgrade is under way or halted.
    pub upgrading: bool,
    /// Figures of the members' programs, by name of the feed.
    pub feeds: BTreeMap<String, FeedSum>,
}

/// Capacity of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NodeSeen {
    /// Compute units that pods may use.
    pub cu: u32,
    /// Compute units that no pod has.
    pub free_cu: u32,
    /// Number of VMs.
    pub vms: u32,
}

/// Capacity of all nodes that take VMs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ClusterSeen {
    /// Number of these nodes, those beyond [`MAX_NODES_SHOWN`] included.
    pub nodes: u32,
    /// Compute units that pods may use.
    pub cu: u64,
    /// Compute units that no pod has.
    pub free_cu: u64,
    /// Compute units for the sets of this question: what they have, and what is free.
    pub sets_cu: u64,
}

/// Figure of the members' programs, summed up.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FeedSum {
    /// Sum of the values, one of each member.
    pub sum: f64,
    /// Largest value of a member.
    pub max: f64,
    /// Members that gave a value.
    pub members: u32,
}

impl FeedSum {
    /// Adds the value of a member.
    pub fn add(&mut self, value: f64) {
        self.sum += value;
        self.max = self.max.max(value);
        self.members += 1;
    }
}

/// Last accepted answer, as the policy returned it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetOld {
    /// Changes by name of the set.
    #[serde(default)]
    pub sets: Value,
    /// Values by name of the set.
    #[serde(default)]
    pub kv: Value,
    /// Wish for nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes: Option<Value>,
    /// Age of the answer, seconds.
    pub age_s: f64,
}

impl SetOld {
    /// An answer of this age.
    #[must_use]
    pub fn of(answer: &SetAnswer, age_s: f64) -> Self {
        let value = answer.to_value();
        Self {
            sets: value["sets"].clone(),
            kv: value["kv"].clone(),
            nodes: value.get("nodes").cloned(),
            age_s,
        }
    }
}

/// Luau types of the question and the answer.
pub(crate) const STUBS: &str = include_str!("stubs/sets.luau");

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn full() -> SetInput {
        let mut input = SetInput::sample();
        let feed = FeedSum {
            sum: 3.5,
            max: 2.0,
            members: 2,
        };
        let answer = json!({
            "sets": {"web": {"count": 3}},
            "kv": {"web": {"mode": "fast"}},
            "nodes": {"want": 2, "why": "load"},
        });
        let answer = SetAnswer::read(&answer, &input.facts()).expect("an answer");
        let mut asked = input.after(&answer);
        asked.params.insert("headroom".into(), 1.5);
        asked.feeds.insert("jobs".into(), feed);
        input = asked;
        let web = input.sets.get_mut("web").expect("a set");
        web.versions = [1, 2].into();
        web.commands = ["drain".into()].into();
        web.command = Some("drain".into());
        web.feeds.insert("jobs".into(), feed);
        input
    }

    #[test]
    fn question_about_sets_survives_its_own_text() {
        for input in [SetInput::sample(), full()] {
            let read: SetInput = serde_json::from_str(&input.canonical()).expect("a question");
            assert_eq!(read, input);
            assert_eq!(read.checksum(), input.checksum());
        }
        assert_ne!(full().checksum(), SetInput::sample().checksum());
    }

    /// Requirement: V09
    #[test]
    fn v09_last_answer_is_in_the_question_as_it_was_returned() {
        let old = full().old.expect("an answer");
        assert_eq!(old.sets, json!({"web": {"count": 3}}));
        assert_eq!(old.kv, json!({"web": {"mode": "fast"}}));
        assert_eq!(old.nodes, Some(json!({"want": 2, "why": "load"})));
    }

    #[test]
    fn stubs_name_every_member_of_sets() {
        let mut input = full();
        input.params.clear();
        input.feeds.clear();
        let value = serde_json::to_value(&input).expect("JSON");
        let members = value.as_object().expect("a table").keys();
        let parts = ["cluster", "old"].map(|part| value[part].as_object().expect(part).keys());
        let inner = [&value["sets"]["web"], &value["nodes"]["node"]];
        let inner = inner.map(|part| part.as_object().expect("a table").keys());
        let all = members.chain(parts.into_iter().flatten());
        for name in all.chain(inner.into_iter().flatten()) {
            assert!(STUBS.contains(&format!("{name}: ")), "{name}");
        }
    }
}
