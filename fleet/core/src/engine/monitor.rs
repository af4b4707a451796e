//! Deployments that the engine makes for guests that run another program than they should.

use protocol::fleet::{DeploymentKind, DeploymentSpec, DeploymentState};
use protocol::parts::PartPhase;
use protocol::time::WallTime;

use super::action::{Now, Write};
use super::order::newest_started;
use super::rollback;
use super::standing::{Standing, is_back, is_member, standing};
use super::timing::{Timing, runs_image};
use crate::world::{Deployment, Guest, Observed, Revision, World};

/// Most guests that a deployment names. Beyond it takes all.
const MAX_NAMED: usize = 500;
/// Longest share of a deployment's name in that of its rollback, bytes.
pub(super) const NAME_BYTES: usize = 50;

/// The deployment to create, if there is one. `is_sick`: a guest has been unhealthy for long.
pub(super) fn next(world: &World, is_sick: bool, now: Now) -> Option<Write> {
    let is_active = |one: &Deployment| !one.status.state.is_terminal();
    if world.environment.is_deleted || world.deployments.iter().any(is_active) {
        return None;
    }
    let newest = newest_started(world)?;
    if let Some(write) = rollback::next(world, newest, is_sick, now.wall) {
        return Some(write);
    }
    match newest.status.state {
        DeploymentState::Complete if !newest.spec.stop => repair(world, newest, now),
        _ => None,
    }
}

pub(super) fn spec_of(world: &World, like: &Deployment, instances: Vec<String>) -> DeploymentSpec {
    let named = if instances.len() > MAX_NAMED {
        Vec::new()
    } else {
        instances
    };
    DeploymentSpec {
        instances: named,
        ..DeploymentSpec::new(
            &world.environment.name,
            &like.spec.revision,
            DeploymentKind::NewInstance,
        )
    }
}

/// Brings guests to the environment's version that do not run it, and guests that left the
/// environment to the program of their image. One deployment takes all guests of one cause.
fn repair(world: &World, newest: &Deployment, now: Now) -> Option<Write> {
    let revision = world.revisions.get(&newest.spec.revision)?;
    let timing = Timing::new(
        world,
        DeploymentKind::HealthRepair,
        revision.rollout.trial_seconds,
        now.wall,
    );
    let mut wrong = Vec::new();
    for (name, guest) in &world.guests {
        if guest.gate.is_none()
            && timing.gate(name, guest).is_none()
            && let Some(kind) = cause(world, newest, revision, (name, guest), now.wall)
        {
            wrong.push((name, kind));
        }
    }
    let (_, kind) = *wrong.first()?;
    let word = match kind {
        DeploymentKind::NewInstance => "join",
        DeploymentKind::GroupChange => "group",
        _ => "repair",
    };
    let seconds = now.wall.0.div_euclid(1_000_000);
    let environment: String = world.environment.name.chars().take(NAME_BYTES).collect();
    let of_kind = wrong.iter().filter(|(_, of_guest)| *of_guest == kind);
    let names = of_kind.map(|(name, _)| (*name).clone()).collect();
    Some(Write::Create {
        name: format!("{environment}-{word}-{seconds}"),
        spec: DeploymentSpec {
            kind,
            ..spec_of(world, newest, names)
        },
    })
}

/// Why a guest needs a turn that nobody ordered. `None`: it needs none.
fn cause(
    world: &World,
    newest: &Deployment,
    revision: &Revision,
    (name, guest): (&String, &Guest),
    now: WallTime,
) -> Option<DeploymentKind> {
    let everyone = |kind| Deployment {
        spec: DeploymentSpec {
            kind,
            ..spec_of(world, newest, Vec::new())
        },
        ..newest.clone()
    };
    if guest.has_left {
        let is_own = guest.claim() == Some(&world.environment.name) && guest.takes_part();
        let runs_ours = matches!(&guest.observed, Observed::Seen(part) if !is_back(&part.state));
        return (is_own && runs_ours).then_some(DeploymentKind::GroupChange);
    }
    let everyone = everyone(DeploymentKind::NewInstance);
    let is_wrong = is_member(&everyone, revision, name, guest)
        && runs_another(guest, revision)
        && !has_failed(guest, &newest.spec.revision)
        && !matches!(standing(&everyone, revision, name, guest), Standing::Done);
    is_wrong.then(|| match runs_image(guest) {
        true if was_there(world, newest, guest, now) => DeploymentKind::GroupChange,
        true => DeploymentKind::NewInstance,
        false => DeploymentKind::HealthRepair,
    })
}

/// Whether a guest without a turn ran already when the newest deployment ended without it: its
/// labels have changed since.
fn was_there(world: &World, newest: &Deployment, guest: &Guest, now: WallTime) -> bool {
    let progress = newest.status.progress;
    let left_some = progress.deferred + progress.skipped > 0;
    let Some((uptime, ended)) = guest.uptime_seconds.zip(newest.status.ended_at) else {
        return false;
    };
    let is_own = |turn: &protocol::fleet::TurnSpec| turn.environment == world.environment.name;
    let had_turn = guest.turn.as_ref().is_some_and(is_own) && guest.claim().is_some();
    let since_end = u64::try_from(now.0.saturating_sub(ended.0)).unwrap_or(0) / 1_000_000;
    !had_turn && !left_some && uptime > since_end
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
