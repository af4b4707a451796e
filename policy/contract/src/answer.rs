//! The answer of a policy. One table of fields checks it, and makes its JSON Schema and its Luau
//! type. Anything that the table does not allow refuses the whole answer.

use std::fmt;

use protocol::journal::Milli;
use protocol::policy::{Refusal, WORD_MAX, is_word};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// Most votes of an answer.
pub const MAX_VOTES: usize = 8;
/// Longest note, bytes.
pub const MAX_NOTE_BYTES: usize = 120;

/// Size that a policy asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Want {
    /// Number of compute units.
    Units(u32),
    /// The size in use.
    Hold,
}

/// Reason of an answer: 1-32 of `a-z0-9_`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Reason(String);

impl Reason {
    /// Text of the reason.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Remark for people: at most 120 bytes of printable text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Note(String);

impl Note {
    /// Text of the note.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Named number beside an answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vote {
    /// Name, 1-32 of `a-z0-9_`.
    pub name: String,
    /// Value in thousandths.
    pub value: Milli,
}

/// Valid answer of a policy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// Size that the policy asks for.
    pub want: Want,
    /// Reason of the policy.
    pub reason: Reason,
    /// Numbers behind the answer, sorted by name.
    pub votes: Vec<Vote>,
    /// Remark for people.
    pub note: Option<Note>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Units,
    True,
    Word,
    Votes,
    Text,
}

struct Field {
    name: &'static str,
    kind: Kind,
    rule: &'static str,
    luau: &'static str,
}

const FIELDS: [Field; 5] = [
    Field {
        name: "cu",
        kind: Kind::Units,
        rule: "a whole number, 0 to 4294967295",
        luau: "number?",
    },
    Field {
        name: "hold",
        kind: Kind::True,
        rule: "true, or left out",
        luau: "true?",
    },
    Field {
        name: "reason",
        kind: Kind::Word,
        rule: "a text of 1-32 of a-z0-9_",
        luau: "string",
    },
    Field {
        name: "votes",
        kind: Kind::Votes,
        rule: "at most 8 numbers by names of 1-32 of a-z0-9_",
        luau: "{ [string]: number }?",
    },
    Field {
        name: "note",
        kind: Kind::Text,
        rule: "at most 120 bytes of printable text",
        luau: "string?",
    },
];

impl Answer {
    /// Reads what a policy returned.
    ///
    /// # Errors
    /// With path, value and rule of the first member at fault. Nothing of the answer is used then.
    pub fn read(value: &Value) -> Result<Self, Refusal> {
        let map = value
            .as_object()
            .ok_or_else(|| Refusal::of("answer", shown(value), "a table with cu and reason"))?;
        if let Some((name, value)) = map
            .iter()
            .find(|(name, _)| FIELDS.iter().all(|field| field.name != name.as_str()))
        {
            let rule = "a member: it is none of cu, hold, reason, votes, note";
            return Err(Refusal::of(name, shown(value), rule));
        }
        for field in &FIELDS {
            if let Some(value) = map.get(field.name) {
                field.check(value)?;
            }
        }
        let want = read_want(map)?;
        let reason = map
            .get("reason")
            .and_then(Value::as_str)
            .ok_or_else(|| Refusal::of("reason", "nil", FIELDS[2].rule))?;
        Ok(Self {
            want,
            reason: Reason(reason.to_owned()),
            votes: map.get("votes").map(read_votes).unwrap_or_default(),
            note: map
                .get("note")
                .and_then(Value::as_str)
                .map(|text| Note(text.to_owned())),
        })
    }

    /// The answer as a policy would return it, with votes rounded to thousandths.
    #[must_use]
    pub fn to_value(&self) -> Value {
        let mut map = Map::new();
        match self.want {
            Want::Units(units) => map.insert("cu".into(), units.into()),
            Want::Hold => map.insert("hold".into(), true.into()),
        };
        map.insert("reason".into(), self.reason.as_str().into());
        if !self.votes.is_empty() {
            let votes = self.votes.iter();
            let votes: Map<String, Value> = votes
                .map(|vote| (vote.name.clone(), vote.value.units().into()))
                .collect();
            map.insert("votes".into(), votes.into());
        }
        if let Some(note) = &self.note {
            map.insert("note".into(), note.as_str().into());
        }
        map.into()
    }
}

impl Field {
    fn check(&self, value: &Value) -> Result<(), Refusal> {
        let holds = match self.kind {
            Kind::Units => whole(value).is_some(),
            Kind::True => value == &Value::Bool(true),
            Kind::Word => value.as_str().is_some_and(is_word),
            Kind::Votes => return self.check_votes(value),
            Kind::Text => value.as_str().is_some_and(is_note),
        };
        if holds {
            Ok(())
        } else {
            Err(Refusal::of(self.name, shown(value), self.rule))
        }
    }

    fn check_votes(&self, value: &Value) -> Result<(), Refusal> {
        let refused = |path: String, value: String| Err(Refusal::of(path, value, self.rule));
        // An empty Lua table is an empty list as well.
        if value.as_array().is_some_and(Vec::is_empty) {
            return Ok(());
        }
        let Some(votes) = value.as_object().filter(|map| map.len() <= MAX_VOTES) else {
            return refused(self.name.into(), shown(value));
        };
        for (name, vote) in votes {
            if !is_word(name) || !vote.is_number() {
                return refused(format!("{}.{name}", self.name), shown(vote));
            }
        }
        Ok(())
    }

    fn schema(&self) -> Value {
        let word = format!("^[a-z0-9_]{{1,{WORD_MAX}}}$");
        match self.kind {
            Kind::Units => json!({"type": "integer", "minimum": 0, "maximum": u32::MAX}),
            Kind::True => json!({"const": true}),
            Kind::Word => json!({"type": "string", "pattern": word}),
            Kind::Votes => json!({
                "type": "object",
                "maxProperties": MAX_VOTES,
                "propertyNames": {"pattern": word},
                "additionalProperties": {"type": "number"},
            }),
            Kind::Text => json!({"type": "string", "maxLength": MAX_NOTE_BYTES}),
        }
    }
}

fn read_want(map: &Map<String, Value>) -> Result<Want, Refusal> {
    let rule = "there exactly once: either cu or hold = true";
    match (map.get("cu"), map.get("hold")) {
        (Some(_), Some(_)) => Err(Refusal::of("cu", "beside hold", rule)),
        (None, None) => Err(Refusal::of("cu", "nil", rule)),
        (None, Some(_)) => Ok(Want::Hold),
        (Some(units), None) => whole(units)
            .map(Want::Units)
            .ok_or_else(|| Refusal::of("cu", shown(units), FIELDS[0].rule)),
    }
}

fn read_votes(value: &Value) -> Vec<Vote> {
    let mut votes: Vec<Vote> = value
        .as_object()
        .into_iter()
        .flatten()
        .map(|(name, value)| Vote {
            name: name.clone(),
            value: Milli::of(value.as_f64().unwrap_or_default()),
        })
        .collect();
    votes.sort_unstable_by(|one, other| one.name.cmp(&other.name));
    votes
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "checked to be whole and in range"
)]
pub(crate) fn whole(value: &Value) -> Option<u32> {
    let number = value.as_f64()?;
    let is_whole = number.fract() == 0.0 && (0.0..=f64::from(u32::MAX)).contains(&number);
    is_whole.then_some(number as u32)
}

pub(crate) fn is_note(text: &str) -> bool {
    let is_printable = |c: char| {
        // Marks that change the direction or the line of what follows can hide text.
        let is_mark = matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}');
        !c.is_control() && !is_mark
    };
    text.len() <= MAX_NOTE_BYTES && text.chars().all(is_printable)
}

/// Name of the member that stands for a number JSON has no spelling for.
const NOT_FINITE: &str = "\u{0}number";

/// The JSON value of a number of Lua. NaN and infinity become a value that no field accepts.
#[must_use]
pub fn number_value(number: f64) -> Value {
    serde_json::Number::from_f64(number)
        .map_or_else(|| json!({NOT_FINITE: number.to_string()}), Value::Number)
}

pub(crate) fn shown(value: &Value) -> String {
    match value.get(NOT_FINITE).and_then(Value::as_str) {
        Some(number) => number.to_owned(),
        None => value.to_string(),
    }
}

pub(crate) fn schema() -> Value {
    let properties: Map<String, Value> = FIELDS
        .iter()
        .map(|field| {
            let mut schema = field.schema();
            schema["description"] = field.rule.into();
            (field.name.to_owned(), schema)
        })
        .collect();
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Answer of a policy, contract 1",
        "type": "object",
        "properties": properties,
        "required": ["reason"],
        "oneOf": [{"required": ["cu"]}, {"required": ["hold"]}],
        "additionalProperties": false,
    })
}

pub(crate) fn stubs() -> String {
    let members: String = FIELDS
        .iter()
        .map(|field| format!("\t{}: {}, -- {}\n", field.name, field.luau, field.rule))
        .collect();
    format!("export type Answer = {{\n{members}}}\n")
}

#[cfg(test)]
#[path = "answer_tests.rs"]
mod tests;
