//! Policies over real sockets: figures of a guest's own programs, and a version at fault.

mod peers;

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use agent::{Oracle, Reasked, Replay};
use peers::guest::Page;
use peers::{World, until};
use policy_contract::{Answer, FeedSource, Input, Spec};
use protocol::journal::{Record, Step, scan};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

const POLICY: &str = "autoscaling.neon.tech/policy";

/// Answers each question with `said`, and appends the questions to a file.
fn program(folder: &Path, said: &str) -> PathBuf {
    let script = r#"#!/bin/sh
[ "$1" = --version ] && { echo "fake 1 (contract 1)"; exit; }
while read -r line; do
  case "$line" in
    *'"op":"load"'*) echo '{"op":"loaded","id":1}' ;;
    *'"op":"fill"'*)
      vm=${line#*'"vm":'}
      echo "{\"op\":\"filled\",\"vm\":${vm%%,*}}" ;;
    *'"op":"ask"'*)
      n=${line#*'"n":'} n=${n%%,*}
      echo "SAID"
      echo "$line" >>FILE ;;
  esac
done
"#;
    let path = folder.join("bellows-policy");
    let file = folder.join("asked");
    let script = script.replace("SAID", said);
    let script = script.replace("FILE", &file.display().to_string());
    std::fs::write(&path, script).expect("a script");
    let mode = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(&path, mode).expect("a mode");
    path
}

fn asked(folder: &Path) -> String {
    std::fs::read_to_string(folder.join("asked")).unwrap_or_default()
}

async fn world(folder: &Path, said: &str) -> World {
    let mut world = World::new().await;
    world.config["policies"] = json!({});
    world.config["metrics"]["system"]["secondsBetweenRequests"] = json!(1);
    world.policy_program = Some(program(folder, said));
    world.journal = Some(folder.join("journal"));
    world.api.change_vm("vm", |vm| {
        vm["metadata"]["annotations"] = json!({POLICY: "db"});
    });
    world
}

fn records(folder: &Path) -> Vec<Record> {
    let part = std::fs::read_dir(folder.join("journal/agent")).expect("a journal");
    let mut records = Vec::new();
    for entry in part {
        let bytes = std::fs::read(entry.expect("an entry").path()).expect("a segment");
        let scan = scan(&bytes);
        assert!(scan.is_good(), "{:?}", scan.damages);
        let lines = scan.lines.into_iter();
        records.extend(lines.map(|line| line.record.expect("a record")));
    }
    records
}

/// Serves a page with the feed on each connection.
async fn serve_feed(listener: Arc<TcpListener>) {
    while let Ok((mut stream, _)) = listener.accept().await {
        let _ = stream.read(&mut [0; 1024]).await;
        let page = "HTTP/1.0 200 OK\r\n\r\n# TYPE ci_jobs gauge\nci_jobs 3\n";
        let _ = stream.write_all(page.as_bytes()).await;
    }
}

fn spec(port: u16) -> Spec {
    let jobs = FeedSource {
        metric: "ci_jobs".into(),
        name: "jobs".into(),
        port,
    };
    Spec {
        feeds: vec![jobs],
        ..Spec::of_source("return 'jobs'")
    }
}

/// Answers one unit, as the script does.
#[derive(Debug)]
struct One(Spec);

impl Oracle for One {
    fn spec(&mut self, digest: &str) -> Option<std::sync::Arc<Spec>> {
        (self.0.digest().to_string() == digest).then(|| self.0.clone().into())
    }

    fn forget(&mut self, _: u32) {}

    fn sample(&mut self, _: u32, _: f64, _: std::collections::BTreeMap<String, f64>) {}

    fn ask(&mut self, _: &str, _: u32, _: f64, _: &Input) -> Option<Reasked> {
        let answer = json!({"cu": 1, "reason": "one"});
        Some(Ok(Answer::read(&answer).expect("an answer")))
    }
}

/// How a program goes away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Away {
    /// Its port refuses.
    Ended,
    /// As after SIGSTOP: its port accepts, and nothing is said.
    Stopped,
}

/// A feed of a program that goes away is silent within three periods, and replay agrees.
async fn goes_silent(away: Away) {
    let folder = tempfile::tempdir().expect("a folder");
    let said = r#"{\"op\":\"said\",\"n\":$n,\"cu\":1,\"r\":\"one\",\"steps\":1}"#;
    let mut world = world(folder.path(), said).await;
    let listener = TcpListener::bind((world.guest.ip, 0)).await;
    let listener = Arc::new(listener.expect("listens"));
    let port = listener.local_addr().expect("an address").port();
    world.config["policies"]["feedPorts"] = json!([port]);
    let spec = spec(port);
    let object = json!({"source": spec.source, "feeds": spec.feeds});
    world.api.put_policy_with("db", object, json!({}));
    world.start_connected().await;
    world.guest.set(Page::Good(0.9, 0.0));
    let server = tokio::spawn(serve_feed(Arc::clone(&listener)));
    until("a question has the feed", || {
        let has =
            |line: &&str| line.contains(r#""feeds":{"jobs":{"#) && line.contains(r#""value":3"#);
        asked(folder.path()).lines().any(|line| has(&line))
    })
    .await;
    server.abort();
    // While the listener lives the kernel accepts.
    let stopped = (away == Away::Stopped).then_some(listener);
    until("the feed is silent", || {
        asked(folder.path()).contains("feed_silent:jobs")
    })
    .await;
    drop(stopped);
    let text = asked(folder.path());
    let silent = text.lines().find(|line| line.contains("feed_silent:jobs"));
    assert!(
        silent.is_some_and(|line| !line.contains(r#""jobs":{"#)),
        "{silent:?}"
    );
    world.stop().await;

    let records = records(folder.path());
    let fed = records.iter().filter_map(|record| match record {
        Record::Sampled(sampled) => Some(&sampled.block.0),
        _ => None,
    });
    let is_fed = |(_, step): &(u64, Step)| *step == Step::Feeds(vec![Some(3.0)]);
    assert!(fed.flatten().any(is_fed));
    let mut replay = Replay::new().with_oracle(Box::new(One(spec)));
    records.into_iter().for_each(|record| replay.take(record));
    let report = replay.finish();
    assert!(report.is_equal() && report.asked_again > 0, "{report:#?}");
}

/// Requirement: V10, V26
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn v10_feed_of_a_program_that_ended_is_silent_after_three_periods() {
    goes_silent(Away::Ended).await;
}

/// Requirement: V26
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn v26_feed_of_a_program_that_is_stopped_is_silent_after_three_periods() {
    goes_silent(Away::Stopped).await;
}

/// Requirement: V03
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn v03_feed_at_another_port_is_refused_and_never_read() {
    let folder = tempfile::tempdir().expect("a folder");
    let said = r#"{\"op\":\"said\",\"n\":$n,\"cu\":1,\"r\":\"one\",\"steps\":1}"#;
    let mut world = world(folder.path(), said).await;
    let listener = TcpListener::bind((world.guest.ip, 0)).await;
    let listener = listener.expect("listens");
    let port = listener.local_addr().expect("an address").port();
    let spec = spec(port);
    let object = json!({"source": spec.source, "feeds": spec.feeds});
    world.api.put_policy_with("db", object, json!({}));
    world.start_connected().await;
    world.guest.set(Page::Good(0.9, 0.0));
    until("the feed is silent", || {
        asked(folder.path()).contains("feed_silent:jobs")
    })
    .await;
    let problem = world.state.dump()["policies"]["known"][0]["problem"].to_string();
    assert!(problem.contains(&format!("port {port}")), "{problem}");
    let accepted = tokio::time::timeout(std::time::Duration::from_millis(1), listener.accept());
    assert!(accepted.await.is_err(), "the agent connected");
    world.stop().await;
}

/// Requirement: V33
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn v33_version_with_three_faults_is_set_aside_and_the_built_in_goal_takes_over() {
    let folder = tempfile::tempdir().expect("a folder");
    let said = r#"{\"op\":\"fault\",\"n\":$n,\"kind\":\"steps\",\"text\":\"a loop\"}"#;
    let mut world = world(folder.path(), said).await;
    let spec = Spec::of_source("return 'loop'");
    let object = json!({"source": spec.source, "limits": {"fallbackAfterSeconds": 6}});
    let status = json!({"live": {"digest": spec.digest()}});
    world.api.put_policy_with("db", object, status);
    world.start_connected().await;
    world.guest.set(Page::Good(0.9, 0.0));
    let set_aside =
        || -> Value { world.state.dump()["policies"]["known"][0]["setAside"][0].clone() };
    until("it is set aside", || set_aside().is_object()).await;
    // A busy machine makes answers late; two of them set a version aside too.
    let shown = set_aside();
    assert_eq!(
        (&shown["role"], &shown["digest"]),
        (&json!("live"), &json!(spec.digest()))
    );
    world
        .until_metric("autoscaling_agent_policy_fallback{policy=\"db\"} 1")
        .await;
    until("the event is there", || {
        !world.api.events("PolicyFallback").is_empty()
    })
    .await;
    let events = world.api.events("PolicyFallback");
    assert_eq!(events.len(), 1, "{events:?}");
    assert_eq!(events[0]["involvedObject"]["name"], "vm", "{events:?}");
    let questions = asked(folder.path()).lines().count();
    assert!(questions <= 4, "{questions} questions");
    world.api.change_vm("vm", |vm| {
        vm["metadata"]["annotations"] = json!({POLICY: "builtin"});
    });
    world
        .until_metric("autoscaling_agent_policy_fallback{policy=\"db\"} 0")
        .await;
    world.stop().await;
}
