//! Deployments that the engine makes: the way back from a failed one, and guests that run another
//! program than the environment's.

use protocol::fleet::{DeploymentKind, DeploymentSpec, DeploymentState};
use protocol::parts::PartPhase;

use super::action::{Now, Write};
use super::lifecycle::{in_order, newest_started};
use super::standing::{Standing, is_member, standing};
use super::timing::{Timing, runs_image};
use crate::world::{Deployment, Guest, Observed, Revision, World};

/// Most guests that a deployment names. Beyond it takes all.
const MAX_NAMED: usize = 500;
/// Longest share of a deployment's name in that of its rollback, bytes.
const NAME_BYTES: usize = 50;

/// The deployment to create, if there is one.
pub(super) fn next(world: &World, now: Now) -> Option<Write> {
    let is_active = |one: &Deployment| !one.status.state.is_terminal();
    if world.environment.is_deleted || world.deployments.iter().any(is_active) {
        return None;
    }
    let newest = newest_started(world)?;
    match newest.status.state {
        DeploymentState::Unhealthy => rollback(world, newest),
        DeploymentState::Complete if !newest.spec.stop => repair(world, newest, now),
        _ => None,
    }
}

/// Brings the guests that a failed deployment touched to the revision before.
fn rollback(world: &World, failed: &Deployment) -> Option<Write> {
    let revision = world.revisions.get(&failed.spec.revision)?;
    let is_back = |one: &Deployment| one.spec.rollback_of == failed.name;
    let is_person = failed.spec.kind == DeploymentKind::User;
    if !is_person || !revision.rollout.auto_rollback || world.deployments.iter().any(is_back) {
        return None;
    }
    let mut before = in_order(world).into_iter();
    let complete = before.rfind(|one| {
        one.status.state == DeploymentState::Complete
            && !one.spec.kind.is_of_monitor()
            && one.spec.revision != failed.spec.revision
    })?;
    if was_rolled_back(world, failed, complete) {
        return None;
    }
    let touched = world.guests.iter().filter(|(_, guest)| {
        let of_turn = guest.turn.as_ref().map(|turn| &turn.deployment);
        guest.takes_part() && of_turn == Some(&failed.name)
    });
    let touched = touched.map(|(name, _)| name.clone()).collect();
    let short: String = failed.name.chars().take(NAME_BYTES).collect();
    Some(Write::Create {
        name: format!("{short}-rollback"),
        spec: DeploymentSpec {
            kind: DeploymentKind::Rollback,
            rollback_of: failed.name.clone(),
            ..spec_of(world, complete, touched)
        },
    })
}

/// Whether this revision was taken back to that one before. Then a person is asked.
fn was_rolled_back(world: &World, failed: &Deployment, complete: &Deployment) -> bool {
    let backs = world.deployments.iter().filter(|one| {
        one.spec.kind == DeploymentKind::Rollback && one.spec.revision == complete.spec.revision
    });
    backs.into_iter().any(|back| {
        let mut all = world.deployments.iter();
        let of_back = all.find(|one| one.name == back.spec.rollback_of);
        of_back.is_some_and(|one| one.spec.revision == failed.spec.revision)
    })
}

fn spec_of(world: &World, like: &Deployment, instances: Vec<String>) -> DeploymentSpec {
    let named = if instances.len() > MAX_NAMED {
        Vec::new()
    } else {
        instances
    };
    DeploymentSpec {
        environment: world.environment.name.clone(),
        revision: like.spec.revision.clone(),
        kind: DeploymentKind::NewInstance,
        instances: named,
        rollback_of: String::new(),
        reason: String::new(),
        stop: false,
    }
}

/// Brings guests to the environment's version that do not run it.
fn repair(world: &World, newest: &Deployment, now: Now) -> Option<Write> {
    let revision = world.revisions.get(&newest.spec.revision)?;
    let everyone = Deployment {
        spec: spec_of(world, newest, Vec::new()),
        ..newest.clone()
    };
    let kind = DeploymentKind::HealthRepair;
    let timing = Timing::new(world, kind, revision.rollout.trial_seconds, now.wall);
    let wrong = world.guests.iter().filter(|(name, guest)| {
        is_member(&everyone, revision, name, guest)
            && guest.gate.is_none()
            && timing.gate(name, guest).is_none()
            && runs_another(guest, revision)
            && !has_failed(guest, &newest.spec.revision)
            && !matches!(standing(&everyone, revision, name, guest), Standing::Done)
    });
    let wrong: Vec<(&String, &Guest)> = wrong.collect();
    let (_, first) = wrong.first()?;
    let kind = if runs_image(first) {
        DeploymentKind::NewInstance
    } else {
        DeploymentKind::HealthRepair
    };
    let word = match kind {
        DeploymentKind::NewInstance => "join",
        _ => "repair",
    };
    let seconds = now.wall.0.div_euclid(1_000_000);
    let environment: String = world.environment.name.chars().take(NAME_BYTES).collect();
    let names = wrong.iter().map(|(name, _)| (*name).clone()).collect();
    Some(Write::Create {
        name: format!("{environment}-{word}-{seconds}"),
        spec: DeploymentSpec {
            kind,
            ..spec_of(world, newest, names)
        },
    })
}

fn runs_another(guest: &Guest, revision: &Revision) -> bool {
    matches!(&guest.observed, Observed::Seen(part)
        if part.state.sha256 != revision.program.sha256 && part.state.phase != PartPhase::Trial)
}

/// Whether this revision ended badly in the guest: only a person tries it there again.
fn has_failed(guest: &Guest, revision: &str) -> bool {
    let last = guest.last.as_ref().filter(|_| !guest.is_in_flight());
    let ended_badly = last.is_some_and(|part| part.last.result == protocol::fleet::TurnResult::Bad);
    let of_turn = guest.turn.as_ref().map(|turn| turn.revision.as_str());
    ended_badly && of_turn == Some(revision)
}
