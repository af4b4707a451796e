//! People who start and stop deployments at random.

use protocol::fleet::{DeploymentKind, DeploymentSpec, DeploymentState, revision_name};
use protocol::time::WallTime;

use super::rng::Rng;
use super::store::{ENVIRONMENT, Store};

/// Chance of a start in a second, in a million.
const START_PPM: u32 = 4000;
/// Chance of a deletion in a second, in a million.
const DELETE_PPM: u32 = 400;
/// Chance of a rollback by a person in a second, in a million.
const BACK_PPM: u32 = 300;
/// Chance of a stop in a second, in a million.
const STOP_PPM: u32 = 800;

impl Store {
    pub(super) fn people(&mut self, rng: &mut Rng, now: WallTime, guests: &[String]) {
        self.delete(rng);
        if self.environment.is_deleted {
            return;
        }
        if self.started == 0 || rng.chance(START_PPM) {
            // The first one is sound, so that there is a way back from the others.
            let number = if self.started == 0 {
                1
            } else {
                i64::try_from(rng.between(1, self.releases())).unwrap_or(1)
            };
            self.started += 1;
            let is_partial = self.started > 1 && rng.chance(100_000);
            let instances = guests.iter().take(if is_partial { 2 } else { 0 });
            let spec = DeploymentSpec {
                instances: instances.cloned().collect(),
                ..DeploymentSpec::new(
                    ENVIRONMENT,
                    revision_name(ENVIRONMENT, number),
                    DeploymentKind::User,
                )
            };
            let made = self.made;
            self.create(format!("d{made}-{}", self.started), spec, now);
        }
        if self.started > 1 && rng.chance(BACK_PPM) {
            self.go_back(now);
        }
        if self.started > 1 && rng.chance(STOP_PPM) {
            let running = |one: &&mut fleet_core::Deployment| !one.status.state.is_terminal();
            let name = self.deployments.iter_mut().rfind(running).map(|one| {
                one.spec.stop = true;
                one.name.clone()
            });
            if let Some(name) = name {
                self.touched(&name);
            }
        }
    }
}

impl Store {
    /// A person deletes the environment, which the server refuses while a person rolls out.
    fn delete(&mut self, rng: &mut Rng) {
        let lock = self.environment.status.lock.as_ref();
        let is_of_person = lock.is_some_and(|lock| lock.kind == DeploymentKind::User);
        if self.started > 1 && rng.chance(DELETE_PPM) && !is_of_person {
            // Without a finalizer nothing has begun.
            match self.environment.has_finalizer {
                true => self.environment.is_deleted = true,
                false => self.recreate(),
            }
        }
    }

    /// A person starts the last complete revision again.
    fn go_back(&mut self, now: WallTime) {
        let complete = self
            .deployments
            .iter()
            .rfind(|one| one.status.state == DeploymentState::Complete);
        if let Some(mut spec) = complete.map(|one| one.spec.clone()) {
            spec.kind = DeploymentKind::User;
            spec.rollback_of = String::new();
            spec.instances = Vec::new();
            spec.stop = false;
            self.started += 1;
            let (made, number) = (self.made, self.started);
            self.create(format!("d{made}-{number}"), spec, now);
        }
    }
}
