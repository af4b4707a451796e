use std::collections::BTreeMap;

use fleet_core::Environment;
use protocol::fleet::{
    BlockedBy, EnvironmentSpec, GroupState, GroupStatus, Lock, Progress, TurnEnd,
};
use protocol::parts::{PartName, PartPhase, PartSource};
use protocol::time::WallTime;

use super::*;

fn key() -> Key {
    ("default".to_owned(), "m".to_owned())
}

/// A world with the deployment `d` of the environment `m`.
pub(crate) fn world(status: DeploymentStatus) -> World {
    World {
        environment: Environment {
            name: "m".to_owned(),
            spec: EnvironmentSpec::of_release(PartName::Monitor, "1.1.0"),
            status: EnvironmentStatus::default(),
            is_deleted: false,
            has_finalizer: false,
        },
        revisions: BTreeMap::new(),
        deployments: vec![fleet_core::Deployment {
            name: "d".to_owned(),
            created: WallTime(0),
            spec: spec(DeploymentKind::User),
            status,
            answers: BTreeMap::new(),
        }],
        guests: BTreeMap::new(),
        is_critical: false,
    }
}

fn spec(kind: DeploymentKind) -> DeploymentSpec {
    DeploymentSpec {
        rollback_of: "d".to_owned(),
        ..DeploymentSpec::new("m", "m-r1", kind)
    }
}

/// Changes of the deployment `d` in words.
fn words(before: DeploymentStatus, status: DeploymentStatus) -> Vec<String> {
    let write = Write::Deployment {
        name: "d".to_owned(),
        status,
    };
    let changes = of_write(&key(), &world(before), &write, &Outcome::Done);
    let words = changes
        .iter()
        .map(|one| format!("{} {}: {} ({})", one.kind.as_str(), one.on, one.to, one.why));
    words.collect()
}

/// Requirement: B49
#[test]
fn state_of_a_deployment_is_told_with_its_evidence() {
    let running = DeploymentStatus {
        state: DeploymentState::InProgress,
        evidence: vec!["old".to_owned()],
        ..DeploymentStatus::default()
    };
    let stopping = DeploymentStatus {
        state: DeploymentState::ToBeStopped,
        ending: Some(DeploymentState::Unhealthy),
        evidence: vec!["old".to_owned(), "vm-a: it ended".to_owned()],
        ..running.clone()
    };
    let expected = "state default/d: ToBeStopped, then Unhealthy (vm-a: it ended)";
    assert_eq!(words(running, stopping), [expected]);
}

#[test]
fn figures_alone_are_no_change() {
    let before = DeploymentStatus {
        state: DeploymentState::InProgress,
        ..DeploymentStatus::default()
    };
    let after = DeploymentStatus {
        progress: Progress {
            done: 1,
            total: 2,
            ..Progress::default()
        },
        ..before.clone()
    };
    assert_eq!(words(before, after), [""; 0]);
}

#[test]
fn gate_and_judgement_are_told_when_they_change() {
    let by = |gate: &str| {
        Some(BlockedBy {
            gate: gate.to_owned(),
            detail: "it waits".to_owned(),
            since: WallTime(0),
        })
    };
    let group = |state, judgement: &str| GroupStatus {
        name: "all".to_owned(),
        state,
        done: 0,
        total: 1,
        judgement: judgement.to_owned(),
        looks: 0,
        baking_since: None,
    };
    let before = DeploymentStatus {
        state: DeploymentState::Blocked,
        blocked_by: by("budget"),
        groups: vec![group(GroupState::CanariesBake, "")],
        ..DeploymentStatus::default()
    };
    let after = DeploymentStatus {
        blocked_by: by("bake"),
        groups: vec![group(GroupState::Rest, "passed")],
        ..before.clone()
    };
    let expected = [
        "gate default/d: bake (it waits)",
        "group default/d: all Rest (passed)",
    ];
    assert_eq!(words(before.clone(), after), expected);
    assert_eq!(words(before.clone(), before), [""; 0]);
}

#[test]
fn lock_is_told_when_it_changes() {
    let locked = EnvironmentStatus {
        lock: Some(Lock {
            deployment: "d".to_owned(),
            kind: DeploymentKind::User,
            epoch: 7,
        }),
        ..EnvironmentStatus::default()
    };
    let world = world(DeploymentStatus::default());
    let told = |status: EnvironmentStatus| {
        let write = Write::Environment(status);
        of_write(&key(), &world, &write, &Outcome::Done)
    };
    let changes = told(locked);
    assert_eq!(changes.len(), 1);
    assert_eq!((&*changes[0].to, &*changes[0].on), ("d", "default/m"));
    assert_eq!(changes[0].why, "User, epoch 7");
    assert_eq!(told(EnvironmentStatus::default()), []);
}

#[test]
fn end_of_a_turn_is_told_with_its_cause() {
    let rows = [
        (TurnResult::Good, "", EndCause::Kept, "kept"),
        (TurnResult::Bad, "it is away", EndCause::Agent, "it is away"),
    ];
    for (result, reason, cause, expected) in rows {
        let part = InstancePart {
            version: String::new(),
            sha256: String::new(),
            from: PartSource::Image,
            phase: PartPhase::Back,
            healthy: true,
            last: TurnEnd {
                token: "t".to_owned(),
                result,
                reason: reason.to_owned(),
                at: WallTime(0),
            },
        };
        let guest = "vm-a".to_owned();
        let write = Write::End { guest, cause, part };
        let world = world(DeploymentStatus::default());
        let changes = of_write(&key(), &world, &write, &Outcome::Done);
        assert_eq!(changes[0].end, Some((result, cause)), "{reason}");
        assert_eq!(changes[0].why, expected);
        assert_eq!(changes[0].on, "default/vm-a");
    }
}

#[test]
fn write_that_failed_is_told_with_its_failure() {
    let write = Write::Create {
        name: "d-rollback".to_owned(),
        spec: spec(DeploymentKind::Rollback),
    };
    let world = world(DeploymentStatus::default());
    let refused = Outcome::Refused("quota".to_owned());
    let changes = of_write(&key(), &world, &write, &refused);
    assert_eq!(changes[0].failure.as_deref(), Some("quota"));
    assert_eq!(changes[0].why, "takes d back");
    let keep = Call::Keep {
        token: "t".to_owned(),
    };
    let gone = Outcome::GoneBack("it ended".to_owned());
    let change = of_call(&key(), "vm-a", &keep, &gone);
    assert_eq!(change.kind, ChangeKind::Keep);
    assert_eq!(change.failure.as_deref(), Some("it ended"));
}
