//! The REST API as client libraries see it: codes, `Status` objects, tables, pages.

mod support;

use std::time::Duration;

use serde_json::{Value, json};
use support::{Running, VMS, vm};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

fn map(name: &str) -> Value {
    json!({"metadata": {"name": name, "labels": {"l": name}}, "data": {"k": name}})
}

#[tokio::test]
async fn without_the_token_nothing_is_told() {
    let server = Running::start();
    let client = server.anonymous();
    for path in [
        "/api/v1/namespaces",
        "/apis",
        "/version",
        "/openapi/v3",
        "/nothing",
    ] {
        for token in [None, Some("wrong"), Some("")] {
            let mut request = client.get(format!("{}{path}", server.base));
            if let Some(token) = token {
                request = request.bearer_auth(token);
            }
            let answer = request.send().await.expect("an answer");
            assert_eq!(answer.status(), 401, "{path}");
            let status: Value = answer.json().await.expect("JSON");
            assert_eq!(
                (&status["kind"], &status["reason"], &status["code"]),
                (&json!("Status"), &json!("Unauthorized"), &json!(401))
            );
        }
    }
    let health = client
        .get(format!("{}/readyz", server.base))
        .send()
        .await
        .expect("an answer");
    assert_eq!(health.status(), 200);
}

#[tokio::test]
async fn request_to_act_as_another_user_is_refused() {
    let server = Running::start();
    for (header, value) in [
        ("Impersonate-User", "nobody"),
        ("Impersonate-Group", "system:unauthenticated"),
        ("Impersonate-Uid", "1"),
        ("Impersonate-Extra-scopes", "view"),
    ] {
        let url = format!("{}{MAPS}", server.base);
        let request = server.anonymous().post(url).bearer_auth(&server.token);
        let request = request.header(header, value).json(&map("dropped"));
        let answer = request.send().await.expect("an answer");
        assert_eq!(answer.status(), 403, "{header}");
        let status: Value = answer.json().await.expect("JSON");
        assert_eq!(status["reason"], "Forbidden");
        let message = status["message"].as_str().expect("a text");
        for part in [&*header.to_lowercase(), "one user", "without the header"] {
            assert!(message.contains(part), "{message}");
        }
    }
    assert_eq!(server.get(&format!("{MAPS}/dropped")).await.0, 404);
}

#[tokio::test]
async fn refusals_are_status_objects_with_the_right_code() {
    let server = Running::start();
    server.post(VMS, &vm("pg")).await;
    let pg = format!("{VMS}/pg");
    let json_type = "application/json";
    for (method, path, content, body, code, reason) in [
        (
            "GET",
            "/apis/vm.neon.tech/v1/namespaces/default/virtualmachines/none",
            "",
            "",
            404,
            "NotFound",
        ),
        (
            "GET",
            "/apis/vm.neon.tech/v1/namespaces/default/machines",
            "",
            "",
            404,
            "NotFound",
        ),
        (
            "GET",
            "/apis/vm.neon.tech/v2/namespaces/default/virtualmachines",
            "",
            "",
            404,
            "NotFound",
        ),
        ("GET", "/apis/nobody.org/v1/things", "", "", 404, "NotFound"),
        (
            "GET",
            "/api/v1/namespaces/default/nodes",
            "",
            "",
            404,
            "NotFound",
        ),
        (
            "POST",
            VMS,
            json_type,
            &vm("pg").to_string(),
            409,
            "AlreadyExists",
        ),
        ("POST", VMS, json_type, "{", 400, "BadRequest"),
        ("POST", VMS, json_type, "[]", 400, "BadRequest"),
        (
            "POST",
            VMS,
            "application/vnd.kubernetes.protobuf",
            "k8s",
            400,
            "BadRequest",
        ),
        (
            "POST",
            VMS,
            "application/vnd.kubernetes.protobuf",
            "k8s\0\x0a\x09\x0a\x02v1\x12\x03Pod",
            415,
            "UnsupportedMediaType",
        ),
        (
            "POST",
            VMS,
            "application/cbor",
            "x",
            415,
            "UnsupportedMediaType",
        ),
        ("POST", VMS, "text/plain", "x", 415, "UnsupportedMediaType"),
        (
            "POST",
            "/api/v1/namespaces/nowhere/configmaps",
            json_type,
            &map("a").to_string(),
            404,
            "NotFound",
        ),
        (
            "POST",
            "/api/v1/configmaps",
            json_type,
            &map("a").to_string(),
            405,
            "MethodNotAllowed",
        ),
        (
            "PATCH",
            &pg,
            "application/strategic-merge-patch+json",
            "{}",
            415,
            "UnsupportedMediaType",
        ),
        ("PATCH", &pg, json_type, "{}", 415, "UnsupportedMediaType"),
        (
            "PATCH",
            &pg,
            "application/merge-patch+json",
            "{\"metadata\":{\"resourceVersion\":\"1\"}}",
            409,
            "Conflict",
        ),
        (
            "PATCH",
            &pg,
            "application/json-patch+json",
            "{}",
            400,
            "BadRequest",
        ),
        (
            "PATCH",
            &pg,
            "application/json-patch+json",
            "[{\"op\":\"remove\",\"path\":\"/spec/none\"}]",
            422,
            "Invalid",
        ),
        (
            "PATCH",
            &pg,
            "application/json-patch+json",
            "[{\"op\":\"test\",\"path\":\"/spec/qmp\",\"value\":1}]",
            422,
            "Invalid",
        ),
        (
            "PATCH",
            &pg,
            "application/merge-patch+json",
            "{\"spec\":{\"qmp\":0}}",
            422,
            "Invalid",
        ),
        ("PUT", &pg, json_type, &vm("pg").to_string(), 422, "Invalid"),
        (
            "PUT",
            &format!("{VMS}/none"),
            json_type,
            &vm("none").to_string(),
            404,
            "NotFound",
        ),
        ("DELETE", &format!("{VMS}/none"), "", "", 404, "NotFound"),
        (
            "GET",
            &format!("{VMS}?labelSelector=a%3Db%3Dc"),
            "",
            "",
            400,
            "BadRequest",
        ),
        (
            "GET",
            &format!("{VMS}?fieldSelector=spec.qmp%3D1"),
            "",
            "",
            400,
            "BadRequest",
        ),
        (
            "GET",
            &format!("{VMS}?continue=junk"),
            "",
            "",
            400,
            "BadRequest",
        ),
        (
            "GET",
            &format!("{VMS}?limit=many"),
            "",
            "",
            400,
            "BadRequest",
        ),
        (
            "GET",
            &format!("{VMS}?resourceVersion=99999999"),
            "",
            "",
            504,
            "Timeout",
        ),
        (
            "POST",
            &format!("{VMS}?dryRun=Some"),
            json_type,
            &vm("x").to_string(),
            400,
            "BadRequest",
        ),
    ] {
        let (found, status) = server.ask(method, path, content, body).await;
        assert_eq!(
            (found, &status["reason"]),
            (code, &json!(reason)),
            "{method} {path} {content} {body}: {status}"
        );
        assert_eq!(
            (&status["kind"], &status["status"], &status["code"]),
            (&json!("Status"), &json!("Failure"), &json!(code))
        );
        assert!(
            status["message"]
                .as_str()
                .is_some_and(|text| !text.is_empty())
        );
    }
    let (code, _) = server
        .ask_as("GET", VMS, "", "", "application/vnd.kubernetes.protobuf")
        .await;
    assert_eq!(code, 406);
    let huge = format!("{{\"data\":{{\"k\":\"{}\"}}}}", "x".repeat(4 << 20));
    assert_eq!(server.post_too_large(MAPS, &huge).await, 413);
}

#[tokio::test]
async fn invalid_objects_name_every_field() {
    let server = Running::start();
    let mut body = vm("pg");
    body["spec"]["guest"]["cpus"]["use"] = json!(7);
    body["spec"]["guest"]["memorySlots"]["use"] = json!(9);
    let (code, status) = server.post(VMS, &body).await;
    let causes = status["details"]["causes"].as_array().expect("causes");
    let fields: Vec<&str> = causes
        .iter()
        .filter_map(|cause| cause["field"].as_str())
        .collect();
    assert_eq!(
        (code, fields),
        (
            422,
            vec!["spec.guest.cpus.use", "spec.guest.memorySlots.use"]
        )
    );
}

#[tokio::test]
async fn yaml_is_read_and_written() {
    let server = Running::start();
    let (code, made) = server
        .ask("POST", VMS, "application/yaml", support::VM_YAML)
        .await;
    assert_eq!(
        (code, &made["spec"]["guest"]["cpus"]["min"]),
        (201, &json!("250m"))
    );
    let (_, text) = server
        .ask_as("GET", &format!("{VMS}/pg"), "", "", "application/yaml")
        .await;
    assert!(
        text.contains("kind: VirtualMachine") && text.contains("250m"),
        "{text}"
    );
}

#[tokio::test]
async fn unknown_members_are_warned_about() {
    let server = Running::start();
    let mut body = vm("pg");
    body["spec"]["colour"] = json!("red");
    let request = server
        .anonymous()
        .post(format!("{}{VMS}", server.base))
        .bearer_auth(&server.token);
    let answer = request.json(&body).send().await.expect("an answer");
    let warning = answer
        .headers()
        .get("warning")
        .expect("a warning")
        .to_str()
        .expect("text")
        .to_owned();
    assert_eq!(warning, "299 - \"unknown field \\\"spec.colour\\\"\"");
    let (code, status) = server
        .post(&format!("{VMS}?fieldValidation=Strict"), &body)
        .await;
    assert_eq!(code, 400);
    assert!(
        status["message"]
            .as_str()
            .is_some_and(|text| text.contains("strict decoding error")),
        "{status}"
    );
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
        let (_, page) = server
            .get(&format!("{MAPS}?limit=3&continue={token}"))
            .await;
        if pages == 0 {
            first_revision = page["metadata"]["resourceVersion"].clone();
            assert_eq!(page["metadata"]["remainingItemCount"], 4);
            // A change between pages does not disturb the walk.
            server.delete(&format!("{MAPS}/m0")).await;
        }
        assert_eq!(page["metadata"]["resourceVersion"], first_revision);
        pages += 1;
        let items = page["items"].as_array().expect("items");
        names.extend(
            items
                .iter()
                .filter_map(|item| item["metadata"]["name"].as_str().map(str::to_owned)),
        );
        match page["metadata"]["continue"].as_str() {
            Some(next) => token = next.to_owned(),
            None => break,
        }
    }
    assert_eq!(
        (pages, names.join(" ")),
        (3, "m0 m1 m2 m3 m4 m5 m6".to_owned())
    );
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
        (
            "fieldSelector=metadata.name!%3Db,metadata.namespace%3Ddefault",
            "a c",
        ),
    ] {
        let (_, list) = server.get(&format!("/api/v1/configmaps?{query}")).await;
        let items = list["items"].as_array().expect("items");
        let names: Vec<&str> = items
            .iter()
            .filter_map(|item| item["metadata"]["name"].as_str())
            .collect();
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
    assert_eq!(
        (&table["kind"], &table["apiVersion"]),
        (&json!("Table"), &json!("meta.k8s.io/v1"))
    );
    let columns = table["columnDefinitions"].as_array().expect("columns");
    let names: Vec<&str> = columns
        .iter()
        .filter_map(|column| column["name"].as_str())
        .collect();
    assert_eq!(
        names,
        [
            "Name",
            "Cpus",
            "Memory",
            "Pod",
            "ExtraIP",
            "Status",
            "Restarts",
            "Age",
            "Node",
            "Image",
            "CPUScalingMode",
            "TargetArchitecture"
        ]
    );
    assert_eq!(
        (
            &columns[7]["type"],
            &columns[8]["priority"],
            &columns[0]["format"]
        ),
        (&json!("date"), &json!(1), &json!("name"))
    );
    let row = &table["rows"][0];
    assert_eq!(
        (&row["cells"][0], &row["cells"][9], &row["cells"][1]),
        (&json!("pg"), &json!("pg:16"), &Value::Null)
    );
    assert_eq!(
        (&row["object"]["kind"], &row["object"]["metadata"]["name"]),
        (&json!("PartialObjectMetadata"), &json!("pg"))
    );
    let (_, text) = server
        .ask_as(
            "GET",
            &format!("{VMS}/pg?includeObject=Object"),
            "",
            "",
            accept,
        )
        .await;
    let table: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(table["rows"][0]["object"]["spec"]["qmp"], 20183);
    let (_, text) = server
        .ask_as(
            "GET",
            VMS,
            "",
            "",
            "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1",
        )
        .await;
    let list: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(
        (&list["kind"], list["items"][0].get("spec")),
        (&json!("PartialObjectMetadataList"), None)
    );
}

#[tokio::test]
async fn collections_are_deleted_by_selector() {
    let server = Running::start();
    for name in ["a", "b", "c"] {
        server.post(MAPS, &map(name)).await;
    }
    let (code, gone) = server
        .delete(&format!("{MAPS}?labelSelector=l%20in%20(a,b)"))
        .await;
    assert_eq!(
        (code, gone["items"].as_array().map(Vec::len)),
        (200, Some(2))
    );
    let (_, left) = server.get(MAPS).await;
    assert_eq!(left["items"].as_array().map(Vec::len), Some(1));
    let options = json!({"preconditions": {"uid": "other"}}).to_string();
    assert_eq!(
        server
            .ask("DELETE", &format!("{MAPS}/c"), "application/json", &options)
            .await
            .0,
        409
    );
}

#[tokio::test]
async fn concurrent_writers_of_one_object_never_lose_an_update() {
    let server = std::sync::Arc::new(Running::start());
    server
        .post(
            MAPS,
            &json!({"metadata": {"name": "counter"}, "data": {"n": "0"}}),
        )
        .await;
    let add = |server: std::sync::Arc<Running>| async move {
        let path = format!("{MAPS}/counter");
        let (mut done, mut conflicts) = (0, 0);
        while done < 10 {
            let (_, mut object) = server.get(&path).await;
            let count: u64 = object["data"]["n"]
                .as_str()
                .and_then(|text| text.parse().ok())
                .expect("a number");
            object["data"]["n"] = json!((count + 1).to_string());
            match server
                .ask("PUT", &path, "application/json", &object.to_string())
                .await
                .0
            {
                200 => done += 1,
                409 => conflicts += 1,
                other => panic!("unexpected {other}"),
            }
        }
        conflicts
    };
    let tasks: Vec<_> = (0..4)
        .map(|_| tokio::spawn(add(std::sync::Arc::clone(&server))))
        .collect();
    for task in tasks {
        let waited = tokio::time::timeout(Duration::from_secs(60), task).await;
        waited.expect("in time").expect("no panic");
    }
    let (_, object) = server.get(&format!("{MAPS}/counter")).await;
    assert_eq!(object["data"]["n"], "40");
}
