//! The controller before the shipped API server, with agents that are made up. It ends at any call,
//! and the next one goes on.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use daemon_kit::clock::Clock;
use policy_contract::tally::VersionReport;
use policy_controller::core::reconcile::spec_of;
use policy_controller::{Agents, Params};
use protocol::policy::{ScalingPolicyStatus, revision_name};
use protocol::time::WallTime;
use serde_json::{Value, json};
use test_api::{Fault, TestApi};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

const PLURAL: &str = "scalingpolicies";
const STATUS: &str = "PUT /apis/policy.bellows.dev/v1alpha1/scalingpolicies/db/status";
const HOUR: i64 = 3_600_000_000;

type Reports = Arc<Mutex<Vec<VersionReport>>>;

fn spec(version: u8) -> Value {
    json!({
        "source": format!("return function(i) return std.hold('v{version}') end"),
        "gate": {"promote": "auto", "hours": 0, "decisions": 0, "vms": 0},
    })
}

fn digest(version: u8) -> String {
    let spec = spec_of(&json!({"spec": spec(version)})).expect("a spec");
    spec.digest().to_string()
}

/// A policy whose first version decides since some hours, and whose spec has a version.
fn put(api: &TestApi, version: u8) {
    let mut status = ScalingPolicyStatus::default();
    let now = Clock::new().wall();
    status.promote(&digest(1), WallTime(now.0 - 3 * HOUR));
    api.put(
        PLURAL,
        json!({
            "apiVersion": "policy.bellows.dev/v1alpha1",
            "kind": "ScalingPolicy",
            "metadata": {"name": "db"},
            "spec": spec(version),
            "status": status,
        }),
    );
}

fn status(api: &TestApi) -> ScalingPolicyStatus {
    let object = api.get(PLURAL, "", "db").expect("it is there");
    ScalingPolicyStatus::of_object(&object).expect("a status")
}

/// Digest of the live version, and of the candidate that decides about some of the VMs.
fn deciding(api: &TestApi) -> (Option<String>, Option<String>) {
    let status = status(api);
    let live = status.deciding().map(str::to_owned);
    (live, status.canary().map(str::to_owned))
}

fn start(api: &TestApi, reports: &Reports) -> JoinHandle<()> {
    let reports = Arc::clone(reports);
    let read = move || {
        let reports = reports.lock().unwrap_or_else(PoisonError::into_inner);
        reports.clone()
    };
    let params = Params {
        client: api.client(),
        clock: Clock::new(),
        agents: Agents::Here {
            node: "n".to_owned(),
            read: Arc::new(read),
        },
        every: Duration::from_millis(20),
        sets: None,
    };
    tokio::spawn(policy_controller::run(params, CancellationToken::new()))
}

fn report(reports: &Reports, version: u8, faults_in_a_row: u32) {
    let mut report = VersionReport {
        policy: "db".to_owned(),
        digest: digest(version),
        has_journal: true,
        ..VersionReport::default()
    };
    report.alarms.faults_in_a_row = faults_in_a_row;
    *reports.lock().unwrap_or_else(PoisonError::into_inner) = vec![report];
}

fn demotions(api: &TestApi) -> usize {
    let events = api.list("events");
    let of_it = events
        .iter()
        .filter(|event| event["reason"] == "PolicyDemoted");
    of_it.count()
}

async fn until(api: &TestApi, wanted: (Option<String>, Option<String>)) {
    let what = format!("{wanted:?}");
    let holds = |api: &TestApi| (deciding(api) == wanted).then_some(());
    api.wait(&what, holds).await;
}

/// Requirement: V07
#[tokio::test]
async fn v07_candidate_comes_to_canary_and_one_that_faults_is_taken_back_with_one_event() {
    let api = TestApi::start().await;
    let reports = Reports::default();
    put(&api, 2);
    report(&reports, 2, 0);
    let controller = start(&api, &reports);
    until(&api, (Some(digest(1)), Some(digest(2)))).await;
    let name = revision_name("db", &digest(2));
    assert!(
        api.get("controllerrevisions", "kube-system", &name)
            .is_some()
    );
    report(&reports, 2, 3);
    until(&api, (Some(digest(1)), None)).await;
    let holds = |api: &TestApi| (demotions(api) == 1).then_some(());
    api.wait("an event", holds).await;
    let seen = api.calls().len();
    api.wait_calls(seen + 10).await;
    assert_eq!(demotions(&api), 1);
    let condition = status(&api);
    let condition = condition.condition_of("Demoted").expect("a condition");
    assert!(
        condition.message.contains("3 faults in a row"),
        "{condition:?}"
    );
    controller.abort();
}

/// Requirement: V05, V40
#[tokio::test]
async fn v05_controller_that_ends_at_any_call_leaves_what_was_before_or_after() {
    let before = (Some(digest(1)), None);
    let canary = (Some(digest(1)), Some(digest(2)));
    for place in [
        "GET /apis/apps",
        "GET /apis/policy",
        "POST /apis/apps",
        STATUS,
        "POST /api/v1/namespaces/default/events",
    ] {
        for fault in [Fault::Swallow, Fault::Lose] {
            for faults_in_a_row in [0, 3] {
                let api = TestApi::start().await;
                let reports = Reports::default();
                put(&api, 2);
                report(&reports, 2, 0);
                let after = if faults_in_a_row == 0 {
                    canary.clone()
                } else {
                    // The step is the demotion.
                    let first = start(&api, &reports);
                    until(&api, canary.clone()).await;
                    first.abort();
                    report(&reports, 2, faults_in_a_row);
                    before.clone()
                };
                let begin = deciding(&api);
                let seen = api.count(place, |_| true);
                api.order(place, 1, fault.clone());
                let second = start(&api, &reports);
                // Not every step makes every call.
                let patience = Duration::from_millis(400);
                let met = async {
                    while api.count(place, |_| true) == seen {
                        tokio::task::yield_now().await
                    }
                };
                let _ = tokio::time::timeout(patience, met).await;
                second.abort();
                let _ = second.await;
                let left = deciding(&api);
                assert!(
                    left == begin || left == after,
                    "{place} {fault:?}: {left:?}"
                );
                api.take_all_back();
                let third = start(&api, &reports);
                until(&api, after).await;
                third.abort();
                assert!(demotions(&api) <= 1, "{place} {fault:?}");
            }
        }
    }
}

/// Requirement: V05
#[tokio::test]
async fn v05_person_who_wrote_meanwhile_wins() {
    let api = TestApi::start().await;
    let reports = Reports::default();
    put(&api, 2);
    report(&reports, 2, 0);
    // A person pauses the policy between the controller's read and its write.
    let paused = Fault::answer(|api, _| {
        api.edit(PLURAL, "", "db", |object| {
            let mut status = ScalingPolicyStatus::of_object(object).expect("a status");
            status.pause("holiday", WallTime(HOUR));
            object["status"] = json!(status);
        });
        None
    });
    api.order(STATUS, 1, paused);
    let controller = start(&api, &reports);
    api.wait("the next look", |api| {
        let condition = status(api);
        let condition = condition.condition_of("Promotable")?;
        (condition.reason == "Paused").then_some(())
    })
    .await;
    assert_eq!(deciding(&api), (None, None));
    controller.abort();
}
