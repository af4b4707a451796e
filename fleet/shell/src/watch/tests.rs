use std::collections::BTreeMap;

use fleet_core::{Deployment, Environment, PartFacts, Returned, Revision, World};
use protocol::fleet::{
    DeploymentKind, DeploymentSpec, DeploymentState, DeploymentStatus, EnvironmentSpec,
    EnvironmentStatus, Group, GroupState, GroupStatus, InstancePart, Lock, Resolved, Rollout,
    TurnSpec, TurnVerb,
};
use protocol::parts::{PartName, PartPhase, PartSource, PartState};
use protocol::trace::TraceId;

use super::*;

const NEW: &str = "1";
const OLD: &str = "0";

fn part(digit: &str) -> Observed {
    Observed::Seen(PartFacts {
        state: PartState {
            version: "1.0.0".to_owned(),
            sha256: digit.repeat(64),
            from: PartSource::Image,
            phase: PartPhase::Settled,
            left_s: 0,
            token: String::new(),
            reason: String::new(),
            starts: 1,
            resident_bytes: 1 << 20,
        },
        returned: Returned::Ended,
    })
}

fn guest(digit: &str) -> Guest {
    Guest {
        is_enrolled: true,
        boot: "1".to_owned(),
        observed: part(digit),
        ..Guest::default()
    }
}

/// A guest that the deployment `d` has changed.
fn changed(token: &str) -> Guest {
    let turn = TurnSpec {
        environment: "m".to_owned(),
        deployment: "d".to_owned(),
        revision: "m-r1".to_owned(),
        version: "1.1.0".to_owned(),
        sha256: NEW.repeat(64),
        token: token.to_owned(),
        epoch: 1,
        verb: TurnVerb::Try,
        attempt: 1,
    };
    let last = InstancePart::kept(&turn, WallTime(0));
    Guest {
        turn: Some(turn),
        last: Some(last),
        ..guest(NEW)
    }
}

fn rollout() -> Rollout {
    Rollout {
        groups: vec![Group {
            name: "all".to_owned(),
            match_labels: BTreeMap::new(),
            canaries: 1,
            bake_seconds: 60,
        }],
        ..Rollout::default()
    }
}

/// A deployment `d` whose canary bakes.
fn looked(guests: Vec<(&str, Guest, Felt)>) -> Looked {
    let spec = EnvironmentSpec {
        rollout: rollout(),
        ..EnvironmentSpec::of_release(PartName::Monitor, "1.1.0")
    };
    let revision = Revision {
        rollout: rollout(),
        program: Resolved {
            version: "1.1.0".to_owned(),
            sha256: NEW.repeat(64),
            bundle: String::new(),
        },
        image: fleet_core::ImageCheck::default(),
    };
    let deployment = Deployment {
        name: "d".to_owned(),
        created: WallTime(0),
        spec: DeploymentSpec::new("m", "m-r1", DeploymentKind::User),
        status: DeploymentStatus {
            state: DeploymentState::InProgress,
            groups: vec![GroupStatus {
                name: "all".to_owned(),
                state: GroupState::CanariesBake,
                done: 1,
                total: 2,
                judgement: String::new(),
                looks: 0,
                baking_since: Some(WallTime(0)),
            }],
            ..DeploymentStatus::default()
        },
        answers: BTreeMap::new(),
    };
    let lock = Lock {
        deployment: "d".to_owned(),
        kind: DeploymentKind::User,
        epoch: 1,
    };
    let names: Vec<String> = guests.iter().map(|(name, ..)| (*name).to_owned()).collect();
    let (guests, felt): (Vec<Guest>, Vec<Felt>) = guests
        .into_iter()
        .map(|(_, guest, felt)| (guest, felt))
        .unzip();
    Looked {
        world: World {
            environment: Environment {
                name: "m".to_owned(),
                spec,
                status: EnvironmentStatus {
                    lock: Some(lock),
                    ..EnvironmentStatus::default()
                },
                is_deleted: false,
                has_finalizer: false,
            },
            revisions: [("m-r1".to_owned(), revision)].into(),
            deployments: vec![deployment],
            guests: names.iter().cloned().zip(guests).collect(),
            is_critical: false,
        },
        addresses: BTreeMap::new(),
        felt: names.into_iter().zip(felt).collect(),
    }
}

fn felt(figures: Option<GuestFigures>) -> Felt {
    Felt {
        vm: "default/pg".to_owned(),
        figures,
        node_has_room: true,
        has_agent: true,
    }
}

fn figures(oom_kills: u64) -> GuestFigures {
    GuestFigures {
        agent_connected: true,
        resident_bytes: 1 << 20,
        oom_kills,
        ..GuestFigures::default()
    }
}

fn now(second: u64) -> Now {
    Now {
        monotonic: Timestamp(second * 1_000_000),
        wall: WallTime(i64::try_from(second).expect("a time") * 1_000_000),
    }
}

/// Readings of the guest `a` after looks at these seconds.
fn readings_after(looks: &[(u64, Guest, Option<GuestFigures>)]) -> Option<Readings> {
    let mut watch = Watch::default();
    let mut readings = None;
    for (second, guest, figures) in looks {
        let mut looked = looked(vec![("a", guest.clone(), felt(*figures))]);
        watch.add(now(*second), &mut looked, &[]);
        readings = looked.world.guests["a"].readings.clone();
    }
    readings
}

#[test]
fn guest_is_sampled_every_ten_seconds() {
    let look = |second, kills| (second, changed("t"), Some(figures(kills)));
    let readings = readings_after(&[look(0, 1), look(1, 2), look(9, 3), look(10, 4)]);
    let readings = readings.expect("readings");
    assert_eq!((readings.seconds, readings.oom_kills), (10, 3));
    assert_eq!(readings.kills_with_room, 3);
}

#[test]
fn page_without_figures_is_no_sample() {
    let readings = readings_after(&[
        (0, changed("t"), None),
        (10, changed("t"), Some(figures(1))),
        (20, changed("t"), None),
    ]);
    assert_eq!(readings.expect("readings").seconds, 0);
    assert_eq!(readings_after(&[(0, changed("t"), None)]), None);
}

#[test]
fn counter_that_falls_counts_for_nothing() {
    let look = |second, kills| (second, changed("t"), Some(figures(kills)));
    let readings = readings_after(&[look(0, 7), look(10, 0), look(20, 2)]);
    let readings = readings.expect("readings");
    assert_eq!((readings.seconds, readings.oom_kills), (10, 2));
}

#[test]
fn new_turn_begins_new_readings() {
    let readings = readings_after(&[
        (0, changed("t"), Some(figures(0))),
        (10, changed("t"), Some(figures(5))),
        (20, changed("u"), Some(figures(5))),
        (30, changed("u"), Some(figures(6))),
    ]);
    assert_eq!(readings.expect("readings").oom_kills, 1);
}

#[test]
fn controls_have_readings_and_guests_in_a_turn_have_none() {
    let mut in_flight = changed("v");
    in_flight.last = None;
    let all = vec![
        ("a", changed("t"), felt(Some(figures(0)))),
        ("b", guest(OLD), felt(Some(figures(0)))),
        ("c", in_flight, felt(Some(figures(0)))),
    ];
    let mut looked = looked(all);
    Watch::default().add(now(0), &mut looked, &[]);
    let has_readings = |name: &str| looked.world.guests[name].readings.is_some();
    assert!(has_readings("a") && has_readings("b"));
    assert!(!has_readings("c"));
}

#[test]
fn deployment_without_groups_reads_nothing() {
    let mut looked = looked(vec![("a", changed("t"), felt(Some(figures(0))))]);
    for revision in looked.world.revisions.values_mut() {
        revision.rollout.groups.clear();
    }
    Watch::default().add(now(0), &mut looked, &[]);
    assert_eq!(looked.world.guests["a"].readings, None);
}

#[test]
fn guest_under_pressure_or_asking_for_growth_gets_no_turn() {
    let gate = |watch: &mut Watch, second, requests, waiting_percent| {
        let figures = GuestFigures {
            upscale_requests: requests,
            waiting_percent,
            ..figures(0)
        };
        let mut looked = looked(vec![("b", guest(OLD), felt(Some(figures)))]);
        watch.add(now(second), &mut looked, &[]);
        looked.world.guests["b"].gate
    };
    let mut watch = Watch::default();
    let rows = [
        (0, 5, 0, None),
        (1, 6, 0, Some(Gate::Pressure)),
        (10, 6, 9, Some(Gate::Pressure)),
        (11, 6, 9, None),
        (12, 6, 10, Some(Gate::Pressure)),
        // The monitor began again.
        (13, 0, 0, None),
    ];
    for (second, requests, percent, expected) in rows {
        let gate = gate(&mut watch, second, requests, percent);
        assert_eq!(gate, expected, "{second} s");
    }
}

fn stage(revision: i64, stage: Stage, start_ms: i64, millis: u64) -> StageRecord {
    StageRecord {
        trace: TraceId {
            vm: "default/pg".to_owned(),
            revision,
        },
        stage,
        start_unix_us: start_ms * 1000,
        duration_us: millis * 1000,
        change: String::new(),
    }
}

#[test]
fn resize_lasts_from_its_patch_to_its_status_and_counts_once() {
    let stages = [
        stage(7, Stage::Patch, 900, 5),
        stage(7, Stage::Status, 1500, 5),
        stage(8, Stage::Decision, 1990, 5),
        stage(8, Stage::Patch, 2000, 20),
        stage(8, Stage::Qmp, 2100, 300),
        stage(8, Stage::Status, 2700, 50),
        stage(9, Stage::Patch, 3000, 20),
    ];
    let since = WallTime(1_000_000);
    let found = resizes(&stages, "default/pg", 0, since);
    assert_eq!(found, [(8, 750)]);
    assert_eq!(resizes(&stages, "default/pg", 8, since), []);
    assert_eq!(resizes(&stages, "default/other", 0, since), []);
}
