//! Environments that verify at their times: which run is due, and what it finds. No guest changes.
//!
//! A run looks at all guests at once and ends with one write, so each guest is judged once by it.
//! It waits for those that cannot be seen, at most as long as a trial lasts.

use std::collections::BTreeSet;

use protocol::fleet::{
    BlockedBy, DeploymentKind, DeploymentSpec, DeploymentState, DeploymentStatus, Health, Progress,
    Tick,
};
use protocol::parts::{PartPhase, PartState};
use protocol::time::WallTime;
use protocol::vm::Condition;

use super::action::Write;
use super::monitor::{NAME_BYTES, spec_of};
use super::moved::moved;
use super::order::{in_order, newest_started};
use super::standing::is_member;
use crate::deployment::DeploymentEvent;
use crate::permit::Gate;
use crate::windows::ticks;
use crate::world::{Deployment, Guest, Observed, Revision, World};

/// Type of the condition that says what the newest run found.
const VERIFIED: &str = "Verified";
/// Most guests that a run names for each finding.
const MAX_NAMED: usize = 100;
/// Digits of a hash in texts.
const SHORT_DIGEST: usize = 12;

/// The run that is due. Of several times that have passed the newest has one. The others are
/// counted.
pub(super) fn next(world: &World, now: WallTime) -> Option<Write> {
    let cron = world.environment.spec.cron.as_ref()?;
    let is_active = |one: &Deployment| !one.status.state.is_terminal();
    if world.environment.is_deleted || world.deployments.iter().any(is_active) {
        return None;
    }
    let since = active_since(world)?;
    // A clock that ran ahead leaves runs of times to come: they hold nothing up.
    let runs = world.deployments.iter().filter_map(|one| one.spec.tick);
    let last = runs.map(|tick| tick.at).filter(|at| *at <= now).max();
    let due = ticks(cron, last.map_or(since, |last| last.max(since)), now);
    let (at, missed) = due.split_last()?;
    let missed = u32::try_from(missed.len()).unwrap_or(u32::MAX);
    let environment: String = world.environment.name.chars().take(NAME_BYTES).collect();
    Some(Write::Create {
        name: format!("{environment}-cron-{}", at.0.div_euclid(1_000_000)),
        spec: DeploymentSpec {
            kind: DeploymentKind::Cron,
            tick: Some(Tick { at: *at, missed }),
            reason: match missed {
                0 => String::new(),
                1 => "the time before it was missed".to_owned(),
                _ => format!("{missed} times before it were missed"),
            },
            ..spec_of(world, newest_started(world)?, Vec::new())
        },
    })
}

/// Start of the oldest deployment of a person since the last one that was stopped.
fn active_since(world: &World) -> Option<WallTime> {
    let all = in_order(world).into_iter();
    let started = all.filter(|one| !one.spec.kind.is_of_monitor());
    let started = started.filter_map(|one| Some((one.spec.stop, one.status.started_at?)));
    started.fold(None, |since, (is_stopped, at)| {
        (!is_stopped).then(|| since.unwrap_or(at))
    })
}

/// What a run finds in the guests.
#[derive(Default)]
struct Findings {
    total: u32,
    /// Guests that run the program of the revision.
    right: u32,
    /// Guests that run the program of another revision.
    behind: Vec<String>,
    /// Guests that run a program that no revision has.
    wrong: Vec<String>,
    /// Guests that could not be judged.
    unseen: Vec<(String, Gate)>,
}

impl Findings {
    fn of(world: &World, one: &Deployment, revision: &Revision) -> Self {
        let mut found = Self::default();
        for (name, guest) in &world.guests {
            if !is_member(one, revision, name, guest) {
                continue;
            }
            found.total += 1;
            let part = match seen(guest) {
                Ok(part) => part,
                Err(gate) => {
                    found.unseen.push((name.clone(), gate));
                    continue;
                }
            };
            let mut others = world.revisions.iter();
            let of_hash = others.find(|(_, other)| other.program.sha256 == part.sha256);
            if part.sha256 == revision.program.sha256 {
                found.right += 1;
            } else if let Some((other, _)) = of_hash {
                found.behind.push(format!("{name} runs {other}"));
            } else {
                found
                    .wrong
                    .push(format!("{name}: {}", deviation(world, part)));
            }
        }
        found
    }

    fn progress(&self) -> Progress {
        let count = |found: usize| u32::try_from(found).unwrap_or(u32::MAX);
        Progress {
            done: self.right,
            total: self.total,
            in_flight: 0,
            failed: count(self.wrong.len()),
            deferred: count(self.unseen.len()),
            skipped: count(self.behind.len()),
        }
    }

    fn evidence(&self) -> Vec<String> {
        let unseen = self.unseen.iter();
        let unseen: Vec<String> = unseen
            .map(|(name, gate)| format!("{name} was not seen: {}", gate.detail()))
            .collect();
        let mut all = Vec::new();
        for found in [&self.wrong, &unseen, &self.behind] {
            all.extend(found.iter().take(MAX_NAMED).cloned());
            if found.len() > MAX_NAMED {
                all.push(format!("and {} more of these", found.len() - MAX_NAMED));
            }
        }
        all
    }
}

/// What runs in a guest, unless it cannot be seen or is about to change.
fn seen(guest: &Guest) -> Result<&PartState, Gate> {
    match &guest.observed {
        Observed::Seen(part) if part.state.phase == PartPhase::Trial || guest.is_in_flight() => {
            Err(Gate::PeerInFlight)
        }
        Observed::Seen(part) => Ok(&part.state),
        Observed::Silent | Observed::Unreachable | Observed::Unmanaged(_) => Err(Gate::Unreachable),
    }
}

/// What is wrong with a program that no revision has.
fn deviation(world: &World, part: &PartState) -> String {
    let digest: String = part.sha256.chars().take(SHORT_DIGEST).collect();
    let versions: BTreeSet<&str> = world
        .revisions
        .values()
        .map(|revision| revision.program.version.as_str())
        .collect();
    let runs = format!("runs {} sha256:{digest}", part.version);
    if versions.contains(part.version.as_str()) {
        format!("{runs}, which is not the program of that version")
    } else {
        format!("{runs}, which no revision has")
    }
}

/// The end of a run, or the gate that it waits for.
pub(super) fn run(
    world: &World,
    one: &Deployment,
    revision: &Revision,
    now: WallTime,
) -> Option<Write> {
    if one.status.state == DeploymentState::ToBeStopped {
        return moved(one, DeploymentEvent::InFlightSettled, Vec::new(), now);
    }
    let found = Findings::of(world, one, revision);
    let limit = i64::try_from(revision.rollout.trial_seconds).unwrap_or(i64::MAX);
    let begun = one.status.started_at.unwrap_or(now);
    let waited = now.0.saturating_sub(begun.0) / 1_000_000;
    // A clock that was set back ends the wait too.
    let waits = (0..limit).contains(&waited) && now >= begun;
    if let Some((name, gate)) = found.unseen.first().filter(|_| waits) {
        return blocked(one, &found, (name, *gate), now);
    }
    let event = match found.wrong.is_empty() {
        true => DeploymentEvent::AllSettled,
        false => DeploymentEvent::Halt,
    };
    let mut write = moved(one, event, found.evidence(), now)?;
    if let Write::Deployment { status, .. } = &mut write {
        status.progress = found.progress();
    }
    Some(write)
}

fn blocked(
    one: &Deployment,
    found: &Findings,
    (guest, gate): (&str, Gate),
    now: WallTime,
) -> Option<Write> {
    let known = one.status.blocked_by.as_ref();
    if known.is_some_and(|known| known.gate == gate.as_str()) {
        return None;
    }
    Some(Write::Deployment {
        name: one.name.clone(),
        status: DeploymentStatus {
            state: DeploymentState::Blocked,
            progress: found.progress(),
            blocked_by: Some(BlockedBy {
                gate: gate.as_str().to_owned(),
                detail: format!("{guest}: {}", gate.detail()),
                since: now,
            }),
            ..one.status.clone()
        },
    })
}

/// The newest run that came to an end by itself. Of those that were made in one second, the times
/// of their ends tell which.
fn newest_run(world: &World) -> Option<&Deployment> {
    let ends = [DeploymentState::Complete, DeploymentState::Unhealthy];
    let all = in_order(world).into_iter();
    let ended = all.filter(|one| ends.contains(&one.status.state));
    ended.max_by_key(|one| (one.created, one.status.ended_at))
}

/// Health of the environment: what its newest run found.
pub(super) fn health(world: &World) -> Health {
    match newest_run(world) {
        Some(run) if run.status.state == DeploymentState::Unhealthy => Health::Unhealthy,
        Some(run) if run.status.progress.deferred == 0 => Health::Healthy,
        _ => Health::Unknown,
    }
}

/// What the newest run found, for people.
pub(super) fn conditions(world: &World) -> Vec<Condition> {
    let known = &world.environment.status.conditions;
    let others = known.iter().filter(|one| one.kind != VERIFIED);
    let mut all: Vec<Condition> = others.cloned().collect();
    let Some(run) = newest_run(world) else {
        return all;
    };
    let Progress {
        done,
        total,
        failed,
        deferred,
        skipped,
        ..
    } = run.status.progress;
    let (status, reason) = match health(world) {
        Health::Healthy => ("True", "AsReleased"),
        Health::Unhealthy => ("False", "WrongProgram"),
        Health::Unknown => ("Unknown", "NotSeen"),
    };
    let mut before = known.iter().filter(|one| one.kind == VERIFIED);
    let since = before.find(|one| one.status == status);
    let missed = run.spec.tick.map_or(0, |tick| tick.missed);
    let message = format!(
        "{}: {done} of {total} guests run the program of {}, {skipped} that of another revision, \
         {failed} another program, {deferred} were not seen; {missed} times before it were missed",
        run.name, run.spec.revision
    );
    all.push(Condition {
        kind: VERIFIED.to_owned(),
        status: status.to_owned(),
        reason: reason.to_owned(),
        message,
        last_transition_time: since.map_or(run.status.ended_at, |one| one.last_transition_time),
        observed_generation: None,
    });
    all
}
