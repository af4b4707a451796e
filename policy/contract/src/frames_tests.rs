use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::{Old, Spec};

fn survives<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(message: &T) {
    let line = encode(message).expect("a line");
    assert_eq!(line.iter().filter(|b| **b == b'\n').count(), 1);
    let read: T = decode(&line, MAX_LINE_BYTES).expect("the same message");
    assert_eq!(&read, message);
}

#[test]
fn lines_are_spelled_as_the_contract_says() {
    let spec = Spec::of_source("return 1");
    let load = ToWorker::Load {
        id: 1,
        digest: spec.digest(),
        scope: spec.scope,
        source: spec.source.clone(),
        params: spec.params.clone(),
    };
    let text = |line: Vec<u8>| String::from_utf8(line).expect("text");
    assert_eq!(
        text(encode(&load).expect("a line")),
        format!(
            "{{\"op\":\"load\",\"id\":1,\"digest\":\"{}\",\"scope\":\"vm\",\"source\":\"return 1\",\"params\":{{}}}}\n",
            spec.digest()
        )
    );
    let said: FromWorker = decode(
        br#"{"op":"said","n":9,"cu":5,"r":"memory","votes":{"memory":3700},"steps":412}"#,
        MAX_LINE_BYTES,
    )
    .expect("an answer");
    let answer = said.answer().expect("an answer").expect("a valid one");
    assert_eq!(answer.want, Want::Units(5));
    assert_eq!(FromWorker::said(9, &answer, 412), said);
    survives(&load);
}

#[test]
fn worker_that_lies_is_refused() {
    let line = |value: serde_json::Value| {
        decode::<FromWorker>(value.to_string().as_bytes(), MAX_LINE_BYTES)
    };
    for odd in [
        json!({"op": "said", "n": 1, "cu": 5, "hold": true, "r": "x", "steps": 1}),
        json!({"op": "said", "n": 1, "r": "x", "steps": 1}),
        json!({"op": "said", "n": 1, "cu": 5, "r": "X", "steps": 1}),
    ] {
        let said = line(odd.clone()).expect("well formed");
        assert!(said.answer().expect("an answer").is_err(), "{odd}");
    }
    for malformed in [
        json!({"op": "said", "n": 1, "cu": 5.5, "r": "x", "steps": 1}),
        json!({"op": "said", "n": 1, "cu": 5, "r": "x", "steps": 1, "path": "/"}),
        json!({"op": "fault", "n": 1, "kind": "odd", "text": ""}),
        json!({"op": "other"}),
        json!([]),
    ] {
        assert!(line(malformed.clone()).is_err(), "{malformed}");
    }
    assert!(matches!(
        decode::<FromWorker>(&[b' '; 11], 10),
        Err(FrameError::TooLong {
            length: 11,
            max: 10
        })
    ));
}

/// A number with few digits. Of those with 17, the reader of JSON may miss the last bit.
fn number() -> impl Strategy<Value = f64> {
    (-1_000_000_000_i32..1_000_000_000).prop_map(|n| f64::from(n) / 1000.0)
}

proptest! {
    #[test]
    fn messages_survive_their_line(
        n: u64,
        vm: u32,
        t in number(),
        values in prop::collection::btree_map("[a-z]{1,8}", number(), 0..6),
        age in number(),
        cu in prop::option::of(0_u32..),
        text in ".{0,80}",
    ) {
        let mut i = Input::sample();
        i.params.clone_from(&values);
        i.old = Some(Old { cu, reason: "x".into(), age_s: age });
        survives(&ToWorker::Ask { n, vm, id: 3, t, i: Box::new(i) });
        survives(&ToWorker::Sample { vm, t, s: values });
        survives(&ToWorker::Forget { vm });
        survives(&FromWorker::Filled { vm });
        survives(&FromWorker::Fault { n, kind: Fault::Steps, text: text.clone() });
        survives(&FromWorker::Bad { id: vm, line: 3, rule: text });
        survives(&FromWorker::Loaded { id: vm });
    }
}

#[test]
fn contract_of_a_program_is_read_from_its_version() {
    let own = format!("bellows-policy 0.1.0 ({}, Luau 0.7)", contract_word());
    assert_eq!(contract_of(&own), Some(crate::CONTRACT));
    assert_eq!(contract_of("bellows-policy 0.9.0 (contract 22)"), Some(22));
    for other in [
        "",
        "fake 1",
        "contract",
        "contract x",
        "contract 99999999999",
    ] {
        assert_eq!(contract_of(other), None, "{other}");
    }
}
