//! Order of the deployments of an environment.

use crate::world::{Deployment, World};

/// Deployments, the oldest first.
pub(super) fn in_order(world: &World) -> Vec<&Deployment> {
    let mut all: Vec<&Deployment> = world.deployments.iter().collect();
    all.sort_by_key(|one| (one.created, revision_number(one), &one.name));
    all
}

fn revision_number(deployment: &Deployment) -> u64 {
    let number = deployment.spec.revision.rsplit_once("-r");
    number
        .and_then(|(_, number)| number.parse().ok())
        .unwrap_or(0)
}

/// The newest deployment that was started for all guests.
pub(super) fn newest_started(world: &World) -> Option<&Deployment> {
    let mut all = in_order(world).into_iter();
    all.rfind(|one| !one.spec.kind.is_of_monitor() && one.status.started_at.is_some())
}
