use super::*;
use proptest::prelude::*;
use serde_json::json;

fn set(count: u32, member_units: u32, priority: i32) -> SetFacts {
    SetFacts {
        count,
        member_units,
        priority,
        versions: [2, 3].into(),
        commands: ["drain".to_owned()].into(),
    }
}

fn facts() -> BTreeMap<String, SetFacts> {
    [
        ("batch".to_owned(), set(3, 1, -1)),
        ("web".to_owned(), set(2, 1, 0)),
    ]
    .into()
}

fn counts(capacity: u64, answer: &Value) -> BTreeMap<String, u32> {
    let answer = SetAnswer::read(answer, &facts()).expect("a valid answer");
    answer.counts(capacity, &facts())
}

fn counted(web: u32, batch: u32) -> BTreeMap<String, u32> {
    [("batch".to_owned(), batch), ("web".to_owned(), web)].into()
}

/// Requirement: V11
#[test]
fn v11_set_has_its_count_or_its_share_on_each_capacity() {
    for (capacity, ten, seven_percent) in [(50, 10, 4), (100, 10, 7), (1_000, 10, 70)] {
        let count = counts(capacity, &json!({"sets": {"web": {"count": 10}}}));
        assert_eq!(count, [("web".to_owned(), ten)].into(), "{capacity}");
        let share = counts(capacity, &json!({"sets": {"web": {"share": "7%"}}}));
        assert_eq!(
            share,
            [("web".to_owned(), seven_percent)].into(),
            "{capacity}"
        );
    }
}

/// Requirement: V12
#[test]
fn v12_set_that_is_not_named_keeps_its_count() {
    for answer in [
        json!({}),
        json!({"sets": []}),
        json!({"kv": {"web": {"a": "1"}}}),
    ] {
        assert_eq!(counts(100, &answer), BTreeMap::new(), "{answer}");
    }
    // The three members of batch stay, so web gets what is beside them.
    let count = counts(10, &json!({"sets": {"web": {"count": 10}}}));
    assert_eq!(count, [("web".to_owned(), 7)].into());
}

/// Requirement: V14
#[test]
fn v14_rest_goes_to_the_background_and_gives_way() {
    let answer = |count: u32| json!({"sets": {"web": {"count": count}, "batch": {"rest": true}}});
    for (web, expected) in [(2, counted(2, 8)), (9, counted(9, 1)), (12, counted(10, 0))] {
        assert_eq!(counts(10, &answer(web)), expected, "{web}");
    }
    let short = json!({"sets": {"web": {"count": 8}, "batch": {"count": 8}}});
    assert_eq!(counts(10, &short), counted(8, 2));
}

/// Requirement: V33
#[test]
fn v33_version_and_command_must_be_in_the_sets_lists() {
    let read = |change: Value| SetAnswer::read(&json!({"sets": {"web": change}}), &facts());
    let listed = read(json!({"count": 2, "version": 3, "command": "drain"}));
    let listed = listed.expect("both are listed");
    assert_eq!(listed.sets["web"].version, Some(3));
    assert_eq!(listed.sets["web"].command.as_deref(), Some("drain"));
    let refused = read(json!({"count": 2, "version": 4})).expect_err("not listed");
    assert_eq!(
        refused.to_string(),
        "sets.web.version: 4 is not one of the set's versions"
    );
    let refused = read(json!({"count": 2, "command": "rm"})).expect_err("not listed");
    assert_eq!(
        refused.to_string(),
        "sets.web.command: \"rm\" is not one of the set's commands"
    );
}

/// Changes of the set `web` that no rule allows.
fn forbidden_changes() -> Vec<Value> {
    vec![
        json!(1),
        json!("10"),
        json!({}),
        json!({"version": 2}),
        json!({"count": -1}),
        json!({"count": 2.5}),
        json!({"count": "2"}),
        json!({"count": 1_001}),
        json!({"count": null}),
        crate::number_value(f64::NAN),
        json!({"count": crate::number_value(f64::INFINITY)}),
        json!({"count": 1, "rest": true}),
        json!({"count": 1, "share": "7%"}),
        json!({"rest": false}),
        json!({"rest": "true"}),
        json!({"share": 7}),
        json!({"share": "7"}),
        json!({"share": "%"}),
        json!({"share": "-7%"}),
        json!({"share": "+7%"}),
        json!({"share": "101%"}),
        json!({"share": "100.001%"}),
        json!({"share": "7.0001%"}),
        json!({"share": "7.%"}),
        json!({"share": "1e1%"}),
        json!({"count": 1, "version": 1}),
        json!({"count": 1, "version": "2"}),
        json!({"count": 1, "version": 2.5}),
        json!({"count": 1, "command": "drain --all"}),
        json!({"count": 1, "command": ["drain"]}),
        json!({"count": 1, "image": "other"}),
        json!({"count": 1, "user": "root"}),
        json!({"count": 1, "path": "/etc"}),
    ]
}

/// Requirement: V33
#[test]
fn v33_forbidden_answers_of_sets_are_refused_whole() {
    let changes = forbidden_changes();
    let changes = changes
        .into_iter()
        .map(|change| json!({"sets": {"batch": {"count": 1}, "web": change}}));
    let long = "x".repeat(121);
    let many: BTreeMap<String, String> =
        (0..65).map(|n| (format!("k{n}"), String::new())).collect();
    let others = [
        json!(null),
        json!("web"),
        json!([1]),
        json!({"cu": 2}),
        json!({"sets": 1}),
        json!({"sets": {"other": {"count": 1}}}),
        json!({"kv": {"other": {"a": "1"}}}),
        json!({"kv": {"web": {"a": 1}}}),
        json!({"kv": {"web": {"A-B": "1"}}}),
        json!({"kv": {"web": {"a": long}}}),
        json!({"kv": {"web": {"a": "line\nbreak"}}}),
        json!({"kv": {"web": many}}),
        json!({"nodes": 5}),
        json!({"nodes": {"want": 5}}),
        json!({"nodes": {"want": 5.5, "why": "load"}}),
        json!({"nodes": {"want": 5_001, "why": "load"}}),
        json!({"nodes": {"want": 5, "why": "Because!"}}),
        json!({"nodes": {"want": 5, "why": "load", "url": "http://x"}}),
    ];
    let all: Vec<Value> = changes.chain(others).collect();
    assert!(all.len() >= 40, "{}", all.len());
    for answer in all {
        let refused = SetAnswer::read(&answer, &facts());
        let refused = refused.expect_err(&format!("{answer} is forbidden"));
        assert!(!refused.path.is_empty() && !refused.rule.is_empty());
    }
}

/// Adds a member to each table of an answer but those by names of sets and of values. Returns the
/// answers with one addition each.
fn with_member(answer: &Value, name: &str) -> Vec<Value> {
    ["", "/sets/web", "/nodes"]
        .iter()
        .map(|table| {
            let mut other = answer.clone();
            let table = other.pointer_mut(table).expect("a table");
            table[name] = json!("x");
            other
        })
        .collect()
}

/// Requirement: V34
#[test]
fn v34_no_member_of_an_answer_names_a_user_a_folder_a_program_or_an_address() {
    let full = json!({
        "sets": {"web": {"count": 2, "version": 3, "command": "drain"}},
        "kv": {"web": {"mode": "fast"}},
        "nodes": {"want": 5, "why": "load"},
    });
    let read = SetAnswer::read(&full, &facts()).expect("a valid answer");
    assert_eq!(read.to_value(), full, "it has every member that there is");
    let vm = json!({"cu": 1, "reason": "x", "votes": {"cpu": 1.0}, "note": "n"});
    crate::Answer::read(&vm).expect("a valid answer");
    for name in [
        "user",
        "uid",
        "group",
        "folder",
        "dir",
        "path",
        "file",
        "argv",
        "args",
        "program",
        "image",
        "env",
        "url",
        "host",
        "port",
        "address",
        "secret",
        "namespace",
        "node",
        "name",
    ] {
        for other in with_member(&full, name) {
            let refused = SetAnswer::read(&other, &facts()).expect_err(name);
            assert!(refused.path.ends_with(name), "{refused}");
        }
        let mut other = vm.clone();
        other[name] = json!("x");
        let refused = crate::Answer::read(&other).expect_err(name);
        assert!(refused.path.ends_with(name), "{refused}");
    }
    // A command is a name of the set's list, which members read. It is run by nobody here.
    let other = json!({"sets": {"web": {"count": 2, "command": "/bin/sh"}}});
    assert!(SetAnswer::read(&other, &facts()).is_err());
}

/// Requirement: V39
#[test]
fn v39_wish_for_nodes_is_read_with_its_reason() {
    let answer = json!({"nodes": {"want": 5, "why": "queue_grows"}});
    let answer = SetAnswer::read(&answer, &facts()).expect("a valid answer");
    let wish = answer.nodes.expect("a wish");
    assert_eq!((wish.want, wish.why.as_str()), (5, "queue_grows"));
}

fn wants() -> impl Strategy<Value = Value> {
    prop_oneof![
        (0_u32..=MAX_REPLICAS).prop_map(|count| json!({"count": count})),
        (0_u32..=100).prop_map(|part| json!({"share": format!("{part}%")})),
        Just(json!({"rest": true})),
    ]
}

proptest! {
    /// Requirement: V14
    #[test]
    fn v14_counts_are_never_over_the_capacity(
        capacity in 0_u64..3_000,
        sets in proptest::collection::vec((0_u32..20, 0_u32..9, -2_i32..3, wants()), 1..7),
    ) {
        let name = |n: usize| format!("s{n}");
        let facts: BTreeMap<_, _> = sets.iter().enumerate()
            .map(|(n, (count, size, priority, _))| (name(n), set(*count, *size, *priority)))
            .collect();
        let wants: Map<String, Value> = sets.iter().enumerate()
            .map(|(n, (_, _, _, want))| (name(n), want.clone()))
            .collect();
        let answer = SetAnswer::read(&json!({"sets": wants}), &facts).expect("valid");
        let counts = answer.counts(capacity, &facts);
        let sum: u64 = counts.iter()
            .map(|(name, count)| u64::from(*count) * units(&facts[name]))
            .sum();
        prop_assert!(sum <= capacity, "{sum} of {capacity}");
        prop_assert_eq!(counts.len(), facts.len());
        for (name, change) in &answer.sets {
            if let SetWant::Count(count) = change.want {
                prop_assert!(counts[name] <= count);
            }
        }
    }
}

/// Requirement: V11
#[test]
fn v11_share_is_written_as_it_was_read() {
    for text in ["0%", "7%", "12.5%", "0.001%", "99.999%", "100%"] {
        let answer = json!({"sets": {"web": {"share": text}}, "kv": {}});
        let read = SetAnswer::read(&answer, &facts()).expect("a valid answer");
        assert_eq!(read.to_value(), answer);
    }
    assert_eq!(share_of("7%", 50), Some(4));
    assert_eq!(share_of("7 %", 50), None);
}
