//! Bodies made to end the server or to damage what it keeps.

mod support;

use serde_json::{Value, json};
use support::Running;

const ACCOUNTS: &str = "/api/v1/namespaces/default/serviceaccounts";

fn nested(levels: usize) -> Value {
    let text = format!("{}1{}", r#"{"a":"#.repeat(levels), "}".repeat(levels));
    serde_json::from_str(&text).expect("JSON")
}

fn account(levels: usize) -> Value {
    json!({"metadata": {"name": format!("a{levels}")}, "x": nested(levels)})
}

/// Before, an object of 120 levels was stored with `managedFields` of more than a JSON reader
/// takes: the store was damaged, and the server did not start again.
#[tokio::test]
async fn object_nested_as_deep_as_json_allows_leaves_a_store_that_can_be_read() {
    let server = Running::start();
    for (levels, code) in [(90, 201), (120, 422), (125, 422)] {
        let (answered, status) = server.post(ACCOUNTS, &account(levels)).await;
        assert_eq!(answered, code, "{levels}: {status}");
    }
    let server = Running::start_in(server.stop());
    let (_, list) = server.get(ACCOUNTS).await;
    assert_eq!(list["items"].as_array().map(Vec::len), Some(1), "{list}");
}

/// Before, each operation nested the object by 100 levels more, until the server ended for want of
/// stack.
#[tokio::test]
async fn patch_that_nests_an_object_ever_deeper_is_refused() {
    let server = Running::start();
    server.post(ACCOUNTS, &account(1)).await;
    let (mut path, mut operations) = ("/x".to_owned(), Vec::new());
    for _ in 0..100 {
        operations.push(json!({"op": "add", "path": path, "value": nested(100)}));
        path.push_str(&"/a".repeat(100));
    }
    let path = format!("{ACCOUNTS}/a1");
    let patch = Value::from(operations).to_string();
    let asked = server.ask("PATCH", &path, "application/json-patch+json", &patch);
    let (code, status) = asked.await;
    assert_eq!(code, 400, "{status}");
    assert_eq!(server.get(&path).await.0, 200);
}
