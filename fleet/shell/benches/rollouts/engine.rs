//! The engine alone: what a pass over all guests takes.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use fleet_core::{
    Action, Deployment, Engine, Environment, Event, Guest, Now, Observed, Outcome, PartFacts,
    Returned, Revision, World,
};
use protocol::core::Core as _;
use protocol::fleet::{
    DeploymentKind, DeploymentSpec, DeploymentState, DeploymentStatus, EnvironmentSpec,
    EnvironmentState, EnvironmentStatus, Lock, Resolved, Rollout,
};
use protocol::parts::{PartName, PartPhase, PartSource, PartState};
use protocol::time::{Timestamp, WallTime};
use serde_json::{Map, Value};

const PASSES: u32 = 20;
/// Passes of an idle environment in a minute.
const IDLE_PASSES: f64 = 2.0;

pub(crate) fn figures(guests: usize) -> Map<String, Value> {
    let per_guest = |passes: &[Duration]| {
        let mut times: Vec<f64> = passes.iter().map(Duration::as_secs_f64).collect();
        times.sort_by(f64::total_cmp);
        let count = u32::try_from(guests).unwrap_or(u32::MAX);
        times[times.len() / 2] * 1e6 / f64::from(count)
    };
    let running = passes(&world(guests, true));
    let idle = passes(&world(guests, false));
    [
        ("engine_guest_us".to_owned(), per_guest(&running).into()),
        (
            "engine_idle_guest_minute_us".to_owned(),
            (per_guest(&idle) * IDLE_PASSES).into(),
        ),
    ]
    .into_iter()
    .collect()
}

/// Each pass is of a new engine, whose turns all begin in it.
fn passes(world: &World) -> Vec<Duration> {
    let pass = |_| {
        let world = Box::new(world.clone());
        let mut engine = Engine::new(1);
        let basis = engine.basis();
        let now = Now {
            monotonic: Timestamp(0),
            wall: wall("2026-01-05T12:00:00Z"),
        };
        let begun = Instant::now();
        engine.handle(now, Event::World { basis, world });
        while let Some(action) = engine.poll_action(now) {
            if let Action::Write { id, .. } = action {
                let outcome = Outcome::Done;
                engine.handle(now, Event::Done { id, outcome });
            }
        }
        begun.elapsed()
    };
    (0..PASSES).map(pass).collect()
}

fn wall(text: &str) -> WallTime {
    WallTime::parse(text).expect("a time")
}

fn guest(node: usize) -> Guest {
    Guest {
        node: format!("node-{node}"),
        is_enrolled: true,
        boot: "1".to_owned(),
        observed: Observed::Seen(PartFacts {
            state: PartState {
                version: "1.0.0".to_owned(),
                sha256: "0".repeat(64),
                from: PartSource::Image,
                phase: PartPhase::Settled,
                left_s: 0,
                token: String::new(),
                reason: String::new(),
                starts: 1,
                resident_bytes: 1 << 20,
            },
            returned: Returned::default(),
        }),
        ..Guest::default()
    }
}

/// A rollout that has begun, or guests that all have their version.
fn world(guests: usize, is_running: bool) -> World {
    let rollout = Rollout {
        max_in_flight: 1_000,
        ..Rollout::default()
    };
    let program = Resolved {
        version: "1.1.0".to_owned(),
        sha256: if is_running { "1" } else { "0" }.repeat(64),
        bundle: String::new(),
    };
    let revision = Revision {
        rollout: rollout.clone(),
        program,
        image: fleet_core::ImageCheck::default(),
    };
    let deployment = Deployment {
        name: "d".to_owned(),
        created: wall("2026-01-05T11:59:00Z"),
        spec: DeploymentSpec::new("m", "m-r1", DeploymentKind::User),
        status: DeploymentStatus {
            state: if is_running {
                DeploymentState::InProgress
            } else {
                DeploymentState::Complete
            },
            started_at: Some(wall("2026-01-05T11:59:00Z")),
            ..DeploymentStatus::default()
        },
        answers: BTreeMap::new(),
    };
    let lock = Lock {
        deployment: "d".to_owned(),
        kind: DeploymentKind::User,
        epoch: 1,
    };
    let guests = (0..guests).map(|n| (format!("vm-{n}"), guest(n)));
    World {
        environment: Environment {
            name: "m".to_owned(),
            spec: EnvironmentSpec {
                rollout,
                ..EnvironmentSpec::of_release(PartName::Monitor, "1.1.0")
            },
            status: EnvironmentStatus {
                state: EnvironmentState::Active,
                lock: is_running.then_some(lock),
                ..EnvironmentStatus::default()
            },
            is_deleted: false,
            has_finalizer: true,
        },
        revisions: BTreeMap::from([("m-r1".to_owned(), revision)]),
        deployments: vec![deployment],
        guests: guests.collect(),
        is_critical: false,
    }
}
