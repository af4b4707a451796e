//! Events on deployments.

use std::collections::BTreeMap;

use serde_json::Value;
use test_api::TestApi;

use super::{BAD, GOOD, Played, drive};

/// Events by deployment and reason, with their numbers and types.
fn events(played: &Played) -> BTreeMap<(String, String), (usize, Value)> {
    let mut all = BTreeMap::new();
    for event in played.api.list("events") {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let key = (
            text(&event["involvedObject"]["name"]),
            text(&event["reason"]),
        );
        let (count, kind) = all.entry(key).or_insert((0, event["type"].clone()));
        *count += 1;
        assert_eq!(*kind, event["type"]);
        assert_eq!(event["involvedObject"]["kind"], "FleetDeployment");
    }
    all
}

/// Events that drivers have asked the API to keep.
fn posts(api: &TestApi) -> usize {
    api.count("POST /api/v1/namespaces/kube-system/events", |_| true)
}

/// A release that is rolled out, one that halts and its way back. The driver starts again in each
/// of them and after all.
///
/// Requirement: B51
#[tokio::test]
async fn deployment_has_each_event_once_over_drivers_that_begin_anew() {
    let folder = tempfile::tempdir().expect("a folder");
    let played = Played::start(3).await;
    for (number, digit, state) in [(1, GOOD, "Complete"), (2, BAD, "Unhealthy")] {
        played.start_deployment(number, digit);
        let first = drive(&played, folder.path());
        let begun = format!("agents-{number}");
        played
            .until("its begin", |api| {
                let deployment = api.get("fleetdeployments", "kube-system", &begun)?;
                deployment["status"]["startedAt"].is_string().then_some(())
            })
            .await;
        drop(first);
        let _second = drive(&played, folder.path());
        let status = played.ended(&begun).await;
        assert_eq!(status["state"], state, "{status}");
    }
    let driver = drive(&played, folder.path());
    let back = played.ended("agents-2-rollback").await;
    assert_eq!(back["state"], "Complete", "{back}");
    drop(driver);
    let expected = [
        ("agents-1", "Complete", "Normal"),
        ("agents-1", "Started", "Normal"),
        ("agents-2", "Halted", "Warning"),
        ("agents-2", "Started", "Normal"),
        ("agents-2-rollback", "RolledBack", "Normal"),
        ("agents-2-rollback", "Started", "Normal"),
    ];
    for _ in 0..3 {
        let _driver = drive(&played, folder.path());
        let before = posts(&played.api);
        played
            .until("all events", |_| {
                (events(&played).len() == expected.len()).then_some(())
            })
            .await;
        // A driver that does not know what was told asks, and the API refuses.
        played
            .until("the events of this driver", |api| {
                (posts(api) >= before + expected.len()).then_some(())
            })
            .await;
    }
    let found: Vec<_> = events(&played).into_iter().collect();
    let found: Vec<_> = found
        .iter()
        .map(|((name, reason), (count, kind))| (&**name, &**reason, kind.as_str(), *count))
        .collect();
    let expected = expected.map(|(name, reason, kind)| (name, reason, Some(kind), 1));
    assert_eq!(found, expected);
}
