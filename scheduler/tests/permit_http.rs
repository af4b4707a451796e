//! The permit server over real HTTP against an API peer: every answer of the table, the vectors,
//! hostile bodies. Source: docs/compatibility/scheduler.md §2.4, §7.8.

mod support;

use std::time::Duration;

use serde_json::{Value, json};
use support::api::{FakeApi, Fault};
use support::{GIB, Running, approved, node, plain_pod, request, size, vm, vm_pod};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// One node with `room` beside VM `pg`, which uses 500m / 2Gi and has that approved.
async fn one_vm(room: protocol::units::Resources) -> (FakeApi, Running) {
    let api = FakeApi::start().await;
    api.put(
        "nodes",
        node("n1", 500 + u64::from(room.cpu.0), 2 * GIB + room.mem.0),
    );
    let mut object = vm("pg", size(500, 2));
    object["metadata"]["annotations"] = json!({"internal.autoscaling.neon.tech/resources-approved":
        serde_json::to_string(&size(500, 2)).expect("encodes")});
    api.put("virtualmachines", object);
    api.put("pods", vm_pod("pg", size(500, 2), Some("n1")));
    let running = Running::start(&api).await;
    (api, running)
}

#[tokio::test]
async fn n07_every_row_of_the_error_table() {
    let (api, running) = one_vm(size(4000, 16)).await;
    api.put("pods", plain_pod("plain-pod", 0, 0, Some("n1")));
    let mut foreign = vm_pod("free", size(250, 1), None);
    foreign["spec"]["schedulerName"] = json!("another");
    api.put("pods", foreign);
    let mut broken = vm_pod("broken", size(250, 1), Some("n2"));
    broken["metadata"]["annotations"]["vm.neon.tech/resources"] = json!("{");
    api.put("pods", broken);
    api.put("virtualmachines", vm("broken", size(250, 1)));
    api.put("pods", vm_pod("orphan", size(250, 1), Some("n2")));
    running
        .until("all seen", |r| {
            r.state.dump()["pods"]
                .as_object()
                .is_some_and(|pods| pods.len() == 5)
        })
        .await;
    running
        .until("VM seen", |r| {
            r.state.dump()["vms"]["default/broken"].is_object()
        })
        .await;

    let ok = request("pg", Some(size(500, 2)), size(500, 2));
    let with = |path: &str, value: Value| {
        let mut body = ok.clone();
        *body.pointer_mut(path).expect("is there") = value;
        body.to_string()
    };
    let pod = |name: &str| with("/pod/name", json!(name));
    let mut no_version = ok.clone();
    no_version
        .as_object_mut()
        .expect("object")
        .remove("protoVersion");
    let increase = request("broken", Some(size(250, 1)), size(500, 2)).to_string();
    for (body, status, text) in [
        ("{".to_owned(), 400, "bad JSON"),
        (
            no_version.to_string(),
            400,
            "invalid protocol version <invalid: zero>",
        ),
        (
            with("/protoVersion", json!(0)),
            400,
            "invalid protocol version <invalid: zero>",
        ),
        (
            with("/protoVersion", json!(6)),
            400,
            "protocol version mismatch: need v5.0 but got v4.0",
        ),
        (
            with("/protoVersion", json!(99)),
            400,
            "protocol version mismatch: need v5.0 but got <unknown = 99>",
        ),
        (
            r#"{"protoVersion":5,"pod":7}"#.to_owned(),
            400,
            "protocol version mismatch: need v5.0 but got v3.0",
        ),
        (
            with("/computeUnit/vCPUs", json!(0)),
            400,
            "computeUnit fields must be non-zero: vCPUs must be non-zero",
        ),
        (
            with("/computeUnit/mem", json!(0)),
            400,
            "computeUnit fields must be non-zero: mem must be non-zero",
        ),
        (pod("nobody"), 404, "pod not found"),
        (pod("free-pod"), 404, "pod's node is unknown"),
        (pod("plain-pod"), 400, "pod is not associated with a VM"),
        (pod("orphan-pod"), 500, "failed to patch VM object"),
        (increase, 500, "failed to extract state from pod"),
    ] {
        let got = running.post(body.clone()).await;
        assert_eq!((got.0, got.2.as_str()), (status, text), "{body}");
        assert!(got.1.starts_with("text/plain"), "{}", got.1);
    }
    for method in [
        reqwest::Method::GET,
        reqwest::Method::PUT,
        reqwest::Method::DELETE,
        reqwest::Method::PATCH,
    ] {
        let url = format!("http://{}/any/path", running.permits);
        let answer = running
            .http
            .request(method, url)
            .body(ok.to_string())
            .send()
            .await
            .expect("is answered");
        assert_eq!(answer.status().as_u16(), 400);
        assert_eq!(answer.text().await.expect("reads"), "must be POST");
    }
    // Any path will do, and the 200 is exact.
    let url = format!("http://{}/some/other/path?x=1", running.permits);
    let answer = running
        .http
        .post(url)
        .body(ok.to_string())
        .send()
        .await
        .expect("is answered");
    assert_eq!(answer.headers()["content-type"], "application/json");
    assert_eq!(
        answer.text().await.expect("reads"),
        r#"{"permit":{"vCPUs":"500m","mem":"2Gi"}}"#
    );

    api.set_fault(Fault::Refuse(403));
    let got = running.ask("pg", Some(size(500, 2)), size(1000, 4)).await;
    assert_eq!(got, Err((500, "failed to patch VM object".into())));
    api.set_fault(Fault::Swallow);
    let got = running.ask("pg", Some(size(500, 2)), size(1000, 4)).await;
    assert_eq!(got, Err((500, "failed to patch VM object".into())));
    // One request is in flight and eight wait; whatever comes beyond that is told at once.
    let crowd = (0..12).map(|_| running.ask("pg", Some(size(500, 2)), size(1000, 2)));
    let answers = futures::future::join_all(crowd).await;
    let late = "timed out waiting for updates to be processed";
    assert!(
        answers
            .iter()
            .any(|answer| *answer == Err((500, late.into()))),
        "{answers:?}"
    );
    assert!(
        answers
            .iter()
            .all(|answer| answer.as_ref().is_err_and(|(status, _)| *status == 500))
    );
    api.set_fault(Fault::None);
    running
        .until("settled", |r| r.reserved("n1").0 <= 1500)
        .await;
    assert!(running.stop().await.is_ok());
}

#[tokio::test]
async fn n13_vectors_of_the_permit_server() {
    let plenty = size(8_000, 32);
    let held = size(500, 2);
    for (last_permit, resources, room, expected) in [
        (held, held, plenty, held),
        (size(1_000, 4), held, plenty, held),
        (held, size(1_000, 4), size(500, 2), size(1_000, 4)),
        (held, size(1_000, 4), size(300, 5), size(750, 4)),
        (held, size(1_000, 4), size(0, 0), held),
        (size(1_000, 2), size(500, 4), plenty, size(500, 4)),
    ] {
        let (api, running) = one_vm(room).await;
        let got = running.ask("pg", Some(last_permit), resources).await;
        assert_eq!(got, Ok(expected), "{last_permit} {resources} {room}");
        assert_eq!(
            approved(&api, "pg"),
            Some(expected),
            "what is said is written"
        );
        running.stop().await.expect("ends well");
    }
}

#[tokio::test]
async fn n09_first_contact_is_permitted_what_the_vm_has() {
    let api = FakeApi::start().await;
    api.put("nodes", node("n1", 500, 2 * GIB));
    // No annotations at all: the map is made.
    api.put("virtualmachines", vm("pg", size(500, 2)));
    api.put("pods", vm_pod("pg", size(500, 2), Some("n1")));
    let running = Running::start(&api).await;
    assert_eq!(
        running.ask("pg", None, size(500, 2)).await,
        Ok(size(500, 2))
    );
    assert_eq!(approved(&api, "pg"), Some(size(500, 2)));
    let object = api
        .get("virtualmachines", "default", "pg")
        .expect("is there");
    let notes = object["metadata"]["annotations"]
        .as_object()
        .expect("is a map");
    assert_eq!(
        notes["autoscaling.neon.tech/scaling-unit"],
        r#"{"vCPUs":"250m","mem":"1Gi"}"#
    );
    assert_eq!(
        notes["internal.autoscaling.neon.tech/resources-requested"],
        r#"{"vCPUs":"500m","mem":"2Gi"}"#
    );
    // Nothing changed, so nothing is written again.
    let writes = api.writes();
    assert_eq!(
        running.ask("pg", Some(size(500, 2)), size(500, 2)).await,
        Ok(size(500, 2))
    );
    assert_eq!(api.writes(), writes);
    running.stop().await.expect("ends well");
}

#[tokio::test]
async fn a_grant_does_not_wait_for_the_controller() {
    let (api, running) = one_vm(size(4000, 16)).await;
    api.set_copies(false);
    assert_eq!(
        running.ask("pg", Some(size(500, 2)), size(1000, 4)).await,
        Ok(size(1000, 4))
    );
    running
        .until("counted", |r| r.reserved("n1") == (1000, 4 * GIB))
        .await;
    running.stop().await.expect("ends well");
}

#[tokio::test]
async fn hostile_bodies_get_bad_json_and_nothing_else() {
    let (_api, running) = one_vm(size(4000, 16)).await;
    let ok = request("pg", Some(size(500, 2)), size(500, 2)).to_string();
    for length in [
        0_usize,
        1,
        2,
        100,
        1023,
        1024,
        4096,
        65_535,
        65_536,
        65_537,
        100_000,
        1 << 20,
    ] {
        let got = running.post("x".repeat(length)).await;
        assert_eq!((got.0, got.2.as_str()), (400, "bad JSON"), "{length} bytes");
    }
    // A valid request of up to 64 KiB is read, one byte more is not.
    let padded = |length: usize| format!("{ok}{}", " ".repeat(length - ok.len()));
    assert_eq!(running.post(padded(65_536)).await.0, 200);
    assert_eq!(running.post(padded(65_537)).await.2, "bad JSON");
    let deep = format!("{}{}", "[".repeat(30_000), "]".repeat(30_000));
    assert_eq!(running.post(deep).await.2, "bad JSON");
    assert_eq!(running.post(vec![0xff, 0xfe, 0x00]).await.2, "bad JSON");

    let base: Value = serde_json::from_str(&ok).expect("is JSON");
    let wrong = [
        json!(null),
        json!(-1),
        json!(true),
        json!([]),
        json!({}),
        json!("x"),
        json!(""),
        json!("-250m"),
        json!("1e99"),
        json!("99999999999999999999"),
        json!(1e300),
        json!("250 m"),
        json!("0x10"),
        json!("1Xi"),
        json!("NaN"),
    ];
    for path in [
        "/resources/vCPUs",
        "/resources/mem",
        "/lastPermit/vCPUs",
        "/computeUnit/mem",
    ] {
        for value in &wrong {
            let mut body = base.clone();
            *body.pointer_mut(path).expect("is there") = value.clone();
            let got = running.post(body.to_string()).await;
            assert_eq!((got.0, got.2.as_str()), (400, "bad JSON"), "{path} {value}");
        }
    }
    for (path, value) in [
        ("/protoVersion", json!("7")),
        ("/protoVersion", json!(-7)),
        ("/protoVersion", json!(7.5)),
        ("/pod", json!("default/pg")),
        ("/pod/name", json!(7)),
        ("/pod", json!(null)),
        ("/resources", json!(null)),
        ("/resources", json!([1, 2])),
        ("/lastPermit", json!(5)),
        ("/computeUnit", json!("250m")),
        ("/metrics", json!("high")),
        ("/metrics/loadAvg1M", json!("high")),
    ] {
        let mut body = base.clone();
        *body.pointer_mut(path).expect("is there") = value.clone();
        assert_eq!(
            running.post(body.to_string()).await.0,
            400,
            "{path} {value}"
        );
    }
    // What older and newer agents add is ignored.
    let mut body = base.clone();
    body["metrics"] = json!({"loadAvg1M": 1, "loadAvg5M": 2, "memoryUsageBytes": 3, "new": {}});
    body["new"] = json!([1, 2, 3]);
    assert_eq!(running.post(body.to_string()).await.0, 200);
    body["metrics"] = json!(null);
    body["lastPermit"] = json!(null);
    assert_eq!(running.post(body.to_string()).await.0, 200);
    // The largest sizes there are overflow nothing.
    let mut huge = base.clone();
    huge["resources"] = json!({"vCPUs": "4294967295m", "mem": "9223372036854775807"});
    let got = running.post(huge.to_string()).await;
    assert_eq!(got.0, 200);
    let permit: Value = serde_json::from_str(&got.2).expect("is JSON");
    assert_eq!(permit["permit"], json!({"vCPUs": "4500m", "mem": "18Gi"}));
    running.stop().await.expect("ends well");
}

#[tokio::test]
async fn slow_and_many_clients_do_not_hold_the_server() {
    let (_api, running) = one_vm(size(4000, 16)).await;
    let mut held = Vec::new();
    for part in [
        &b"POST / HT"[..],
        &b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 400\r\n\r\n{"[..],
        &b""[..],
    ] {
        for _ in 0..40 {
            let mut stream = TcpStream::connect(running.permits).await.expect("connects");
            stream.write_all(part).await.expect("writes");
            held.push(stream);
        }
    }
    assert_eq!(
        running.ask("pg", Some(size(500, 2)), size(500, 2)).await,
        Ok(size(500, 2))
    );
    // A body that does not come is given up on, though the connection still sends headers in time.
    let mut answer = vec![0; 4096];
    let read = tokio::time::timeout(Duration::from_secs(15), held[40].read(&mut answer)).await;
    let length = read.expect("is answered in time").expect("reads");
    assert!(String::from_utf8_lossy(&answer[..length]).contains("bad JSON"));
    // One connection of an address too many takes the place of its longest idle one; others still
    // get theirs.
    let slow = held.len();
    while held.len() <= slow + scheduler::MAX_CONNECTIONS_OF_ONE {
        held.push(TcpStream::connect(running.permits).await.expect("connects"));
    }
    assert_eq!(closed(&mut held[slow]).await, 0);
    assert_eq!(
        running.ask("pg", Some(size(500, 2)), size(500, 2)).await,
        Ok(size(500, 2)),
        "not even the address that holds them is kept out"
    );
    let body = request("pg", Some(size(500, 2)), size(500, 2)).to_string();
    let other =
        reqwest::Client::builder().local_address(Some("127.0.0.9".parse().expect("is one")));
    let other = other.build().expect("is a client");
    let url = format!("http://{}/", running.permits);
    let sent = other.post(&url).body(body.clone()).send().await;
    assert_eq!(sent.expect("is answered").status(), 200);
    drop(held);
    // All the same once the others end.
    let deadline = tokio::time::Instant::now() + Duration::from_secs(60);
    loop {
        let sent = reqwest::Client::new().post(&url).body(body.clone()).send();
        if sent.await.is_ok_and(|answer| answer.status() == 200) {
            break;
        }
        assert!(tokio::time::Instant::now() < deadline, "never served again");
    }
    running.stop().await.expect("ends well");
}

/// Waits until a connection is closed from the other side; the bytes it sent before.
async fn closed(stream: &mut TcpStream) -> usize {
    let mut answer = vec![0; 4096];
    let read = tokio::time::timeout(Duration::from_secs(60), stream.read(&mut answer)).await;
    read.expect("is closed in time").unwrap_or(0)
}

#[tokio::test]
async fn many_addresses_together_do_not_take_more_than_all_places() {
    let (_api, running) = one_vm(size(4000, 16)).await;
    let mut held = Vec::new();
    for host in 1..=5_u8 {
        for _ in 0..scheduler::MAX_CONNECTIONS_OF_ONE {
            let socket = tokio::net::TcpSocket::new_v4().expect("is one");
            let from = std::net::SocketAddr::from(([127, 0, 1, host], 0));
            socket.bind(from).expect("binds");
            held.push(socket.connect(running.permits).await.expect("connects"));
        }
    }
    // Those that came first have been idle longest.
    for first in &mut held[..scheduler::MAX_CONNECTIONS_OF_ONE] {
        assert_eq!(closed(first).await, 0);
    }
    let (_, page) = running.get("/metrics").await;
    let refused =
        "autoscaling_plugin_http_connections_closed_total{server=\"permits\",reason=\"capacity\"} ";
    let count = page.lines().find_map(|line| line.strip_prefix(refused));
    let count: usize = count.expect("is there").parse().expect("is a number");
    assert_eq!(count, scheduler::MAX_CONNECTIONS_OF_ONE);
    running.stop().await.expect("ends well");
}

/// Posts a body that claims a length, by hand: a client library would not go on when the answer
/// comes early.
async fn post_long(running: &Running, length: usize, head: &str) -> String {
    let mut stream = TcpStream::connect(running.permits).await.expect("connects");
    let text = format!("POST / HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\n{head}\r\n");
    stream.write_all(text.as_bytes()).await.expect("writes");
    let (mut reader, mut writer) = stream.into_split();
    let sending = tokio::spawn(async move {
        let part = vec![b' '; 1 << 16];
        for _ in 0..length >> 16 {
            if writer.write_all(&part).await.is_err() {
                return;
            }
        }
    });
    let mut answer = vec![0; 4096];
    let read = tokio::time::timeout(Duration::from_secs(60), reader.read(&mut answer)).await;
    let length = read.expect("is answered in time").expect("reads");
    sending.abort();
    String::from_utf8_lossy(&answer[..length]).into_owned()
}

#[tokio::test]
async fn a_body_of_ten_mebibytes_is_refused_while_it_comes() {
    let (_api, running) = one_vm(size(4000, 16)).await;
    for length in [1 << 20, 10 << 20, usize::MAX >> 1] {
        let answer = post_long(&running, length.min(10 << 20), "").await;
        assert!(
            answer.starts_with("HTTP/1.1 400") && answer.ends_with("bad JSON"),
            "{answer}"
        );
    }
    assert_eq!(
        running.ask("pg", Some(size(500, 2)), size(500, 2)).await,
        Ok(size(500, 2))
    );
    running.stop().await.expect("ends well");
}

#[tokio::test]
async fn with_tokens_a_caller_asks_for_pods_of_its_own_node_only() {
    use std::os::unix::fs::PermissionsExt;
    let api = FakeApi::start().await;
    for (name, on) in [("here", "n1"), ("there", "n2")] {
        api.put("nodes", node(on, 4000, 16 * GIB));
        api.put("virtualmachines", vm(name, size(250, 1)));
        api.put("pods", vm_pod(name, size(250, 1), Some(on)));
    }
    let dir = tempfile::tempdir().expect("makes a directory");
    let path = dir.path().join("tokens");
    std::fs::write(&path, "all-nodes-0123456789\nnode-one-0123456789 n1\n").expect("writes");
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).expect("sets");
    let callers = scheduler::Callers {
        tokens: Some(scheduler::TokenFile::load(&path).expect("is valid")),
        ..scheduler::Callers::anyone()
    };
    let running = Running::start_for(&api, scheduler::config::Config::default(), callers).await;
    running
        .until("ready", |running| running.state.ready().is_ok())
        .await;
    let ask = async |token: Option<&str>, vm: &str| {
        let body = request(vm, Some(size(250, 1)), size(500, 2)).to_string();
        let mut sent = running
            .http
            .post(format!("http://{}/", running.permits))
            .body(body);
        if let Some(token) = token {
            sent = sent.bearer_auth(token);
        }
        let answer = sent.send().await.expect("is answered");
        (
            answer.status().as_u16(),
            answer.text().await.expect("reads"),
        )
    };
    let said = |error: &str, reason: &str| json!({"error": error, "reason": reason}).to_string();
    let none = said("not authorized: a token must be shown", "no_token");
    let bad = said("not authorized: the token is not valid", "bad_token");
    let foreign = (403, said("pod is not on the caller's node", "foreign_node"));
    assert_eq!(ask(None, "here").await, (401, none));
    assert_eq!(ask(Some("node-one-012345678"), "here").await, (401, bad));
    assert_eq!(ask(Some("node-one-0123456789"), "there").await, foreign);
    assert_eq!(approved(&api, "here"), None, "a refusal writes nothing");
    assert_eq!(approved(&api, "there"), None, "a refusal writes nothing");
    assert_eq!(ask(Some("node-one-0123456789"), "here").await.0, 200);
    assert_eq!(ask(Some("all-nodes-0123456789"), "there").await.0, 200);
    assert_eq!(ask(Some("node-one-0123456789"), "nobody").await.0, 404);
    running.stop().await.expect("ends well");
}

#[tokio::test]
async fn nodes_without_room_and_factors_of_zero_grant_nothing_and_break_nothing() {
    let api = FakeApi::start().await;
    api.put("nodes", node("zero", 0, 0));
    api.put("nodes", node("ok", 4000, 16 * GIB));
    for (name, on, overcommit) in [
        ("none", "zero", None),
        ("factor", "ok", Some(r#"{"cpu":0,"memory":"0"}"#)),
        ("below", "ok", Some(r#"{"cpu":"-1","memory":"1"}"#)),
        ("fine", "ok", Some(r#"{"cpu":"2","memory":"1500m"}"#)),
    ] {
        api.put("virtualmachines", vm(name, size(250, 1)));
        let mut pod = vm_pod(name, size(250, 1), Some(on));
        if let Some(text) = overcommit {
            pod["metadata"]["annotations"]["vm.neon.tech/overcommit"] = json!(text);
        }
        api.put("pods", pod);
    }
    let running = Running::start(&api).await;
    let (had, wants) = (Some(size(250, 1)), size(1000, 4));
    assert_eq!(running.ask("none", had, wants).await, Ok(size(250, 1)));
    let bad = Err((500, "failed to extract state from pod".to_owned()));
    assert_eq!(running.ask("factor", had, wants).await, bad);
    assert_eq!(running.ask("below", had, wants).await, bad);
    // They may still shrink, and the pod with a factor that means something grows.
    assert_eq!(
        running.ask("factor", had, size(250, 1)).await,
        Ok(size(250, 1))
    );
    // What cannot be read is counted at the most it can be: 16 CPUs each, so there is no room.
    assert_eq!(running.ask("fine", had, wants).await, Ok(size(250, 1)));
    running.stop().await.expect("ends well");
}

#[tokio::test]
async fn n10_the_compute_unit_is_the_one_the_request_names() {
    for (unit, expected) in [
        (size(250, 1), size(1250, 3)),
        (size(500, 2), size(1000, 2)),
        (size(1000, 4), size(500, 2)),
    ] {
        let (api, running) = one_vm(size(900, 1)).await;
        let mut body = request("pg", Some(size(500, 2)), size(4000, 16));
        body["computeUnit"] = json!(unit);
        let (status, _, text) = running.post(body.to_string()).await;
        let got: Value = serde_json::from_str(&text).expect("is JSON");
        assert_eq!((status, &got["permit"]), (200, &json!(expected)), "{unit}");
        running
            .until("recorded", |_| {
                let object = api
                    .get("virtualmachines", "default", "pg")
                    .expect("is there");
                object["metadata"]["annotations"]["autoscaling.neon.tech/scaling-unit"]
                    == serde_json::to_string(&unit).expect("encodes")
            })
            .await;
        running.stop().await.expect("ends well");
    }
}

#[tokio::test]
async fn n26_odd_memory_gives_permits_that_are_no_whole_units() {
    let api = FakeApi::start().await;
    // 500m and 2.3 GiB free; the VM's own size is odd too.
    api.put("nodes", node("n1", 830, 3 * GIB + (300 << 20)));
    api.put("virtualmachines", vm("pg", size(330, 1)));
    api.put("pods", vm_pod("pg", size(330, 1), Some("n1")));
    let running = Running::start(&api).await;
    assert_eq!(
        running.ask("pg", None, size(330, 1)).await,
        Ok(size(330, 1))
    );
    let first = running
        .ask("pg", Some(size(330, 1)), size(1000, 4))
        .await
        .expect("is permitted");
    assert_eq!(first, size(830, 3));
    // Asking again and again changes nothing: no flapping.
    for _ in 0..5 {
        assert_eq!(
            running.ask("pg", Some(first), size(1000, 4)).await,
            Ok(first)
        );
    }
    running
        .until("counted", |r| r.reserved("n1") == (830, 3 * GIB))
        .await;
    running.stop().await.expect("ends well");
}
