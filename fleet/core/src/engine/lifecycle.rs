//! Lock, states and figures of deployments and of their environment.

use protocol::fleet::{
    Counts, DeploymentKind, DeploymentState, DeploymentStatus, EnvironmentState, EnvironmentStatus,
    Health, Lock,
};
use protocol::time::WallTime;

use super::action::{Now, Write};
use super::hooks::Hold;
use super::moved::moved;
use super::order::{in_order, newest_started};
use super::standing::{Tally, allowed_bad, tally};
use super::{cron, hooks, images, rollback, stage};
use crate::counts;
use crate::deployment::DeploymentEvent;
use crate::permit::Gate;
use crate::world::{Deployment, Revision, World};

/// The next write that moves a deployment or the lock.
pub(super) fn next(world: &World, epoch: u64, now: Now) -> Option<Write> {
    let all = in_order(world);
    let asked = all
        .iter()
        .find_map(|one| asked_for(world, one, &all, now.wall));
    asked.or_else(|| lock(world, &all, epoch, now.wall))
}

/// What people ordered: stop, deletion, a newer deployment.
fn asked_for(world: &World, one: &Deployment, all: &[&Deployment], now: WallTime) -> Option<Write> {
    let newest_user = all
        .iter()
        .rfind(|other| other.spec.kind == DeploymentKind::User);
    let is_newer = |other: &&&Deployment| {
        other.name != one.name && position(all, &other.name) > position(all, &one.name)
    };
    if one.spec.stop {
        return moved(one, DeploymentEvent::Stop, Vec::new(), now);
    }
    if world.environment.is_deleted {
        return moved(one, DeploymentEvent::EnvironmentDeleted, Vec::new(), now);
    }
    let newer = newest_user.filter(is_newer)?;
    let evidence = vec![format!("superseded by {}", newer.name)];
    moved(one, DeploymentEvent::NewerUser, evidence, now)
}

fn position(all: &[&Deployment], name: &str) -> Option<usize> {
    all.iter().position(|one| one.name == name)
}

fn lock(world: &World, all: &[&Deployment], epoch: u64, now: WallTime) -> Option<Write> {
    let status = &world.environment.status;
    let Some(lock) = &status.lock else {
        return taken(world, all, epoch);
    };
    let held = all.iter().find(|one| one.name == lock.deployment);
    match held {
        Some(one) if one.status.state == DeploymentState::Pending => Some(begun(one, epoch, now)),
        Some(one) if !one.status.state.is_terminal() => run(world, one, now),
        // The holder is gone or has ended.
        _ => Some(Write::Environment(EnvironmentStatus {
            lock: None,
            ..status.clone()
        })),
    }
}

/// The lock for the deployment that goes next.
fn taken(world: &World, all: &[&Deployment], epoch: u64) -> Option<Write> {
    let rank = |one: &Deployment| match one.status.state {
        DeploymentState::Pending if one.spec.kind == DeploymentKind::Rollback => 1,
        DeploymentState::Pending if one.spec.kind == DeploymentKind::User => 2,
        DeploymentState::Pending => 3,
        _ => 0,
    };
    let waiting = all.iter().filter(|one| !one.status.state.is_terminal());
    let next = waiting.min_by_key(|one| rank(one))?;
    Some(Write::Environment(EnvironmentStatus {
        lock: Some(Lock {
            deployment: next.name.clone(),
            kind: next.spec.kind,
            epoch,
        }),
        ..world.environment.status.clone()
    }))
}

fn begun(one: &Deployment, epoch: u64, now: WallTime) -> Write {
    Write::Deployment {
        name: one.name.clone(),
        status: DeploymentStatus {
            state: DeploymentState::InProgress,
            started_at: Some(now),
            epoch,
            ..one.status.clone()
        },
    }
}

/// Ends of the deployment that holds the lock.
fn run(world: &World, one: &Deployment, now: WallTime) -> Option<Write> {
    let Some(revision) = world.revisions.get(&one.spec.revision) else {
        let reason = format!(
            "revision {} does not exist, or was changed after it was made",
            one.spec.revision
        );
        return stopped(world, one, DeploymentEvent::Halt, vec![reason], now);
    };
    if world.environment.spec.is_cron() {
        return cron::run(world, one, revision, now);
    }
    let tally = tally(world, one, revision);
    let mut write = limits(world, one, revision, &tally, now)?;
    if let Write::Deployment { status, .. } = &mut write {
        status.progress = tally.progress;
    }
    Some(write)
}

/// Halt, deadline and end.
fn limits(
    world: &World,
    one: &Deployment,
    revision: &Revision,
    tally: &Tally,
    now: WallTime,
) -> Option<Write> {
    if tally.progress.failed > allowed_bad(tally.progress.total, revision) {
        return stopped(world, one, DeploymentEvent::Halt, tally.bad.clone(), now);
    }
    if let Some(reasons) = stage::harm(world, one, revision, now) {
        return stopped(world, one, DeploymentEvent::Halt, reasons, now);
    }
    if let Some(reason) = hooks::veto(one, revision, now) {
        return stopped(world, one, DeploymentEvent::Halt, vec![reason], now);
    }
    let ran = ran_for(one, now);
    let deadline = revision.rollout.deadline_seconds.saturating_mul(1_000_000);
    if ran >= deadline {
        let reason = format!(
            "{} of {} guests are left",
            tally.waiting, tally.progress.total
        );
        return stopped(world, one, DeploymentEvent::Deadline, vec![reason], now);
    }
    ended(one, revision, tally, now)
}

/// Time in which the deployment could give turns, microseconds.
fn ran_for(one: &Deployment, now: WallTime) -> u64 {
    let since = |at: WallTime| u64::try_from(now.0.saturating_sub(at.0)).unwrap_or(0);
    let blocked = one.status.blocked_by.as_ref();
    let of_blocked = |gate: &Gate| blocked.is_some_and(|by| by.gate == gate.as_str());
    let stops = Gate::ALL
        .into_iter()
        .find(of_blocked)
        .is_some_and(Gate::stops_the_deadline);
    let held = blocked.filter(|_| stops).map_or(0, |by| since(by.since));
    let all = one.status.started_at.map_or(0, since);
    all.saturating_sub(held)
        .saturating_sub(one.status.held_seconds.saturating_mul(1_000_000))
}

/// Stops the deployment, or ends it if it is being stopped and nothing is in flight.
fn stopped(
    world: &World,
    one: &Deployment,
    event: DeploymentEvent,
    reasons: Vec<String>,
    now: WallTime,
) -> Option<Write> {
    if one.status.state != DeploymentState::ToBeStopped {
        return moved(one, event, reasons, now);
    }
    if event == DeploymentEvent::Halt
        && let Some(write) = moved(one, event, reasons, now)
    {
        return Some(write);
    }
    (!has_turns(world, one))
        .then(|| moved(one, DeploymentEvent::InFlightSettled, Vec::new(), now))?
}

fn has_turns(world: &World, one: &Deployment) -> bool {
    world.guests.values().any(|guest| {
        let of_turn = guest.turn.as_ref().map(|turn| &turn.deployment);
        guest.is_in_flight() && of_turn == Some(&one.name)
    })
}

fn ended(one: &Deployment, revision: &Revision, tally: &Tally, now: WallTime) -> Option<Write> {
    if tally.progress.in_flight > 0 {
        return None;
    }
    if one.status.state == DeploymentState::ToBeStopped {
        return moved(one, DeploymentEvent::InFlightSettled, Vec::new(), now);
    }
    if tally.waiting > 0 || !stage::is_passed(one, revision) {
        return None;
    }
    match hooks::hold(one, revision, true, now) {
        Hold::Free => moved(one, DeploymentEvent::AllSettled, tally.bad.clone(), now),
        Hold::Waits => None,
        Hold::Write(write) => Some(*write),
    }
}

/// Figures of the newest deployments, where they changed.
pub(super) fn progress(world: &World) -> Option<Write> {
    let lock = world.environment.status.lock.as_ref()?;
    let of_lock = |one: &&Deployment| one.name == lock.deployment;
    let one = world.deployments.iter().find(of_lock)?;
    let revision = world.revisions.get(&one.spec.revision)?;
    let progress = tally(world, one, revision).progress;
    if progress == one.status.progress || one.status.state.is_terminal() {
        return None;
    }
    Some(Write::Deployment {
        name: one.name.clone(),
        status: DeploymentStatus {
            progress,
            groups: stage::figures(world, one, revision),
            ..one.status.clone()
        },
    })
}

fn guests(world: &World) -> Counts {
    let groups = &world.environment.spec.rollout.groups;
    counts::counts(world.guests.values(), groups)
}

/// Health of the guests together, at this moment.
pub(super) fn health_of_guests(world: &World) -> Health {
    let counts = guests(world);
    if counts.unhealthy > 0 {
        Health::Unhealthy
    } else if counts.active > 0 {
        Health::Healthy
    } else {
        Health::Unknown
    }
}

/// The environment's status, where it changed.
pub(super) fn environment_status(
    world: &World,
    of_guests: Health,
    is_sick: bool,
    now: WallTime,
) -> Option<Write> {
    let before = &world.environment.status;
    let counts = guests(world);
    let newest = newest_started(world);
    let has_failed = newest.is_some_and(|one| one.status.state == DeploymentState::Unhealthy);
    let health = if world.environment.spec.is_cron() {
        cron::health(world)
    } else if has_failed {
        Health::Unhealthy
    } else {
        of_guests
    };
    let state = match newest {
        _ if world.environment.is_deleted => EnvironmentState::ToBeDeleted,
        Some(one) if !one.spec.stop => EnvironmentState::Active,
        _ => EnvironmentState::Inactive,
    };
    let revision = newest.and_then(|one| world.revisions.get(&one.spec.revision));
    let conditions = if world.environment.spec.is_cron() {
        cron::conditions(world)
    } else {
        let mut conditions = rollback::conditions(world, newest, is_sick, now);
        images::add_condition(&mut conditions, world, revision, now);
        conditions
    };
    let status = EnvironmentStatus {
        state,
        health,
        desired: revision.map_or_else(String::new, |one| one.program.version.clone()),
        current: counts::current(world.guests.values()),
        counts,
        lock: before.lock.clone(),
        conditions,
    };
    (status != *before).then_some(Write::Environment(status))
}
