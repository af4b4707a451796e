//! Which part of the control plane goes first? An earlier part runs a version before a later one
//! does, and one part changes at a time.

use fleet_core::is_open;
use fleet_core::permit::Gate;
use fleet_store::LoadedEnvironment;
use protocol::fleet::{EnvironmentState, TurnResult};
use protocol::parts::PartName;
use semver::Version;

/// Gate of a part by other environments of the control plane.
pub(crate) fn gate(own: &LoadedEnvironment, all: &[LoadedEnvironment]) -> Option<Gate> {
    let others = all.iter().filter(|one| {
        let is_own = one.namespace == own.namespace && one.environment.name == own.environment.name;
        !is_own && one.environment.spec.part.is_service()
    });
    let goes_first = |other: &LoadedEnvironment| {
        place(other.environment.spec.part) < place(own.environment.spec.part)
    };
    let (mut order, mut peer) = (None, None);
    for other in others {
        if goes_first(other) && is_behind(other, own) {
            order = Some(Gate::Order);
        }
        if has_open_turn(other) {
            peer = Some(Gate::PeerInFlight);
        }
    }
    order.or(peer)
}

/// Order of changes. Agents follow the control plane but for the fleet, which replaces them.
fn place(part: PartName) -> usize {
    let all = PartName::CONTROL_PLANE;
    let place = all.iter().position(|one| *one == part);
    place.unwrap_or(all.len() - 1)
}

/// Whether an environment changes, or runs an older version than another one is brought to.
fn is_behind(other: &LoadedEnvironment, own: &LoadedEnvironment) -> bool {
    let mut deployments = other.deployments.iter();
    if deployments.any(|one| !one.status.state.is_terminal()) {
        return true;
    }
    if other.environment.status.state != EnvironmentState::Active {
        return false;
    }
    match (version_of(other), target_of(own)) {
        (Some(runs), Some(target)) => runs < target,
        _ => false,
    }
}

/// Version that the newest good turn brought.
fn version_of(loaded: &LoadedEnvironment) -> Option<Version> {
    let lasts = loaded.turns.values().filter_map(|(_, last)| last.as_ref());
    let kept = lasts.filter(|last| last.last.result == TurnResult::Good);
    let newest = kept.max_by_key(|last| last.last.at)?;
    Version::parse(&newest.version).ok()
}

/// Version of the deployment in progress, else of the next one, which gets its lock and its turn in
/// one pass of the engine.
fn target_of(loaded: &LoadedEnvironment) -> Option<Version> {
    let lock = loaded.environment.status.lock.as_ref();
    let has_lock = |name: &str| lock.is_some_and(|lock| lock.deployment == name);
    let all = loaded.deployments.iter();
    let open = all.filter(|one| !one.status.state.is_terminal());
    let next = open.max_by_key(|one| (has_lock(&one.name), one.created))?;
    let revision = loaded.revisions.get(&next.spec.revision)?;
    Version::parse(&revision.program.version).ok()
}

fn has_open_turn(loaded: &LoadedEnvironment) -> bool {
    let mut turns = loaded.turns.values();
    turns.any(|(turn, last)| {
        let of_own = turn.as_ref();
        let of_own = of_own.filter(|turn| turn.environment == loaded.environment.name);
        is_open(of_own, last.as_ref())
    })
}
