//! The REST API as client libraries see it: codes, `Status` objects, tables, pages, watches.

mod support;

use std::time::Duration;

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
        let request = server.anonymous().get(format!("{}{path}", server.base)).bearer_auth(&server.token);
        let response = request.header("accept", accept).send().await.expect("an answer");
        assert_eq!(response.status(), 200);
        Self { response, rest: String::new() }
    }

    /// The next event; `None` at the end.
    async fn next(&mut self) -> Option<Value> {
        loop {
            if let Some((line, rest)) = self.rest.split_once('\n') {
                let event = serde_json::from_str(line).expect("JSON lines");
                self.rest = rest.to_owned();
                return Some(event);
            }
            let chunk = tokio::time::timeout(DEADLINE, self.response.chunk()).await.expect("an event in time");
            let chunk = chunk.expect("readable")?;
            self.rest.push_str(std::str::from_utf8(&chunk).expect("UTF-8"));
        }
    }

    /// Type and name of the next event.
    async fn seen(&mut self) -> (String, String) {
        let event = self.next().await.expect("an event");
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        (text(&event["type"]), text(&event["object"]["metadata"]["name"]))
    }
}

fn pair(event: &str, name: &str) -> (String, String) {
    (event.to_owned(), name.to_owned())
}

async fn revision(server: &Running) -> String {
    let (_, list) = server.get(MAPS).await;
    list["metadata"]["resourceVersion"].as_str().expect("a revision").to_owned()
}

#[tokio::test]
async fn without_the_token_nothing_is_told() {
    let server = Running::start();
    let client = server.anonymous();
    for path in ["/api/v1/namespaces", "/apis", "/version", "/openapi/v3", "/nothing"] {
        for token in [None, Some("wrong"), Some("")] {
            let mut request = client.get(format!("{}{path}", server.base));
            if let Some(token) = token {
                request = request.bearer_auth(token);
            }
            let answer = request.send().await.expect("an answer");
            assert_eq!(answer.status(), 401, "{path}");
            let status: Value = answer.json().await.expect("JSON");
            assert_eq!((&status["kind"], &status["reason"], &status["code"]), (&json!("Status"), &json!("Unauthorized"), &json!(401)));
        }
    }
    let health = client.get(format!("{}/readyz", server.base)).send().await.expect("an answer");
    assert_eq!(health.status(), 200);
}

#[tokio::test]
async fn refusals_are_status_objects_with_the_right_code() {
    let server = Running::start();
    server.post(VMS, &vm("pg")).await;
    let pg = format!("{VMS}/pg");
    let json_type = "application/json";
    for (method, path, content, body, code, reason) in [
        ("GET", "/apis/vm.neon.tech/v1/namespaces/default/virtualmachines/none", "", "", 404, "NotFound"),
        ("GET", "/apis/vm.neon.tech/v1/namespaces/default/machines", "", "", 404, "NotFound"),
        ("GET", "/apis/vm.neon.tech/v2/namespaces/default/virtualmachines", "", "", 404, "NotFound"),
        ("GET", "/apis/nobody.org/v1/things", "", "", 404, "NotFound"),
        ("GET", "/api/v1/namespaces/default/nodes", "", "", 404, "NotFound"),
        ("POST", VMS, json_type, &vm("pg").to_string(), 409, "AlreadyExists"),
        ("POST", VMS, json_type, "{", 400, "BadRequest"),
        ("POST", VMS, json_type, "[]", 400, "BadRequest"),
        ("POST", VMS, "application/vnd.kubernetes.protobuf", "k8s", 400, "BadRequest"),
        ("POST", VMS, "application/vnd.kubernetes.protobuf", "k8s\0\x0a\x09\x0a\x02v1\x12\x03Pod", 415, "UnsupportedMediaType"),
        ("POST", VMS, "application/cbor", "x", 415, "UnsupportedMediaType"),
        ("POST", VMS, "text/plain", "x", 415, "UnsupportedMediaType"),
        ("POST", "/api/v1/namespaces/nowhere/configmaps", json_type, &map("a").to_string(), 404, "NotFound"),
        ("POST", "/api/v1/configmaps", json_type, &map("a").to_string(), 405, "MethodNotAllowed"),
        ("PATCH", &pg, "application/strategic-merge-patch+json", "{}", 415, "UnsupportedMediaType"),
        ("PATCH", &pg, json_type, "{}", 415, "UnsupportedMediaType"),
        ("PATCH", &pg, "application/merge-patch+json", "{\"metadata\":{\"resourceVersion\":\"1\"}}", 409, "Conflict"),
        ("PATCH", &pg, "application/json-patch+json", "{}", 400, "BadRequest"),
        ("PATCH", &pg, "application/json-patch+json", "[{\"op\":\"remove\",\"path\":\"/spec/none\"}]", 422, "Invalid"),
        ("PATCH", &pg, "application/json-patch+json", "[{\"op\":\"test\",\"path\":\"/spec/qmp\",\"value\":1}]", 422, "Invalid"),
        ("PATCH", &pg, "application/merge-patch+json", "{\"spec\":{\"qmp\":0}}", 422, "Invalid"),
        ("PUT", &pg, json_type, &vm("pg").to_string(), 422, "Invalid"),
        ("PUT", &format!("{VMS}/none"), json_type, &vm("none").to_string(), 404, "NotFound"),
        ("DELETE", &format!("{VMS}/none"), "", "", 404, "NotFound"),
        ("GET", &format!("{VMS}?labelSelector=a%3Db%3Dc"), "", "", 400, "BadRequest"),
        ("GET", &format!("{VMS}?fieldSelector=spec.qmp%3D1"), "", "", 400, "BadRequest"),
        ("GET", &format!("{VMS}?continue=junk"), "", "", 400, "BadRequest"),
        ("GET", &format!("{VMS}?limit=many"), "", "", 400, "BadRequest"),
        ("GET", &format!("{VMS}?resourceVersion=99999999"), "", "", 504, "Timeout"),
        ("POST", &format!("{VMS}?dryRun=Some"), json_type, &vm("x").to_string(), 400, "BadRequest"),
    ] {
        let (found, status) = server.ask(method, path, content, body).await;
        assert_eq!((found, &status["reason"]), (code, &json!(reason)), "{method} {path} {content} {body}: {status}");
        assert_eq!((&status["kind"], &status["status"], &status["code"]), (&json!("Status"), &json!("Failure"), &json!(code)));
        assert!(status["message"].as_str().is_some_and(|text| !text.is_empty()));
    }
    let (code, _) = server.ask_as("GET", VMS, "", "", "application/vnd.kubernetes.protobuf").await;
    assert_eq!(code, 406);
    let huge = format!("{{\"data\":{{\"k\":\"{}\"}}}}", "x".repeat(4 << 20));
    assert_eq!(server.ask("POST", MAPS, json_type, &huge).await.0, 413);
}

#[tokio::test]
async fn invalid_objects_name_every_field() {
    let server = Running::start();
    let mut body = vm("pg");
    body["spec"]["guest"]["cpus"]["use"] = json!(7);
    body["spec"]["guest"]["memorySlots"]["use"] = json!(9);
    let (code, status) = server.post(VMS, &body).await;
    let causes = status["details"]["causes"].as_array().expect("causes");
    let fields: Vec<&str> = causes.iter().filter_map(|cause| cause["field"].as_str()).collect();
    assert_eq!((code, fields), (422, vec!["spec.guest.cpus.use", "spec.guest.memorySlots.use"]));
}

#[tokio::test]
async fn yaml_is_read_and_written() {
    let server = Running::start();
    let (code, made) = server.ask("POST", VMS, "application/yaml", support::VM_YAML).await;
    assert_eq!((code, &made["spec"]["guest"]["cpus"]["min"]), (201, &json!("250m")));
    let (_, text) = server.ask_as("GET", &format!("{VMS}/pg"), "", "", "application/yaml").await;
    assert!(text.contains("kind: VirtualMachine") && text.contains("250m"), "{text}");
}

#[tokio::test]
async fn unknown_members_are_warned_about() {
    let server = Running::start();
    let mut body = vm("pg");
    body["spec"]["colour"] = json!("red");
    let request = server.anonymous().post(format!("{}{VMS}", server.base)).bearer_auth(&server.token);
    let answer = request.json(&body).send().await.expect("an answer");
    let warning = answer.headers().get("warning").expect("a warning").to_str().expect("text").to_owned();
    assert_eq!(warning, "299 - \"unknown field \\\"spec.colour\\\"\"");
    let (code, status) = server.post(&format!("{VMS}?fieldValidation=Strict"), &body).await;
    assert_eq!(code, 400);
    assert!(status["message"].as_str().is_some_and(|text| text.contains("strict decoding error")), "{status}");
}

#[tokio::test]
async fn lists_come_in_pages() {
    let server = Running::start();
    for number in 0..7 {
        server.post(MAPS, &map(&format!("m{number}"))).await;
    }
    let (mut names, mut token, mut pages) = (Vec::new(), String::new(), 0);
    let mut first_revision = Value::Null;
    loop {
        let (_, page) = server.get(&format!("{MAPS}?limit=3&continue={token}")).await;
        if pages == 0 {
            first_revision = page["metadata"]["resourceVersion"].clone();
            assert_eq!(page["metadata"]["remainingItemCount"], 4);
            // A change between pages does not disturb the walk.
            server.delete(&format!("{MAPS}/m0")).await;
        }
        assert_eq!(page["metadata"]["resourceVersion"], first_revision);
        pages += 1;
        let items = page["items"].as_array().expect("items");
        names.extend(items.iter().filter_map(|item| item["metadata"]["name"].as_str().map(str::to_owned)));
        match page["metadata"]["continue"].as_str() {
            Some(next) => token = next.to_owned(),
            None => break,
        }
    }
    assert_eq!((pages, names.join(" ")), (3, "m0 m1 m2 m3 m4 m5 m6".to_owned()));
}

#[tokio::test]
async fn lists_are_selected() {
    let server = Running::start();
    for name in ["a", "b", "c"] {
        server.post(MAPS, &map(name)).await;
    }
    for (query, expected) in [
        ("labelSelector=l%20in%20(a,b)", "a b"),
        ("labelSelector=l!%3Da", "b c"),
        ("labelSelector=!l", ""),
        ("fieldSelector=metadata.name%3Db", "b"),
        ("fieldSelector=metadata.name!%3Db,metadata.namespace%3Ddefault", "a c"),
    ] {
        let (_, list) = server.get(&format!("/api/v1/configmaps?{query}")).await;
        let items = list["items"].as_array().expect("items");
        let names: Vec<&str> = items.iter().filter_map(|item| item["metadata"]["name"].as_str()).collect();
        assert_eq!(names.join(" "), expected, "{query}");
    }
}

#[tokio::test]
async fn tables_carry_columns_rows_and_metadata() {
    let server = Running::start();
    server.post(VMS, &vm("pg")).await;
    let accept = "application/json;as=Table;g=meta.k8s.io;v=v1";
    let (_, text) = server.ask_as("GET", VMS, "", "", accept).await;
    let table: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!((&table["kind"], &table["apiVersion"]), (&json!("Table"), &json!("meta.k8s.io/v1")));
    let columns = table["columnDefinitions"].as_array().expect("columns");
    let names: Vec<&str> = columns.iter().filter_map(|column| column["name"].as_str()).collect();
    assert_eq!(names, ["Name", "Cpus", "Memory", "Pod", "ExtraIP", "Status", "Restarts", "Age", "Node", "Image", "CPUScalingMode", "TargetArchitecture"]);
    assert_eq!((&columns[7]["type"], &columns[8]["priority"], &columns[0]["format"]), (&json!("date"), &json!(1), &json!("name")));
    let row = &table["rows"][0];
    assert_eq!((&row["cells"][0], &row["cells"][9], &row["cells"][1]), (&json!("pg"), &json!("pg:16"), &Value::Null));
    assert_eq!((&row["object"]["kind"], &row["object"]["metadata"]["name"]), (&json!("PartialObjectMetadata"), &json!("pg")));
    let (_, text) = server.ask_as("GET", &format!("{VMS}/pg?includeObject=Object"), "", "", accept).await;
    let table: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(table["rows"][0]["object"]["spec"]["qmp"], 20183);
    let (_, text) = server.ask_as("GET", VMS, "", "", "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1").await;
    let list: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!((&list["kind"], list["items"][0].get("spec")), (&json!("PartialObjectMetadataList"), None));
}

#[tokio::test]
async fn a_watch_goes_on_where_the_list_ended() {
    let server = Running::start();
    server.post(MAPS, &map("before")).await;
    let since = revision(&server).await;
    server.post(MAPS, &map("between")).await;
    let mut watch = Watch::start(&server, &format!("{MAPS}?watch=true&resourceVersion={since}"), "application/json").await;
    assert_eq!(watch.seen().await, pair("ADDED", "between"));
    server.merge(&format!("{MAPS}/before"), &json!({"data": {"x": "y"}})).await;
    assert_eq!(watch.seen().await, pair("MODIFIED", "before"));
    server.delete(&format!("{MAPS}/before")).await;
    let event = watch.next().await.expect("an event");
    assert_eq!((&event["type"], &event["object"]["data"]["x"]), (&json!("DELETED"), &json!("y")));
    let version = |value: &Value| value["object"]["metadata"]["resourceVersion"].as_str().and_then(|text| text.parse::<u64>().ok());
    assert!(version(&event) > since.parse().ok(), "a removal has a revision of its own");
}

#[tokio::test]
async fn a_watch_without_a_revision_starts_with_what_there_is() {
    let server = Running::start();
    server.post(MAPS, &map("a")).await;
    let mut watch = Watch::start(&server, &format!("{MAPS}?watch=1&timeoutSeconds=1"), "application/json").await;
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
    server.merge(&format!("{MAPS}/b"), &json!({"metadata": {"labels": {"l": "a"}}})).await;
    assert_eq!(watch.seen().await, pair("ADDED", "b"));
    server.merge(&format!("{MAPS}/a"), &json!({"metadata": {"labels": {"l": "z"}}})).await;
    let event = watch.next().await.expect("an event");
    assert_eq!((&event["type"], &event["object"]["metadata"]["labels"]["l"]), (&json!("DELETED"), &json!("a")));
    server.delete(&format!("{MAPS}/a")).await;
    server.delete(&format!("{MAPS}/b")).await;
    assert_eq!(watch.seen().await, pair("DELETED", "b"));
}

#[tokio::test]
async fn a_streaming_list_ends_with_a_bookmark() {
    let server = Running::start();
    server.post(MAPS, &map("a")).await;
    let path = format!("{MAPS}?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true");
    let mut watch = Watch::start(&server, &path, "application/json").await;
    assert_eq!(watch.seen().await, pair("ADDED", "a"));
    let event = watch.next().await.expect("an event");
    assert_eq!(event["type"], "BOOKMARK");
    assert_eq!(event["object"]["metadata"]["annotations"]["k8s.io/initial-events-end"], "true");
    assert_eq!(server.get(&format!("{MAPS}?watch=1&sendInitialEvents=true")).await.0, 422);
}

#[tokio::test]
async fn a_watch_of_a_table_sends_the_columns_once() {
    let server = Running::start();
    server.post(VMS, &vm("a")).await;
    server.post(VMS, &vm("b")).await;
    let accept = "application/json;as=Table;g=meta.k8s.io;v=v1";
    let mut watch = Watch::start(&server, &format!("{VMS}?watch=1"), accept).await;
    let first = watch.next().await.expect("an event");
    assert_eq!((&first["object"]["rows"][0]["cells"][0], first["object"]["columnDefinitions"].is_array()), (&json!("a"), true));
    let second = watch.next().await.expect("an event");
    assert_eq!((&second["object"]["rows"][0]["cells"][0], second["object"]["columnDefinitions"].is_null()), (&json!("b"), true));
}

#[tokio::test]
async fn a_watch_from_a_lost_revision_is_gone_and_from_the_future_refused() {
    let server = Running::start();
    server.post(MAPS, &map("a")).await;
    let state = server.stop();
    let server = Running::start_in(state);
    let mut watch = Watch::start(&server, &format!("{MAPS}?watch=1&resourceVersion=1"), "application/json").await;
    let event = watch.next().await.expect("an event");
    assert_eq!((&event["type"], &event["object"]["code"], &event["object"]["reason"]), (&json!("ERROR"), &json!(410), &json!("Expired")));
    assert_eq!(watch.next().await, None);
    let (code, status) = server.get(&format!("{MAPS}?watch=1&resourceVersion=999999")).await;
    assert_eq!((code, &status["details"]["causes"][0]["reason"]), (504, &json!("ResourceVersionTooLarge")));
    let now = revision(&server).await;
    let mut watch = Watch::start(&server, &format!("{MAPS}?watch=1&resourceVersion={now}"), "application/json").await;
    server.post(MAPS, &map("b")).await;
    assert_eq!(watch.seen().await, pair("ADDED", "b"), "the revision of before the restart is still good");
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
        last = event["object"]["data"]["n"].as_str().unwrap_or_default().to_owned();
    }
    let event = reading.next().await.expect("an event");
    assert!(!last.is_empty() && event["object"]["data"]["n"] == "149", "{last}");
}

#[tokio::test]
async fn collections_are_deleted_by_selector() {
    let server = Running::start();
    for name in ["a", "b", "c"] {
        server.post(MAPS, &map(name)).await;
    }
    let (code, gone) = server.delete(&format!("{MAPS}?labelSelector=l%20in%20(a,b)")).await;
    assert_eq!((code, gone["items"].as_array().map(Vec::len)), (200, Some(2)));
    let (_, left) = server.get(MAPS).await;
    assert_eq!(left["items"].as_array().map(Vec::len), Some(1));
    let options = json!({"preconditions": {"uid": "other"}}).to_string();
    assert_eq!(server.ask("DELETE", &format!("{MAPS}/c"), "application/json", &options).await.0, 409);
}

#[tokio::test]
async fn concurrent_writers_of_one_object_never_lose_an_update() {
    let server = std::sync::Arc::new(Running::start());
    server.post(MAPS, &json!({"metadata": {"name": "counter"}, "data": {"n": "0"}})).await;
    let add = |server: std::sync::Arc<Running>| async move {
        let path = format!("{MAPS}/counter");
        let (mut done, mut conflicts) = (0, 0);
        while done < 10 {
            let (_, mut object) = server.get(&path).await;
            let count: u64 = object["data"]["n"].as_str().and_then(|text| text.parse().ok()).expect("a number");
            object["data"]["n"] = json!((count + 1).to_string());
            match server.ask("PUT", &path, "application/json", &object.to_string()).await.0 {
                200 => done += 1,
                409 => conflicts += 1,
                other => panic!("unexpected {other}"),
            }
        }
        conflicts
    };
    let tasks: Vec<_> = (0..4).map(|_| tokio::spawn(add(std::sync::Arc::clone(&server)))).collect();
    for task in tasks {
        let waited = tokio::time::timeout(Duration::from_secs(60), task).await;
        waited.expect("in time").expect("no panic");
    }
    let (_, object) = server.get(&format!("{MAPS}/counter")).await;
    assert_eq!(object["data"]["n"], "40");
}
