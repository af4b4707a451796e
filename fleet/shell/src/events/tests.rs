use protocol::fleet::{BlockedBy, DeploymentStatus, Progress};

use super::*;

const MINUTE: i64 = 60 * 1_000_000;

fn world(kind: DeploymentKind, status: DeploymentStatus) -> World {
    let mut world = crate::changes::tests::world(status);
    let spec = &mut world.deployments[0].spec;
    (spec.kind, spec.rollback_of) = (kind, "c".to_owned());
    world
}

/// Reasons and messages of the events of a deployment at a minute.
fn said(kind: DeploymentKind, status: DeploymentStatus, minute: i64) -> Vec<String> {
    let notes = events_of(&world(kind, status), WallTime(minute * MINUTE));
    let texts = notes
        .iter()
        .map(|one| format!("{}: {}", one.reason, one.message));
    texts.collect()
}

fn ends(state: DeploymentState, evidence: &str) -> DeploymentStatus {
    DeploymentStatus {
        state,
        started_at: Some(WallTime(-100 * MINUTE)),
        ended_at: Some(WallTime(0)),
        evidence: vec![evidence.to_owned()],
        progress: Progress {
            done: 2,
            total: 3,
            ..Progress::default()
        },
        ..DeploymentStatus::default()
    }
}

/// Requirement: B51
#[test]
fn each_thing_that_happens_to_a_deployment_has_its_event() {
    use DeploymentKind::{Cron, Rollback, User};
    let begun = DeploymentStatus {
        state: DeploymentState::InProgress,
        started_at: Some(WallTime(0)),
        ..DeploymentStatus::default()
    };
    let halting = DeploymentStatus {
        state: DeploymentState::ToBeStopped,
        ending: Some(DeploymentState::Unhealthy),
        ended_at: None,
        ..ends(DeploymentState::Unhealthy, "vm-a: it ended")
    };
    let rows = [
        (User, begun.clone(), "Started: brings guests to m-r1"),
        (
            Rollback,
            begun.clone(),
            "Started: takes guests back to m-r1",
        ),
        (Cron, begun, "Started: verifies that guests run m-r1"),
        (User, halting, "Halted: 2 of 3 guests; vm-a: it ended"),
        (
            User,
            ends(DeploymentState::Unhealthy, "bad"),
            "Halted: 2 of 3 guests; bad",
        ),
        (
            User,
            ends(DeploymentState::Complete, "one"),
            "Complete: 2 of 3 guests; one",
        ),
        (
            Rollback,
            ends(DeploymentState::Complete, "x"),
            "RolledBack: c was taken back: 2 of 3 guests",
        ),
        (
            User,
            ends(DeploymentState::Stopped, "x"),
            "Stopped: 2 of 3 guests; x",
        ),
        (
            User,
            ends(DeploymentState::Canceled, "x"),
            "Canceled: 2 of 3 guests; x",
        ),
        (
            User,
            ends(DeploymentState::TimedOut, "x"),
            "TimedOut: 2 of 3 guests; x",
        ),
    ];
    for (kind, status, expected) in rows {
        assert_eq!(said(kind, status, 1), [expected]);
    }
    assert_eq!(
        said(User, DeploymentStatus::default(), 1),
        Vec::<String>::new()
    );
}

/// Requirement: B51
#[test]
fn what_is_old_is_not_told_again_and_a_gate_is_told_after_an_hour() {
    let complete = ends(DeploymentState::Complete, "x");
    assert_eq!(said(DeploymentKind::User, complete.clone(), 29).len(), 1);
    assert_eq!(
        said(DeploymentKind::User, complete, 30),
        Vec::<String>::new()
    );
    let blocked = DeploymentStatus {
        state: DeploymentState::Blocked,
        started_at: Some(WallTime(-100 * MINUTE)),
        blocked_by: Some(BlockedBy {
            gate: "window".to_owned(),
            detail: "vm-a: no window".to_owned(),
            since: WallTime(0),
        }),
        ..DeploymentStatus::default()
    };
    let at = |minute| said(DeploymentKind::User, blocked.clone(), minute);
    assert_eq!((at(59).len(), at(90).len()), (0, 0));
    assert_eq!(at(60), ["Blocked: for an hour by window: vm-a: no window"]);
}

/// Requirement: B51
#[test]
fn event_is_named_by_what_happened_alone() {
    let of = |status, minute: i64| {
        let world = world(DeploymentKind::User, status);
        events_of(&world, WallTime(minute * MINUTE)).remove(0)
    };
    let first = of(ends(DeploymentState::Unhealthy, "a"), 1);
    let later = of(ends(DeploymentState::Unhealthy, "b"), 9);
    assert_eq!(first.name("uid"), later.name("uid"));
    assert_ne!(first.name("uid"), first.name("other"));
    let other = of(ends(DeploymentState::Complete, "a"), 1);
    assert_ne!(first.name("uid"), other.name("uid"));
    assert!(first.name("uid").starts_with("d."), "{}", first.name("uid"));
}
