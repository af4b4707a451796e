//! `bellows web` on a real `bellows up`: who gets in, what the pages say, and what orders leave in
//! the journal. No guest is needed: the VM has no image and says so.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use bellows_tests::bellows_bin;
use bellows_tests::patience::wait_for;
use bellows_tests::site::{Site, postgres_vm};
use serde_json::{Value, json};
use test_network::http::Request;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};

const PATIENCE: Duration = Duration::from_secs(60);
const POLICY: &str = "return function(i) return { hold = true, reason = \"x\" } end\n";
/// Bound of a page of a thousand VMs, bytes.
const PAGE_BYTES: usize = 100 << 10;

/// A running `bellows web`, and a browser that has not opened the link yet.
struct Web {
    _child: Child,
    address: SocketAddr,
    link: String,
    cookie: String,
}

impl Web {
    async fn start(site: &Site) -> Self {
        let mut child = Command::new(bellows_bin())
            .args(["web", "--state-dir"])
            .arg(site.state_dir())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let line = lines.next_line().await.unwrap().unwrap();
        let url = line.split_once("http://").unwrap().1;
        let (address, link) = url.split_once('/').unwrap();
        Self {
            _child: child,
            address: address.parse().unwrap(),
            link: format!("/{link}"),
            cookie: String::new(),
        }
    }

    /// A server whose link was opened.
    async fn opened(site: &Site) -> Self {
        let mut web = Self::start(site).await;
        let answer = web.get(&web.link).await;
        let line = answer.lines().find(|line| line.starts_with("set-cookie: "));
        let cookie = line.unwrap().trim_start_matches("set-cookie: ");
        assert!(cookie.contains("; HttpOnly") && cookie.contains("; SameSite=Strict"));
        let value = cookie.split(';').next().unwrap();
        web.cookie = format!("Cookie: {value}\r\n");
        web
    }

    async fn ask(&self, line: &str, head: &str, body: &str) -> String {
        let head = format!("{}{head}", self.cookie);
        let request = Request {
            line,
            head: &head,
            body,
        };
        request.ask(self.address).await.unwrap()
    }

    async fn get(&self, path: &str) -> String {
        self.ask(&format!("GET {path}"), "", "").await
    }

    async fn post(&self, path: &str, body: &str) -> String {
        let head = "Content-Type: application/x-www-form-urlencoded\r\n";
        self.ask(&format!("POST {path}"), head, body).await
    }

    /// A page's text, without its tags.
    async fn text(&self, path: &str) -> String {
        let page = self.get(path).await;
        assert_eq!(status(&page), 200, "{path}: {page}");
        assert!(page.len() < PAGE_BYTES, "{path}: {} bytes", page.len());
        let mut text = String::new();
        for part in page.split('<').skip(1) {
            let said = part.split_once('>').map_or("", |(_, said)| said);
            text.push_str(said);
            text.push(' ');
        }
        let words: Vec<&str> = text.split_whitespace().collect();
        words.join(" ")
    }

    /// The hidden fields of the form at a path, as they are sent.
    async fn fields(&self, path: &str) -> String {
        let page = self.get(path).await;
        assert_eq!(status(&page), 200, "{page}");
        let field = |name: &str| {
            let begin = format!("name=\"{name}\" value=\"");
            let value = page.split_once(&begin).unwrap().1;
            format!("{name}={}", value.split('"').next().unwrap())
        };
        format!("{}&{}", field("key"), field("token"))
    }
}

fn status(answer: &str) -> u16 {
    let code = answer.split(' ').nth(1).unwrap();
    code.parse().unwrap()
}

fn location(answer: &str) -> String {
    let line = answer.lines().find(|line| line.starts_with("location: "));
    line.unwrap().trim_start_matches("location: ").to_owned()
}

/// A site with a VM that has no image, and a policy.
async fn site() -> Site {
    let site = Site::fresh().await.unwrap();
    let mut vm = postgres_vm("pg", (250, 250, 1000), (1, 1, 4), true);
    vm["spec"]["guest"]["rootDisk"]["image"] = json!("bellows/none:0");
    site.create(&vm).await.unwrap();
    let source = site.state_dir().join("db.lua");
    std::fs::write(&source, POLICY).unwrap();
    let source = source.to_str().unwrap();
    let apply = [
        "policy", "apply", source, "--name", "db", "--reason", "a try",
    ];
    site.bellows(&apply).await.unwrap();
    site
}

/// Actions of people in the journal, oldest first.
async fn actions(site: &Site) -> Vec<Value> {
    let people = site.state_dir().join("journal/people");
    let export = ["journal", "export", people.to_str().unwrap()];
    let exported = site.bellows(&export).await.unwrap();
    let records = exported
        .lines()
        .map(|line| serde_json::from_str(line).unwrap());
    records
        .filter(|record: &Value| record["k"] == "A")
        .collect()
}

fn has_text(path: &Path, text: &str) -> bool {
    std::fs::read_to_string(path).is_ok_and(|content| content.contains(text))
}

/// Requirement: V35
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn page_is_for_the_one_who_opened_the_link() {
    let site = site().await;
    let mut web = Web::start(&site).await;
    for path in ["/", "/vms", "/vms/default/pg", "/policies/db/pause", "/no"] {
        assert_eq!(status(&web.get(path).await), 401, "{path}");
    }
    assert_eq!(status(&web.get("/enter/wrong").await), 401);
    assert_eq!(
        status(&web.ask(&format!("HEAD {}", web.link), "", "").await),
        401
    );
    let opened = web.get(&web.link).await;
    assert_eq!((status(&opened), &*location(&opened)), (303, "/"));
    let cookie = opened.split_once("set-cookie: ").unwrap().1;
    assert_eq!(
        status(&web.get(&web.link).await),
        401,
        "the link works once"
    );
    web.cookie = format!("Cookie: {}\r\n", cookie.split(';').next().unwrap());
    let page = web.get("/").await;
    assert_eq!(status(&page), 200);
    assert!(
        page.contains("content-security-policy: default-src 'self'"),
        "{page}"
    );
    assert!(page.contains("refresh: 5"), "{page}");
    let foreign = format!(
        "GET / HTTP/1.1\r\nHost: example.org:{}\r\n{}Connection: close\r\n\r\n",
        web.address.port(),
        web.cookie
    );
    assert_eq!(status(&raw(web.address, foreign).await), 421);
    let token = web.link.rsplit('/').next().unwrap();
    assert!(!has_text(&site.state_dir().join("up.log"), token));
    let elsewhere = site.bellows(&["web", "--listen", "0.0.0.0:0"]).await;
    assert!(
        elsewhere
            .unwrap_err()
            .to_string()
            .contains("no loopback address")
    );
}

async fn raw(address: SocketAddr, request: String) -> String {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_page_reads_as_text() {
    let site = site().await;
    let web = Web::opened(&site).await;
    let node = site.ready["node"].as_str().unwrap().to_owned();
    let overview = wait_for("the VM on the page", PATIENCE, || async {
        let text = web.text("/").await;
        let is_there = text.contains("VM default/pg");
        if is_there { Ok(text) } else { Err(text) }
    })
    .await
    .unwrap();
    assert!(
        overview.contains("What needs attention") && overview.contains(&node),
        "{overview}"
    );
    for (path, words) in [
        ("/vms", &["default/pg", "One VM", "Choose which"][..]),
        ("/vms?search=1", &["Part of the name or namespace"]),
        ("/vms?q=nothing", &["There is none."]),
        (
            "/vms/default/pg",
            &[
                "Size, need and permit",
                "Why now",
                "Bounds",
                "0.25 to 1 CPU",
            ],
        ),
        ("/vms/default/pg?window=24h", &["24 hours"]),
        ("/nodes", &[&*node, "What is granted to VMs"]),
        (&format!("/nodes/{node}"), &["Its VMs"]),
        ("/policies", &["db", "the built-in goal"]),
        (
            "/policies/db",
            &[
                "hold = true",
                "it decides nothing",
                "Promote the newest version",
            ],
        ),
        (
            "/policies/db/promote",
            &["The newest version decides", "Reason, for the history"],
        ),
        ("/vms/default/pg/bounds", &["Least CPU", "Most memory"]),
        ("/vms/default/pg/mode", &["observe: changes nothing"]),
        ("/actions", &["policy apply db", "(a try): done"]),
    ] {
        let text = web.text(path).await;
        for word in words {
            assert!(text.contains(word), "{path}: no {word:?} in {text}");
        }
    }
    for path in [
        "/no",
        "/vms/default/none",
        "/nodes/none",
        "/policies/none",
        "/policies/db/eat",
    ] {
        assert_eq!(status(&web.get(path).await), 404, "{path}");
    }
    let stopped = web.post("/refresh", "refresh=off&back=%2Fvms").await;
    assert_eq!(location(&stopped), "/vms");
    assert!(!web.get("/vms").await.contains("refresh: 5"));
}

/// Requirement: V35
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn order_is_recorded_before_it_is_carried_out_and_taken_once() {
    let site = site().await;
    let web = Web::opened(&site).await;
    let before = actions(&site).await.len();
    let path = "/policies/db/pause";
    let order = format!("{}&reason=too+eager", web.fields(path).await);
    let first = web.post(path, &order).await;
    assert_eq!(status(&first), 303, "{first}");
    let answer = web.text(&location(&first)).await;
    assert!(answer.contains("policy db is paused"), "{answer}");
    let recorded = actions(&site).await;
    let [begun, ended] = &recorded[before..] else {
        panic!("{recorded:?}")
    };
    assert_eq!(
        (&begun["do"], &begun["ok"]),
        (&json!("policy pause"), &Value::Null)
    );
    assert_eq!(
        (&ended["why"], &ended["ok"]),
        (&json!("too eager"), &json!(true))
    );
    assert_eq!(location(&web.post(path, &order).await), location(&first));
    assert_eq!(actions(&site).await.len(), before + 2, "carried out once");

    let bounds = "/vms/default/pg/bounds";
    let sizes = "cpu_min=250m&cpu_max=0.5&memory_min=1Gi&memory_max=2Gi";
    let order = format!("{}&{sizes}&reason=smaller", web.fields(bounds).await);
    let set = web.post(bounds, &order).await;
    let answer = web.text(&location(&set)).await;
    assert!(answer.contains("its bounds are"), "{answer}");
    let vm = site.vm("pg").await.unwrap();
    let set = &vm.metadata.annotations["autoscaling.neon.tech/bounds"];
    let set: Value = serde_json::from_str(set).unwrap();
    assert_eq!(set["max"]["mem"], "2Gi");
    assert_eq!(actions(&site).await.len(), before + 4);
}

/// Requirement: V35
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn order_of_another_page_or_an_old_form_is_refused() {
    let site = site().await;
    let web = Web::opened(&site).await;
    let path = "/policies/db/pause";
    let order = format!("{}&reason=x", web.fields(path).await);
    for foreign in [
        "Origin: http://example.org\r\n",
        "Sec-Fetch-Site: cross-site\r\n",
    ] {
        let refused = web.ask(&format!("POST {path}"), foreign, &order).await;
        assert_eq!(status(&refused), 403, "{foreign}");
    }
    let stale = web.post(path, "key=00&token=00&reason=x").await;
    assert_eq!(status(&stale), 403);
    assert_eq!(status(&web.post("/policies/db/demote", &order).await), 403);
    let refused = actions(&site).await;
    let last = refused.last().unwrap();
    assert_eq!(
        (&last["do"], &last["ok"]),
        (&json!("web order refused"), &json!(false))
    );
    let huge = format!(
        "POST {path} HTTP/1.1\r\nHost: {}\r\n{}Content-Length: {}\r\n\r\n{}",
        web.address,
        web.cookie,
        10 << 20,
        "x".repeat(70_000)
    );
    let huge = raw(web.address, huge).await;
    assert_eq!(status(&huge), 413);
    let none = format!("{}&reason=", web.fields(path).await);
    let none = web.post(path, &none).await;
    assert_eq!(status(&web.get(&location(&none)).await), 422);
    let object = site
        .kubectl(&["get", "spol", "db", "-o", "json"])
        .await
        .unwrap();
    assert!(!object.contains("Paused"), "{object}");
}
