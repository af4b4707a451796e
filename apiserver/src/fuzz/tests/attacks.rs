//! Bodies made to hurt the server, found by the fuzzer or by looking for what it asserts.

use super::super::{api_body, api_query, api_requests};

const ACCOUNTS: &str = "/api/v1/namespaces/default/serviceaccounts";

fn nested(levels: usize) -> String {
    format!("{}1{}", r#"{"a":"#.repeat(levels), "}".repeat(levels))
}

/// An object nested 120 levels is read from JSON. With `managedFields` around a copy of its members
/// it cannot be read back from the file, and the server does not start again.
#[test]
fn object_nested_as_deep_as_json_allows_does_not_damage_the_store() {
    for levels in [90, 100, 110, 120, 125] {
        let body = format!(r#"{{"metadata":{{"name":"a"}},"x":{}}}"#, nested(levels));
        api_requests(format!("POST {ACCOUNTS}\n{body}").as_bytes());
        api_requests(format!("APPLY {ACCOUNTS}/a\n{body}").as_bytes());
    }
}

/// Each operation nests what is there by 100 levels more.
#[test]
fn patch_that_nests_an_object_ever_deeper_is_refused() {
    let value = nested(100);
    let mut path = String::from("/x");
    let mut operations = Vec::new();
    for _ in 0..100 {
        operations.push(format!(r#"{{"op":"add","path":"{path}","value":{value}}}"#));
        path.push_str(&"/a".repeat(100));
    }
    nests_an_account(&operations);
}

/// Moves need no room in the patch.
#[test]
fn patch_that_nests_an_object_by_moves_is_refused() {
    let round = [
        r#"{"op":"add","path":"/x","value":{}}"#,
        r#"{"op":"move","from":"/y","path":"/x/y"}"#,
        r#"{"op":"move","from":"/x","path":"/y"}"#,
    ];
    let mut operations = vec![r#"{"op":"add","path":"/y","value":{}}"#];
    for _ in 0..3300 {
        operations.extend(round);
    }
    nests_an_account(&operations);
}

fn nests_an_account(operations: &[impl AsRef<str>]) {
    let operations: Vec<&str> = operations.iter().map(AsRef::as_ref).collect();
    let patch = format!("[{}]", operations.join(","));
    let make = format!(r#"POST {ACCOUNTS}{}{{"metadata":{{"name":"a"}}}}"#, '\n');
    api_requests(format!("{make}\n==\nJSON {ACCOUNTS}/a\n{patch}").as_bytes());
}

/// Nine anchors, each of nine aliases of the one before: 9^9 texts.
#[test]
fn yaml_that_repeats_itself_by_aliases_is_refused() {
    let mut text = String::from("\u{1}a0: &a0 [x,x,x,x,x,x,x,x,x]\n");
    for level in 1..9 {
        let alias = format!("*a{}", level - 1);
        text.push_str(&format!(
            "a{level}: &a{level} [{}]\n",
            [alias.as_str(); 9].join(",")
        ));
    }
    api_body(text.as_bytes());
}

#[test]
fn field_selector_takes_a_comma_and_a_backslash_of_a_value() {
    api_query(b"\nfieldSelector=metadata.name%3Da%5C\n");
    api_query(b"\nfieldSelector=metadata.name%3Da%5C,b%5C%3Dc%5C%5C\n");
}
