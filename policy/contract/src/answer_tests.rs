use super::*;

fn refused(value: &Value) -> Refusal {
    Answer::read(value).expect_err(&value.to_string())
}

#[test]
fn valid_answers_are_read() {
    let answer = Answer::read(&json!({
        "cu": 5.0, "reason": "memory", "votes": {"memory": 3.7, "cpu": 1.1004}, "note": "größer",
    }))
    .expect("an answer");
    assert_eq!(answer.want, Want::Units(5));
    assert_eq!(answer.reason.as_str(), "memory");
    let votes: Vec<_> = answer
        .votes
        .iter()
        .map(|v| (v.name.as_str(), v.value.0))
        .collect();
    assert_eq!(votes, [("cpu", 1100), ("memory", 3700)]);
    assert_eq!(Answer::read(&answer.to_value()), Ok(answer));
    let hold = Answer::read(&json!({"hold": true, "reason": "no_data", "votes": []}));
    assert_eq!(hold.map(|a| a.want), Ok(Want::Hold));
}

/// Requirement: V33
#[test]
fn v33_forbidden_answer_is_refused_whole_with_path_value_and_rule() {
    let nine: Map<String, Value> = (0..9).map(|n| (format!("v{n}"), n.into())).collect();
    let cases: Vec<(&str, Value)> = vec![
        ("answer", json!(null)),
        ("answer", json!("5")),
        ("answer", json!(5)),
        ("answer", json!([])),
        ("answer", json!([1, 2])),
        ("answer", json!(true)),
        ("cu", json!({"reason": "x"})),
        ("cu", json!({"cu": 1, "hold": true, "reason": "x"})),
        ("cu", json!({"cu": -1, "reason": "x"})),
        ("cu", json!({"cu": 2.5, "reason": "x"})),
        ("cu", json!({"cu": 4_294_967_296_u64, "reason": "x"})),
        ("cu", json!({"cu": 1e300, "reason": "x"})),
        ("cu", json!({"cu": "5", "reason": "x"})),
        ("cu", json!({"cu": true, "reason": "x"})),
        ("cu", json!({"cu": null, "reason": "x"})),
        ("cu", json!({"cu": [5], "reason": "x"})),
        ("cu", json!({"cu": number_value(f64::NAN), "reason": "x"})),
        (
            "cu",
            json!({"cu": number_value(f64::INFINITY), "reason": "x"}),
        ),
        (
            "cu",
            json!({"cu": number_value(f64::NEG_INFINITY), "reason": "x"}),
        ),
        ("hold", json!({"hold": false, "reason": "x"})),
        ("hold", json!({"hold": 1, "reason": "x"})),
        ("hold", json!({"hold": "true", "reason": "x"})),
        ("hold", json!({"hold": false, "cu": 1, "reason": "x"})),
        ("reason", json!({"cu": 1})),
        ("reason", json!({"cu": 1, "reason": ""})),
        ("reason", json!({"cu": 1, "reason": "Memory"})),
        ("reason", json!({"cu": 1, "reason": "two words"})),
        ("reason", json!({"cu": 1, "reason": "x".repeat(33)})),
        ("reason", json!({"cu": 1, "reason": 7})),
        ("reason", json!({"cu": 1, "reason": number_value(f64::NAN)})),
        ("votes", json!({"cu": 1, "reason": "x", "votes": nine})),
        ("votes", json!({"cu": 1, "reason": "x", "votes": [1]})),
        ("votes", json!({"cu": 1, "reason": "x", "votes": 3})),
        (
            "votes.CPU",
            json!({"cu": 1, "reason": "x", "votes": {"CPU": 1}}),
        ),
        (
            "votes.cpu",
            json!({"cu": 1, "reason": "x", "votes": {"cpu": "1"}}),
        ),
        (
            "votes.cpu",
            json!({"cu": 1, "reason": "x", "votes": {"cpu": number_value(f64::NAN)}}),
        ),
        (
            "votes.cpu",
            json!({"cu": 1, "reason": "x", "votes": {"cpu": {"a": 1}}}),
        ),
        (
            "note",
            json!({"cu": 1, "reason": "x", "note": "x".repeat(121)}),
        ),
        ("note", json!({"cu": 1, "reason": "x", "note": "a\nb"})),
        (
            "note",
            json!({"cu": 1, "reason": "x", "note": "a\u{1b}[2J"}),
        ),
        (
            "note",
            json!({"cu": 1, "reason": "x", "note": "a\u{202e}b"}),
        ),
        ("note", json!({"cu": 1, "reason": "x", "note": 1})),
        (
            "note",
            json!({"cu": 1, "reason": "x", "note": number_value(f64::NAN)}),
        ),
        ("image", json!({"cu": 1, "reason": "x", "image": "sh"})),
        ("CU", json!({"CU": 1, "cu": 1, "reason": "x"})),
    ];
    assert!(cases.len() >= 40);
    for (path, value) in cases {
        let refusal = refused(&value);
        assert_eq!(refusal.path, path, "{value}: {refusal}");
        assert!(
            !refusal.rule.is_empty() && !refusal.value.contains('\0'),
            "{refusal}"
        );
    }
    let nan = refused(&json!({"cu": number_value(f64::NAN), "reason": "x"}));
    assert_eq!(
        nan.to_string(),
        "cu: NaN is not a whole number, 0 to 4294967295"
    );
}

#[test]
fn schema_and_stubs_have_every_field() {
    let (schema, stubs) = (schema(), stubs());
    for field in &FIELDS {
        assert!(schema["properties"][field.name].is_object());
        assert!(stubs.contains(&format!("\t{}: ", field.name)));
    }
    assert_eq!(schema["additionalProperties"], false);
}

proptest::proptest! {
    #[test]
    fn answer_survives_its_own_value(
        cu in proptest::option::of(0_u32..),
        reason in "[a-z0-9_]{1,32}",
        votes in proptest::collection::btree_map("[a-z0-9_]{1,32}", -1e9_f64..1e9, 0..8),
        note in proptest::option::of("[ -~]{0,120}"),
    ) {
        let mut value = json!({"reason": reason, "votes": votes});
        match cu {
            Some(units) => value["cu"] = units.into(),
            None => value["hold"] = true.into(),
        }
        if let Some(note) = note {
            value["note"] = note.into();
        }
        let answer = Answer::read(&value).expect("a valid answer");
        proptest::prop_assert_eq!(Answer::read(&answer.to_value()), Ok(answer));
    }
}
