//! People who start and stop deployments at random.

use protocol::fleet::{DeploymentKind, DeploymentSpec, revision_name};
use protocol::time::WallTime;

use super::rng::Rng;
use super::store::{ENVIRONMENT, Store};

/// Chance of a start in a second, in a million.
const START_PPM: u32 = 4000;
/// Chance of a stop in a second, in a million.
const STOP_PPM: u32 = 800;

impl Store {
    pub(super) fn people(&mut self, rng: &mut Rng, now: WallTime, guests: &[String]) {
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
                environment: ENVIRONMENT.to_owned(),
                revision: revision_name(ENVIRONMENT, number),
                kind: DeploymentKind::User,
                instances: instances.cloned().collect(),
                rollback_of: String::new(),
                reason: String::new(),
                stop: false,
            };
            self.create(format!("d{}", self.started), spec, now);
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
