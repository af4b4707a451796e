use protocol::fleet::BlockedBy;
use serde_json::json;

use super::testing::deployed;
use super::*;
use crate::terminal::Paint;

fn env() -> Env {
    let object = json!({
        "metadata": {"name": "m", "namespace": "a"},
        "spec": {"part": "monitor", "source": {"release": {"version": "1.1.0"}}},
        "status": {"counts": {"matching": 3, "active": 2}, "lock": {
            "deployment": "m-r1-1", "kind": "User", "epoch": 1}},
    });
    Env::of(object).expect("an environment")
}

#[test]
fn line_of_progress_names_figures_and_gate() {
    let mut one = deployed("m-r2-1", "m-r2", DeploymentState::Blocked);
    one.status.progress.done = 1;
    one.status.progress.total = 3;
    one.status.progress.failed = 1;
    one.status.blocked_by = Some(BlockedBy {
        gate: "budget".to_owned(),
        detail: "vm-b: too few".to_owned(),
        since: WallTime(0),
    });
    let expected = "m-r2-1 1/3: blocked to m-r2, 1 failed; waits for budget: vm-b: too few";
    assert_eq!(progress_line(&one), expected);
}

#[test]
fn deployment_with_the_lock_is_the_one_in_progress() {
    let all = [
        deployed("m-r2-1", "m-r2", DeploymentState::Pending),
        deployed("m-r1-1", "m-r1", DeploymentState::InProgress),
    ];
    let name = |all: &[Deployed]| running(&env(), all).map(|one| one.name.clone());
    assert_eq!(name(&all).as_deref(), Some("m-r1-1"));
    assert_eq!(name(&all[..1]).as_deref(), Some("m-r2-1"));
    assert_eq!(
        name(&[deployed("m-r1-1", "m-r1", DeploymentState::Complete)]),
        None
    );
}

/// Requirement: B21
#[test]
fn history_has_the_newest_first_also_at_equal_times() {
    let mut all = [
        deployed("m-r9-1", "m-r9", DeploymentState::Complete),
        deployed("m-r10-1", "m-r10", DeploymentState::Complete),
        deployed("m-r1-2", "m-r1", DeploymentState::Complete),
    ];
    all[2].created = WallTime(1_000_000);
    sort_newest_first(&mut all);
    let names = all.each_ref().map(|one| one.name.as_str());
    assert_eq!(names, ["m-r1-2", "m-r10-1", "m-r9-1"]);
}

/// Requirement: B21
#[test]
fn history_shows_figures_kind_cause_and_reason() {
    let mut one = deployed("m-r2-1", "m-r2", DeploymentState::Unhealthy);
    one.status.progress.total = 3;
    one.status.evidence = vec!["vm-a: the part ended".to_owned()];
    one.spec.reason = "a try".to_owned();
    let lines = history_table(&[one], false).lines(Paint::PLAIN);
    for word in [
        "m-r2-1",
        "user",
        "unhealthy",
        "0/3",
        "vm-a: the part ended",
        "a try",
    ] {
        assert!(lines[1].contains(word), "{word}: {lines:?}");
    }
}

#[test]
fn list_shows_health_and_deployment_of_each_environment() {
    let all = [deployed("m-r1-1", "m-r1", DeploymentState::InProgress)];
    let view = EnvView::of(&env(), &all);
    let lines = env_table(std::slice::from_ref(&view), true, true).lines(Paint::PLAIN);
    for word in [
        "a", "m", "monitor", "inactive", "unknown", "1.1.0", "2/3", "m-r1-1",
    ] {
        assert!(
            lines[1].split_whitespace().any(|cell| cell == word),
            "{word}: {lines:?}"
        );
    }
    let value = json!(view);
    assert_eq!(value["deployment"]["spec"]["revision"], "m-r1");
    assert_eq!(value["status"]["counts"]["active"], 2);
}
