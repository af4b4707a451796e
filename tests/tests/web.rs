//! `bellows web` on a real `bellows up`: who gets in, what the pages say, and what orders leave in
//! the journal. No guest is needed: the VM has no image and says so.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use bellows_tests::patience::wait_for;
use bellows_tests::site::Site;
use bellows_tests::web::{Web, add_set, site, status};
use serde_json::{Value, json};

const PATIENCE: Duration = Duration::from_secs(60);

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

fn location(answer: &str) -> String {
    let line = answer.lines().find(|line| line.starts_with("location: "));
    line.unwrap().trim_start_matches("location: ").to_owned()
}

fn has_text(path: &Path, text: &str) -> bool {
    std::fs::read_to_string(path).is_ok_and(|content| content.contains(text))
}

/// Requirement: V35
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn page_is_for_the_one_who_opened_the_link() {
    let site = site().await.unwrap();
    let mut web = Web::start(&site).await.unwrap();
    for path in ["/", "/vms", "/vms/default/pg", "/policies/db/pause", "/no"] {
        assert_eq!(status(&web.get(path).await.unwrap()), 401, "{path}");
    }
    assert_eq!(status(&web.get("/enter/wrong").await.unwrap()), 401);
    assert_eq!(
        status(
            &web.ask(&format!("HEAD {}", web.link), "", "")
                .await
                .unwrap()
        ),
        401
    );
    let opened = web.get(&web.link).await.unwrap();
    assert_eq!((status(&opened), &*location(&opened)), (303, "/"));
    let cookie = opened.split_once("set-cookie: ").unwrap().1;
    assert_eq!(
        status(&web.get(&web.link).await.unwrap()),
        401,
        "the link works once"
    );
    web.cookie = format!("Cookie: {}\r\n", cookie.split(';').next().unwrap());
    let page = web.get("/").await.unwrap();
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
    let site = site().await.unwrap();
    let web = Web::opened(&site).await.unwrap();
    let node = site.ready["node"].as_str().unwrap().to_owned();
    let overview = wait_for("the VM on the page", PATIENCE, || async {
        let text = web.text("/").await.unwrap();
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
        (&format!("/nodes/{node}"), &["Its VMs", "Drain it"]),
        (
            &format!("/nodes/{node}/drain"),
            &["is the only node", "Back"],
        ),
        ("/policies/db/what-if", &["the last day", "Make the report"]),
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
            &[
                "The next stage of the newest version begins",
                "Reason, for the history",
            ],
        ),
        ("/vms/default/pg/bounds", &["Least CPU", "Most memory"]),
        ("/vms/default/pg/mode", &["observe: changes nothing"]),
        ("/actions", &["policy apply db", "(a try): done"]),
    ] {
        let text = web.text(path).await.unwrap();
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
        assert_eq!(status(&web.get(path).await.unwrap()), 404, "{path}");
    }
    let stopped = web
        .post("/refresh", "refresh=off&back=%2Fvms")
        .await
        .unwrap();
    assert_eq!(location(&stopped), "/vms");
    assert!(!web.get("/vms").await.unwrap().contains("refresh: 5"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn report_over_the_past_is_made_beside_the_pages() {
    let site = site().await.unwrap();
    let web = Web::opened(&site).await.unwrap();
    let path = "/policies/db/what-if";
    let begun = web.post(path, "since=1h").await.unwrap();
    assert_eq!((status(&begun), &*location(&begun)), (303, path));
    let report = wait_for("the report", PATIENCE, || async {
        let text = web.text(path).await.unwrap();
        let is_there = text.contains("In the model, over the last hour");
        if is_there { Ok(text) } else { Err(text) }
    })
    .await
    .unwrap();
    assert!(report.contains("the journal has no"), "{report}");
}

/// A kubeconfig that is not the state directory's own stands for a cluster's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_of_a_cluster_show_what_its_api_server_has() {
    let site = site().await.unwrap();
    let kubeconfig = site.state_dir().join("of-a-cluster");
    std::fs::copy(site.state_dir().join("kubeconfig"), &kubeconfig).unwrap();
    let web = Web::of_cluster(&kubeconfig).await.unwrap();
    let node = site.ready["node"].as_str().unwrap();
    for (path, words) in [
        ("/", &["there is no agent", node, "db"][..]),
        ("/vms", &["default/pg", "One VM"]),
        (
            "/vms/default/pg",
            &["this page shows no past", "0.25 to 1 CPU"],
        ),
        (
            "/policies/db",
            &["hold = true", "Promote the newest version"],
        ),
        ("/actions", &["the API server's audit log"]),
    ] {
        let text = web.text(path).await.unwrap();
        for word in words {
            assert!(text.contains(word), "{path}: no {word:?} in {text}");
        }
    }
    let path = "/vms/default/pg/mode";
    let order = format!("{}&mode=grow&reason=x", web.fields(path).await.unwrap());
    let set = web.post(path, &order).await.unwrap();
    let answer = web.get(&location(&set)).await.unwrap();
    assert_eq!(status(&answer), 200, "{answer}");
    let vm = site.vm("pg").await.unwrap();
    assert_eq!(
        vm.metadata.annotations["autoscaling.neon.tech/mode"],
        "grow"
    );
}

/// Requirement: V35
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn order_is_recorded_before_it_is_carried_out_and_taken_once() {
    let site = site().await.unwrap();
    let web = Web::opened(&site).await.unwrap();
    let before = actions(&site).await.len();
    let path = "/policies/db/pause";
    let order = format!("{}&reason=too+eager", web.fields(path).await.unwrap());
    let first = web.post(path, &order).await.unwrap();
    assert_eq!(status(&first), 303, "{first}");
    let answer = web.text(&location(&first)).await.unwrap();
    assert!(answer.contains("policy db is paused"), "{answer}");
    let page = web.text("/policies/db").await.unwrap();
    assert!(
        page.contains("End the pause"),
        "not the state before: {page}"
    );
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
    assert_eq!(
        location(&web.post(path, &order).await.unwrap()),
        location(&first)
    );
    assert_eq!(actions(&site).await.len(), before + 2, "carried out once");

    let bounds = "/vms/default/pg/bounds";
    let sizes = "cpu_min=250m&cpu_max=0.5&memory_min=1Gi&memory_max=2Gi";
    let order = format!(
        "{}&{sizes}&reason=smaller",
        web.fields(bounds).await.unwrap()
    );
    let set = web.post(bounds, &order).await.unwrap();
    let answer = web.text(&location(&set)).await.unwrap();
    assert!(answer.contains("its bounds are"), "{answer}");
    let vm = site.vm("pg").await.unwrap();
    let set = &vm.metadata.annotations["autoscaling.neon.tech/bounds"];
    let set: Value = serde_json::from_str(set).unwrap();
    assert_eq!(set["max"]["mem"], "2Gi");
    assert_eq!(actions(&site).await.len(), before + 4);
}

/// Requirement: V35. The page of a set shows what an order would do, and carries out what it has
/// shown alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn v35_set_is_scaled_upgraded_and_taken_back_from_its_page() {
    let site = site().await.unwrap();
    let web = Web::opened(&site).await.unwrap();
    add_set(&site, &web).await.unwrap();
    let list = web.text("/sets").await.unwrap();
    assert!(
        list.contains("default/web") && list.contains("of 2"),
        "{list}"
    );
    let before = actions(&site).await.len();

    let scale = "/sets/default/web/scale";
    let asked = web.text(scale).await.unwrap();
    assert!(asked.contains("Show what it does"), "{asked}");
    let shown = format!("{scale}?count=3");
    let plan = web.text(&shown).await.unwrap();
    assert!(
        plan.contains("One member is made") && plan.contains("web-2"),
        "{plan}"
    );
    let fields = web.fields(&shown).await.unwrap();
    let order = format!("{fields}&shown=2&count=3&reason=more+load");
    let done = web.post(scale, &order).await.unwrap();
    let answer = web.text(&location(&done)).await.unwrap();
    assert!(answer.contains("is to have 3 members"), "{answer}");
    assert_eq!(
        location(&web.post(scale, &order).await.unwrap()),
        location(&done)
    );
    let late = web.fields(&shown).await.unwrap();
    let late = format!("{late}&shown=2&count=9&reason=late");
    let late = web.post(scale, &late).await.unwrap();
    let refused = web.get(&location(&late)).await.unwrap();
    assert_eq!(status(&refused), 409, "{refused}");
    assert!(
        refused.contains("its number of members is 3 now"),
        "{refused}"
    );
    let odd = web.fields(&shown).await.unwrap();
    let odd = format!("{odd}&shown=3&count=-1&reason=odd");
    let odd = web.post(scale, &odd).await.unwrap();
    assert_eq!(status(&web.get(&location(&odd)).await.unwrap()), 422);
    for path in [
        "/sets/default/none",
        "/sets/default/web/eat",
        "/sets/no/web/scale",
    ] {
        assert_eq!(status(&web.get(path).await.unwrap()), 404, "{path}");
    }

    let image =
        r#"{"spec":{"template":{"spec":{"guest":{"rootDisk":{"image":"bellows/none:1"}}}}}}"#;
    let words = ["patch", "vmset", "web", "--type=merge", "-p", image];
    site.kubectl(&words).await.unwrap();
    let upgrade = "/sets/default/web/upgrade";
    wait_for("a plan of the upgrade", PATIENCE, || async {
        let text = web.text(upgrade).await.map_err(|error| error.to_string())?;
        let is_there = text.contains("replaced by new ones of version 2");
        is_there.then_some(()).ok_or(text)
    })
    .await
    .unwrap();
    for (path, version, words) in [
        (upgrade, 2, "get version 2"),
        ("/sets/default/web/undo", 1, "get version 1"),
    ] {
        let fields = web.fields(path).await.unwrap();
        let order = format!("{fields}&shown={version}&reason=a+try");
        let done = web.post(path, &order).await.unwrap();
        let answer = web.text(&location(&done)).await.unwrap();
        assert!(answer.contains(words), "{answer}");
    }
    let recorded = actions(&site).await;
    let done: Vec<&str> = recorded[before..]
        .iter()
        .filter(|record| record["ok"].is_null())
        .map(|record| record["do"].as_str().unwrap())
        .collect();
    assert_eq!(done, ["vmset scale", "vmset upgrade", "vmset undo"]);
    let why = &recorded[before]["why"];
    assert_eq!(
        (why, &recorded[before]["on"]),
        (&json!("more load"), &json!("default/web"))
    );
}

/// Requirement: V35
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn order_of_another_page_or_an_old_form_is_refused() {
    let site = site().await.unwrap();
    let web = Web::opened(&site).await.unwrap();
    let path = "/policies/db/pause";
    let order = format!("{}&reason=x", web.fields(path).await.unwrap());
    for foreign in [
        "Origin: http://example.org\r\n",
        "Sec-Fetch-Site: cross-site\r\n",
    ] {
        let refused = web
            .ask(&format!("POST {path}"), foreign, &order)
            .await
            .unwrap();
        assert_eq!(status(&refused), 403, "{foreign}");
    }
    let stale = web.post(path, "key=00&token=00&reason=x").await.unwrap();
    assert_eq!(status(&stale), 403);
    assert_eq!(
        status(&web.post("/policies/db/demote", &order).await.unwrap()),
        403
    );
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
    let none = format!("{}&reason=", web.fields(path).await.unwrap());
    let none = web.post(path, &none).await.unwrap();
    assert_eq!(status(&web.get(&location(&none)).await.unwrap()), 422);
    let object = site
        .kubectl(&["get", "spol", "db", "-o", "json"])
        .await
        .unwrap();
    assert!(!object.contains("Paused"), "{object}");
}
