//! Each fault as a client sees it.

use std::time::Duration;

use reqwest::{Client, Response};
use serde_json::{Value, json};
use test_api::{Call, Fault, TestApi};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const POST: &str = "POST /api/v1/namespaces/default/configmaps";

fn client() -> Client {
    let _installed = rustls::crypto::ring::default_provider().install_default();
    Client::new()
}

fn map(name: &str) -> Value {
    let metadata = json!({"name": name, "namespace": "default"});
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata})
}

async fn create(api: &TestApi, name: &str) -> reqwest::Result<Response> {
    let request = client().post(format!("{}{MAPS}", api.url()));
    let request = request.timeout(Duration::from_millis(500));
    request.json(&map(name)).send().await
}

async fn watch(api: &TestApi) -> Response {
    let request = client().get(format!("{}{MAPS}?watch=true", api.url()));
    request.send().await.expect("is answered")
}

/// The next event of a watch: its type and the name of its object. `None` at the end.
async fn next(watch: &mut Response) -> Option<(String, String)> {
    let text = loop {
        let text = watch.chunk().await.expect("is whole")?;
        if !text.is_empty() {
            break text;
        }
    };
    let event: Value = serde_json::from_slice(&text).expect("is one line");
    let part = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    Some((
        part(&event["type"]),
        part(&event["object"]["metadata"]["name"]),
    ))
}

fn event(kind: &str, name: &str) -> Option<(String, String)> {
    Some((kind.to_owned(), name.to_owned()))
}

#[tokio::test]
async fn refused_call_changes_nothing_and_the_next_is_carried_out() {
    let api = TestApi::start().await;
    api.order(POST, 1, Fault::Refuse(429));
    let statuses = [create(&api, "a").await, create(&api, "a").await];
    let statuses = statuses.map(|answer| answer.expect("is answered").status().as_u16());
    assert_eq!(statuses, [429, 201]);
    assert_eq!(api.count(POST, |_| true), 2);
    assert_eq!(api.count(POST, Call::is_done), 1);
}

#[tokio::test]
async fn lost_call_is_carried_out_and_swallowed_call_is_not() {
    let api = TestApi::start().await;
    api.order(POST, 1, Fault::Lose);
    api.order(POST, 1, Fault::Swallow);
    for name in ["lost", "swallowed"] {
        create(&api, name).await.expect_err("is never answered");
    }
    assert!(api.get("configmaps", "default", "lost").is_some());
    assert!(api.get("configmaps", "default", "swallowed").is_none());
}

#[tokio::test]
async fn held_call_is_carried_out_later_although_its_caller_has_gone() {
    let api = TestApi::start().await;
    api.always(POST, Fault::Hold);
    create(&api, "a")
        .await
        .expect_err("is not answered in time");
    assert!(api.get("configmaps", "default", "a").is_none());
    api.take_back(POST);
    api.wait("the object", |api| api.get("configmaps", "default", "a"))
        .await;
}

#[tokio::test]
async fn expired_watch_ends_before_a_change_that_it_has_not_told() {
    let api = TestApi::start().await;
    let mut changes = watch(&api).await;
    api.put("configmaps", map("a"));
    assert_eq!(next(&mut changes).await, event("ADDED", "a"));
    api.put("configmaps", map("b"));
    api.expire_watches();
    assert_eq!(next(&mut changes).await, event("ERROR", ""));
    assert_eq!(next(&mut changes).await, None);
}

#[tokio::test]
async fn muted_watch_tells_only_what_the_test_says() {
    let api = TestApi::start().await;
    let line = format!("WATCH {MAPS}");
    let mut changes = watch(&api).await;
    api.always(&line, Fault::Mute);
    assert_eq!(create(&api, "a").await.expect("is answered").status(), 201);
    api.tell(&line, &map("b"));
    assert_eq!(next(&mut changes).await, event("MODIFIED", "b"));
    api.set_down(true);
    assert_eq!(next(&mut changes).await, None);
}
