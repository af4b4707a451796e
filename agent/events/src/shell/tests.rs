//! Deliveries to receivers that fail: no event is lost, none is in two batches.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use daemon_kit::clock::Clock;
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::metrics::EventMetrics;
use super::{BILLING, Stream};

const LIMIT: Duration = Duration::from_secs(20);

/// A received batch: its name and its events.
type Received = (String, Vec<Value>);

/// HTTP endpoint with scripted responses. It records each batch.
#[derive(Clone, Default)]
struct Endpoint {
    seen: Arc<Mutex<Vec<Received>>>,
    statuses: Arc<Mutex<Vec<u16>>>,
}

impl Endpoint {
    /// Responds with these statuses in order, then with 200.
    async fn start(&self, statuses: &[u16]) -> String {
        let _ = rustls::crypto::ring::default_provider().install_default();
        *self.statuses.lock().expect("no crash") = statuses.iter().rev().copied().collect();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
            .await
            .expect("binds");
        let url = format!("http://{}", listener.local_addr().expect("has an address"));
        let router = Router::new()
            .route("/usage_events", axum::routing::post(take))
            .with_state(self.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        url
    }

    fn batches(&self) -> Vec<Received> {
        self.seen.lock().expect("no crash").clone()
    }

    async fn until(&self, what: &str, is_so: impl Fn(&[Received]) -> bool) {
        let deadline = tokio::time::Instant::now() + LIMIT;
        while !is_so(&self.batches()) {
            assert!(
                tokio::time::Instant::now() < deadline,
                "never {what}: {:?}",
                self.batches()
            );
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

async fn take(State(endpoint): State<Endpoint>, headers: HeaderMap, body: Bytes) -> StatusCode {
    assert_eq!(headers["content-type"], "application/json");
    let trace = headers["x-trace-id"].to_str().expect("is text").to_owned();
    let body: Value = serde_json::from_slice(&body).expect("is JSON");
    let events = body["events"].as_array().expect("is a list").clone();
    endpoint
        .seen
        .lock()
        .expect("no crash")
        .push((trace, events));
    let status = endpoint.statuses.lock().expect("no crash").pop();
    StatusCode::from_u16(status.unwrap_or(200)).expect("is a status")
}

fn clients(url: &str, max: u64) -> Value {
    json!({"http": {"url": url, "pushEverySeconds": 1, "pushRequestTimeoutSeconds": 2, "maxBatchSize": max}})
}

fn stream(folder: &Path, clients: &Value) -> (Stream, JoinSet<()>, Registry) {
    let (mut registry, mut tasks) = (Registry::default(), JoinSet::new());
    let metrics = EventMetrics::new(&mut registry);
    let stream = Stream::start(
        BILLING,
        Some(folder),
        clients,
        &metrics.billing,
        Clock::new(),
        &mut tasks,
    );
    (
        stream.expect("starts").expect("has a client"),
        tasks,
        registry,
    )
}

fn events(range: std::ops::Range<u64>) -> Vec<String> {
    range.map(|n| json!({ "n": n }).to_string()).collect()
}

/// The received numbers, with batches of one name counted once, as a receiver does.
fn received(batches: &[Received]) -> Vec<u64> {
    let by_name: BTreeMap<&String, &Vec<Value>> =
        batches.iter().map(|(name, all)| (name, all)).collect();
    for (name, all) in batches {
        assert_eq!(by_name[name], all, "one name, one batch");
    }
    let mut numbers: Vec<u64> = by_name
        .values()
        .flat_map(|all| all.iter().filter_map(|event| event["n"].as_u64()))
        .collect();
    numbers.sort_unstable();
    numbers
}

/// Requirement: N40
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failing_receiver_gets_the_same_batch_again_under_the_same_name() {
    let folder = tempfile::tempdir().expect("makes a folder");
    let endpoint = Endpoint::default();
    let url = endpoint.start(&[500, 503]).await;
    let (stream, mut tasks, registry) = stream(folder.path(), &clients(&url, 3));
    stream.append(events(0..3), None).await.expect("writes");
    stream.append(events(3..7), None).await.expect("writes");
    endpoint.until("all there", |all| all.len() == 5).await;
    let batches = endpoint.batches();
    let names: Vec<&String> = batches.iter().map(|(name, _)| name).collect();
    assert!(names[0] == names[1] && names[1] == names[2], "{names:?}");
    assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), 3);
    assert!(names.iter().all(|name| name.len() == 22), "{names:?}");
    assert_eq!(received(&batches), (0..7).collect::<Vec<_>>());
    drop(stream);
    while tasks.join_next().await.is_some() {}
    let mut page = String::new();
    prometheus_client::encoding::text::encode(&mut page, &registry).expect("encodes");
    for line in [
        "autoscaling_agent_billing_queue_size{client=\"http\"} 0",
        "autoscaling_agent_billing_send_errors_total{client=\"http\",cause=\"HTTP code 500\"} 1",
        "autoscaling_agent_billing_send_errors_total{client=\"http\",cause=\"HTTP code 503\"} 1",
        "autoscaling_agent_billing_last_send_duration_seconds{client=\"http\"} ",
        "autoscaling_agent_scaling_events_total{kind=\"hypothetical\"} 0",
    ] {
        assert!(page.contains(line), "{line} is not in {page}");
    }
}

/// Requirement: N40
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn process_killed_before_storing_the_cursor_sends_the_same_batch() {
    let folder = tempfile::tempdir().expect("makes a folder");
    let endpoint = Endpoint::default();
    // The endpoint receives each batch and reports a failure.
    let url = endpoint.start(&[500; 50]).await;
    let (first, mut tasks, _) = stream(folder.path(), &clients(&url, 100));
    first
        .append(events(0..4), Some("before".into()))
        .await
        .expect("writes");
    endpoint.until("sent once", |all| !all.is_empty()).await;
    // Aborted tasks flush nothing, as after kill -9.
    tasks.abort_all();
    while tasks.join_next().await.is_some() {}
    drop(first);

    endpoint.statuses.lock().expect("no crash").clear();
    let (second, mut tasks, _) = stream(folder.path(), &clients(&url, 100));
    assert_eq!(second.checkpoint(), Some("before"));
    second.append(events(4..6), None).await.expect("writes");
    endpoint
        .until("all there", |all| {
            received(all) == (0..6).collect::<Vec<_>>()
        })
        .await;
    drop(second);
    while tasks.join_next().await.is_some() {}

    // The next process does not send received events again.
    let before = endpoint.batches().len();
    let (third, mut tasks, _) = stream(folder.path(), &clients(&url, 100));
    third.append(events(6..7), None).await.expect("writes");
    drop(third);
    while tasks.join_next().await.is_some() {}
    let new = &endpoint.batches()[before..];
    assert_eq!(received(new), [6], "{new:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiting_events_are_sent_at_the_end_or_kept_without_a_receiver() {
    let folder = tempfile::tempdir().expect("makes a folder");
    let endpoint = Endpoint::default();
    let unreachable = clients("http://127.0.0.1:9", 100);
    let (alone, mut tasks, _) = stream(folder.path(), &unreachable);
    alone.append(events(0..2), None).await.expect("writes");
    drop(alone);
    while tasks.join_next().await.is_some() {}
    let url = endpoint.start(&[]).await;
    let mut slow = clients(&url, 100);
    slow["http"]["pushEverySeconds"] = json!(3600);
    let (stream, mut tasks, _) = stream(folder.path(), &slow);
    drop(stream);
    while tasks.join_next().await.is_some() {}
    assert_eq!(received(&endpoint.batches()), [0, 1]);
}
