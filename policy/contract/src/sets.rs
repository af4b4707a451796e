//! The answer of a policy of sets: counts, versions, values and the number of nodes.
//!
//! A set is changed only if the answer names it. Versions and commands must be in the set's own
//! lists, so no policy brings a program of its choice to a member. Anything that the rules do not
//! allow refuses the whole answer.

use std::collections::{BTreeMap, BTreeSet};

use protocol::policy::{MAX_KV, MAX_NODES, MAX_REPLICAS, Refusal, is_word};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::answer::{is_note, shown, whole};
use crate::divide::{PlainClaim, divide, share};

/// Most sets in an answer.
pub const MAX_SETS: usize = 256;
/// A whole, in thousandths of a percent.
const WHOLE: u64 = 100_000;

/// What a policy may do with a set, and the size of the set now.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SetFacts {
    /// Members that the set has.
    pub count: u32,
    /// Compute units of a member.
    pub member_units: u32,
    /// Priority where the capacity is short. A larger one is served first.
    pub priority: i32,
    /// Versions of the template that a policy may choose.
    pub versions: BTreeSet<u32>,
    /// Commands that a policy may choose, by name.
    pub commands: BTreeSet<String>,
}

/// Number of members that a policy wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum SetWant {
    /// So many members.
    Count(u32),
    /// A part of the capacity, in thousandths of a percent.
    Share(u32),
    /// What the other sets leave.
    Rest,
}

/// Change of one set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetChange {
    /// Number of members.
    pub want: SetWant,
    /// Version of the template, one of [`SetFacts::versions`].
    pub version: Option<u32>,
    /// Name of a command, one of [`SetFacts::commands`].
    pub command: Option<String>,
}

/// Number of nodes that the operator should provide.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodesWish {
    /// Number of nodes.
    pub want: u32,
    /// Reason, 1-32 of `a-z0-9_`.
    pub why: String,
}

/// Valid answer of a policy of sets.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct SetAnswer {
    /// Changes by name of the set. A set that is not here keeps its count.
    pub sets: BTreeMap<String, SetChange>,
    /// Values that the members of a set read, by name of the set.
    pub kv: BTreeMap<String, BTreeMap<String, String>>,
    /// Wish for nodes.
    pub nodes: Option<NodesWish>,
}

impl SetAnswer {
    /// Reads what a policy returned.
    ///
    /// # Errors
    /// With path, value and rule of the first member at fault. Nothing of the answer is used then.
    pub fn read(value: &Value, facts: &BTreeMap<String, SetFacts>) -> Result<Self, Refusal> {
        let map = members(
            value,
            "answer",
            "a table with sets",
            &["sets", "kv", "nodes"],
        )?;
        let mut answer = Self::default();
        for (name, change) in table(map.get("sets"), "sets", MAX_SETS)? {
            let path = format!("sets.{name}");
            let rule = "the name of a set that the policy is asked about";
            let set = facts
                .get(name)
                .ok_or_else(|| Refusal::of(&path, shown(change), rule))?;
            answer
                .sets
                .insert(name.clone(), read_change(change, &path, set)?);
        }
        for (name, values) in table(map.get("kv"), "kv", MAX_SETS)? {
            let path = format!("kv.{name}");
            if !facts.contains_key(name) {
                let rule = "the name of a set that the policy is asked about";
                return Err(Refusal::of(path, shown(values), rule));
            }
            answer.kv.insert(name.clone(), read_kv(values, &path)?);
        }
        answer.nodes = map.get("nodes").map(read_nodes).transpose()?;
        Ok(answer)
    }

    /// The answer as a policy would return it.
    #[must_use]
    pub fn to_value(&self) -> Value {
        let sets: Map<String, Value> = self
            .sets
            .iter()
            .map(|(name, change)| (name.clone(), change.to_value()))
            .collect();
        let mut answer = json!({"sets": sets, "kv": self.kv});
        if let Some(nodes) = &self.nodes {
            answer["nodes"] = json!(nodes);
        }
        answer
    }

    /// Count of each set that the answer names.
    ///
    /// `capacity` is in compute units. Sets that are not named keep what they have. The others
    /// divide the remainder by priority, and those with `rest` divide what is then left.
    #[must_use]
    pub fn counts(
        &self,
        capacity: u64,
        facts: &BTreeMap<String, SetFacts>,
    ) -> BTreeMap<String, u32> {
        let kept = facts
            .iter()
            .filter(|(name, _)| !self.sets.contains_key(*name));
        let kept = kept.map(|(_, set)| u64::from(set.count) * units(set));
        let free = kept.fold(capacity, u64::saturating_sub);
        let named: Vec<(&String, SetWant, &SetFacts)> = self
            .sets
            .iter()
            .filter_map(|(name, change)| Some((name, change.want, facts.get(name)?)))
            .collect();
        let shares: Vec<u64> = named
            .iter()
            .map(|(_, want, _)| match want {
                SetWant::Share(part) => u64::from(*part),
                SetWant::Count(_) | SetWant::Rest => 0,
            })
            .collect();
        let shares = share(capacity, WHOLE, &shares);
        let claim = |asked: u64, set: &SetFacts| PlainClaim {
            asked: asked.min(u64::from(MAX_REPLICAS) * units(set)) / units(set) * units(set),
            unit: units(set),
            priority: set.priority,
        };
        let claims: Vec<PlainClaim> = named
            .iter()
            .zip(&shares)
            .map(|((_, want, set), part)| match want {
                SetWant::Count(count) => claim(u64::from(*count) * units(set), set),
                SetWant::Share(_) => claim(*part, set),
                SetWant::Rest => claim(0, set),
            })
            .collect();
        let mut given = divide(u128::from(free), &claims);
        let left = given.iter().fold(free, |left, part| left - part);
        let rests: Vec<PlainClaim> = named
            .iter()
            .map(|(_, want, set)| claim(if *want == SetWant::Rest { left } else { 0 }, set))
            .collect();
        for (part, more) in given.iter_mut().zip(divide(u128::from(left), &rests)) {
            *part += more;
        }
        let count = |part: u64, set: &SetFacts| u32::try_from(part / units(set)).unwrap_or(0);
        named
            .iter()
            .zip(given)
            .map(|((name, _, set), part)| ((*name).clone(), count(part, set)))
            .collect()
    }
}

impl SetChange {
    fn to_value(&self) -> Value {
        let mut change = match self.want {
            SetWant::Count(count) => json!({"count": count}),
            SetWant::Share(part) => json!({"share": percent_text(part)}),
            SetWant::Rest => json!({"rest": true}),
        };
        if let Some(version) = self.version {
            change["version"] = version.into();
        }
        if let Some(command) = &self.command {
            change["command"] = command.as_str().into();
        }
        change
    }
}

/// Compute units of a member, at least one.
fn units(set: &SetFacts) -> u64 {
    u64::from(set.member_units.max(1))
}

/// Members of a table that has no others than those named.
fn members<'a>(
    value: &'a Value,
    path: &str,
    rule: &'static str,
    names: &[&str],
) -> Result<&'a Map<String, Value>, Refusal> {
    let map = value
        .as_object()
        .ok_or_else(|| Refusal::of(path, shown(value), rule))?;
    match map.iter().find(|(name, _)| !names.contains(&name.as_str())) {
        Some((name, value)) => {
            let path = format!("{path}.{name}");
            Err(Refusal::of(path, shown(value), "a member of this table"))
        }
        None => Ok(map),
    }
}

/// Members of an optional table.
fn table<'a>(
    value: Option<&'a Value>,
    path: &str,
    most: usize,
) -> Result<impl Iterator<Item = (&'a String, &'a Value)>, Refusal> {
    // An empty Lua table is an empty list as well.
    let value = value.filter(|value| !value.as_array().is_some_and(Vec::is_empty));
    let map = match value {
        None => None,
        Some(Value::Object(map)) if map.len() <= most => Some(map),
        Some(other) => {
            let rule = "a table by names of sets, of at most 256";
            return Err(Refusal::of(path, shown(other), rule));
        }
    };
    Ok(map.into_iter().flatten())
}

fn read_change(value: &Value, path: &str, set: &SetFacts) -> Result<SetChange, Refusal> {
    let names = ["count", "share", "rest", "version", "command"];
    let map = members(value, path, "a table with count, share or rest", &names)?;
    let at = |name: &str| format!("{path}.{name}");
    let want = match (map.get("count"), map.get("share"), map.get("rest")) {
        (Some(count), None, None) => whole(count)
            .filter(|count| *count <= MAX_REPLICAS)
            .map(SetWant::Count)
            .ok_or_else(|| Refusal::of(at("count"), shown(count), "a whole number, 0 to 1000")),
        (None, Some(part), None) => part
            .as_str()
            .and_then(percent)
            .map(SetWant::Share)
            .ok_or_else(|| Refusal::of(at("share"), shown(part), "a text as \"7%\", 0% to 100%")),
        (None, None, Some(Value::Bool(true))) => Ok(SetWant::Rest),
        (None, None, Some(rest)) => Err(Refusal::of(at("rest"), shown(rest), "true")),
        _ => {
            let rule = "a table with exactly one of count, share and rest";
            Err(Refusal::of(path, shown(value), rule))
        }
    }?;
    let version = map.get("version").map(|version| {
        let listed = whole(version).filter(|version| set.versions.contains(version));
        let rule = "one of the set's versions";
        listed.ok_or_else(|| Refusal::of(at("version"), shown(version), rule))
    });
    let command = map.get("command").map(|command| {
        let listed = command.as_str().filter(|name| set.commands.contains(*name));
        let rule = "one of the set's commands";
        listed
            .map(str::to_owned)
            .ok_or_else(|| Refusal::of(at("command"), shown(command), rule))
    });
    Ok(SetChange {
        want,
        version: version.transpose()?,
        command: command.transpose()?,
    })
}

/// Text such as `7%` or `12.5%`.
fn percent_text(part: u32) -> String {
    let text = format!("{}.{:03}", part / 1_000, part % 1_000);
    format!("{}%", text.trim_end_matches('0').trim_end_matches('.'))
}

/// Part of a whole that a text such as `7%` names, rounded to a whole number. `None` for any other
/// text.
#[must_use]
pub fn share_of(text: &str, total: u64) -> Option<u64> {
    let parts = share(total, WHOLE, &[u64::from(percent(text)?)]);
    parts.into_iter().next()
}

/// Thousandths of a percent of a text such as `7%` or `12.5%`.
fn percent(text: &str) -> Option<u32> {
    let number = text.strip_suffix('%')?;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    if !is_number(whole) || !is_number(fraction) || fraction.len() > 3 {
        return None;
    }
    let whole: u32 = whole.parse().ok().filter(|whole| *whole <= 100)?;
    let thousandths: u32 = format!("{fraction:0<3}").parse().ok()?;
    let part = whole * 1_000 + thousandths;
    (u64::from(part) <= WHOLE).then_some(part)
}

fn read_kv(value: &Value, path: &str) -> Result<BTreeMap<String, String>, Refusal> {
    if value.as_array().is_some_and(Vec::is_empty) {
        return Ok(BTreeMap::new());
    }
    let Some(map) = value.as_object().filter(|map| map.len() <= MAX_KV) else {
        return Err(Refusal::of(
            path,
            shown(value),
            "a table of at most 64 texts",
        ));
    };
    let mut values = BTreeMap::new();
    for (key, value) in map {
        let text = value.as_str().filter(|text| is_word(key) && is_note(text));
        let rule = "at most 120 bytes of printable text, by a name of 1-32 of a-z0-9_";
        let text = text.ok_or_else(|| Refusal::of(format!("{path}.{key}"), shown(value), rule))?;
        values.insert(key.clone(), text.to_owned());
    }
    Ok(values)
}

fn read_nodes(value: &Value) -> Result<NodesWish, Refusal> {
    let map = members(
        value,
        "nodes",
        "a table with want and why",
        &["want", "why"],
    )?;
    let nil = Value::Null;
    let want = map.get("want").unwrap_or(&nil);
    let why = map.get("why").unwrap_or(&nil);
    Ok(NodesWish {
        want: whole(want)
            .filter(|want| *want <= MAX_NODES)
            .ok_or_else(|| Refusal::of("nodes.want", shown(want), "a whole number, 0 to 5000"))?,
        why: why
            .as_str()
            .filter(|why| is_word(why))
            .ok_or_else(|| Refusal::of("nodes.why", shown(why), "a text of 1-32 of a-z0-9_"))?
            .to_owned(),
    })
}

#[cfg(test)]
#[path = "sets_tests.rs"]
mod tests;
