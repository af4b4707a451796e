//! The audit log has a line for each call, and none for what was not called.

mod support;

use std::collections::BTreeMap;

use serde_json::{Value, json};
use support::{AUDIT_LOG, Running, VMS, vm};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const SECRETS: &str = "/api/v1/namespaces/default/secrets";
/// Callers at the same time, and rounds of each.
const CALLERS: usize = 8;
const ROUNDS: usize = 12;
/// Stands in bodies, and in no line.
const HIDDEN: &str = "cGxhaW4tdGV4dA";

/// Calls by verb, URI and status.
type Calls = BTreeMap<(String, String, u16), usize>;

/// A call with the status that it must have.
struct Made {
    verb: &'static str,
    method: &'static str,
    uri: String,
    content: &'static str,
    body: String,
    status: u16,
}

const JSON: &str = "application/json";
const MERGE: &str = "application/merge-patch+json";

fn made(verb: &'static str, method: &'static str, uri: &str, status: u16) -> Made {
    Made {
        verb,
        method,
        uri: uri.to_owned(),
        content: "",
        body: String::new(),
        status,
    }
}

impl Made {
    fn with(mut self, content: &'static str, body: &Value) -> Self {
        self.content = content;
        self.body = body.to_string();
        self
    }
}

/// Calls of one round, good and refused.
fn round(name: &str) -> Vec<Made> {
    let map = json!({"metadata": {"name": name}, "data": {"k": HIDDEN}});
    let secret = json!({"metadata": {"name": name}, "data": {"k": format!("{HIDDEN}==")}});
    let bad_vm =
        json!({"metadata": {"name": format!("{name}-bad")}, "spec": {"guest": {"cpus": HIDDEN}}});
    let stale = json!({"metadata": {"resourceVersion": "1"}, "data": {"k": HIDDEN}});
    let one = format!("{MAPS}/{name}");
    let of_secret = format!("{SECRETS}/{name}");
    let of_vm = format!("{VMS}/{name}");
    vec![
        made("create", "POST", MAPS, 201).with(JSON, &map),
        made("create", "POST", MAPS, 409).with(JSON, &map),
        made("create", "POST", SECRETS, 201).with(JSON, &secret),
        made("create", "POST", VMS, 201).with(JSON, &vm(name)),
        made("create", "POST", VMS, 422).with(JSON, &bad_vm),
        made("get", "GET", &one, 200),
        made("get", "GET", &of_secret, 200),
        made("list", "GET", &format!("{MAPS}?limit=2"), 200),
        made("update", "PUT", &one, 200).with(JSON, &map),
        made("patch", "PATCH", &one, 200).with(MERGE, &json!({"data": {"k": HIDDEN}})),
        made("patch", "PATCH", &one, 409).with(MERGE, &stale),
        made("patch", "PATCH", &of_vm, 415).with("text/plain", &json!({})),
        made(
            "watch",
            "GET",
            &format!("{MAPS}?watch=1&timeoutSeconds=1"),
            200,
        ),
        made(
            "watch",
            "GET",
            &format!("{MAPS}?watch=1&resourceVersion=999999999"),
            504,
        ),
        made("delete", "DELETE", &of_secret, 200),
        made("delete", "DELETE", &one, 200),
        made("get", "GET", &one, 404),
        made(
            "deletecollection",
            "DELETE",
            &format!("{SECRETS}?labelSelector=no"),
            200,
        ),
        made("get", "GET", "/apis/vm.neon.tech/v1", 200),
        made("get", "GET", "/nothing", 404),
    ]
}

async fn make(server: &Running, name: &str) -> Calls {
    let mut calls = Calls::new();
    for one in round(name) {
        let (status, answer) = server
            .ask(one.method, &one.uri, one.content, &one.body)
            .await;
        assert_eq!(status, one.status, "{} {}: {answer}", one.method, one.uri);
        *calls
            .entry((one.verb.to_owned(), one.uri, status))
            .or_default() += 1;
    }
    calls
}

/// Calls without the token, for another user, and a watch whose client goes away.
async fn make_odd(server: &Running) -> Calls {
    let mut calls = Calls::new();
    let client = server.anonymous();
    let url = format!("{}{MAPS}", server.base);
    for token in ["", "wrong", HIDDEN] {
        let sent = client.get(&url).bearer_auth(token).send().await;
        assert_eq!(sent.expect("an answer").status(), 401);
        *calls.entry(("list".into(), MAPS.into(), 401)).or_default() += 1;
    }
    let request = client.get(&url).bearer_auth(&server.token);
    let sent = request.header("impersonate-user", "nobody").send().await;
    assert_eq!(sent.expect("an answer").status(), 403);
    *calls.entry(("list".into(), MAPS.into(), 403)).or_default() += 1;
    let uri = format!("{MAPS}?watch=1");
    let request = client.get(format!("{}{uri}", server.base));
    let sent = request
        .bearer_auth(&server.token)
        .send()
        .await
        .expect("an answer");
    let id = sent.headers()["audit-id"]
        .to_str()
        .expect("a text")
        .to_owned();
    assert_eq!(id.len(), 36, "{id}");
    drop(sent);
    *calls.entry(("watch".into(), uri, 200)).or_default() += 1;
    calls
}

fn lines(folder: &std::path::Path) -> Vec<Value> {
    let text = std::fs::read_to_string(folder.join(AUDIT_LOG)).expect("an audit log");
    for hidden in [HIDDEN, "Bearer", "wrong"] {
        assert!(!text.contains(hidden), "{hidden}");
    }
    let lines = text.lines().map(serde_json::from_str);
    lines.collect::<Result<_, _>>().expect("JSON lines")
}

fn told(lines: &[Value]) -> Calls {
    let mut calls = Calls::new();
    for line in lines {
        let text = |name: &str| line[name].as_str().expect(name).to_owned();
        let kind = [
            text("apiVersion"),
            text("kind"),
            text("level"),
            text("stage"),
        ];
        let kind_of_all = ["audit.k8s.io/v1", "Event", "Metadata", "ResponseComplete"];
        assert_eq!(kind, kind_of_all);
        assert!(
            text("requestReceivedTimestamp") <= text("stageTimestamp"),
            "{line}"
        );
        assert_eq!(line["sourceIPs"], json!(["127.0.0.1"]));
        assert!(line.get("annotations").is_none(), "no line is lost: {line}");
        let code = line["responseStatus"]["code"].as_u64().expect("a code");
        let user = if code == 401 {
            Value::Null
        } else {
            json!("bellows")
        };
        assert_eq!(line["user"]["username"], user);
        let code = u16::try_from(code).expect("a status");
        *calls
            .entry((text("verb"), text("requestURI"), code))
            .or_default() += 1;
    }
    calls
}

/// Requirement: B49
#[tokio::test(flavor = "multi_thread")]
async fn each_call_of_the_api_is_one_line() {
    let server = std::sync::Arc::new(Running::start());
    let callers = (0..CALLERS).map(|caller| {
        let server = std::sync::Arc::clone(&server);
        tokio::spawn(async move {
            let mut calls = Calls::new();
            for round in 0..ROUNDS {
                let made = make(&server, &format!("c{caller}-{round}")).await;
                merge(&mut calls, made);
            }
            calls
        })
    });
    let callers: Vec<_> = callers.collect();
    let mut calls = make_odd(&server).await;
    for caller in callers {
        merge(&mut calls, caller.await.expect("no panic"));
    }
    let server = std::sync::Arc::into_inner(server).expect("the last handle");
    let folder = server.stop();
    let lines = lines(folder.path());
    assert_eq!(told(&lines), calls);
    let count: usize = calls.values().sum();
    assert_eq!(lines.len(), count);
    println!("{count} calls, {} lines", lines.len());
    let mut ids: Vec<&str> = lines
        .iter()
        .filter_map(|line| line["auditID"].as_str())
        .collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), count, "each call has its own id");
    let of_vm = lines
        .iter()
        .find(|line| line["responseStatus"]["code"] == 415);
    let expected = json!({
        "resource": "virtualmachines", "namespace": "default", "name": "c0-0",
        "apiGroup": "vm.neon.tech", "apiVersion": "v1",
    });
    assert!(
        lines.iter().any(|line| line["objectRef"] == expected),
        "{of_vm:?}"
    );
}

fn merge(all: &mut Calls, more: Calls) {
    for (call, count) in more {
        *all.entry(call).or_default() += count;
    }
}

/// Requirement: B49
#[tokio::test]
async fn api_serves_while_its_audit_log_takes_no_lines() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join(AUDIT_LOG);
    std::os::unix::fs::symlink("/dev/full", &path).expect("a link");
    let server = Running::start_in(folder);
    for name in ["a", "b", "c"] {
        let map = json!({"metadata": {"name": name}});
        assert_eq!(server.post(MAPS, &map).await.0, 201);
    }
    std::fs::remove_file(&path).expect("removed");
    assert_eq!(server.get(MAPS).await.0, 200);
    let folder = server.stop();
    let lines = lines(folder.path());
    let lost = &lines[0]["annotations"]["bellows.dev/lines-lost-before"];
    let lost: usize = lost.as_str().expect("a count").parse().expect("a number");
    assert_eq!(lost + lines.len(), 4, "{lines:?}");
}
