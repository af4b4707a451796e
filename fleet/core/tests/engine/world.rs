//! Worlds that are written down, and what an engine comes to in them.

use std::collections::BTreeMap;

use fleet_core::{
    Action, Call, Deployment, Engine, Environment, Event, Guest, Now, Observed, Outcome, PartFacts,
    Returned, Revision, World, Write,
};
use protocol::core::Core as _;
use protocol::fleet::{
    Counts, Day, DeploymentKind, DeploymentSpec, DeploymentState, DeploymentStatus,
    EnvironmentSpec, EnvironmentStatus, Group, InstancePart, Lock, Resolved, Rollout, TurnSpec,
    TurnVerb, Window,
};
use protocol::parts::{PartName, PartPhase, PartSource, PartState};
use protocol::time::{Timestamp, WallTime};

/// A Monday, at noon.
const NOON: &str = "2026-01-05T12:00:00Z";

pub(super) fn seen(digit: &str, from: PartSource) -> Observed {
    Observed::Seen(PartFacts {
        state: PartState {
            version: "1.0.0".to_owned(),
            sha256: digit.repeat(64),
            from,
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

pub(super) fn guest(node: &str) -> Guest {
    Guest {
        node: node.to_owned(),
        is_enrolled: true,
        boot: "1".to_owned(),
        observed: seen("0", PartSource::Image),
        ..Guest::default()
    }
}

pub(super) fn guests(count: u32) -> BTreeMap<String, Guest> {
    let all = (0..count).map(|n| (format!("vm-{n}"), guest(&format!("node-{n}"))));
    all.collect()
}

pub(super) fn status() -> DeploymentStatus {
    DeploymentStatus {
        state: DeploymentState::InProgress,
        started_at: Some(WallTime::parse(NOON).expect("a time")),
        ..DeploymentStatus::default()
    }
}

/// A world in which a deployment of a person has begun.
pub(super) fn world(rollout: Rollout, guests: BTreeMap<String, Guest>) -> World {
    let revision = Revision {
        rollout: rollout.clone(),
        program: Resolved {
            version: "1.1.0".to_owned(),
            sha256: "1".repeat(64),
            bundle: String::new(),
        },
        image: fleet_core::ImageCheck::default(),
    };
    World {
        environment: Environment {
            name: "m".to_owned(),
            spec: EnvironmentSpec {
                rollout,
                ..EnvironmentSpec::of_release(PartName::Monitor, "1.1.0")
            },
            status: EnvironmentStatus {
                lock: Some(Lock {
                    deployment: "d".to_owned(),
                    kind: DeploymentKind::User,
                    epoch: 1,
                }),
                ..EnvironmentStatus::default()
            },
            is_deleted: false,
            has_finalizer: true,
        },
        revisions: [("m-r1".to_owned(), revision)].into(),
        deployments: vec![Deployment {
            name: "d".to_owned(),
            created: WallTime::parse(NOON).expect("a time"),
            spec: DeploymentSpec::new("m", "m-r1", DeploymentKind::User),
            status: status(),
            answers: BTreeMap::new(),
        }],
        guests,
        is_critical: false,
    }
}

/// What an engine came to.
#[derive(Debug, Default)]
pub(super) struct Done {
    /// Guests that got a turn.
    pub(super) turns: Vec<String>,
    /// Gate of the deployment.
    pub(super) gate: String,
    pub(super) counts: Counts,
    pub(super) environment: EnvironmentStatus,
    pub(super) status: DeploymentStatus,
    /// Deployments that were made.
    pub(super) created: Vec<DeploymentSpec>,
    pub(super) has_lock: bool,
    pub(super) writes: u32,
    /// Orders to guests.
    pub(super) calls: Vec<Call>,
    /// Finalizer that was added or taken away.
    pub(super) finalizer: Option<bool>,
}

pub(super) fn at(seconds: u64) -> Now {
    let noon = WallTime::parse(NOON).expect("a time");
    let micros = seconds * 1_000_000;
    Now {
        monotonic: Timestamp(micros),
        wall: WallTime(noon.0 + micros.cast_signed()),
    }
}

/// Carries out the writes that an engine asks for at a second, and none of its calls.
pub(super) fn run(engine: &mut Engine, world: World, seconds: u64) -> Done {
    let mut done = Done::default();
    let basis = engine.basis();
    let now = at(seconds);
    engine.handle(
        now,
        Event::World {
            basis,
            world: Box::new(world),
        },
    );
    while let Some(action) = engine.poll_action(now) {
        let (id, write) = match action {
            Action::Write { id, write } => (id, write),
            Action::Call { call, .. } => {
                done.calls.push(call);
                continue;
            }
        };
        done.writes += 1;
        match &write {
            Write::Turn { guest, .. } => done.turns.push(guest.clone()),
            Write::Environment(status) => {
                done.counts = status.counts;
                done.environment = status.clone();
            }
            Write::Deployment { status, .. } => done.status = status.clone(),
            Write::Create { spec, .. } => done.created.push(spec.clone()),
            Write::Finalizer(is_there) => done.finalizer = Some(*is_there),
            Write::End { .. } => {}
        }
        engine.handle(
            now,
            Event::Done {
                id,
                outcome: Outcome::Done,
            },
        );
    }
    let status = engine.world().map(|world| &world.environment.status);
    done.has_lock = status.is_some_and(|status| status.lock.is_some());
    let gate = done.status.blocked_by.as_ref();
    done.gate = gate.map_or_else(String::new, |by| by.gate.clone());
    done
}

pub(super) fn half() -> Rollout {
    Rollout {
        min_healthy_percent: 50,
        ..Rollout::default()
    }
}

pub(super) fn at_night() -> Vec<Window> {
    vec![Window {
        days: Day::ALL.to_vec(),
        start: "02:00".to_owned(),
        minutes: 60,
        time_zone: "UTC".to_owned(),
    }]
}

pub(super) fn group(name: &str, canaries: u32, bake_seconds: u64) -> Group {
    Group {
        name: name.to_owned(),
        match_labels: [("tier".to_owned(), name.to_owned())].into(),
        canaries,
        bake_seconds,
    }
}

pub(super) fn label(world: &mut World, guest: &str, tier: &str) {
    let guest = world.guests.get_mut(guest).expect("a guest");
    guest.labels = [("tier".to_owned(), tier.to_owned())].into();
}

/// A world whose deployment is complete, and in which guests run another program.
pub(super) fn joined(count: u32, observed: &Observed) -> World {
    let mut world = world(half(), guests(count));
    world.environment.status.lock = None;
    world.deployments[0].status.state = DeploymentState::Complete;
    for guest in world.guests.values_mut() {
        guest.observed = observed.clone();
    }
    world
}

/// A turn of the deployment `d`, and its good end.
pub(super) fn kept(guest: &mut Guest, digit: &str) {
    let turn = TurnSpec {
        environment: "m".to_owned(),
        deployment: "d".to_owned(),
        revision: "m-r1".to_owned(),
        version: "1.1.0".to_owned(),
        sha256: digit.repeat(64),
        token: "d-1".to_owned(),
        epoch: 1,
        attempt: 1,
        verb: TurnVerb::Try,
    };
    guest.observed = seen(digit, PartSource::A);
    guest.last = Some(InstancePart::kept(&turn, at(0).wall));
    guest.turn = Some(turn);
}

/// A turn of the deployment `d` whose program is on trial.
pub(super) fn tried(guest: &mut Guest, left_s: u64) {
    kept(guest, "1");
    guest.last = None;
    if let Observed::Seen(part) = &mut guest.observed {
        part.state.phase = PartPhase::Trial;
        part.state.token = "d-1".to_owned();
        part.state.left_s = left_s;
    }
}
