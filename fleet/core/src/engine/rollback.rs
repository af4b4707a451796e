//! The way back from a release that failed, also where it failed soon after its deployment was
//! complete.

use protocol::fleet::{DeploymentKind, DeploymentSpec, DeploymentState, EnvironmentStatus, Group};
use protocol::time::WallTime;
use protocol::vm::Condition;

use super::action::Write;
use super::monitor::{NAME_BYTES, spec_of};
use super::order::in_order;
use super::stage;
use super::standing::{Standing, allowed_bad, is_member, standing};
use crate::deployment::{DeploymentEvent, Move, next as table};
use crate::judge::sure_harm;
use crate::proof::health;
use crate::world::{Deployment, Guest, Revision, World};

/// Bakes after its end in which a complete deployment is taken back.
const BAKES: u64 = 3;
/// Longest reason of a deployment, characters.
const REASON_CHARS: usize = 500;
/// Type of the condition that asks a person.
const NEEDS_PERSON: &str = "NeedsPerson";

/// Brings the guests that a failed deployment touched to the revision before. `is_sick`: a guest
/// has been unhealthy for long.
pub(super) fn next(
    world: &World,
    newest: &Deployment,
    is_sick: bool,
    now: WallTime,
) -> Option<Write> {
    let revision = world.revisions.get(&newest.spec.revision)?;
    let reason = failure(world, newest, revision, is_sick, now)?;
    let is_back = |one: &Deployment| one.spec.rollback_of == newest.name;
    if !revision.rollout.auto_rollback || world.deployments.iter().any(is_back) {
        return None;
    }
    let complete = before(world, newest)?;
    if was_rolled_back(world, newest, complete) {
        return None;
    }
    let touched = world
        .guests
        .iter()
        .filter(|(_, guest)| guest.takes_part() && is_touched(newest, guest));
    let touched = touched.map(|(name, _)| name.clone()).collect();
    let short: String = newest.name.chars().take(NAME_BYTES).collect();
    Some(Write::Create {
        name: format!("{short}-rollback"),
        spec: DeploymentSpec {
            kind: DeploymentKind::Rollback,
            rollback_of: newest.name.clone(),
            reason: reason.chars().take(REASON_CHARS).collect(),
            ..spec_of(world, complete, touched)
        },
    })
}

/// Whether a deployment brought its program to a guest. After a complete one, repairs did too.
fn is_touched(failed: &Deployment, guest: &Guest) -> bool {
    let is_complete = failed.status.state == DeploymentState::Complete;
    guest.turn.as_ref().is_some_and(|turn| {
        turn.deployment == failed.name || (is_complete && turn.revision == failed.spec.revision)
    })
}

/// Why the newest deployment of a person is taken back. `None`: it is not.
fn failure(
    world: &World,
    newest: &Deployment,
    revision: &Revision,
    is_sick: bool,
    now: WallTime,
) -> Option<String> {
    let spec = &newest.spec;
    if spec.kind != DeploymentKind::User {
        return None;
    }
    if newest.status.state == DeploymentState::Unhealthy {
        return Some(String::new());
    }
    let event = DeploymentEvent::Halt;
    if table(newest.status.state, spec.kind, event) != Move::RollBack || spec.stop {
        return None;
    }
    let ended = newest.status.ended_at?;
    let since = u64::try_from(now.0.saturating_sub(ended.0)).unwrap_or(0) / 1_000_000;
    if since >= BAKES * longest_bake(&revision.rollout.groups) {
        return None;
    }
    harm(world, newest, revision, is_sick)
}

/// Length of the longest bake. Without groups it is that of a group by default.
fn longest_bake(groups: &[Group]) -> u64 {
    let longest = groups.iter().map(|group| group.bake_seconds).max();
    longest.unwrap_or_else(Group::default_bake_seconds)
}

/// What speaks against a release that all guests run. No guest is left to compare them with, so
/// rates do not count.
fn harm(world: &World, newest: &Deployment, revision: &Revision, is_sick: bool) -> Option<String> {
    let mut changed: Vec<(&String, &Guest)> = Vec::new();
    let mut total = 0;
    for (name, guest) in &world.guests {
        total += u32::from(is_member(newest, revision, name, guest));
        let runs_it = standing(newest, revision, name, guest) == Standing::Done;
        if runs_it && is_touched(newest, guest) {
            changed.push((name, guest));
        }
    }
    let sickens = |guest: &Guest| {
        health(guest) == Some(false) && guest.last.as_ref().is_some_and(|last| last.healthy)
    };
    let sick: Vec<&str> = changed
        .iter()
        .filter(|(_, guest)| sickens(guest))
        .map(|(name, _)| name.as_str())
        .collect();
    let is_beyond = u32::try_from(sick.len()).is_ok_and(|sick| sick > allowed_bad(total, revision));
    if is_beyond && is_sick {
        return Some(format!(
            "unhealthy after it was complete: {}",
            sick.join(" ")
        ));
    }
    if !stage::has_groups(newest, revision) {
        return None;
    }
    let readings: Vec<_> = changed
        .iter()
        .filter_map(|(_, guest)| guest.readings.as_ref())
        .collect();
    sure_harm(&readings, &revision.rollout.judge)
}

/// The last complete deployment for all guests with another revision.
fn before<'a>(world: &'a World, failed: &Deployment) -> Option<&'a Deployment> {
    in_order(world).into_iter().rfind(|one| {
        one.status.state == DeploymentState::Complete
            && !one.spec.kind.is_of_monitor()
            && one.spec.revision != failed.spec.revision
    })
}

/// Whether this revision was taken back to that one before. Then a person is asked.
fn was_rolled_back(world: &World, failed: &Deployment, complete: &Deployment) -> bool {
    let mut backs = world.deployments.iter().filter(|one| {
        one.spec.kind == DeploymentKind::Rollback && one.spec.revision == complete.spec.revision
    });
    backs.any(|back| {
        let mut all = world.deployments.iter();
        let of_back = all.find(|one| one.name == back.spec.rollback_of);
        of_back
            .is_some_and(|one| one.name != failed.name && one.spec.revision == failed.spec.revision)
    })
}

/// Asks a person where a release failed that was taken back once already.
pub(super) fn conditions(
    world: &World,
    newest: Option<&Deployment>,
    is_sick: bool,
    now: WallTime,
) -> Vec<Condition> {
    let known: &EnvironmentStatus = &world.environment.status;
    let others = known
        .conditions
        .iter()
        .filter(|one| one.kind != NEEDS_PERSON);
    let mut all: Vec<Condition> = others.cloned().collect();
    if let Some(message) = newest.and_then(|newest| question(world, newest, is_sick, now)) {
        let before = known.conditions.iter().find(|one| one.kind == NEEDS_PERSON);
        all.push(Condition {
            kind: NEEDS_PERSON.to_owned(),
            status: "True".to_owned(),
            reason: "RolledBackBefore".to_owned(),
            message,
            last_transition_time: before.map_or(Some(now), |one| one.last_transition_time),
            observed_generation: None,
        });
    }
    all
}

fn question(world: &World, newest: &Deployment, is_sick: bool, now: WallTime) -> Option<String> {
    let revision = world.revisions.get(&newest.spec.revision)?;
    failure(world, newest, revision, is_sick, now)?;
    let complete = before(world, newest)?;
    was_rolled_back(world, newest, complete).then(|| {
        format!(
            "{} failed again after it was taken back to {} before: start another revision",
            newest.spec.revision, complete.spec.revision
        )
    })
}
