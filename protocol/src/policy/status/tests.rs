use serde_json::json;

use super::*;

const SECOND: i64 = 1_000_000;

fn digests(status: &ScalingPolicyStatus) -> [Option<&str>; 4] {
    let of = |version: &'_ Option<PolicyVersion>| version.as_ref().map(|v| v.digest.clone());
    let all = [
        status.deciding().map(str::to_owned),
        of(&status.live),
        of(&status.candidate),
        of(&status.previous),
    ];
    all.map(|one| one.map(|text| &*text.leak()))
}

#[test]
fn version_that_is_taken_back_gives_way_to_the_one_before() {
    let at = |second: i64| WallTime(second * SECOND);
    let mut status = ScalingPolicyStatus::default();
    assert!(!status.demote("nothing decides", at(0)));
    assert!(status.promote("a", at(1)) && !status.promote("a", at(2)));
    assert_eq!(digests(&status), [Some("a"), Some("a"), None, None]);
    assert!(status.promote("b", at(3)));
    assert_eq!(digests(&status), [Some("b"), Some("b"), None, Some("a")]);
    assert!(status.demote("slow queries", at(4)));
    assert_eq!(digests(&status), [Some("a"), Some("a"), Some("b"), None]);
    assert!(status.is_demoted());
    assert_eq!(
        status.live.as_ref().and_then(|live| live.since),
        Some(at(4))
    );
    assert!(status.demote("also slow", at(5)));
    assert_eq!(digests(&status), [None, None, Some("a"), None]);
}

#[test]
fn paused_policy_decides_nothing_until_it_goes_on() {
    let now = WallTime(SECOND);
    let mut status = ScalingPolicyStatus::default();
    status.promote("a", now);
    assert!(status.pause("holiday", now) && !status.pause("again", now));
    assert_eq!(digests(&status), [None, Some("a"), None, None]);
    assert!(status.resume() && !status.resume());
    assert_eq!(status.deciding(), Some("a"));
    status.pause("holiday", now);
    assert!(status.promote("a", now), "a promotion ends the pause");
    assert_eq!(digests(&status), [Some("a"), Some("a"), None, None]);
}

#[test]
fn candidate_in_canary_decides_nothing_during_a_pause() {
    let stage = |stage| {
        let candidate = PolicyVersion {
            digest: "b".into(),
            since: None,
            stage,
        };
        let mut status = ScalingPolicyStatus::default();
        status.promote("a", WallTime(0));
        ScalingPolicyStatus {
            candidate: Some(candidate),
            ..status
        }
    };
    assert_eq!(stage(None).canary(), None);
    assert_eq!(stage(Some(Stage::Shadow)).canary(), None);
    let mut status = stage(Some(Stage::Canary));
    assert_eq!(status.canary(), Some("b"));
    status.pause("holiday", WallTime(1));
    assert_eq!(status.canary(), None);
}

#[test]
fn status_has_the_members_of_its_schema() {
    let mut status = ScalingPolicyStatus::default();
    assert_eq!(
        ScalingPolicyStatus::of_object(&json!({})),
        Ok(status.clone())
    );
    status.promote("a", WallTime(0));
    status.pause("holiday", WallTime(SECOND));
    let object = json!({"status": {
        "live": {"digest": "a", "since": null},
        "conditions": [{"type": "Paused", "status": "True", "reason": "ByPerson",
            "message": "holiday", "lastTransitionTime": "1970-01-01T00:00:01Z"}],
    }});
    assert_eq!(
        serde_json::to_value(&status).expect("JSON"),
        object["status"]
    );
    let bad = json!({"status": {"live": 3}});
    assert!(ScalingPolicyStatus::of_object(&bad).is_err());
}
