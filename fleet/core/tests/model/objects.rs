//! The objects of an environment, with a version of each.

use std::collections::BTreeMap;

use fleet_core::{Deployment, Environment, Outcome, Revision, Write};
use protocol::fleet::{
    DeploymentKind, DeploymentSpec, DeploymentStatus, EnvironmentSpec, EnvironmentStatus,
    InstancePart, Resolved, Rollout, TurnSpec,
};
use protocol::parts::PartName;
use protocol::time::WallTime;

use super::guest::Release;

/// Versions of objects, by key.
pub(crate) type Versions = BTreeMap<String, u64>;

#[derive(Debug, Clone)]
pub(crate) struct Objects {
    pub(crate) status: EnvironmentStatus,
    pub(crate) has_finalizer: bool,
    pub(crate) deployments: Vec<Deployment>,
    pub(crate) turns: BTreeMap<String, (Option<TurnSpec>, Option<InstancePart>)>,
    pub(crate) versions: Versions,
}

fn key(write: &Write) -> String {
    match write {
        Write::Environment(_) | Write::Finalizer(_) => "environment".to_owned(),
        Write::Deployment { name, .. } | Write::Create { name, .. } => format!("deployment {name}"),
        Write::Turn { guest, .. } | Write::End { guest, .. } => format!("instance {guest}"),
    }
}

impl Objects {
    /// An environment with one pending deployment.
    pub(crate) fn new() -> Self {
        let mut objects = Self {
            status: EnvironmentStatus::default(),
            has_finalizer: false,
            deployments: Vec::new(),
            turns: BTreeMap::new(),
            versions: Versions::new(),
        };
        objects.start("d1", "m-r1");
        objects
    }

    /// A person starts a deployment.
    pub(crate) fn start(&mut self, name: &str, revision: &str) {
        let number = i64::try_from(self.deployments.len()).unwrap_or(0);
        self.deployments.push(Deployment {
            name: name.to_owned(),
            created: WallTime(number),
            spec: DeploymentSpec::new("m", revision, DeploymentKind::User),
            status: DeploymentStatus::default(),
            answers: BTreeMap::new(),
        });
    }

    /// A person stops the first deployment.
    pub(crate) fn stop(&mut self) {
        self.deployments[0].spec.stop = true;
        let name = self.deployments[0].name.clone();
        self.changed(format!("deployment {name}"));
    }

    /// Takes over figures of a status. No engine waits for them, so no version changes.
    pub(crate) fn show(&mut self, write: Write) {
        let versions = self.versions.clone();
        let mut read = versions.clone();
        self.write(write, &mut read, true);
        self.versions = versions;
    }

    fn changed(&mut self, key: String) {
        *self.versions.entry(key).or_default() += 1;
    }

    /// Carries a write out if its object is as it was read. `is_blind`: without a look at that.
    pub(crate) fn write(&mut self, write: Write, read: &mut Versions, is_blind: bool) -> Outcome {
        let key = key(&write);
        if !is_blind && self.versions.get(&key) != read.get(&key) {
            return Outcome::Conflict;
        }
        match write {
            Write::Environment(status) => self.status = status,
            Write::Finalizer(is_there) => self.has_finalizer = is_there,
            Write::Deployment { name, status } => {
                let mut all = self.deployments.iter_mut();
                if let Some(one) = all.find(|one| one.name == name) {
                    one.status = status;
                }
            }
            Write::Create { name, spec } => {
                if self.deployments.iter().any(|one| one.name == name) {
                    return Outcome::Conflict;
                }
                let number = i64::try_from(self.deployments.len()).unwrap_or(0);
                self.deployments.push(Deployment {
                    name,
                    created: WallTime(number),
                    spec,
                    status: DeploymentStatus::default(),
                    answers: BTreeMap::new(),
                });
            }
            Write::Turn { guest, turn } => self.turns.entry(guest).or_default().0 = Some(turn),
            Write::End { guest, part, .. } => self.turns.entry(guest).or_default().1 = Some(part),
        }
        self.changed(key.clone());
        if let Some(version) = self.versions.get(&key) {
            read.insert(key, *version);
        }
        Outcome::Done
    }
}

fn rollout() -> Rollout {
    Rollout {
        min_healthy_percent: 0,
        max_in_flight: 1,
        trial_seconds: 20,
        retries: 0,
        ..Rollout::default()
    }
}

/// What no order changes.
pub(crate) fn revisions() -> BTreeMap<String, Revision> {
    let of = |release: Release, number: u32| {
        let program = Resolved {
            version: format!("1.0.{number}"),
            sha256: release.sha256(),
            bundle: String::new(),
        };
        let rollout = rollout();
        let image = fleet_core::ImageCheck::default();
        let revision = Revision {
            rollout,
            program,
            image,
        };
        (format!("m-r{number}"), revision)
    };
    [of(Release::Good, 1), of(Release::Better, 2)].into()
}

/// The environment, with what the store has of it.
pub(crate) fn environment(objects: &Objects) -> Environment {
    Environment {
        name: "m".to_owned(),
        spec: EnvironmentSpec {
            rollout: rollout(),
            ..EnvironmentSpec::of_release(PartName::Monitor, "1.0.1")
        },
        status: objects.status.clone(),
        is_deleted: false,
        has_finalizer: objects.has_finalizer,
    }
}
