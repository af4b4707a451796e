//! Objects of the environment. A write holds the version that the engine has read.

use std::collections::BTreeMap;

use fleet_core::{Deployment, Environment, Guest, Observed, Outcome, Revision, World, Write};
use protocol::fleet::{
    Day, DeploymentSpec, DeploymentState, DeploymentStatus, EnvironmentSpec, EnvironmentStatus,
    Group, InstancePart, Judge, Resolved, Rollout, TurnResult, TurnSpec, Window, revision_name,
};
use protocol::parts::PartName;
use protocol::time::WallTime;

use super::guest::{PlayedGuest, Release};
use super::rng::Rng;
use super::run::{Shape, TRIAL_SECONDS};
use super::sabotage::FleetSabotage;

pub(super) const ENVIRONMENT: &str = "monitors";

#[derive(Debug)]
pub(super) struct Store {
    pub(super) environment: Environment,
    pub(super) revisions: BTreeMap<String, Revision>,
    pub(super) deployments: Vec<Deployment>,
    pub(super) turns_of: BTreeMap<String, (Option<TurnSpec>, Option<InstancePart>)>,
    pub(super) rollout: Rollout,
    pub(super) turns: u64,
    /// Version of each deployment, and the one that the engine has read.
    versions: BTreeMap<String, (u64, u64)>,
    sabotage: Option<FleetSabotage>,
    pub(super) shape: Shape,
    pub(super) started: u32,
    /// Times that the environment was made again.
    pub(super) made: u32,
    /// Guest whose record cannot be written.
    pub(super) poison: Option<String>,
    /// Turns that were refused in a row.
    pub(super) refused: u32,
    /// Whether a turn had a lower epoch than the one before.
    pub(super) has_fallen: bool,
}

impl Store {
    pub(super) fn new(rng: &mut Rng, shape: Shape, sabotage: Option<FleetSabotage>) -> Self {
        let percent = [0, 50, 66, 90, 99];
        let rollout = Rollout {
            min_healthy_percent: percent[rng.index(percent.len())],
            max_in_flight: u32::try_from(rng.between(1, 5)).unwrap_or(1),
            max_per_node: u32::try_from(rng.between(1, 2)).unwrap_or(1),
            trial_seconds: TRIAL_SECONDS,
            deadline_seconds: 1000,
            retries: 1,
            groups: groups(shape),
            judge: Judge {
                guest_minutes: 1,
                ..Judge::default()
            },
            ..Rollout::default()
        };
        let revisions = Release::ALL.into_iter().skip(1).take(5).zip(1_i64..);
        let revisions = revisions.map(|(release, number)| {
            let program = Resolved {
                version: format!("1.0.{number}"),
                sha256: release.sha256(),
                bundle: String::new(),
            };
            (
                revision_name(ENVIRONMENT, number),
                Revision {
                    rollout: rollout.clone(),
                    program,
                    image: fleet_core::ImageCheck::default(),
                },
            )
        });
        Self {
            environment: Environment {
                name: ENVIRONMENT.to_owned(),
                spec: EnvironmentSpec {
                    rollout: rollout.clone(),
                    windows: windows(shape),
                    ..EnvironmentSpec::of_release(PartName::Monitor, "1.0.1")
                },
                status: EnvironmentStatus::default(),
                is_deleted: false,
                has_finalizer: false,
            },
            revisions: revisions.collect(),
            deployments: Vec::new(),
            turns_of: BTreeMap::new(),
            rollout,
            turns: 0,
            versions: BTreeMap::new(),
            sabotage,
            shape,
            started: 0,
            made: 0,
            poison: None,
            refused: 0,
            has_fallen: false,
        }
    }

    /// Number of the releases that people start. The harmful one passes where no judge looks.
    pub(super) fn releases(&self) -> u64 {
        if self.shape == Shape::Groups { 5 } else { 4 }
    }

    /// What the engine reads.
    pub(super) fn world(
        &mut self,
        guests: &BTreeMap<String, PlayedGuest>,
        second: u64,
        agent_seconds: u64,
    ) -> World {
        for (version, read) in self.versions.values_mut() {
            *read = *version;
        }
        let guests = guests.iter().filter(|(name, played)| {
            let (turn, last) = self.turns_of.get(*name).cloned().unwrap_or_default();
            let guest = Guest {
                turn,
                last,
                ..Guest::default()
            };
            played.matches || guest.claim().is_some()
        });
        let guests = guests.map(|(name, played)| {
            let (turn, last) = self.turns_of.get(name).cloned().unwrap_or_default();
            let guest = Guest {
                node: played.node.clone(),
                is_enrolled: true,
                boot: played.boot.to_string(),
                observed: self.observed(played, second),
                facts: played.facts(agent_seconds),
                gate: played.gate(second),
                turn,
                last,
                has_left: !played.matches,
                labels: labels(self.shape, name),
                readings: Some(played.readings(second)),
                uptime_seconds: self.uptime(played, second),
                ..Guest::default()
            };
            (name.clone(), guest)
        });
        let mut environment = self.environment.clone();
        if self.sabotage == Some(FleetSabotage::NoWindows) {
            environment.spec.windows.clear();
        }
        World {
            environment,
            revisions: self.revisions.clone(),
            deployments: self.deployments.clone(),
            guests: guests.collect(),
            is_critical: false,
        }
    }

    fn observed(&self, played: &PlayedGuest, second: u64) -> Observed {
        let mut observed = played.observed(second);
        if let Observed::Seen(part) = &mut observed
            && self.sabotage == Some(FleetSabotage::FalseReports)
            && played.running == Release::Image
        {
            part.state.sha256 = Release::Good.sha256();
        }
        observed
    }

    /// Without the time of its boot a guest is led as if it had just begun.
    fn uptime(&self, played: &PlayedGuest, second: u64) -> Option<u64> {
        let ran = played
            .booted
            .map_or(LONG_SECONDS + second, |booted| second - booted);
        (self.shape == Shape::Windows).then_some(ran)
    }

    /// A guest and what belongs to it are gone.
    pub(super) fn remove(&mut self, name: &str) {
        self.turns_of.remove(name);
    }

    pub(super) fn touched(&mut self, name: &str) {
        self.versions.entry(name.to_owned()).or_default().0 += 1;
    }

    pub(super) fn write(&mut self, write: Write, now: WallTime) -> Outcome {
        match write {
            Write::Environment(mut status) => {
                if self.sabotage == Some(FleetSabotage::StuckLock) && status.lock.is_none() {
                    status.lock.clone_from(&self.environment.status.lock);
                }
                self.environment.status = status;
            }
            Write::Finalizer(true) => self.environment.has_finalizer = true,
            Write::Finalizer(false) => self.recreate(),
            Write::Deployment { name, status } => return self.write_deployment(&name, status),
            Write::Create { name, spec } => {
                if self.deployments.iter().any(|one| one.name == name) {
                    return Outcome::Conflict;
                }
                self.create(name, spec, now);
            }
            Write::Turn { guest, .. } if self.is_refused(&guest) => {
                self.refused += 1;
                return Outcome::Refused("the record is odd".to_owned());
            }
            Write::Turn { guest, mut turn } => {
                self.refused = 0;
                if self.sabotage == Some(FleetSabotage::FallingEpochs) {
                    turn.epoch = 1;
                }
                let before = self
                    .turns_of
                    .get(&guest)
                    .and_then(|(turn, _)| turn.as_ref());
                self.has_fallen |= before.is_some_and(|before| before.epoch >= turn.epoch);
                self.turns += 1;
                if self.sabotage == Some(FleetSabotage::ExtraTurns) {
                    self.add_turns(&guest, &turn);
                }
                self.turns_of.entry(guest).or_default().0 = Some(turn);
            }
            Write::End { guest, part, .. } => {
                let is_lost = self.sabotage == Some(FleetSabotage::OpenTurns)
                    && part.last.result == TurnResult::Skip;
                if is_lost {
                    return Outcome::Transient("the record was lost".to_owned());
                }
                self.turns_of.entry(guest).or_default().1 = Some(part);
            }
        }
        Outcome::Done
    }

    /// Whether the record of a guest cannot be written.
    fn is_refused(&self, guest: &str) -> bool {
        self.poison.as_deref() == Some(guest)
            || self.sabotage == Some(FleetSabotage::RefusedRecords)
    }

    /// Whether a deployment says that it waits for what never comes: the guest whose record is
    /// refused, or a window after the last evening.
    pub(super) fn never_ends(&self, deployment: &Deployment) -> bool {
        let by = deployment.status.blocked_by.as_ref();
        by.is_some_and(|by| match by.gate.as_str() {
            "pause" => {
                let mut poison = self.poison.iter();
                poison.any(|name| by.detail.starts_with(&format!("{name}:")))
            }
            "window" => self.shape == Shape::Windows,
            _ => false,
        })
    }

    /// The environment goes with its deployments, and a person makes it again.
    pub(super) fn recreate(&mut self) {
        self.environment.is_deleted = false;
        self.environment.has_finalizer = false;
        self.environment.status = EnvironmentStatus::default();
        self.deployments.clear();
        self.versions.clear();
        self.started = 0;
        self.made += 1;
    }

    fn write_deployment(&mut self, name: &str, mut status: DeploymentStatus) -> Outcome {
        let (version, read) = self.versions.get(name).copied().unwrap_or_default();
        if version != read {
            return Outcome::Conflict;
        }
        if self.sabotage == Some(FleetSabotage::UnnamedGate) {
            status.blocked_by = None;
        }
        for one in &mut self.deployments {
            let is_second = self.sabotage == Some(FleetSabotage::SecondDeployment)
                && one.status.state == DeploymentState::Pending;
            if one.name == name || is_second {
                one.status = status.clone();
            }
        }
        Outcome::Done
    }

    pub(super) fn create(&mut self, name: String, spec: DeploymentSpec, created: WallTime) {
        self.deployments.push(Deployment {
            name,
            created,
            spec,
            status: DeploymentStatus::default(),
            answers: BTreeMap::new(),
        });
    }

    fn add_turns(&mut self, first: &str, turn: &TurnSpec) {
        let others: Vec<String> = (0..4).map(|number| format!("vm-{number}")).collect();
        for other in others.into_iter().filter(|other| other != first) {
            self.turns_of.entry(other).or_default().0 = Some(turn.clone());
        }
    }

    pub(super) fn ends(&self) -> BTreeMap<String, u32> {
        let mut ends = BTreeMap::new();
        for one in &self.deployments {
            let name = format!("{:?} {:?}", one.spec.kind, one.status.state);
            *ends.entry(name).or_default() += 1;
        }
        ends
    }
}

/// Uptime of a guest that did not begin in the run.
const LONG_SECONDS: u64 = 10_000;

fn groups(shape: Shape) -> Vec<Group> {
    if shape != Shape::Groups {
        return Vec::new();
    }
    let group = |name: &str, canaries| Group {
        name: name.to_owned(),
        match_labels: [("tier".to_owned(), name.to_owned())].into(),
        canaries,
        bake_seconds: 120,
    };
    vec![group("test", 1), group("all", MOST_CANARIES)]
}

/// Most canaries of a group.
pub(super) const MOST_CANARIES: u32 = 2;

/// Labels of a guest. With groups every seventh guest is in none.
pub(super) fn labels(shape: Shape, name: &str) -> BTreeMap<String, String> {
    let number: u32 = name
        .rsplit('-')
        .next()
        .and_then(|text| text.parse().ok())
        .unwrap_or(0);
    let tier = match number % 7 {
        _ if shape != Shape::Groups => return BTreeMap::new(),
        6 => return BTreeMap::new(),
        0 | 4 => "test",
        _ => "all",
    };
    [("tier".to_owned(), tier.to_owned())].into()
}

/// Open from second 1000 to 2200, and from 2500 to 4900, of a run that begins at 22:13:20.
fn windows(shape: Shape) -> Vec<Window> {
    if shape != Shape::Windows {
        return Vec::new();
    }
    let window = |start: &str, minutes| Window {
        days: Day::ALL.to_vec(),
        start: start.to_owned(),
        minutes,
        time_zone: "UTC".to_owned(),
    };
    vec![window("22:30", 20), window("22:55", 40)]
}
