//! Fixtures of a policy: questions with what must be answered, in TOML beside the policy.
//!
//! A question is written as what differs from a plain one ([`Input::sample`]). Sizes that follow
//! from another member are worked out.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

use policy_contract::{Fault, FeedSource, Input, Scope, Seconds, Series, SetInput, Spec};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use toml::Spanned;

use crate::made_up::Question;
use crate::scope::{AnyAnswer, AnyInput};

/// Time of every question on the clock of the samples.
const NOW: Seconds = 3600.0;
/// Seconds between two samples where a fixture does not say.
const EVERY: Seconds = 5.0;
/// Most samples of a series.
const MAX_SAMPLES: usize = 1800;

/// A fixtures file that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Malformed {
    /// Line of the file, from 1.
    pub line: u32,
    /// What is wrong.
    pub rule: String,
}

/// Fixtures of one policy.
#[derive(Debug)]
pub struct Fixtures {
    /// Settings of the policy in all of them.
    pub settings: Settings,
    /// In the order of the file.
    pub all: Vec<Fixture>,
}

/// Settings of the policy that its questions and its past rest on.
#[derive(Debug, Clone, Default)]
pub struct Settings {
    scope: Scope,
    params: BTreeMap<String, f64>,
    series: Vec<Series>,
    feeds: Vec<String>,
}

/// One question with what must be answered.
#[derive(Debug)]
pub struct Fixture {
    /// Name, for people.
    pub name: String,
    /// Line of the name, from 1.
    pub line: u32,
    /// The question with its past.
    pub question: Question<AnyInput>,
    /// What must be answered.
    pub expected: Expected,
    /// Where a given answer is written: the value of `answer`, or an empty range behind the line of
    /// the name.
    pub place: Range<usize>,
}

/// What must be answered.
#[derive(Debug)]
pub enum Expected {
    /// Nothing is written.
    Nothing,
    /// This answer and no other.
    Answer(AnyAnswer),
    /// An answer with these properties.
    Properties(Properties),
    /// No answer but a fault.
    Fault(Fault),
}

/// Properties of an answer. What is left out may be anything.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Properties {
    /// Size, compute units.
    pub cu: Option<Bounds>,
    /// Whether the size in use is held.
    pub hold: Option<bool>,
    /// Reasons, one of which it must be.
    pub reason: Option<OneOf>,
    /// Votes by name.
    pub votes: BTreeMap<String, Bounds>,
    /// Counts by name of the set.
    pub counts: BTreeMap<String, Bounds>,
}

/// A number, or its least and largest value.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(untagged)]
pub enum Bounds {
    /// This number and no other.
    Is(f64),
    /// The number lies between these.
    Between(Between),
}

/// Least and largest value, both included.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Between {
    min: Option<f64>,
    max: Option<f64>,
}

/// A word, or several.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
pub enum OneOf {
    /// This word and no other.
    Word(String),
    /// One of these.
    Words(Vec<String>),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawFile {
    #[serde(default)]
    scope: Scope,
    #[serde(default)]
    params: BTreeMap<String, f64>,
    #[serde(default)]
    series: Vec<Series>,
    #[serde(default)]
    feeds: Vec<String>,
    #[serde(default, rename = "fixture")]
    fixtures: Vec<RawFixture>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawFixture {
    name: Spanned<String>,
    #[serde(default)]
    input: Map<String, Value>,
    #[serde(default)]
    past: BTreeMap<String, Vec<f64>>,
    every: Option<f64>,
    answer: Option<Spanned<Value>>,
    expect: Option<Properties>,
    fault: Option<Fault>,
}

impl Fixtures {
    /// Reads a file.
    ///
    /// # Errors
    /// With the line of what is wrong.
    pub fn read(text: &str) -> Result<Self, Malformed> {
        let raw: RawFile = toml::from_str(text).map_err(|error| Malformed {
            line: line_of(text, error.span().map_or(0, |span| span.start)),
            rule: error.message().to_owned(),
        })?;
        let settings = Settings {
            scope: raw.scope,
            params: raw.params,
            series: raw.series,
            feeds: raw.feeds,
        };
        let fixtures = raw.fixtures.into_iter().map(|raw| {
            let line = line_of(text, raw.name.span().start);
            let fixture = raw.read(text, line, &settings);
            fixture.map_err(|rule| Malformed { line, rule })
        });
        let all = fixtures.collect::<Result<Vec<_>, _>>()?;
        Ok(Self { settings, all })
    }
}

impl Settings {
    /// The policy with this source.
    #[must_use]
    pub fn spec(&self, source: String) -> Spec {
        let feeds = self.feeds.iter().map(|name| FeedSource {
            metric: name.clone(),
            name: name.clone(),
            port: 1,
        });
        let mut spec = Spec::of_source(source);
        spec.scope = self.scope;
        spec.params.clone_from(&self.params);
        spec.series.clone_from(&self.series);
        spec.feeds = feeds.collect();
        spec
    }
}

impl RawFixture {
    fn read(self, text: &str, line: u32, settings: &Settings) -> Result<Fixture, String> {
        let question = Question {
            input: input(self.input, settings)?,
            samples: samples(&self.past, self.every.unwrap_or(EVERY), settings)?,
            now: NOW,
        };
        let behind_name = self.name.span().end;
        let behind_line = text[behind_name..].find('\n');
        let behind_line = behind_line.map_or(text.len(), |at| behind_name + at + 1);
        let place = self
            .answer
            .as_ref()
            .map_or(behind_line..behind_line, Spanned::span);
        let expected = match (self.answer, self.expect, self.fault) {
            (None, None, None) => Expected::Nothing,
            (Some(answer), None, None) => {
                let answer = question.input.read(answer.get_ref());
                Expected::Answer(answer.map_err(|refusal| format!("answer: {refusal}"))?)
            }
            (None, Some(properties), None) => Expected::Properties(properties),
            (None, None, Some(fault)) => Expected::Fault(fault),
            _ => return Err("a fixture has one of answer, expect and fault".into()),
        };
        Ok(Fixture {
            name: self.name.into_inner(),
            line,
            question,
            expected,
            place,
        })
    }
}

/// Line of a byte, from 1.
fn line_of(text: &str, at: usize) -> u32 {
    let before = text.as_bytes().iter().take(at);
    let feeds = before.filter(|byte| **byte == b'\n').count();
    u32::try_from(feeds + 1).unwrap_or(u32::MAX)
}

/// The plain question with what a fixture says.
fn input(mut said: Map<String, Value>, settings: &Settings) -> Result<AnyInput, String> {
    fill_ages(&mut said, settings.scope);
    match settings.scope {
        Scope::Vm => about_vm(said, settings).map(|input| AnyInput::Vm(Box::new(input))),
        Scope::Set => about_sets(said, settings).map(|input| AnyInput::Set(Box::new(input))),
    }
}

/// Sets that a fixture names are those of the question. Each is a plain one with what it says.
fn about_sets(said: Map<String, Value>, settings: &Settings) -> Result<SetInput, String> {
    let mut plain = json!(SetInput::sample());
    plain["params"] = json!(settings.params);
    if let Some(sets) = said.get("sets").and_then(Value::as_object) {
        let one = plain["sets"]["web"].take();
        let named = sets.keys().map(|name| (name.clone(), one.clone()));
        plain["sets"] = named.collect::<Map<String, Value>>().into();
    }
    merge(&mut plain, Value::Object(said));
    serde_json::from_value(plain).map_err(|error| format!("input: {error}"))
}

fn about_vm(said: Map<String, Value>, settings: &Settings) -> Result<Input, String> {
    let mut plain = json!(Input::sample());
    plain["params"] = json!(settings.params);
    let said = Value::Object(said);
    follow(&mut plain, &said);
    merge(&mut plain, said);
    serde_json::from_value(plain).map_err(|error| format!("input: {error}"))
}

/// Sizes that follow from `vm.use_cu` and `unit`.
fn follow(plain: &mut Value, said: &Value) {
    let number = |value: &Value, plain: &Value| value.as_f64().or(plain.as_f64());
    let in_use = number(&said["vm"]["use_cu"], &plain["vm"]["use_cu"]);
    for member in ["cpu_m", "mem_bytes"] {
        let unit = number(&said["unit"][member], &plain["unit"][member]);
        if let Some((in_use, unit)) = in_use.zip(unit) {
            plain["vm"][member] = json!(in_use * unit);
        }
    }
    plain["vm"]["permit_cu"] = json!(in_use);
}

/// An age that is not said is 0.
fn fill_ages(said: &mut Map<String, Value>, scope: Scope) {
    fn fill(member: Option<&mut Value>) {
        if let Some(members) = member.and_then(Value::as_object_mut) {
            members.entry("age_s").or_insert_with(|| json!(0.0));
        }
    }
    fill(said.get_mut("old"));
    if scope == Scope::Set {
        return;
    }
    fill(said.get_mut("wish"));
    for group in ["feeds", "refused"] {
        let members = said.get_mut(group).and_then(Value::as_object_mut);
        members
            .into_iter()
            .flat_map(|members| members.values_mut())
            .for_each(|member| fill(Some(member)));
    }
}

fn merge(plain: &mut Value, said: Value) {
    match (plain, said) {
        (Value::Object(plain), Value::Object(said)) => {
            for (name, value) in said {
                merge(plain.entry(name).or_insert(Value::Null), value);
            }
        }
        (plain, said) => *plain = said,
    }
}

/// Values by series, with their time.
type Samples = Vec<(Seconds, BTreeMap<String, f64>)>;

/// Samples of a past, oldest first. The last of each series is as old as the question.
fn samples(
    past: &BTreeMap<String, Vec<f64>>,
    every: Seconds,
    settings: &Settings,
) -> Result<Samples, String> {
    if !(every.is_finite() && every > 0.0) {
        return Err("every is a number of seconds above 0".into());
    }
    let spec = settings.spec(String::new());
    let mut samples: BTreeMap<usize, BTreeMap<String, f64>> = BTreeMap::new();
    for (name, values) in past {
        if !spec.has_series(name) {
            return Err(format!("past: {name} is no series of the policy"));
        }
        if values.len() > MAX_SAMPLES {
            return Err(format!("past: {name} has more than {MAX_SAMPLES} samples"));
        }
        for (age, value) in values.iter().rev().enumerate() {
            samples.entry(age).or_default().insert(name.clone(), *value);
        }
    }
    let oldest_first = samples.into_iter().rev();
    Ok(oldest_first
        .map(|(age, values)| (NOW - age as f64 * every, values))
        .collect())
}

impl Bounds {
    /// Whether a number is what they say, to a thousandth.
    #[must_use]
    pub fn hold(self, number: f64) -> bool {
        const HALF: f64 = 0.0005;
        match self {
            Self::Is(is) => (number - is).abs() <= HALF,
            Self::Between(Between { min, max }) => {
                min.is_none_or(|min| number >= min - HALF)
                    && max.is_none_or(|max| number <= max + HALF)
            }
        }
    }
}

impl fmt::Display for Bounds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Is(is) => write!(f, "{is}"),
            Self::Between(Between { min, max }) => match (min, max) {
                (Some(min), Some(max)) => write!(f, "{min} to {max}"),
                (Some(min), None) => write!(f, "at least {min}"),
                (None, Some(max)) => write!(f, "at most {max}"),
                (None, None) => f.write_str("a number"),
            },
        }
    }
}

impl fmt::Display for OneOf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Word(one) => f.write_str(one),
            Self::Words(all) => f.write_str(&all.join(" or ")),
        }
    }
}

impl OneOf {
    /// Whether it is this word, or one of these.
    #[must_use]
    pub fn has(&self, word: &str) -> bool {
        match self {
            Self::Word(one) => one == word,
            Self::Words(all) => all.iter().any(|one| one == word),
        }
    }
}

#[cfg(test)]
#[path = "fixtures_tests.rs"]
mod tests;
