//! Watches as client libraries see them: where they start, what they say, how they end.

mod support;

use serde_json::{Value, json};
use support::{DEADLINE, Running, VMS, vm};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

fn map(name: &str) -> Value {
    json!({"metadata": {"name": name, "labels": {"l": name}}, "data": {"k": name}})
}

/// A running watch.
struct Watch {
    response: reqwest::Response,
    rest: String,
}

impl Watch {
    async fn start(server: &Running, path: &str, accept: &str) -> Self {
        let request = server
            .anonymous()
            .get(format!("{}{path}", server.base))
            .bearer_auth(&server.token);
        let response = request
            .header("accept", accept)
            .send()
            .await
            .expect("an answer");
        assert_eq!(response.status(), 200);
        Self {
            response,
            rest: String::new(),
        }
    }

    /// The next event; `None` at the end.
    async fn next(&mut self) -> Option<Value> {
        loop {
            if let Some((line, rest)) = self.rest.split_once('\n') {
                let event = serde_json::from_str(line).expect("JSON lines");
                self.rest = rest.to_owned();
                return Some(event);
            }
            let chunk = tokio::time::timeout(DEADLINE, self.response.chunk())
                .await
                .expect("an event in time");
            let chunk = chunk.expect("readable")?;
            self.rest
                .push_str(std::str::from_utf8(&chunk).expect("UTF-8"));
        }
    }

    /// Type and name of the next event.
    async fn seen(&mut self) -> (String, String) {
        let event = self.next().await.expect("an event");
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        (
            text(&event["type"]),
            text(&event["object"]["metadata"]["name"]),
        )
    }
}

fn pair(event: &str, name: &str) -> (String, String) {
    (event.to_owned(), name.to_owned())
}

async fn revision(server: &Running) -> String {
    let (_, list) = server.get(MAPS).await;
    list["metadata"]["resourceVersion"]
        .as_str()
        .expect("a revision")
        .to_owned()
}

#[tokio::test]
async fn a_watch_goes_on_where_the_list_ended() {
    let server = Running::start();
    server.post(MAPS, &map("before")).await;
    let since = revision(&server).await;
    server.post(MAPS, &map("between")).await;
    let mut watch = Watch::start(
        &server,
        &format!("{MAPS}?watch=true&resourceVersion={since}"),
        "application/json",
    )
    .await;
    assert_eq!(watch.seen().await, pair("ADDED", "between"));
    server
        .merge(&format!("{MAPS}/before"), &json!({"data": {"x": "y"}}))
        .await;
    assert_eq!(watch.seen().await, pair("MODIFIED", "before"));
    server.delete(&format!("{MAPS}/before")).await;
    let event = watch.next().await.expect("an event");
    assert_eq!(
        (&event["type"], &event["object"]["data"]["x"]),
        (&json!("DELETED"), &json!("y"))
    );
    let version = |value: &Value| {
        value["object"]["metadata"]["resourceVersion"]
            .as_str()
            .and_then(|text| text.parse::<u64>().ok())
    };
    assert!(
        version(&event) > since.parse().ok(),
        "a removal has a revision of its own"
    );
}

#[tokio::test]
async fn a_watch_without_a_revision_starts_with_what_there_is() {
    let server = Running::start();
    server.post(MAPS, &map("a")).await;
    let mut watch = Watch::start(
        &server,
        &format!("{MAPS}?watch=1&timeoutSeconds=1"),
        "application/json",
    )
    .await;
    assert_eq!(watch.seen().await, pair("ADDED", "a"));
    assert_eq!(watch.next().await, None, "it ends after its timeout");
}

#[tokio::test]
async fn a_watch_follows_objects_in_and_out_of_its_selector() {
    let server = Running::start();
    let since = revision(&server).await;
    let path = format!("{MAPS}?watch=true&labelSelector=l%3Da&resourceVersion={since}");
    let mut watch = Watch::start(&server, &path, "application/json").await;
    server.post(MAPS, &map("b")).await;
    server.post(MAPS, &map("a")).await;
    assert_eq!(watch.seen().await, pair("ADDED", "a"));
    server
        .merge(
            &format!("{MAPS}/b"),
            &json!({"metadata": {"labels": {"l": "a"}}}),
        )
        .await;
    assert_eq!(watch.seen().await, pair("ADDED", "b"));
    server
        .merge(
            &format!("{MAPS}/a"),
            &json!({"metadata": {"labels": {"l": "z"}}}),
        )
        .await;
    let event = watch.next().await.expect("an event");
    assert_eq!(
        (&event["type"], &event["object"]["metadata"]["labels"]["l"]),
        (&json!("DELETED"), &json!("a"))
    );
    server.delete(&format!("{MAPS}/a")).await;
    server.delete(&format!("{MAPS}/b")).await;
    assert_eq!(watch.seen().await, pair("DELETED", "b"));
}

#[tokio::test]
async fn a_streaming_list_ends_with_a_bookmark() {
    let server = Running::start();
    server.post(MAPS, &map("a")).await;
    let path = format!(
        "{MAPS}?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
    );
    let mut watch = Watch::start(&server, &path, "application/json").await;
    assert_eq!(watch.seen().await, pair("ADDED", "a"));
    let event = watch.next().await.expect("an event");
    assert_eq!(event["type"], "BOOKMARK");
    assert_eq!(
        event["object"]["metadata"]["annotations"]["k8s.io/initial-events-end"],
        "true"
    );
    assert_eq!(
        server
            .get(&format!("{MAPS}?watch=1&sendInitialEvents=true"))
            .await
            .0,
        422
    );
}

#[tokio::test]
async fn a_watch_of_a_table_sends_the_columns_once() {
    let server = Running::start();
    server.post(VMS, &vm("a")).await;
    server.post(VMS, &vm("b")).await;
    let accept = "application/json;as=Table;g=meta.k8s.io;v=v1";
    let mut watch = Watch::start(&server, &format!("{VMS}?watch=1"), accept).await;
    let first = watch.next().await.expect("an event");
    assert_eq!(
        (
            &first["object"]["rows"][0]["cells"][0],
            first["object"]["columnDefinitions"].is_array()
        ),
        (&json!("a"), true)
    );
    let second = watch.next().await.expect("an event");
    assert_eq!(
        (
            &second["object"]["rows"][0]["cells"][0],
            second["object"]["columnDefinitions"].is_null()
        ),
        (&json!("b"), true)
    );
}

#[tokio::test]
async fn a_watch_from_a_lost_revision_is_gone_and_from_the_future_refused() {
    let server = Running::start();
    server.post(MAPS, &map("a")).await;
    let state = server.stop();
    let server = Running::start_in(state);
    let mut watch = Watch::start(
        &server,
        &format!("{MAPS}?watch=1&resourceVersion=1"),
        "application/json",
    )
    .await;
    let event = watch.next().await.expect("an event");
    assert_eq!(
        (
            &event["type"],
            &event["object"]["code"],
            &event["object"]["reason"]
        ),
        (&json!("ERROR"), &json!(410), &json!("Expired"))
    );
    assert_eq!(watch.next().await, None);
    let (code, status) = server
        .get(&format!("{MAPS}?watch=1&resourceVersion=999999"))
        .await;
    assert_eq!(
        (code, &status["details"]["causes"][0]["reason"]),
        (504, &json!("ResourceVersionTooLarge"))
    );
    let now = revision(&server).await;
    let mut watch = Watch::start(
        &server,
        &format!("{MAPS}?watch=1&resourceVersion={now}"),
        "application/json",
    )
    .await;
    server.post(MAPS, &map("b")).await;
    assert_eq!(
        watch.seen().await,
        pair("ADDED", "b"),
        "the revision of before the restart is still good"
    );
}

#[tokio::test]
async fn a_watcher_that_does_not_read_is_dropped_and_others_go_on() {
    let server = Running::start();
    let since = revision(&server).await;
    let path = format!("{MAPS}?watch=1&resourceVersion={since}");
    let _stuck = Watch::start(&server, &path, "application/json").await;
    let mut reading = Watch::start(&server, &path, "application/json").await;
    // More than the socket buffers and the watcher's queue hold.
    let big = "x".repeat(200_000);
    let mut last = String::new();
    let body = |number: usize| json!({"data": {"big": big, "n": number.to_string()}});
    server.post(MAPS, &map("a")).await;
    for number in 0..150 {
        server.merge(&format!("{MAPS}/a"), &body(number)).await;
        let event = reading.next().await.expect("an event");
        last = event["object"]["data"]["n"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
    }
    let event = reading.next().await.expect("an event");
    assert!(
        !last.is_empty() && event["object"]["data"]["n"] == "149",
        "{last}"
    );
}
