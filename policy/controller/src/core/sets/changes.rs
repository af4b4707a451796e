//! What an answer changes: counts within the capacity, and a compare-and-set of each set.

use std::collections::BTreeMap;

use policy_contract::sets::SetAnswer;
use protocol::policy::{Chosen, VmSet};
use serde_json::{Value, json};

use super::events::Question;
use super::world::World;

/// Counts that an answer comes to, within the capacity and the policy's largest size.
pub(super) fn counts(
    world: &World,
    question: &Question,
    answer: &SetAnswer,
) -> BTreeMap<String, u32> {
    let policy = world
        .policies
        .iter()
        .find(|one| one.name == question.policy);
    let most = policy.and_then(|policy| policy.limits.max_units);
    let capacity = question.input.cluster.sets_cu;
    let capacity = most.map_or(capacity, |most| capacity.min(most.into()));
    answer.counts(capacity, &question.input.facts())
}

/// Operations of a JSON patch that make a set what an answer says. `None` if it is so.
pub(super) fn operations(set: &VmSet, count: u32, answer: &SetAnswer) -> Option<Value> {
    let name = &set.metadata.name;
    let has = set.spec.replicas;
    let mut operations = Vec::new();
    if count != has {
        operations.push(json!({"op": "replace", "path": "/spec/replicas", "value": count}));
    }
    let change = answer.sets.get(name);
    let status = set.status.clone().unwrap_or_default();
    let version = change.and_then(|change| change.version);
    let wanted = set.spec.version.or(status.version);
    // An upgrade that is under way or halted is for people.
    if version.is_some() && version != wanted && status.upgrade.is_none() {
        operations.push(json!({"op": "add", "path": "/spec/version", "value": version}));
    }
    let before = set.spec.chosen.clone().unwrap_or_default();
    let chosen = Chosen {
        command: change.map_or(before.command.clone(), |change| change.command.clone()),
        kv: answer.kv.get(name).cloned().unwrap_or(before.kv.clone()),
    };
    if chosen != before {
        operations.push(json!({"op": "add", "path": "/spec/chosen", "value": chosen}));
    }
    if operations.is_empty() {
        return None;
    }
    let mut all = vec![
        json!({"op": "test", "path": "/metadata/uid", "value": set.metadata.uid}),
        json!({"op": "test", "path": "/spec/replicas", "value": has}),
    ];
    all.extend(operations);
    Some(all.into())
}
