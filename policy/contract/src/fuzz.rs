//! What holds for any line between the agent and its worker and for any packed policy, as bodies
//! for the coverage-guided fuzzer of `fuzz/` and for the property tests beside it.

#![cfg_attr(
    not(test),
    expect(
        clippy::missing_panics_doc,
        reason = "to panic is what these are for: a panic is a finding"
    )
)]

use serde::Serialize;
use serde_json::Value;

use crate::frames::{FromWorker, MAX_LINE_BYTES, ToWorker, decode, encode};
use crate::sets::SetAnswer;
use crate::{Answer, Digest, MAX_NOTE_BYTES, MAX_PACK_BYTES, MAX_VOTES, Pack, SetInput};

/// Most that a number may be off after it was read once more: the reader of JSON may miss the last
/// bit.
const LAST_BITS: f64 = 1e-14;
const MODERATE: std::ops::Range<f64> = 1e-290..1e290;
/// Votes below this, in thousandths, are units as a float and back without a loss.
const EXACT: i64 = 1 << 50;

/// A line and its direction: to the worker if the first byte is even, else from it. A line that is
/// read is written as one line that reads as the same message. An answer in it keeps the rules of
/// answers, and is written as it was.
pub fn worker_frame(data: &[u8]) {
    let Some((direction, line)) = data.split_first() else {
        return;
    };
    if direction % 2 == 0 {
        to_worker(line);
    } else {
        from_worker(line);
    }
}

/// A file that is read keeps the rules of policies. If its numbers are moderate, it is written as a
/// file that reads as the same policy.
pub fn policy_pack(data: &[u8]) {
    let Ok(pack) = Pack::read(data) else {
        return;
    };
    assert!(data.len() <= MAX_PACK_BYTES && !pack.name.contains('/'));
    assert_eq!(pack.spec.check(), Ok(()));
    let bytes = pack.to_bytes();
    let numbers = pack.spec.params.values();
    let is_moderate = |number: &f64| *number == 0.0 || MODERATE.contains(&number.abs());
    if bytes.len() <= MAX_PACK_BYTES && numbers.copied().all(|number| is_moderate(&number)) {
        let again = Pack::read_pinned(&bytes, Digest::of_bytes(&bytes)).expect("it reads");
        assert_eq!((&again.name, &again.fixtures), (&pack.name, &pack.fixtures));
        assert_eq!(again.spec.source, pack.spec.source);
        let value = |pack: &Pack| serde_json::to_value(&pack.spec).expect("JSON");
        assert!(is_close(&value(&again), &value(&pack)), "{pack:?}");
    }
}

fn to_worker(line: &[u8]) {
    let Ok(message) = decode::<ToWorker>(line, MAX_LINE_BYTES) else {
        return;
    };
    let Some(again) = written(&message) else {
        return;
    };
    let value = |message: &ToWorker| serde_json::to_value(message).expect("JSON");
    if is_moderate(&value(&message)) {
        let read: ToWorker = decode(&again, MAX_LINE_BYTES).expect("it reads");
        assert!(is_close(&value(&read), &value(&message)), "{message:?}");
    }
    let (text, checksum) = match &message {
        ToWorker::Ask { i, .. } => (i.canonical(), i.checksum()),
        ToWorker::AskSets { i, .. } => (i.canonical(), i.checksum()),
        _ => return,
    };
    assert!(!text.contains(['\n', '\r']), "{text}");
    assert_eq!(checksum, crc32c::crc32c(text.as_bytes()));
    let same: Value = serde_json::from_str(&text).expect("JSON");
    assert!(same.is_object(), "{text}");
}

/// An answer about sets keeps the rules of answers, and reads again from what it is written as.
fn sets_keep_their_rules(value: &Value) {
    let mut facts = SetInput::sample().facts();
    if let Some(web) = facts.get_mut("web") {
        web.versions = [1, 2].into();
        web.commands = ["drain".to_owned()].into();
    }
    match SetAnswer::read(value, &facts) {
        Ok(answer) => {
            assert!(answer.sets.keys().all(|name| facts.contains_key(name)));
            let again = SetAnswer::read(&answer.to_value(), &facts);
            assert_eq!(again.as_ref(), Ok(&answer));
            let counts = answer.counts(8, &facts);
            assert!(counts.values().all(|count| *count <= 8), "{counts:?}");
        }
        Err(refusal) => assert!(!refusal.path.is_empty() && !refusal.rule.is_empty()),
    }
}

fn from_worker(line: &[u8]) {
    let Ok(message) = decode::<FromWorker>(line, MAX_LINE_BYTES) else {
        return;
    };
    if let Some(again) = written(&message) {
        let read: FromWorker = decode(&again, MAX_LINE_BYTES).expect("it reads");
        assert_eq!(read, message);
    }
    match (&message, message.answer()) {
        (FromWorker::Said { n, steps, .. }, Some(Ok(answer))) => {
            keeps_its_rules(&answer);
            if answer.votes.iter().all(|vote| vote.value.0.abs() < EXACT) {
                assert_eq!(FromWorker::said(*n, &answer, *steps), message);
            }
        }
        (FromWorker::Said { .. }, Some(Err(refusal))) => {
            assert!(!refusal.path.is_empty() && !refusal.rule.is_empty());
        }
        (_, answer) => assert!(answer.is_none(), "{message:?}"),
    }
    if let FromWorker::SaidSets { answer, .. } = &message {
        sets_keep_their_rules(answer);
    }
}

/// The line of a message. `None` if it would be too long.
fn written<T: Serialize>(message: &T) -> Option<Vec<u8>> {
    let line = encode(message).ok()?;
    assert!(line.len() <= MAX_LINE_BYTES + 1);
    let feeds = line.iter().filter(|byte| **byte == b'\n').count();
    assert!(feeds == 1 && line.ends_with(b"\n"));
    Some(line)
}

fn keeps_its_rules(answer: &Answer) {
    assert!((1..=32).contains(&answer.reason.as_str().len()));
    assert!(answer.votes.len() <= MAX_VOTES);
    assert!(answer.votes.is_sorted_by(|one, next| one.name < next.name));
    let note = answer.note.as_ref().map_or("", |note| note.as_str());
    assert!(note.len() <= MAX_NOTE_BYTES && !note.chars().any(char::is_control));
}

/// Whether no number is near the ends of the range, where one bit is much.
fn is_moderate(value: &Value) -> bool {
    match value {
        Value::Number(number) => number
            .as_f64()
            .is_some_and(|number| number == 0.0 || MODERATE.contains(&number.abs())),
        Value::Array(items) => items.iter().all(is_moderate),
        Value::Object(members) => members.values().all(is_moderate),
        _ => true,
    }
}

fn is_close(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Number(one), Value::Number(other)) if one != other => {
            let (one, other) = (one.as_f64(), other.as_f64());
            let (one, other) = (one.unwrap_or(f64::NAN), other.unwrap_or(f64::NAN));
            (one - other).abs() <= one.abs() * LAST_BITS
        }
        (Value::Array(one), Value::Array(other)) => {
            let mut pairs = one.iter().zip(other);
            one.len() == other.len() && pairs.all(|(one, other)| is_close(one, other))
        }
        (Value::Object(one), Value::Object(other)) => {
            let mut members = one.iter();
            let same = |(key, value)| other.get(key).is_some_and(|other| is_close(value, other));
            one.len() == other.len() && members.all(same)
        }
        (one, other) => one == other,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{Input, Spec};

    #[test]
    fn every_seed_of_frames_holds() {
        test_seeds::hold(&[("worker_frame", worker_frame)]);
        for name in ["load", "sample", "ask", "ask_sets", "forget"] {
            let seed = std::fs::read(format!("../../fuzz/seeds/worker_frame/{name}")).expect(name);
            let read = decode::<ToWorker>(&seed[1..], MAX_LINE_BYTES);
            assert!(seed[0].is_multiple_of(2) && read.is_ok(), "{name}");
        }
        for name in ["said", "said_sets", "fault", "bad"] {
            let seed = std::fs::read(format!("../../fuzz/seeds/worker_frame/{name}")).expect(name);
            let read = decode::<FromWorker>(&seed[1..], MAX_LINE_BYTES);
            assert!(!seed[0].is_multiple_of(2) && read.is_ok(), "{name}");
        }
    }

    #[test]
    fn every_seed_of_packs_holds() {
        test_seeds::hold(&[("policy_pack", policy_pack)]);
        for name in ["plain", "fixtures"] {
            let seed = std::fs::read(format!("../../fuzz/seeds/policy_pack/{name}")).expect(name);
            assert!(Pack::read(&seed).is_ok(), "{name}");
        }
    }

    #[test]
    fn numbers_may_differ_in_their_last_bit_alone() {
        let value = |text: &str| serde_json::from_str::<Value>(text).expect("JSON");
        let one = value(r#"{"a":[1.0000000000000002,"x"]}"#);
        assert!(is_close(&one, &value(r#"{"a":[1.0,"x"]}"#)));
        for other in [r#"{"a":[1.1,"x"]}"#, r#"{"a":[1.0]}"#, r#"{"b":[1.0,"x"]}"#] {
            assert!(!is_close(&one, &value(other)), "{other}");
        }
    }

    /// Lines of both directions that would be read.
    fn good() -> Vec<Vec<u8>> {
        let spec = Spec::of_source("return 1");
        let load = ToWorker::Load {
            id: 1,
            digest: spec.digest(),
            scope: spec.scope,
            source: spec.source,
            params: [("headroom".into(), 1.15)].into(),
        };
        let ask = ToWorker::Ask {
            n: 9,
            vm: 17,
            id: 1,
            t: 10.5,
            i: Box::new(Input::sample()),
        };
        let ask_sets = ToWorker::AskSets {
            n: 9,
            vm: 17,
            id: 1,
            t: 10.5,
            i: Box::new(SetInput::sample()),
        };
        let said_sets = br#"{"op":"said_sets","n":9,"answer":{"sets":{"web":{"share":"7.5%","version":2,"command":"drain"}},"kv":{"web":{"a":"1"}},"nodes":{"want":2,"why":"x"}},"steps":4}"#;
        let said =
            br#"{"op":"said","n":9,"cu":5,"r":"memory","votes":{"a":1},"note":"n","steps":4}"#;
        let fault = br#"{"op":"fault","n":9,"kind":"steps","text":"t"}"#;
        vec![
            [&[0], &encode(&load).expect("a line")[..]].concat(),
            [&[0], &encode(&ask).expect("a line")[..]].concat(),
            [&[0], &encode(&ask_sets).expect("a line")[..]].concat(),
            [&[1], &said_sets[..]].concat(),
            [&[1], &said[..]].concat(),
            [&[1], &fault[..]].concat(),
        ]
    }

    fn any_line() -> impl Strategy<Value = String> {
        let value = "(-?[0-9]{1,12}(\\.[0-9]{1,9})?(e-?[0-9]{1,3})?|\"[a-z0-9_]{0,3}\"|true|null|\\{\"a\":[0-9]{1,5}\\})";
        let member = "(n|cu|hold|r|votes|note|steps|id|vm|t|s|line|rule|kind|text|i)";
        let op = "(said|said|fault|bad|loaded|sample|forget|ask|load|x)";
        let text = format!("\\{{\"op\":\"{op}\"(,\"{member}\":{value}){{0,6}}\\}}");
        proptest::string::string_regex(&text).expect("a pattern")
    }

    proptest! {
        #[test]
        fn frames_hold(
            which in any::<prop::sample::Index>(),
            at in any::<prop::sample::Index>(),
            put in "[\\[\\]{}\",:.a-z0-9-]{0,3}",
            cut in 0_usize..4,
        ) {
            let mut line = which.get(&good()).clone();
            let at = 1 + at.index(line.len() - 1);
            let end = (at + cut).min(line.len());
            line.splice(at..end, put.bytes());
            worker_frame(&line);
        }

        #[test]
        fn packs_hold(
            at in any::<prop::sample::Index>(),
            put in "[\\[\\]{}\",:.a-z0-9-]{0,3}",
            cut in 0_usize..4,
        ) {
            let mut spec = Spec::of_source("return 1");
            spec.params = [("headroom".into(), 1.15)].into();
            let pack = Pack::new("db", spec, Some("x = 1".into())).expect("a pack");
            let mut bytes = pack.to_bytes();
            let at = at.index(bytes.len());
            let end = (at + cut).min(bytes.len());
            bytes.splice(at..end, put.bytes());
            policy_pack(&bytes);
        }

        #[test]
        fn lines_hold(first in 0_u8..2, text in any_line(), bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            worker_frame(&[&[first], text.as_bytes()].concat());
            worker_frame(&bytes);
        }
    }
}
