//! Who may ask for permits: client certificates and tokens that the API server reviews, over real
//! sockets. Files of tokens are in `permit_http.rs`.

mod support;

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use daemon_kit::bearer::Expected;
use daemon_kit::reload::Files as _;
use daemon_kit::tls::{ClientFiles, IdentityFiles, Server, ServerFiles};
use protocol::time::Span;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use scheduler::config::Config;
use scheduler::{Callers, ReviewRule};
use serde_json::{Value, json};
use support::api::FakeApi;
use support::{GIB, Running, approved, node, request, size, vm, vm_pod};
use test_authority::{Authority, put};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Longest wait for any state.
const PATIENCE: Duration = Duration::from_secs(20);
const REFUSED: &str = "autoscaling_plugin_callers_refused_total";

/// Puts a certificate of its own for 127.0.0.1, and its key, in a folder.
fn signs(authority: &Authority, folder: &Path, who: &str) -> IdentityFiles {
    let (cert, key) = authority
        .signs(IpAddr::from([127, 0, 0, 1]))
        .put(folder, who);
    IdentityFiles { cert, key }
}

/// VMs `here` on node n1 and `there` on n2.
async fn two_nodes() -> FakeApi {
    let api = FakeApi::start().await;
    for (name, on) in [("here", "n1"), ("there", "n2")] {
        api.put("nodes", node(on, 4000, 16 * GIB));
        api.put("virtualmachines", vm(name, size(250, 1)));
        api.put("pods", vm_pod(name, size(250, 1), Some(on)));
    }
    api
}

async fn start(api: &FakeApi, callers: Callers) -> Running {
    let running = Running::start_for(api, Config::default(), callers).await;
    running
        .until("ready", |running| running.state.ready().is_ok())
        .await;
    running
}

/// Waits for a series to have this value.
async fn until_counted(running: &Running, reason: &str, count: u64) {
    let line = format!("{REFUSED}{{reason=\"{reason}\"}} {count}");
    let counted = async {
        while !running.get("/metrics").await.1.lines().any(|it| it == line) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let counted = tokio::time::timeout(PATIENCE, counted).await;
    let seen = running.get("/metrics").await.1;
    let seen: Vec<&str> = seen.lines().filter(|it| it.starts_with(REFUSED)).collect();
    counted.unwrap_or_else(|_| panic!("never {line}: {seen:?}"));
}

/// Sends a request on an open connection; status and body of the answer.
async fn ask(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    vm: &str,
) -> Option<(u16, String)> {
    let body = request(vm, Some(size(250, 1)), size(500, 2)).to_string();
    let head = format!(
        "POST / HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all((head + &body).as_bytes()).await.ok()?;
    let mut have = Vec::new();
    loop {
        let mut more = [0; 4096];
        let read = tokio::time::timeout(PATIENCE, stream.read(&mut more)).await;
        let read = read.expect("is answered in time").ok()?;
        have.extend_from_slice(&more[..read]);
        let text = String::from_utf8_lossy(&have).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head
                .lines()
                .find_map(|line| line.strip_prefix("content-length: "));
            if body.len() >= length.and_then(|it| it.parse().ok()).unwrap_or(0) {
                let status = head.split(' ').nth(1).and_then(|it| it.parse().ok());
                return Some((status.expect("a status"), body.to_owned()));
            }
        }
        if read == 0 {
            return None;
        }
    }
}

async fn connect(running: &Running, config: Arc<ClientConfig>) -> Option<TlsStream<TcpStream>> {
    let stream = TcpStream::connect(running.permits).await.expect("connects");
    let name = ServerName::try_from("127.0.0.1").expect("a name");
    let connected = TlsConnector::from(config).connect(name, stream).await;
    connected.ok()
}

/// What one who connects anew is told.
async fn told(running: &Running, files: &ClientFiles) -> Option<(u16, String)> {
    let mut stream = connect(running, files.read().expect("is valid")).await?;
    ask(&mut stream, "here").await
}

struct Tls {
    folder: tempfile::TempDir,
    server: ServerFiles,
    /// With a certificate of the right authority.
    right: ClientFiles,
}

fn tls(servers: &Authority, clients: &Authority) -> Tls {
    let folder = tempfile::tempdir().expect("a folder");
    let file = |name: &str| -> PathBuf { folder.path().join(name) };
    put(&file("servers"), &servers.pem);
    put(&file("clients"), &clients.pem);
    Tls {
        server: ServerFiles {
            identity: signs(servers, folder.path(), "server"),
            client_authority: Some(file("clients")),
        },
        right: ClientFiles {
            authority: file("servers"),
            identity: Some(signs(clients, folder.path(), "client")),
        },
        folder,
    }
}

fn no_certificate() -> (u16, String) {
    let error = "not authorized: a client certificate must be shown";
    let body = json!({"error": error, "reason": "no_certificate"});
    (401, body.to_string())
}

#[tokio::test]
async fn with_tls_only_who_shows_a_certificate_of_the_authority_is_served() {
    let (servers, clients, others) = (
        Authority::new("servers"),
        Authority::new("clients"),
        Authority::new("others"),
    );
    let tls = tls(&servers, &clients);
    let api = two_nodes().await;
    let callers = Callers {
        tls: Some(Server::load(tls.server.clone()).expect("is valid")),
        ..Callers::anyone()
    };
    let running = start(&api, callers).await;
    let stranger = ClientFiles {
        identity: None,
        ..tls.right.clone()
    };
    assert_eq!(told(&running, &stranger).await, Some(no_certificate()));
    until_counted(&running, "no_certificate", 1).await;
    let wrong = ClientFiles {
        identity: Some(signs(&others, tls.folder.path(), "other")),
        ..tls.right.clone()
    };
    assert_eq!(told(&running, &wrong).await, None);
    until_counted(&running, "tls_untrusted", 1).await;
    let mut plain = TcpStream::connect(running.permits).await.expect("connects");
    let answer = ask(&mut plain, "here").await;
    assert!(answer.is_none_or(|(status, _)| status != 200));
    until_counted(&running, "not_tls", 1).await;
    assert_eq!(approved(&api, "here"), None, "a refusal writes nothing");

    let permit = r#"{"permit":{"vCPUs":"500m","mem":"2Gi"}}"#;
    let served = Some((200, permit.to_owned()));
    assert_eq!(told(&running, &tls.right).await, served);
    assert_eq!(approved(&api, "here"), Some(size(500, 2)));
    running.stop().await.expect("ends well");
}

#[tokio::test]
async fn replaced_certificates_are_in_use_without_a_restart_and_old_ones_are_not() {
    let (servers, clients) = (Authority::new("servers"), Authority::new("clients"));
    let tls = tls(&servers, &clients);
    let api = two_nodes().await;
    let callers = Callers {
        tls: Some(Server::load(tls.server.clone()).expect("is valid")),
        ..Callers::anyone()
    };
    let running = start(&api, callers).await;
    let served = |told: Option<(u16, String)>| told.is_some_and(|(status, _)| status == 200);
    let mut open = connect(&running, tls.right.read().expect("is valid"))
        .await
        .expect("connects");
    assert!(served(ask(&mut open, "here").await));

    // Half of a change, and rubbish: what was stays.
    let newer = Authority::new("newer clients");
    let authority = tls.folder.path().join("clients");
    let before = ClientFiles {
        identity: Some(signs(&clients, tls.folder.path(), "before")),
        ..tls.right.clone()
    };
    put(&authority, "rubbish");
    assert!(served(told(&running, &before).await));
    put(&authority, &newer.pem);
    assert!(!served(told(&running, &before).await));
    // Who came in by what was trusted then is let go.
    let mut more = [0; 64];
    let ended = tokio::time::timeout(PATIENCE, open.read(&mut more)).await;
    assert_eq!(ended.expect("is closed in time").unwrap_or(0), 0);
    let after = ClientFiles {
        identity: Some(signs(&newer, tls.folder.path(), "after")),
        ..tls.right.clone()
    };
    assert!(served(told(&running, &after).await));

    // The server's own certificate, of another authority.
    let elsewhere = Authority::new("newer servers");
    let path = tls.folder.path().join("newer-servers");
    put(&path, &elsewhere.pem);
    signs(&elsewhere, tls.folder.path(), "server");
    let moved = ClientFiles {
        authority: path,
        ..after.clone()
    };
    // Certificate and key are two files: until both are there it is the one before.
    assert!(served(told(&running, &moved).await));
    assert!(!served(told(&running, &after).await));
    running.stop().await.expect("ends well");
}

const AGENT: &str = "system:serviceaccount:kube-system:agent";

/// Has the API know a token: what it says of it.
fn knows(api: &FakeApi, token: &str, status: &Value) {
    api.put(
        "tokens",
        json!({"metadata": {"name": token, "namespace": "default"}, "status": status}),
    );
}

async fn ask_with(running: &Running, token: &str, vm: &str) -> (u16, String) {
    let body = request(vm, Some(size(250, 1)), size(500, 2)).to_string();
    let url = format!("http://{}/", running.permits);
    let sent = running.http.post(url).bearer_auth(token).body(body).send();
    let answer = sent.await.expect("is answered");
    let status = answer.status().as_u16();
    let text = answer.text().await.expect("reads");
    let reason = serde_json::from_str::<Value>(&text).expect("is JSON");
    (
        status,
        reason["reason"].as_str().unwrap_or_default().to_owned(),
    )
}

#[tokio::test]
async fn a_reviewed_token_of_an_agent_is_good_for_its_node_and_reviewed_once() {
    let api = two_nodes().await;
    let good = |user: Value| json!({"authenticated": true, "audiences": ["permits"], "user": user});
    let on_node = json!({"authentication.kubernetes.io/node-name": ["n1"]});
    knows(
        &api,
        "node-1",
        &good(json!({"username": AGENT, "extra": on_node})),
    );
    knows(&api, "any", &good(json!({"username": AGENT})));
    let somebody = json!({"username": "system:serviceaccount:default:x"});
    knows(&api, "somebody", &good(somebody));
    let elsewhere =
        json!({"authenticated": true, "audiences": ["api"], "user": {"username": AGENT}});
    knows(&api, "elsewhere", &elsewhere);
    let callers = Callers {
        review: Some(ReviewRule {
            audience: "permits".into(),
            users: [AGENT.to_owned()].into(),
            lasts: Span::from_secs(3600),
        }),
        ..Callers::anyone()
    };
    let running = start(&api, callers).await;
    for (token, vm, status, reason) in [
        ("nobody", "here", 401, "bad_token"),
        ("elsewhere", "here", 401, "wrong_audience"),
        ("somebody", "here", 403, "forbidden"),
        ("node-1", "there", 403, "foreign_node"),
    ] {
        let told = ask_with(&running, token, vm).await;
        assert_eq!(told, (status, reason.to_owned()), "{token}");
        until_counted(&running, reason, 1).await;
    }
    let url = format!("http://{}/", running.permits);
    let bare = running.http.post(url).body("x").send().await;
    assert_eq!(bare.expect("is answered").status(), 401);
    until_counted(&running, "no_token", 1).await;
    for vm in ["here", "there"] {
        assert_eq!(approved(&api, vm), None, "a refusal writes nothing");
    }
    for (token, vm) in [("node-1", "here"), ("any", "there"), ("any", "here")] {
        assert_eq!(ask_with(&running, token, vm).await.0, 200, "{token} {vm}");
    }
    // What is known is not asked again.
    assert_eq!(api.all("tokenreviews").len(), 5);
    assert!(
        api.all("tokenreviews")
            .iter()
            .all(|review| review["spec"]["audiences"] == json!(["permits"]))
    );
    running.stop().await.expect("ends well");
}

#[tokio::test]
async fn scheduler_of_one_machine_grants_permits_to_its_agent_only() {
    let api = two_nodes().await;
    let callers = Callers::only(Expected::new("of-this-start"));
    let running = start(&api, callers).await;
    let url = format!("http://{}/", running.permits);
    let bare = running.http.post(url).body("x").send().await;
    assert_eq!(bare.expect("is answered").status(), 401);
    until_counted(&running, "no_token", 1).await;
    let told = ask_with(&running, "of-another-start", "here").await;
    assert_eq!(told, (401, "bad_token".to_owned()));
    assert_eq!(approved(&api, "here"), None, "a refusal writes nothing");
    for vm in ["here", "there"] {
        assert_eq!(ask_with(&running, "of-this-start", vm).await.0, 200, "{vm}");
    }
    running.stop().await.expect("ends well");
}

#[tokio::test]
async fn scheduler_without_a_proof_to_ask_for_grants_nothing() {
    let api = two_nodes().await;
    let running = start(&api, Callers::default()).await;
    let told = ask_with(&running, "any", "here").await;
    assert_eq!(told, (401, "bad_token".to_owned()));
    assert_eq!(approved(&api, "here"), None);
    running.stop().await.expect("ends well");
}

#[tokio::test]
async fn a_review_is_believed_for_a_while_only_and_without_one_nobody_is_let_in() {
    let api = two_nodes().await;
    let good =
        json!({"authenticated": true, "audiences": ["permits"], "user": {"username": AGENT}});
    knows(&api, "token", &good);
    let lasts = Span::from_millis(200);
    let callers = Callers {
        review: Some(ReviewRule {
            audience: "permits".into(),
            users: [AGENT.to_owned()].into(),
            lasts,
        }),
        ..Callers::anyone()
    };
    let running = start(&api, callers).await;
    assert_eq!(ask_with(&running, "token", "here").await.0, 200);
    // Revoked.
    knows(&api, "token", &json!({"authenticated": false}));
    let revoked = async {
        while ask_with(&running, "token", "here").await != (401, "bad_token".to_owned()) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let revoked = tokio::time::timeout(PATIENCE, revoked).await;
    revoked.expect("is noticed in time");
    // An API server that does not answer reviews: what is new is not let in, and is told that it is
    // not its fault.
    knows(&api, "broken", &json!("fails"));
    assert_eq!(
        ask_with(&running, "broken", "here").await,
        (503, "not_reviewed".to_owned())
    );
    until_counted(&running, "not_reviewed", 1).await;
    running.stop().await.expect("ends well");
}

/// Requirement: W6. One forged request was granted 1000 CPU and 4000 GiB on a node of 2 CPU and 6
/// GiB.
#[tokio::test]
async fn forged_permits_take_nothing_of_the_node() {
    let forged = size(1_000_000, 4_000);
    let held = size(500, 2);
    let api = FakeApi::start().await;
    api.put("nodes", node("n1", 2_000, 6 * GIB));
    for name in ["pg", "other"] {
        api.put("virtualmachines", vm(name, held));
        api.put("pods", vm_pod(name, held, Some("n1")));
    }
    let running = start(&api, Callers::anyone()).await;
    for last in [None, Some(forged), Some(size(3_000, 8))] {
        let permit = running.ask("pg", last, forged).await;
        let permit = permit.expect("is answered");
        let most = if last.is_none() { size(1_500, 4) } else { held };
        assert!(!permit.has_field_above(most), "{permit} for {last:?}");
        let written = approved(&api, "pg").expect("is written");
        assert!(!written.has_field_above(most), "{written} for {last:?}");
        // The agent's own next request ends what the caller said.
        assert_eq!(running.ask("pg", Some(held), held).await, Ok(held));
        running
            .until("nothing else is reserved", |running| {
                running.reserved("n1") == (1_000, 4 * GIB)
            })
            .await;
    }
    let other = running.ask("other", Some(held), size(1_500, 4)).await;
    assert_eq!(other, Ok(size(1_500, 4)), "all that is left");
    running
        .until_metrics(&["autoscaling_plugin_oddities_current{kind=\"overclaims\"} 2.0"])
        .await;
    running.stop().await.expect("ends well");
}
